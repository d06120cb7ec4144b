"""Number of updates in a chunk, and the call of the program that computes it.

The host visits a run once per chunk, and writes a line of metrics.jsonl. A chunk is one call of a
program with the number of updates as argument (`learner.run_up_to`). Unless it is configured, a run
finds it in its first seconds: the updates of about 2 s, so that the milliseconds that the host
needs per chunk are negligible.
"""

import dataclasses
import time

import jax
import numpy as np

from wdjax.checks import require
from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.packing import Packed, unpack
from wdjax.train.devices.processes import number_of_first
from wdjax.train.host.failures import FailedCheckError
from wdjax.train.host.programs import Program
from wdjax.train.state.aliases import Metrics
from wdjax.train.state.sharding import differing_leaves
from wdjax.train.state.state import TrainState

SECONDS = 2.0  # duration of a chunk whose size is measured
LONG_ENOUGH = 0.25  # seconds of a call from which the time of an update can be measured
MOST, LINES = 4096, 20  # limits for a run: most updates of a chunk, fewest chunks
# the same for members of a sweep, whose score is computed from the last chunk
MOST_OF_SWEEP, LINES_OF_SWEEP = 512, 10


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
    """Result of a chunk."""

    state: TrainState
    metrics: Metrics  # of one run [updates], of a population [members, updates]
    size: int  # updates
    seconds: float


def most_updates(config: TrainConfig) -> int:
    """Return the largest number of updates in a chunk of a run."""
    most = config.updates_per_chunk or min(MOST, -(-config.num_updates // LINES))
    return min(most, config.num_updates)


def room(config: TrainConfig) -> int:
    """Return the largest number of updates of the program of a run.

    It is the same for most configurations, so that the compiled program is found in the cache.
    """
    return max(config.updates_per_chunk, MOST)


def with_lines(config: TrainConfig) -> TrainConfig:
    """Return the configuration of members of a sweep, with their chunk size.

    Scores are computed from the last chunk, so that its size must not depend on a clock.
    """
    found = min(MOST_OF_SWEEP, -(-config.num_updates // LINES_OF_SWEEP))
    return dataclasses.replace(config, updates_per_chunk=config.updates_per_chunk or found)


def next_look(config: TrainConfig, done: int, last: int, also: int = 0) -> int:
    """Return the number of updates at the end of the next chunk.

    Chunks end after multiples of their size, at checkpoints and evaluations, and at the end.

    Args:
        config: configuration of the run.
        done: updates before the chunk.
        last: updates of the whole run.
        also: chunks also end after multiples of this number; 0: none.

    Raises:
        ValueError: if no update is left.
    """
    require(done < last, "updates", done, f"below {last}, the last update: no chunk is left")
    every = [config.updates_per_chunk, config.updates_per_checkpoint, also]
    every += [config.updates_per_evaluation] * config.evaluates
    return min([last, *((done // number + 1) * number for number in every if number)])


def play(program: Program, state: TrainState, size: int) -> Played:
    """Compute `size` updates, at least 1. Raise FailedCheckError if devices differ."""
    require(size >= 1, "updates per chunk", size, "at least 1")
    start = time.perf_counter()
    state, packed = program(state, np.int32(size))
    metrics = jax.tree.map(lambda values: values[..., :size], unpack(jax.device_get(packed)))
    seconds = time.perf_counter() - start
    # after the wait: processes must not mix the collectives of two programs
    require_equal_devices(state, packed)
    return Played(state, metrics, size, seconds)


def require_equal_devices(state: TrainState, metrics: Packed) -> None:
    """Raise FailedCheckError if parameters or metrics differ between devices."""
    names = differing_leaves(state, metrics)
    if names:
        raise FailedCheckError(
            f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
            f": must be equal on all devices but differs after {int(state.num_updates)} "
            "updates. In the algorithm's `update`, reduce gradients, statistics and metrics over "
            "devices with `total` or `average` of wdjax.train.learning, or train with --devices 1. "
            "Earlier checkpoints are kept."
        )


def play_first(program: Program, state: TrainState, most: int) -> Played:
    """Compute the first chunk of a run, and find its size, at most `most` updates.

    Calls have 1, 1, 2, 4, ... updates until one is long enough to measure the time of an update.
    The last call completes the chunk to SECONDS.
    """
    calls = [play(program, state, 1)]
    done, seconds = 1, number_of_first(calls[0].seconds)
    # the first call may include loading: it can only show that updates are long
    while done < most and seconds < (LONG_ENOUGH if len(calls) > 1 else SECONDS):
        calls.append(play(program, calls[-1].state, min(done, most - done)))
        done, seconds = done + calls[-1].size, number_of_first(calls[-1].seconds)
    missing = min(most, round(SECONDS / seconds * calls[-1].size)) - done
    if missing > 0:
        calls.append(play(program, calls[-1].state, missing))
    join = lambda *values: np.concatenate(values, -1)  # noqa: E731
    return Played(
        calls[-1].state,
        jax.tree.map(join, *(call.metrics for call in calls)),
        sum(call.size for call in calls),
        sum(call.seconds for call in calls),
    )
