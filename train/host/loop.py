"""The loop on the host: chunks of updates on the device, and the work between them.

While the device computes a chunk, the host processes the previous one: metrics, checkpoints,
messages. A run (train/trainer.py) is a job of this loop, and so is a population
(train/population/population.py).
"""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, cast

import jax
import numpy as np
from orbax.checkpoint import CheckpointManager

from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.chunks import Played, most_updates, next_look, play, play_first
from wdjax.train.host.programs import Program
from wdjax.train.learner.bad_numbers import bad_in_a_row, ends_run, sound_updates
from wdjax.train.state.aliases import Metrics, PyTree
from wdjax.train.state.metric import values_of
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import (
    HostData,
    copied,
    finish,
    require_saved,
    save_state,
)
from wdjax.train.storage.metrics_log import MetricsLog, summarize

Row = dict[str, Any]  # a line of metrics.jsonl


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Metrics and update status of one run for one chunk."""

    metrics: Metrics  # without its bad updates
    codes: np.ndarray  # one for each of its updates (learner/bad_numbers.py)
    streak: int  # consecutive bad updates at the end, also over chunks
    ends: bool  # whether bad numbers end the run


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """Results of a chunk of updates."""

    before: int  # updates before the chunk
    size: int  # computed updates
    done: int  # valid updates after the chunk: fewer if a bad one ends the run
    parts: list[Part]  # one for each run
    seconds: float
    compile_seconds: float  # since the previous chunk
    # after the chunk; None if the next chunk has overwritten it and no copy was requested
    state: TrainState | None = None
    begun: PyTree | None = None  # result of the function that `Job.begin` returned


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """Result of `Job.judge` for a chunk."""

    rows: list[Row]  # for metrics.jsonl
    state: TrainState | None = None  # to continue with, if the job may change it
    failure: Callable[[], Exception] | None = None  # error that ends the job once it is saved


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """The program that the loop runs, and the functions that it calls between chunks."""

    config: TrainConfig
    last: int  # number of updates
    program: Program
    checkpoints: CheckpointManager
    log: MetricsLog | None  # of process 0
    judge: Callable[[Chunk], Outcome]
    report: Callable[[list[Row]], None]  # called when the rows of a chunk are written
    host: Callable[[], HostData] = HostData  # content of a checkpoint besides the state
    # returns a function to start on the device with the state after a chunk, before the next chunk;
    # None: the job does not read this state
    begin: Callable[[Chunk], Callable[[TrainState], PyTree | None] | None] = lambda chunk: None
    # chunks also end after multiples of this number of updates, and the next one waits for `judge`,
    # which may change the state; 0: no
    also: int = 0
    alone: bool = True  # one run, which bad numbers may end; False: a population
    beside: bool = True  # whether the host works while the device computes


def train_chunks(
    job: Job,
    state: TrainState,
    done: int,
    stopped: Callable[[], bool],
    compile_seconds: float = 0.0,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[TrainState, int]:
    """Train a job until it ends or is stopped, and save it; do nothing if it has ended before.

    Args:
        job: the job.
        state: state after `done` updates; it is donated.
        done: number of updates.
        stopped: called before every chunk; returns whether to stop.
        compile_seconds: time that compiling the program took.
        meanwhile: called once, during the first chunk.

    Returns:
        (state, number of updates).

    Raises:
        OSError: if metrics or a checkpoint cannot be written, as on a full disk.
        Exception: `Outcome.failure`.
    """
    parts: list[Part] | None = None
    with ThreadPoolExecutor(1) as thread:
        coming = None if done >= job.last or stopped() else start_chunk(thread, job, state, done)
        if coming is None and done < job.last:
            save_state(job.checkpoints, done, state, job.log, job.host())
        elif coming is not None:
            meanwhile()
        while coming is not None:
            played = coming.result()
            if not job.config.updates_per_chunk:
                config = dataclasses.replace(job.config, updates_per_chunk=played.size)
                job = dataclasses.replace(job, config=config)
            state, parts = played.state, take_apart(job.config, played.metrics, parts)
            after, seconds = done_after(job, done, parts), played.seconds
            chunk = Chunk(done, played.size, after, parts, seconds, compile_seconds)
            done, compile_seconds = after, 0.0
            if job.also:
                outcome = job.judge(dataclasses.replace(chunk, state=state))
                state = cast(TrainState, outcome.state)
            ends = done == job.last or (job.alone and parts[0].ends)
            saves = done % job.config.updates_per_checkpoint == 0
            begin = job.begin(chunk)
            kept = state if ends else copied(state) if saves or begin else None
            # before the next chunk: the device computes one after the other
            begun = begin(kept) if begin and kept is not None else None
            coming = None if ends or stopped() else start_chunk(thread, job, state, done)
            kept = kept if coming else state
            if not job.also:
                outcome = job.judge(dataclasses.replace(chunk, state=kept, begun=begun))
            record(job, done, outcome, kept if saves or not coming else None)
    if job.log is not None:
        job.log.restore()
    return state, done


def start_chunk(thread: ThreadPoolExecutor, job: Job, state: TrainState, done: int) -> Future:
    """Start the next chunk in a thread, and wait for it unless the host works meanwhile."""
    coming = thread.submit(play_chunk, job, state, done)
    # several processes must call the same functions in the same order
    if not job.beside or jax.process_count() > 1:
        wait([coming])
    return coming


def play_chunk(job: Job, state: TrainState, done: int) -> Played:
    """Compute the next chunk, and wait for the device."""
    size = next_look(job.config, done, job.last, job.also) - done
    if job.config.updates_per_chunk:
        return play(job.program, state, size)
    return play_first(job.program, state, min(size, most_updates(job.config)))


def done_after(job: Job, before: int, parts: Sequence[Part]) -> int:
    """Return the number of updates after a chunk; if a bad update ends the run, those before it."""
    codes = parts[0].codes
    if job.alone and job.config.on_bad_numbers == "stop" and codes.any():
        return before + int(np.argmax(codes > 0))
    return before + len(codes)


def record(job: Job, done: int, outcome: Outcome, state: TrainState | None) -> None:
    """Write the rows of a chunk, save the state if there is one, and report, or end the job."""
    require_saved(job.checkpoints)
    if job.log is not None:
        job.log.restore()
        for row in outcome.rows:
            job.log.write(row)
    if state is not None:
        save_state(job.checkpoints, done, state, job.log, job.host())
    if outcome.failure is not None:
        finish(job.checkpoints)  # according to its message, the run is saved
        raise outcome.failure()
    job.report(outcome.rows)


def take_apart(config: TrainConfig, metrics: Metrics, before: Sequence[Part] | None) -> list[Part]:
    """Return the parts of a chunk.

    Args:
        config: configuration of the run.
        metrics: [updates] of one run, or [members, updates].
        before: parts of the previous chunk, if there was one.
    """
    count, *of_members = np.shape(values_of(metrics)["bad_numbers"])
    numbers = range(count if of_members else 0)
    members = [jax.tree.map(lambda values, i=i: values[i], metrics) for i in numbers]
    parts = []
    for i, own in enumerate(members or [metrics]):
        good, codes = sound_updates(own)
        streak = bad_in_a_row(codes, before[i].streak if before else 0)
        parts.append(Part(good, codes, streak, ends_run(config, codes, streak)))
    return parts


def row_of_run(setup: Setup, chunk: Chunk) -> Row:
    """Return the metrics of a chunk of one run, with its counts and speeds."""
    size = chunk.done - chunk.before
    steps = size * setup.config.env_steps_per_update
    agents = sum(policy.assignment.num_agents for policy in setup.policies.values())
    return {
        "updates": chunk.done,
        "env_steps": chunk.done * setup.config.env_steps_per_update,
        "seconds": chunk.seconds,
        "seconds_per_update": chunk.seconds / size,
        "compile_seconds": chunk.compile_seconds,
        "env_steps_per_second": steps / chunk.seconds,
        "agent_steps_per_second": steps * agents / chunk.seconds,
        **summarize(chunk.parts[0].metrics, setup.policies),
    }
