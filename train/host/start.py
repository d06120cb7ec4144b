"""Start of a run: its first state or its newest checkpoint, and its program.

`compile_run` compiles the program alone, for its memory and the time of its updates.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
from orbax.checkpoint import CheckpointManager

from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.memory import bytes_needed
from wdjax.train.host.chunks import play, room
from wdjax.train.host.debug import compile_checked
from wdjax.train.host.programs import Program, compile_and_init, compile_chunk, telling
from wdjax.train.learner.init import abstract_state
from wdjax.train.learner.learner import Learner
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import HostData, restore_newest
from wdjax.train.storage.folder import read_made_with
from wdjax.train.storage.switches import switch_warnings


def start_run(
    learner: Learner,
    config: TrainConfig,
    workdir: Path,
    checkpoints: CheckpointManager,
    restored: Callable[[int, TrainState, HostData], None],
    meanwhile: Callable[[], None],
    say: Callable[[str], None],
    debug: bool = False,
) -> tuple[TrainState, int, Program | None, float]:
    """Initialize a run, or restore its newest checkpoint, and compile its program.

    Args:
        learner: learner of the run.
        config: configuration of the run, with its chunk size if that is known.
        workdir: folder of the run.
        checkpoints: checkpoints of the run.
        restored: called with (updates, state, host) of the checkpoint, if there is one.
        meanwhile: called while the program of a new run is compiled.
        say: called with messages.
        debug: compile a program with checks, at its first call.

    Returns:
        (state, bytes of metrics.jsonl at that state, program or None if the run is complete,
        seconds of compiling).
    """
    like, most = abstract_state(learner.setup), room(config)
    found = restore_newest(checkpoints, like, config, say)
    if found is None:
        if debug:
            state = learner.init(jax.random.key(config.seed))
            return state, 0, compile_checked(learner, most), 0.0
        state, program, seconds = compile_and_init(learner, like, config.seed, most, meanwhile)
        return state, 0, program, seconds
    updates, state, host = found
    restored(updates, state, host)
    size = host["metrics_size"]
    if updates >= config.num_updates:
        return state, size, None, 0.0
    say(
        f"Resuming from {checkpoints.directory}/{updates}, "
        f"{updates * config.env_steps_per_update:,} env steps"
    )
    for warning in switch_warnings(read_made_with(workdir)):
        say(warning)
    if debug:
        return state, size, compile_checked(learner, most), 0.0
    return state, size, *compile_chunk(learner, like, most)


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledRun:
    """The program that `Trainer` runs, compiled without training."""

    bytes_needed: int
    """memory on each device, with a copy of the state that is being saved"""
    seconds: float
    """time of tracing and compiling"""
    kernels: tuple[str, ...]
    """lines on the parts that fused kernels compute, and the reasons for those that they do not"""
    program: Program
    """the program; it donates its state"""

    def time(self, state: TrainState, num_updates: int) -> tuple[TrainState, float]:
        """Train, and return (state, seconds) once the device has finished.

        Args:
            state: the state, which is donated: use the returned one instead.
            num_updates: number of updates, from 1 to the length of the run, at most 4096.
        """
        played = play(self.program, state, num_updates)
        return played.state, played.seconds


def compile_run(learner: Learner) -> CompiledRun:
    """Compile the program of a run, without memory for its arrays.

        compiled = compile_run(make_learner(config))
        print(f"{compiled.bytes_needed / 1e9:.1f} GB on each device")
        state, seconds = compiled.time(learner.init(key), num_updates=10)

    Args:
        learner: learner of the run.

    Returns:
        A CompiledRun.
    """
    kernels: list[str] = []
    with telling(kernels.append):
        program, seconds = compile_chunk(learner, learner.shapes, room(learner.config))
    return CompiledRun(bytes_needed(program), seconds, tuple(kernels), program)
