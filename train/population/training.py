"""Train and save a population in a folder: checkpoints, metrics, callbacks and selection.

The folder of a population contains members.json, metrics.jsonl (a row for each member and chunk),
checkpoints/ and, once all members are done, the empty file `finished`. Training that was killed
continues from the newest checkpoint, bit for bit on a CPU.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import jax

from wdjax.files import write_text
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.callbacks import Callback, MemberRun, call_callbacks, goals_reached
from wdjax.train.host.loop import Chunk, Job, Outcome, Part, Row, train_chunks
from wdjax.train.learner.bad_numbers import describe_bad_numbers, skipped_updates, what_was_skipped
from wdjax.train.population.members import Member, state_of, write_members
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import delete_newer, open_checkpoints, restore_newest, save
from wdjax.train.storage.metrics_log import open_log, read_metrics, summarize

Population: TypeAlias = Any  # `wdjax.train.Population`, whose module imports this one
After: TypeAlias = Callable[[TrainState, list[Row], list[Row]], tuple[TrainState, list[Row]]]
"""after(states, rows, rows of the chunk before) -> (states, rows), see `Population.train`"""
KEPT = 2  # checkpoints; the older one is used if the newer one is damaged


def train_in_folder(
    population: Population,
    workdir: Path,
    last: int,
    start: Callable[[], tuple[int, TrainState]] | None,
    after: After | None,
    every: int,
    report: Callable[[list[Row]], None],
    stop: threading.Event,
    say: Callable[[str], None],
) -> bool:
    """Train a population until `last` updates; return whether training is complete.

    Arguments: see `Population.train`. `report` is called with the rows of each chunk.
    """
    config, setup, members = population.config, population.programs.setup, population.members
    copying = after is not None
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(open_checkpoints(workdir / "checkpoints", KEPT))
        found = restore_newest(checkpoints, population.shapes, None, say)
        if found is None:
            (done, states), size = start() if start else (0, population.init()), 0
        else:
            done, states, size = *found[:2], found[2]["metrics_size"]
        log = stack.enter_context(open_log(workdir / "metrics.jsonl", size, say))
        rows = read_metrics(workdir)
        newest = [row for row in rows[-len(members) :] if row["updates"] == done]
        before = newest if len(newest) == len(members) else []  # else lines are lost
        ended = ended_members(config, rows, copying)
        is_complete = lambda done: done >= last or len(ended) == len(members)  # noqa: E731

        def judge(chunk: Chunk) -> Outcome:
            nonlocal before
            states, rows = chunk.state, member_rows(setup, members, chunk.done, chunk.parts)
            if after is not None:
                states, rows = after(cast(TrainState, states), rows, before)
                states = population.place(states)
            before = rows
            ended.update(ended_members(config, rows, copying))
            if bad := bad_members(setup, members, chunk.parts):
                say(bad)
            return Outcome(rows, states)

        if not is_complete(done):
            (workdir / "finished").unlink(missing_ok=True)
            program = population.programs.get(population.configs[0], population.size)
            job = Job(
                config, last, program, checkpoints, log, judge, report, also=every, alone=False
            )
            stopped = lambda: stop.is_set() or is_complete(0)  # noqa: E731
            _, done = train_chunks(job, population.place(states), done, stopped)
    if is_complete(done) and not (workdir / "finished").exists():
        write_text(workdir / "finished", "")  # the checkpoints are closed, and thus on the disk
    return is_complete(done)


def save_in_folder(population: Population, workdir: Path, states: TrainState) -> None:
    """Save a checkpoint of a population, see `Population.save`."""
    step, log = int(states.num_updates.max()), workdir / "metrics.jsonl"
    write_members(workdir, population.text)
    (workdir / "finished").unlink(missing_ok=True)
    with open_checkpoints(workdir / "checkpoints", KEPT) as checkpoints:
        delete_newer(checkpoints, step - 1)
        lines = log.stat().st_size if log.exists() else 0
        save(checkpoints, step, states, {"metrics_size": lines})


def newest_states(
    batches: Sequence[tuple[Path, Population]], members: Sequence[object]
) -> list[TrainState]:
    """Return the newest state of each of these members, see `Population.gather`."""
    found: dict[object, TrainState] = {}
    for folder, population in reversed(batches):
        numbers = [member["member"] for member in population.members]
        if missing := [number for number in members if number in numbers and number not in found]:
            states = jax.device_put(population.resume(folder), jax.local_devices()[0])
            found |= {number: state_of(states, numbers.index(number)) for number in missing}
    return [found[number] for number in members]


def call_for_members(
    population: Population,
    callbacks: Sequence[Callback],
    runs: Path,
    stop: threading.Event,
    say: Callable[[str], None],
    rows: Sequence[Row],
) -> None:
    """Call callbacks with the row of every member, whose folder is inside `runs`."""
    asked = [
        call_callbacks(callbacks, MemberRun(runs / f"{row['member']:03d}", config, stop), row)
        for row, config in zip(rows, population.configs, strict=True)
    ]
    if any(asked):
        say("A callback stopped training: it saves and ends after the next chunk")
        stop.set()


def member_rows(
    setup: Setup, members: Sequence[Member], done: int, parts: Sequence[Part]
) -> list[Row]:
    """Return a row for every member: the metrics of a run, without times, of its finite updates.

    A member with bad numbers keeps its last state; `bad_numbers` contains the reason.
    """
    counts = {"updates": done, "env_steps": done * setup.config.env_steps_per_update}
    rows = []
    for member, part in zip(members, parts, strict=False):  # the rest repeats the last member
        why = {"bad_numbers": describe_bad_numbers(setup, max(part.codes)) or None}
        bad = skipped_updates(setup.config, part.codes) or why
        metrics = summarize(part.metrics, setup.policies)
        rows.append({"member": member["member"], **counts, **bad, **metrics})
    return rows


def bad_members(setup: Setup, members: Sequence[Member], parts: Sequence[Part]) -> str:
    """Return a warning about members with bad updates; one that ends is named only once."""
    skips = setup.config.on_bad_numbers == "skip"
    bad = [
        (member["member"], part)
        for member, part in zip(members, parts, strict=False)
        if part.codes.any() and (skips or part.streak <= len(part.codes))
    ]
    if not bad:
        return ""
    number, part = bad[0]
    more = f" (and {len(bad) - 1} other members)" if len(bad) > 1 else ""
    if skips:
        return what_was_skipped(setup, part.codes, f" of member {number}{more}")
    return f"Member {number} ended{more}: {describe_bad_numbers(setup, max(part.codes))}"


def ended_members(config: TrainConfig, rows: Sequence[Row], copying: bool) -> set[int]:
    """Return the members that have reached `stop_at`, or ended with bad numbers before.

    If members are `copying`, one with bad numbers may copy another.
    """
    goals = config.stop_at
    bad = lambda row: not copying and row.get("bad_numbers")  # noqa: E731
    return {row["member"] for row in rows if goals and (bad(row) or goals_reached(goals, row))}
