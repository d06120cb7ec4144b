"""Turns: members that go at once, trained in chunks, with metrics and checkpoints in a folder of their own.

A turn's folder holds members.json, metrics.jsonl (a row for every member and chunk), checkpoints/ and, once it is done,
the empty file `finished`. A turn that was killed goes on from its newest checkpoint, bit for bit on the CPU.
"""

import contextlib
import dataclasses
import functools
import json
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.checks import require
from wdjax.experiments.sweep.folder import read_switches
from wdjax.experiments.sweep.members import Member
from wdjax.experiments.sweep.population import (
    abstract_population,
    compile_population,
    even_size,
    init_population,
    member_sharding,
)
from wdjax.files import make_folder_inside, read_text, write_text
from wdjax.train.config.reading import read_yaml
from wdjax.train.config.trust import require_trusted
from wdjax.train.devices.memory import bytes_free, bytes_needed
from wdjax.train.host.callbacks import goals_reached
from wdjax.train.host.chunks import most_updates
from wdjax.train.host.loop import Chunk, Job, Outcome, Part, Row, train_chunks
from wdjax.train.host.programs import Program
from wdjax.train.learner.bad_numbers import describe_bad_numbers, skipped_updates, what_was_skipped
from wdjax.train.learner.learner import Learner, make_learner
from wdjax.train.load import change_config
from wdjax.train.state.policy import Setup
from wdjax.train.state.registry import read_config
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import (
    DamagedCheckpointError,
    open_checkpoints,
    read_host,
    restore,
    restore_newest,
    save,
)
from wdjax.train.storage.folder import read_json, require_fields, write_config, write_whole
from wdjax.train.storage.metrics_log import open_log, read_metrics, summarize
from wdjax.train.storage.switches import KEYS, require_same_switches

Between = Callable[[TrainState | None, list[Row], list[Row]], tuple[TrainState | None, list[Row]]]
Advance = Callable[[list[Row]], None]

KEPT = 2  # checkpoints of a turn: the older one is for when the newer is damaged


@dataclasses.dataclass(frozen=True, eq=False)
class Programs:
    """The compiled programs of one group, each made when first asked for."""

    setup: Setup
    num_devices: int = 1
    compiled: dict[int, Program] = dataclasses.field(default_factory=dict)  # by members

    def of(self, states: TrainState, size: int) -> Program:
        """Returns the program of so many members, whose states are like these."""
        if size not in self.compiled:
            most = most_updates(self.setup.config)
            self.compiled[size], _ = compile_population(self.setup, states, most, self.num_devices)
        return self.compiled[size]

    def fit(self, members: Sequence[Member], at_once: int) -> int:
        """Return the number of members at once: as many as memory allows, or `at_once`. Compile their program.

        Raises:
            ValueError: where not even one member fits on a device.
        """
        size = even_size(len(members), at_once or len(members), self.num_devices)
        while size not in self.compiled:
            states = abstract_population(self.setup, members, size, self.num_devices)
            needed, room = bytes_needed(self.of(states, size)), bytes_free(self.num_devices)
            if not at_once and needed > room:
                del self.compiled[size]
                words = f"at most {room / 1e9:.2f} GB, the free memory of a device. Not even one member fits"
                require(size > self.num_devices, "memory of the program", f"{needed / 1e9:.2f} GB", words)
                fewer = min(int(size * room / needed), size - self.num_devices)
                size = even_size(len(members), fewer, self.num_devices)
        return size


@dataclasses.dataclass(frozen=True)
class Turn:
    """Members that go at once, from some number of updates to another."""

    folder: Path
    members: tuple[Member, ...]
    size: int  # members in the program: at least as many as there are, the last one repeated
    first: int  # updates done before
    last: int  # updates done afterwards

    @property
    def padded(self) -> tuple[Member, ...]:
        return self.members + self.members[-1:] * (self.size - len(self.members))

    @property
    def finished(self) -> bool:
        return (self.folder / "finished").exists()

    @property
    def rows(self) -> list[Row]:
        """What metrics.jsonl holds so far: perhaps more than the newest checkpoint, perhaps nothing."""
        file = self.folder / "metrics.jsonl"
        return read_metrics(file) if file.exists() else []


def train_turn(
    programs: Programs, turn: Turn, stop: threading.Event, advance: Advance, say: Callable[[str], Any],
    before: Sequence[Turn] = (), between: Between = lambda states, rows, known: (states, rows), every: int = 0,
) -> None:  # fmt: skip
    """Train a turn until its end, until all of its members have reached `stop_at`, or until `stop`. Then it is saved,
    and not `finished`.

    Args:
        stop: looked at after every chunk.
        advance: called with the rows of every chunk.
        say: told what was found damaged or lost, and which members have bad numbers.
        before: turns from whose last states the members go on; none: new runs.
        between: (states, rows, rows of the chunk before) after a chunk -> (states, rows) that go on and are written.
        every: updates after which a chunk ends, too; then `between` is given the states and may change them. 0: it
            sees rows only.

    Raises:
        ValueError: where no checkpoint of the turn can be read, or its folder holds other members.
    """
    write_members(turn)
    if is_done(turn, say):
        return
    setup = programs.setup
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(open_checkpoints(turn.folder / "checkpoints", KEPT))
        if checkpoints.latest_step() is None:
            start = functools.partial(load_states, before) if before else init_population
            states = start(setup, turn.padded, programs.num_devices)
            done, size = turn.first, 0
        else:
            like = abstract_population(setup, turn.members, turn.size, programs.num_devices)
            done, states, host = restore_newest(checkpoints, like, None, say)
            size = host["metrics_size"]
        log = stack.enter_context(open_log(turn.folder / "metrics.jsonl", size, say))
        last = [row for row in turn.rows[-len(turn.members) :] if row["updates"] == done]
        known = last if len(last) == len(turn.members) else []  # else lines are lost
        there = members_there(setup, turn.rows, changing=every > 0)

        def judge(chunk: Chunk) -> Outcome:
            nonlocal known
            states, known = between(chunk.state, member_rows(turn, setup, chunk.done, chunk.parts), known)
            there.update(members_there(setup, known, changing=every > 0))
            if bad := bad_members(turn, setup, chunk.parts):
                say(bad)
            return Outcome(known, states)

        job = Job(
            setup.config, turn.last, programs.of(states, turn.size), checkpoints, log, judge, advance, also=every,
            alone=False,
        )  # fmt: skip
        _, done = train_chunks(job, states, done, lambda: stop.is_set() or len(there) == len(turn.members))
    if done >= turn.last or len(there) == len(turn.members):
        write_text(turn.folder / "finished", "")  # the checkpoints are closed: what is in them is on the disk


def members_there(setup: Setup, rows: Sequence[Row], changing: bool) -> set[int]:
    """Returns the members that have reached `stop_at` in one of these rows, or ended with bad numbers before: where
    members are `changing`, one with bad numbers may copy another and go on."""
    goals = setup.config.stop_at
    ended = lambda row: goals_reached(goals, row) or (not changing and row.get("bad_numbers"))  # noqa: E731
    return {row["member"] for row in rows if goals and ended(row)}


def is_done(turn: Turn, say: Callable[[str], Any]) -> bool:
    """Whether a turn is finished and its newest checkpoint is whole; one that is damaged is trained again from an older
    one. Says which of its lines are lost."""
    if not turn.finished or not (turn.folder / "checkpoints").is_dir():
        return turn.finished
    with open_checkpoints(turn.folder / "checkpoints", keep=None) as checkpoints:
        try:
            step = checkpoints.latest_step()
            size = read_host(checkpoints, step)["metrics_size"] if step is not None else 0
        except DamagedCheckpointError:
            (turn.folder / "finished").unlink()
            return False
    with open_log(turn.folder / "metrics.jsonl", size, say):
        return True


def member_rows(turn: Turn, setup: Setup, done: int, parts: Sequence[Part]) -> list[Row]:
    """Returns a row for every member of a chunk: the numbers of a run's metrics.jsonl, without those of the clock, of
    its sound updates (train/learner/bad_numbers.py).

    A member with bad numbers ends there: it stays as it was, and `bad_numbers` says why. The others go on.
    """
    counts = {"updates": done, "env_steps": done * setup.config.env_steps_per_update}
    rows = []
    for member, part in zip(turn.members, parts, strict=False):  # parts: also of the last member, repeated
        why = {"bad_numbers": describe_bad_numbers(setup, max(part.codes)) or None}
        bad = skipped_updates(setup.config, part.codes) or why
        rows.append({"member": member.number, **counts, **bad, **summarize(part.metrics)})
    return rows


def bad_members(turn: Turn, setup: Setup, parts: Sequence[Part]) -> str:
    """Returns a line about the members whose updates were bad in a chunk; of those that end by it, in their first."""
    skips = setup.config.on_bad_numbers == "skip"
    found = [
        (member, part) for member, part in zip(turn.members, parts, strict=False)
        if part.codes.any() and (skips or part.streak <= len(part.codes))
    ]  # fmt: skip
    if not found:
        return ""
    (member, part), more = found[0], f" (and {len(found) - 1} other members)" if len(found) > 1 else ""
    if skips:
        return what_was_skipped(setup, part.codes, f" of member {member.number}{more}")
    return f"Member {member.number} ended{more}: {describe_bad_numbers(setup, max(part.codes))}"


def write_members(turn: Turn) -> None:
    """Write the members of a turn, once. Raises ValueError where its folder holds others, or lies behind a link."""
    levels = (turn.folder, *turn.folder.parents)
    inside = next((i for i, level in enumerate(levels) if (level / "sweep.yaml").exists()), 1)  # of the sweep's folder
    for level in reversed(levels[:inside]):
        make_folder_inside(level)
    content = [{"member": own.number, "seed": own.config.seed, "values": own.values} for own in turn.members]
    text, file = json.dumps({"size": turn.size, "members": content}) + "\n", turn.folder / "members.json"
    if not file.exists():
        write_whole(file, text)
    elif read_text(file) != text:
        read_json(file)  # it may be no JSON at all
        words = "lists different members than this sweep selects"
        raise ValueError(f"{file} {words}. Move {turn.folder} away and rerun with --resume to restart this batch")


def read_states(folder: Path, like: TrainState) -> TrainState:
    """Returns the states in a turn's newest checkpoint. Raises DamagedCheckpointError."""
    with open_checkpoints(folder / "checkpoints", keep=None) as checkpoints:
        return restore(checkpoints, checkpoints.latest_step(), like)[0]


def load_states(turns: Sequence[Turn], setup: Setup, members: Sequence[Member], num_devices: int) -> TrainState:
    """Return the newest states of members in earlier turns, [members, ...]."""
    wanted = [member.number for member in members]
    of_member: dict[int, TrainState] = {}
    for turn in reversed(turns):
        missing = set(wanted) - of_member.keys()
        places = {member.number: i for i, member in enumerate(turn.members) if member.number in missing}
        if places:
            states = read_states(turn.folder, abstract_population(setup, turn.members, turn.size, 1))
            of_member |= {number: jax.tree.map(lambda leaf, i=i: leaf[i], states) for number, i in places.items()}
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(of_member[number] for number in wanted))
    return jax.device_put(states, member_sharding(num_devices))


def find_turn(workdir: Path, number: int) -> tuple[Path, dict[str, Any], int]:
    """Returns (folder, members.json, place) of the last turn in which a member went.

    Raises:
        FileNotFoundError: where there is none.
    """
    newest = None
    for file in sorted(workdir.rglob("members.json")):
        content = read_json(file)
        require_fields(file, content, size=int, members=list)
        for member in content["members"]:
            require_fields(file, member, member=int, seed=int, values=dict)
        numbers = [member["member"] for member in content["members"]]
        if number in numbers and any((file.parent / "checkpoints").glob("[0-9]*")):
            newest = file.parent, content, numbers.index(number)
    if newest is None:
        raise FileNotFoundError(f"{workdir} has no checkpoint of member {number}")
    return newest


def load_member(workdir: str | Path, number: int, trust: Collection[str] = ()) -> tuple[Learner, TrainState]:
    """Load a member of a sweep as a single run on one device: its learner and its newest state.

    Args:
        workdir: folder of the sweep.
        number: number of the member, as in the table.
        trust: modules from which the sweep may import code, see `wdjax.train.load_run`.

    Returns:
        (learner, state).

    Raises:
        FileNotFoundError: if there is no such sweep, or no checkpoint of this member.
        ValueError: if the configuration names code of an untrusted module.
    """
    workdir = Path(workdir)
    file = workdir / "sweep.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"{workdir} is not a sweep: {file} is missing")
    asked = read_yaml(file)
    require_fields(file, asked, config=dict)
    values = asked["config"]
    require_trusted(str(file), values, trust)
    base = read_config(values)
    require_same_switches(read_switches(workdir), f"the sweep in {workdir}", [KEYS])
    folder, content, place = find_turn(workdir, number)
    own = content["members"][place]
    config = dataclasses.replace(change_config(base, trust=trust, **own["values"]), seed=own["seed"], devices=1)
    learner = make_learner(config)
    member = Member(number, 0, own["values"], learner.config)  # with schedules in env steps
    states = read_states(folder, abstract_population(learner.setup, [member], content["size"], 1))
    return learner, jax.tree.map(lambda leaf: leaf[place], states)


def export_member(
    workdir: Path, number: int, rows: Sequence[Row], score: float, values: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
) -> Path:
    """Writes a member as a run of its own, best/, for `wdjax eval` and `render`. Returns its folder.

    Args:
        rows: of all members' chunks.
        values: fields that have changed since the member was begun.
        trust: as for `load_member`.
    """
    learner, state = load_member(workdir, number, trust)
    folder = workdir / "best"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows if row["member"] == number)
    write_text(folder / "metrics.jsonl", lines)
    with open_checkpoints(folder / "checkpoints", 1) as checkpoints:
        save(checkpoints, int(state.num_updates), state, {"metrics_size": len(lines.encode()), "best_score": score})
    config = change_config(learner.config, **(values or {}))
    write_config(folder, config)
    return folder
