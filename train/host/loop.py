"""The loop on the host: chunks of updates on the device, and what happens beside them.

While the device is at a chunk, the host does what the chunk before left to do: metrics, checkpoints, words. A run
(train/trainer.py) is a job of this loop, and so are runs side by side, a round of a sweep
(train/population/population.py).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.chunks import Played, most_updates, next_look, play, play_first
from wdjax.train.host.programs import Program
from wdjax.train.learner.bad_numbers import bad_in_a_row, ends_run, sound_updates
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
    """What a run came to in a chunk, alone or side by side with others."""

    metrics: Mapping[str, Any]  # of its sound updates, arrays or `Metric`s
    codes: np.ndarray  # of all its updates (learner/bad_numbers.py)
    streak: int  # bad ones in a row at the end, also over chunks
    ends: bool  # by the rules of bad numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """What several updates came to."""

    before: int  # updates that were done before it
    size: int  # updates in it
    done: int  # updates that are done after it: fewer, where a bad one ends the run
    parts: list[Part]  # one for each run
    seconds: float
    compile_seconds: float  # since the chunk before
    # after it; None where nobody has asked for it, and the device has gone on
    state: TrainState | None = None
    begun: Any = None  # what `Job.begin` started


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What a job makes of a chunk."""

    rows: list[Row]  # for metrics.jsonl
    state: TrainState | None = None  # to go on with, of a job that may change it
    failure: Callable[[], Exception] | None = None  # makes what the job ends with, once it is saved


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """What the loop trains, and the four functions that it calls between chunks."""

    config: TrainConfig
    last: int  # updates at its end
    program: Program
    checkpoints: Any
    log: MetricsLog | None  # written by the first process only
    judge: Callable[[Chunk], Outcome]
    report: Callable[[list[Row]], None]  # called after every chunk, once its rows are written
    host: Callable[[], HostData] = HostData  # content of a checkpoint besides the state
    begin: Callable[[Chunk], Callable[[TrainState], Any] | None] = lambda chunk: None
    """what to start on the device with the state after a chunk, before the next one; None: the job does not read that
    state"""
    also: int = 0  # chunks end every so many updates, too, and the next waits: the job may change the state; 0: no
    alone: bool = True  # one run, which ends where its bad numbers say so; of several side by side the others go on
    beside: bool = True  # whether the host works while the device does


def train_chunks(
    job: Job, state: TrainState, done: int, stopped: Callable[[], bool], compile_seconds: float = 0.0,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[TrainState, int]:  # fmt: skip
    """Trains a job to its end, or until it is stopped, and saves. Returns (state, updates that are done).

    Nothing is trained or saved where `done` is at the end already, or after it.

    Args:
        state: after `done` updates; it is donated.
        stopped: asked before every chunk.
        compile_seconds: what was spent on the program.
        meanwhile: called once, during the first chunk.

    Raises:
        OSError: where metrics or a checkpoint cannot be written (a full disk); the checkpoints before stay whole.
        Exception: `Outcome.failure`.
    """
    parts: list[Part] | None = None
    with ThreadPoolExecutor(1) as thread:
        # several processes must do the same in the same order
        start = thread.submit if job.beside and jax.process_count() == 1 else call
        coming = None if done >= job.last or stopped() else start(play_chunk, job, state, done)
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
            chunk = Chunk(
                done,
                played.size,
                done_after(job, done, parts),
                parts,
                played.seconds,
                compile_seconds,
            )
            done, compile_seconds = chunk.done, 0.0
            if job.also:
                outcome = job.judge(dataclasses.replace(chunk, state=state))
                state = outcome.state
            ends = done == job.last or (job.alone and parts[0].ends)
            saves = done % job.config.updates_per_checkpoint == 0
            begin = job.begin(chunk)
            kept = state if ends else copied(state) if saves or begin else None
            begun = begin(kept) if begin else None  # first: the device does one after the other
            coming = None if ends or stopped() else start(play_chunk, job, state, done)
            kept = kept if coming else state
            if not job.also:
                outcome = job.judge(dataclasses.replace(chunk, state=kept, begun=begun))
            record(job, done, outcome, kept if saves or not coming else None)
    if job.log is not None:
        job.log.restore()
    return state, done


def play_chunk(job: Job, state: TrainState, done: int) -> Played:
    """Does the next chunk, and waits for the device."""
    size = next_look(job.config, done, job.last, job.also) - done
    if job.config.updates_per_chunk:
        return play(job.program, state, size)
    return play_first(job.program, state, min(size, most_updates(job.config)))


def call(function: Callable, *arguments: Any) -> Future:
    """Does now what a thread would do beside."""
    future: Future = Future()
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future


def done_after(job: Job, before: int, parts: Sequence[Part]) -> int:
    """Returns how many updates are done after a chunk: of one that a bad update ends, those before that."""
    codes = parts[0].codes
    if job.alone and job.config.on_bad_numbers == "stop" and codes.any():
        return before + int(np.argmax(codes > 0))
    return before + len(codes)


def record(job: Job, done: int, outcome: Outcome, state: TrainState | None) -> None:
    """Writes what came of a chunk, saves the state if there is one, and tells who listens, or ends the job."""
    require_saved(job.checkpoints)
    if job.log is not None:
        job.log.restore()
        for row in outcome.rows:
            job.log.write(row)
    if state is not None:
        save_state(job.checkpoints, done, state, job.log, job.host())
    if outcome.failure is not None:
        finish(job.checkpoints)  # before it is said that the run is saved
        raise outcome.failure()
    job.report(outcome.rows)


def take_apart(
    config: TrainConfig, metrics: Mapping[str, Any], before: Sequence[Part] | None
) -> list[Part]:
    """Returns the parts of a chunk from its metrics, [updates] of one run or [runs, updates] of several.

    Args:
        before: the parts of the chunk before, if there was one.
    """
    several = np.ndim(metrics["bad_numbers"]) == 2
    count = len(metrics["bad_numbers"]) if several else 0
    runs = [jax.tree.map(lambda values, i=i: values[i], metrics) for i in range(count)]
    parts = []
    for i, own in enumerate(runs if several else [metrics]):
        sound, codes = sound_updates(own)
        streak = bad_in_a_row(codes, before[i].streak if before else 0)
        parts.append(Part(sound, codes, streak, ends_run(config, codes, streak)))
    return parts


def row_of_run(setup: Setup, chunk: Chunk) -> Row:
    """Return the metrics of a chunk of one run, with its counts and speeds."""
    done, size = chunk.done, chunk.done - chunk.before
    steps = size * setup.config.env_steps_per_update
    agents = sum(policy.assignment.num_agents for policy in setup.policies.values())
    return {
        "updates": done,
        "env_steps": done * setup.config.env_steps_per_update,
        "seconds": chunk.seconds,
        "seconds_per_update": chunk.seconds / size,
        "compile_seconds": chunk.compile_seconds,
        "env_steps_per_second": steps / chunk.seconds,
        "agent_steps_per_second": steps * agents / chunk.seconds,
        **summarize(chunk.parts[0].metrics),
    }
