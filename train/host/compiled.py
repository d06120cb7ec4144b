"""The compiled program of a run: its memory before it runs, and the time of its updates."""

import dataclasses

from wdjax.train.devices.memory import bytes_needed
from wdjax.train.host.chunks import play, room
from wdjax.train.host.programs import Program, compile_chunk, telling
from wdjax.train.learner.learner import Learner
from wdjax.train.state.state import TrainState


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
