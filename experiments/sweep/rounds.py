"""Turns: members that go at once, trained in chunks, with metrics and checkpoints in a folder of their own.

A turn's folder holds members.json, metrics.jsonl (a row for every member and chunk), checkpoints/ and, once it is done,
the empty file `finished`. A turn that was killed goes on from its newest checkpoint, bit for bit on the CPU.
"""

import contextlib
import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.experiments.sweep.members import Member
from wdjax.experiments.sweep.population import (
    abstract_population,
    compile_as_many,
    compile_population,
    even_size,
    init_population,
)
from wdjax.train.config.reading import read_yaml
from wdjax.train.learner.bad_numbers import describe_bad_numbers, skipped_updates, sound_updates
from wdjax.train.learner.learner import Learner, make_learner
from wdjax.train.load import change_config
from wdjax.train.state.policy import Setup
from wdjax.train.state.registry import read_config
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import open_checkpoints, restore, save
from wdjax.train.storage.folder import write_config, write_whole
from wdjax.train.storage.metrics_log import MetricsLog, read_metrics, summarize

Row = dict[str, Any]
Between = Callable[[TrainState, list[Row], list[Row]], tuple[TrainState, list[Row]]]
Advance = Callable[[list[Row]], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Programs:
    """The compiled programs of one group, each made when first asked for."""

    setup: Setup
    num_devices: int = 1
    compiled: dict[tuple[int, int], Any] = dataclasses.field(default_factory=dict)  # (members, updates) -> program

    def get(self, states: TrainState, num_updates: int) -> Any:
        """Returns the program of so many updates of these states."""
        which = (states.num_updates.shape[0], num_updates)
        if which not in self.compiled:
            self.compiled[which] = compile_population(self.setup, states, num_updates, self.num_devices)
        return self.compiled[which]

    def fit(self, members: Sequence[Member], num_updates: int, at_once: int) -> int:
        """Returns how many of these members go at once: as many as memory allows, or `at_once`; compiles for them."""
        size = even_size(len(members), at_once or len(members), self.num_devices)
        if (size, num_updates) not in self.compiled:
            size, program = compile_as_many(self.setup, members, num_updates, self.num_devices, at_once)
            self.compiled[size, num_updates] = program
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


def make_turns(folder: Path, members: Sequence[Member], size: int, first: int, last: int) -> list[Turn]:
    """Returns the turns in which members go, `size` at once."""
    starts = range(0, len(members), size)
    return [
        Turn(folder / f"{number:03d}", tuple(members[i : i + size]), size, first, last)
        for number, i in enumerate(starts)
    ]


def no_change(states: TrainState, rows: list[Row], before: list[Row]) -> tuple[TrainState, list[Row]]:
    """What happens between two chunks of a plain sweep: nothing."""
    return states, rows


def train_turn(
    programs: Programs,
    turn: Turn,
    stop: threading.Event,
    advance: Advance,
    start: Callable[[], TrainState] | None = None,
    between: Between = no_change,
) -> bool:
    """Trains a turn to its end, from where it stood. Returns false where `stop` ended it before, saved.

    Args:
        stop: looked at after every chunk.
        advance: called with the rows of every chunk.
        start: makes the first states, [size, ...]; None: those of new runs.
        between: (states, rows, rows of the chunk before) after a chunk -> (states, rows) that go on and are written.
    """
    if turn.finished:
        return True
    config, setup = programs.setup.config, programs.setup
    write_members(turn)
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(open_checkpoints(turn.folder / "checkpoints", 1))
        done, size = checkpoints.latest_step(), 0
        if done is None:
            states = start() if start else init_population(setup, turn.padded, programs.num_devices)
            done = turn.first
        else:
            like = abstract_population(setup, turn.members, turn.size, programs.num_devices)
            states, host = restore(checkpoints, done, like)
            size = host["metrics_size"]
        log = MetricsLog(turn.folder / "metrics.jsonl", size)
        stack.enter_context(contextlib.closing(log))
        rows = turn.rows[-len(turn.members) :]
        while done < turn.last and not stop.is_set():
            num_updates = min(config.updates_per_chunk, turn.last - done)
            states, metrics = programs.get(states, num_updates)(states)
            done += num_updates
            states, rows = between(states, member_rows(turn, setup, done, jax.device_get(metrics)), rows)
            for row in rows:
                log.write(row)
            if done == turn.last or done // config.updates_per_chunk % config.checkpoint_every == 0:
                save(checkpoints, done, states, {"metrics_size": log.size})
            advance(rows)
        if done < turn.last:
            save(checkpoints, done, states, {"metrics_size": log.size})
    if done == turn.last:
        (turn.folder / "finished").touch()  # the checkpoints are closed: what is in them is on the disk
    return done == turn.last


def member_rows(turn: Turn, setup: Setup, done: int, metrics: dict[str, np.ndarray]) -> list[Row]:
    """Returns a row for every member of metrics [members, updates] of a chunk: the numbers of a run's metrics.jsonl,
    without those of the clock, of its sound updates (train/learner/bad_numbers.py).

    A member with bad numbers ends there: it stays as it was, and `bad_numbers` says why. The others go on.
    """
    counts = {"updates": done, "env_steps": done * setup.config.env_steps_per_update}
    rows = []
    for i, member in enumerate(turn.members):
        sound, codes = sound_updates({name: values[i] for name, values in metrics.items()})
        bad = skipped_updates(setup.config, codes) or {"bad_numbers": describe_bad_numbers(setup, max(codes)) or None}
        rows.append({"member": member.number, **counts, **bad, **summarize(sound, setup.env.info_ratios)})
    return rows


def write_members(turn: Turn) -> None:
    """Writes who goes in a turn, once."""
    turn.folder.mkdir(parents=True, exist_ok=True)
    content = [{"member": own.number, "seed": own.config.seed, "values": own.values} for own in turn.members]
    write_whole(turn.folder / "members.json", json.dumps({"size": turn.size, "members": content}) + "\n")


def load_states(setup: Setup, turns: Sequence[Turn], wanted: Sequence[int]) -> TrainState:
    """Returns the newest states of members, by number and in this order, [wanted, ...], on the first device."""
    of_member: dict[int, TrainState] = {}
    for turn in reversed(turns):
        missing = set(wanted) - of_member.keys()
        places = {member.number: i for i, member in enumerate(turn.members) if member.number in missing}
        if not places:
            continue
        with open_checkpoints(turn.folder / "checkpoints", 1) as checkpoints:
            states, _ = restore(
                checkpoints, checkpoints.latest_step(), abstract_population(setup, turn.members, turn.size, 1)
            )
        of_member |= {number: jax.tree.map(lambda leaf, i=i: leaf[i], states) for number, i in places.items()}
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(of_member[number] for number in wanted))


def find_turn(workdir: Path, number: int) -> tuple[Path, dict[str, Any], int]:
    """Returns (folder, members.json, place) of the last turn in which a member went.

    Raises:
        FileNotFoundError: where there is none.
    """
    newest = None
    for file in sorted(workdir.rglob("members.json")):
        content = json.loads(file.read_text(encoding="utf8"))
        numbers = [member["member"] for member in content["members"]]
        if number in numbers and any((file.parent / "checkpoints").glob("[0-9]*")):
            newest = file.parent, content, numbers.index(number)
    if newest is None:
        raise FileNotFoundError(f"{workdir} holds no checkpoint of member {number}")
    return newest


def load_member(workdir: str | Path, number: int) -> tuple[Learner, TrainState]:
    """Returns the learner of a member of a sweep, a run of its own on one device, and its newest state.

    Raises:
        FileNotFoundError: where there is no such sweep, or no checkpoint of this member.
    """
    workdir = Path(workdir)
    file = workdir / "sweep.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"{workdir} holds no sweep: {file} is missing")
    base = read_config(read_yaml(file)["config"])
    folder, content, place = find_turn(workdir, number)
    own = content["members"][place]
    config = dataclasses.replace(change_config(base, **own["values"]), seed=own["seed"], devices=1)
    learner = make_learner(config)
    member = Member(number, 0, own["values"], config)
    turn = Turn(folder, (member,), content["size"], 0, 0)
    like = abstract_population(learner.setup, turn.members, turn.size, 1)
    with open_checkpoints(folder / "checkpoints", 1) as checkpoints:
        states, _ = restore(checkpoints, checkpoints.latest_step(), like)
    return learner, jax.tree.map(lambda leaf: leaf[place], states)


def export_member(
    workdir: Path, number: int, rows: Sequence[Row], score: float, values: Mapping[str, Any] | None = None
) -> Path:
    """Writes a member as a run of its own, best/, for `wdjax eval` and `render`. Returns its folder.

    Args:
        rows: of all members' chunks.
        values: fields that have changed since the member was begun.
    """
    learner, state = load_member(workdir, number)
    folder = workdir / "best"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows if row["member"] == number)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf8")
    with open_checkpoints(folder / "checkpoints", 1) as checkpoints:
        save(checkpoints, int(state.num_updates), state, {"metrics_size": len(lines.encode()), "best_score": score})
    config = change_config(learner.config, **(values or {}))
    write_config(folder, config)
    return folder
