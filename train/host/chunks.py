"""How many updates a chunk has: what is between two looks of the host, and a line of metrics.jsonl.

A chunk is a call of a program that is told how many updates to do (`learner.run_up_to`). Where nobody says how many, a
run finds it in its first seconds, as many as take about 2 s, and keeps it: what the host does after a chunk, some
milliseconds, is then nothing, and who watches waits no longer.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from wdjax.checks import require
from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.packing import Packed, unpack
from wdjax.train.devices.processes import number_of_first
from wdjax.train.host.failures import FailedCheckError
from wdjax.train.host.programs import Program
from wdjax.train.state.sharding import differing_leaves
from wdjax.train.state.state import TrainState

SECONDS = 2.0  # of a chunk
LONG_ENOUGH = 0.25  # seconds of a call from which it says how long an update takes
MOST, LINES = (
    4096,
    20,
)  # updates of a chunk at most, where its size is found; chunks of a run at least
MOST_OF_SWEEP, LINES_OF_SWEEP = (
    512,
    10,
)  # the same of a member of a sweep, whose score is of its last chunk


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
    """What a chunk came to on the device."""

    state: TrainState
    metrics: Mapping[
        str, Any
    ]  # arrays or `Metric`s: [updates] of one run, [runs, updates] of several side by side
    size: int  # updates
    seconds: float


def most_updates(config: TrainConfig) -> int:
    """Returns how many updates a chunk of a run has at most."""
    return min(
        config.updates_per_chunk or min(MOST, -(-config.num_updates // LINES)), config.num_updates
    )


def room(config: TrainConfig) -> int:
    """Returns for how many updates the program of a run has room: of all lengths of run, and of most sizes of chunks,
    it is the same, which need not be compiled again."""
    return max(config.updates_per_chunk, MOST)


def with_lines(config: TrainConfig) -> TrainConfig:
    """Returns the configuration of members of a sweep with the size of their chunks: scores are of the last chunk, so
    that no clock may say how long it is."""
    found = min(MOST_OF_SWEEP, -(-config.num_updates // LINES_OF_SWEEP))
    return dataclasses.replace(config, updates_per_chunk=config.updates_per_chunk or found)


def next_look(config: TrainConfig, done: int, last: int, also: int = 0) -> int:
    """Return the number of updates at the end of the next chunk, more than `done`: at multiples of a chunk, of what is
    between two checkpoints or evaluations, and of `also`, and at the end. Raises ValueError where none is left."""
    require(done < last, "updates", done, f"below {last}, the last update: no chunk is left")
    every = [config.updates_per_chunk, config.updates_per_checkpoint, also]
    every += [config.updates_per_evaluation] * config.evaluates
    return min([last, *((done // number + 1) * number for number in every if number)])


def play(program: Program, state: TrainState, size: int) -> Played:
    """Do `size` updates, at least 1, and wait for the device. Raises FailedCheckError where devices disagree."""
    require(size >= 1, "updates per chunk", size, "at least 1")
    start = time.perf_counter()
    state, packed = program(state, np.int32(size))
    metrics = jax.tree.map(lambda values: values[..., :size], unpack(jax.device_get(packed)))
    seconds = time.perf_counter() - start
    require_equal_devices(
        state, packed
    )  # after the wait: processes must not mix the collectives of two programs
    return Played(state, metrics, size, seconds)


def require_equal_devices(state: TrainState, metrics: Packed) -> None:
    """Raise FailedCheckError where parameters or metrics of a run differ between its devices."""
    names = differing_leaves(state, metrics)
    if names:
        shown = f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
        raise FailedCheckError(
            f"{shown}: must be equal on all devices but differs after {int(state.num_updates)} updates. In the "
            "algorithm's `update`, reduce gradients, statistics and metrics over devices with `total` or `average` of "
            "wdjax.train.learning, or train with --devices 1. Earlier checkpoints are kept."
        )


def play_first(program: Program, state: TrainState, most: int) -> Played:
    """Does the first chunk of a run, of a size that it finds: calls of 1, 1, 2, 4, ... updates until one takes long
    enough to be judged by, and another of what is missing to 2 s."""
    calls = [play(program, state, 1)]
    done, seconds = 1, number_of_first(calls[0].seconds)
    # in its first call a device may have to load much: that one can only say that updates are long
    while done < most and seconds < (LONG_ENOUGH if len(calls) > 1 else SECONDS):
        calls.append(play(program, calls[-1].state, min(done, most - done)))
        done, seconds = done + calls[-1].size, number_of_first(calls[-1].seconds)
    missing = min(most, round(SECONDS / seconds * calls[-1].size)) - done
    if missing > 0:
        calls.append(play(program, calls[-1].state, missing))
    return functools.reduce(_joined, calls)


def _joined(first: Played, then: Played) -> Played:
    metrics = jax.tree.map(lambda *values: np.concatenate(values, -1), first.metrics, then.metrics)
    return Played(then.state, metrics, first.size + then.size, first.seconds + then.seconds)
