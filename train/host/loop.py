"""The loop on the host: a program of several updates on the device, a chunk, and what happens between two of them.

A run (train/trainer.py) is a job of this loop, and so are runs side by side, a round of a sweep
(experiments/sweep/rounds.py).
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from wdjax.train.config.schema import TrainConfig
from wdjax.train.learner.bad_numbers import bad_in_a_row, ends_run, sound_updates
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import finish, require_saved, save
from wdjax.train.storage.metrics_log import MetricsLog

Row = dict[str, Any]  # a line of metrics.jsonl
Program = Callable[[TrainState], tuple[TrainState, dict[str, Any]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """What a run came to in a chunk, alone or side by side with others."""

    metrics: Mapping[str, np.ndarray]  # of its sound updates
    codes: np.ndarray  # of all its updates (learner/bad_numbers.py)
    streak: int  # bad ones in a row at the end, also over chunks
    ends: bool  # by the rules of bad numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """What a program of several updates came to."""

    before: int  # updates that were done before it
    size: int  # updates in it
    parts: list[Part]  # one for each run
    seconds: float
    compile_seconds: float  # since the chunk before


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What a job makes of a chunk."""

    state: TrainState  # that goes on
    done: int  # updates
    rows: list[Row]  # for metrics.jsonl
    words: str = ""  # for who watches
    failure: Callable[[], Exception] | None = None  # makes what the job ends with, once it is saved


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """What the loop trains, and who takes part between two chunks."""

    config: TrainConfig
    last: int  # updates at its end
    programs: dict[int, Program]  # by number of updates: those that are compiled
    compile: Callable[[TrainState, int], tuple[Program, float]]  # one more of them; and the seconds that it took
    judge: Callable[[TrainState, Chunk], Outcome]
    report: Callable[[list[Row]], None]  # called after every chunk with what was written
    host: Callable[[], dict[str, Any]]  # what a checkpoint holds beside the state
    say: Callable[[str], Any]
    checkpoints: Any
    log: MetricsLog | None  # of several processes the first one writes it
    lock: Callable[[], None] | None = None  # locks the folder again, whose lock lies on the log


def train_chunks(
    job: Job, state: TrainState, done: int, stopped: Callable[[], bool], compile_seconds: float = 0.0
) -> tuple[TrainState, int]:
    """Trains a job to its end, or until it is stopped, and saves. Returns (state, updates that are done).

    Args:
        state: after `done` updates; it is donated.
        stopped: asked before every chunk.
        compile_seconds: what was spent on a program that is there already.

    Raises:
        OSError: where metrics or a checkpoint cannot be written (a full disk); the checkpoints before stay whole.
        Exception: `Outcome.failure`.
    """
    config, parts = job.config, None
    while done < job.last and not stopped():
        size = min(config.updates_per_chunk, job.last - done)
        if size not in job.programs:
            job.programs[size], compile_seconds = job.compile(state, size)
            continue  # that may have taken minutes: somebody may want it to stop
        start = time.perf_counter()
        state, metrics = job.programs[size](state)
        metrics = jax.device_get(metrics)  # waits for the device
        seconds = time.perf_counter() - start
        require_saved(job.checkpoints)
        parts = take_apart(config, metrics, parts)
        outcome = job.judge(state, Chunk(done, size, parts, seconds, compile_seconds))
        state, done, compile_seconds = outcome.state, outcome.done, 0.0
        write_rows(job, outcome.rows)
        last = outcome.failure is not None or done == job.last
        if last or done // config.updates_per_chunk % config.checkpoint_every == 0:
            save_state(job.checkpoints, done, state, job.log, job.host())
        if outcome.failure is not None:
            finish(job.checkpoints)  # before it is said that the run is saved
            raise outcome.failure()
        if outcome.words:
            job.say(outcome.words)
        job.report(outcome.rows)
    write_rows(job, [])
    if done < job.last:
        save_state(job.checkpoints, done, state, job.log, job.host())
    return state, done


def take_apart(config: TrainConfig, metrics: Mapping[str, np.ndarray], before: Sequence[Part] | None) -> list[Part]:
    """Returns the parts of a chunk from its metrics, [updates] of one run or [runs, updates] of several.

    Args:
        before: the parts of the chunk before, if there was one.
    """
    several = np.ndim(metrics["bad_numbers"]) == 2
    runs = [{name: values[i] for name, values in metrics.items()} for i in range(len(metrics["bad_numbers"]))]
    parts = []
    for i, own in enumerate(runs if several else [metrics]):
        sound, codes = sound_updates(own)
        streak = bad_in_a_row(codes, before[i].streak if before else 0)
        parts.append(Part(sound, codes, streak, ends_run(config, codes, streak)))
    return parts


def write_rows(job: Job, rows: Sequence[Row]) -> None:
    """Appends rows to a job's log; where somebody has deleted that, it is written again first, with all its lines."""
    if job.log is None:
        return
    if job.log.is_gone():
        if job.lock is not None:
            job.lock()  # first: another run may have found the folder free
        job.log.write_again()
        job.say(f"Mind: {job.log.path} was deleted or replaced meanwhile: written again, with all its lines")
    for row in rows:
        job.log.write(row)


def save_state(manager: Any, step: int, state: TrainState, log: MetricsLog | None, host: Mapping[str, Any]) -> None:
    """Starts to save a state, and beside it how much of metrics.jsonl goes with it and what else the host needs."""
    if log:
        log.sync()
    save(manager, step, state, {"metrics_size": log.size if log else 0, **host})
