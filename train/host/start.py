"""Start of a run: its first state or its newest checkpoint, and its program."""

from collections.abc import Callable
from pathlib import Path

import jax
from orbax.checkpoint import CheckpointManager

from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.chunks import room
from wdjax.train.host.debug import compile_checked
from wdjax.train.host.determinism import forgets_determinism
from wdjax.train.host.programs import Program, compile_and_init, compile_chunk
from wdjax.train.learner.init import abstract_state
from wdjax.train.learner.learner import Learner
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import HostData, restore_newest
from wdjax.train.storage.folder import read_made_with
from wdjax.train.storage.switches import switch_warnings

FORGOTTEN = (
    "Warning: this run used --deterministic. Without the flag, results are not bit-identical."
)


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
    size = host["metrics_size"]
    restored(updates, state, host)
    if updates >= config.num_updates:
        return state, size, None, 0.0
    env_steps = updates * config.env_steps_per_update
    say(f"Resuming from {checkpoints.directory}/{updates}, {env_steps:,} env steps")
    if forgets_determinism(host["deterministic"]):
        say(FORGOTTEN)
    for warning in switch_warnings(read_made_with(workdir)):
        say(warning)
    if debug:
        return state, size, compile_checked(learner, most), 0.0
    return state, size, *compile_chunk(learner, like, most)
