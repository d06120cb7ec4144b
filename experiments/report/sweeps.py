"""Records of a sweep as tables and curves for the report, also while the sweep runs."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wdjax.checks import require_integer, require_known
from wdjax.experiments.report.page import Section, folded
from wdjax.experiments.sweep.driver import read_rows
from wdjax.experiments.sweep.members import MOST_SEEDS, Point, Row
from wdjax.experiments.sweep.table import (
    MOST_CURVES,
    last_known,
    point_words,
    rank,
    short_value,
    spread,
    varied_fields,
)
from wdjax.files import SWEEP_FILE, open_regular, read_json, require_fields, try_lock
from wdjax.tables import html_table
from wdjax.train.population.members import read_batches
from wdjax.train.storage.sweep_folder import read_sweep
from wdjax.yaml_reader import flat

PLACES = {"grid": "groups", "search": "batches", "pbt": "population"}  # mode -> folder of records
# result of `try_lock` for sweep.yaml -> status of members that are not complete
STATUS_OF_LOCK = {False: "running", True: "stopped", None: "unfinished"}
LABEL = 36  # characters of a label; longer ones are cut in legends
UNIT = {"grid": "configuration", "search": "trial", "pbt": "member"}
WORDS = (
    "final: last known value in training; best: highest value of a chunk in training; both are the "
    "mean ± sample standard deviation over seeds; the return of a policy is the sum over its agents"
)
STOPPED = "The sweep was stopped: continue with the same command and --resume. "


@dataclasses.dataclass(frozen=True)
class Trial:
    """A configuration of a grid, a trial of a search, or a member of a population."""

    number: int
    values: Point  # in a population the current ones
    runs: tuple[tuple[Row, ...], ...]  # rows of each seed, empty before the first chunk
    status: str  # waiting, running, stopped, unfinished, complete, pruned or bad numbers


@dataclasses.dataclass(frozen=True)
class SweepRecord:
    """A sweep: the content of sweep.yaml, and its trials."""

    name: str
    asked: Mapping[str, Any]
    trials: Sequence[Trial]

    @property
    def metrics(self) -> list[str]:
        """The metric that compares trials, or the return of every trainable policy."""
        policies = self.asked["config"]["policies"]
        trained = [name for name, own in policies.items() if own.get("trainable", True)]
        metric = self.asked.get("metric")
        return [metric] if metric else [f"{name}/episode_return" for name in trained or policies]

    def ranked(self) -> list[Trial]:
        """Return the trials, the best ones by the first metric first (see `rank`)."""

        def key(own: Trial) -> tuple[bool, bool, float]:
            known = finals(own, self.metrics[0])
            return rank(float(np.mean(known)) if known else None, own.status)

        return sorted(self.trials, key=key, reverse=True)

    def groups(self) -> dict[str, list[Sequence[Row]]]:
        """Return label -> rows of each seed of the best trials, at most one per color."""
        drawn = [own for own in self.ranked() if any(own.runs)][:MOST_CURVES]
        unit, by_values = UNIT[self.asked["mode"]], self.asked["mode"] != "pbt"
        varied = varied_fields(self.trials)
        words = [point_words(own.values, varied) for own in drawn]
        plain = by_values and len(set(words)) == len(words) and max(map(len, words)) <= LABEL
        labels = words if plain else [f"{unit} {own.number}" for own in drawn]
        return {
            label: [rows for rows in own.runs if rows]
            for label, own in zip(labels, drawn, strict=True)
        }


def read_record(folder: Path) -> SweepRecord:
    """Read the records of a sweep. Code that its configuration names is not imported.

    Raises:
        ValueError: if sweep.yaml is damaged, or no chunk is complete.
    """
    file = folder / SWEEP_FILE
    asked = read_sweep(folder)
    found = {"metric": "", "halving": {}, **_given(asked)}
    require_fields(file, found, mode=str, metric=str, halving=dict)
    mode, place = asked["mode"], folder / PLACES.get(asked["mode"], "")
    require_known(f"mode in {file}", mode, PLACES)
    rows: dict[int, list[Row]] = defaultdict(list)
    for row in read_rows(place):
        require_fields(place, row, member=int, env_steps=int)
        rows[row["member"]].append(row)
    if not rows:
        raise ValueError(f"{folder} has nothing to report yet: no chunk is complete")
    with open_regular(file) as stream:
        unfinished = STATUS_OF_LOCK[try_lock(stream, shared=True)]
    states = dict(_states(place, asked, unfinished))
    not_begun = unfinished if unfinished == "stopped" else "waiting"
    trials = []
    for number, values, members in _trials(folder, asked, rows):
        runs = tuple(tuple(rows[member]) for member in members)
        now = {states.get(member, not_begun) for member in members}
        bad = any(own and own[-1].get("bad_numbers") for own in runs)
        status = "bad numbers" if bad else now.pop() if len(now) == 1 else unfinished
        trials.append(Trial(number, values, runs, status))
    return SweepRecord(folder.resolve().name, asked, trials)


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def _trials(
    folder: Path, asked: Mapping[str, Any], rows: Mapping[int, Sequence[Row]]
) -> Iterator[tuple[int, Point, Sequence[int]]]:
    """Yield (number, values, numbers of the members) of each trial."""
    file = folder / SWEEP_FILE
    if asked["mode"] == "pbt":
        require_fields(file, asked, members=int, values=dict)
        require_integer(f"members in {file}", asked["members"], 1, MOST_SEEDS)
        for member in range(asked["members"]):
            now = rows[member][-1] if rows[member] else {}
            values = {name: now.get(name) for name, own in asked["values"].items() if name in now}
            yield member, values, [member]
    elif asked["mode"] == "search":
        require_fields(file, asked, seeds=list)
        seeds = len(asked["seeds"])
        for batch in sorted(folder.glob("batches/*/batch.json")):
            for trial in read_json(batch):
                require_fields(batch, trial, trial=int, values=dict)
                first = trial["trial"] * seeds
                yield trial["trial"], trial["values"], range(first, first + seeds)
    else:
        require_fields(file, asked, members=list)
        points: dict[str, tuple[Point, list[int]]] = {}
        for number, member in enumerate(asked["members"]):
            require_fields(file, member, seed=int)
            values = {name: value for name, value in member.items() if name != "seed"}
            points.setdefault(json.dumps(values), (values, []))[1].append(number)
        for number, (values, members) in enumerate(points.values()):
            yield number, values, members


def _states(folder: Path, asked: Mapping[str, Any], unfinished: str) -> Iterator[tuple[int, str]]:
    """Yield (member, status) of all members that have begun; later ones replace earlier ones.

    Args:
        folder: folder of the records.
        asked: content of sweep.yaml.
        unfinished: status of members that are not complete.
    """
    rungs = (asked.get("halving") or {}).get("rungs", 0) if asked["mode"] == "search" else 0
    found = []
    for place, content in sorted(read_batches(folder), key=lambda own: own[0]):
        batch, *inside = place.relative_to(folder).parts or ("",)
        rung = int(inside[1]) if inside[:1] == ["rungs"] and inside[1:][:1] else 0
        numbers = [member["member"] for member in content["members"]]
        found.append((batch, rung, numbers, (place / "finished").exists()))
    newest = {batch: max(own[1] for own in found if own[0] == batch) for batch, *_ in found}
    for batch, rung, numbers, finished in found:
        ended = "complete" if finished and rung == rungs else unfinished
        status = "pruned" if asked["mode"] == "search" and rung < newest[batch] else ended
        yield from ((number, status) for number in numbers)


def finals(trial: Trial, metric: str) -> list[float]:
    """Return the last known value of a metric of each seed, without seeds with bad numbers."""
    known = last_known([row for rows in trial.runs for row in rows], metric)
    return [value for value in known.values() if value is not None]


def bests(trial: Trial, metric: str) -> list[float]:
    """Return the highest value of a metric of each seed that has one."""
    known = [[row[metric] for row in rows if row.get(metric) is not None] for rows in trial.runs]
    return [max(values) for values in known if values]


def of_trials(record: SweepRecord) -> Section:
    """Show the trials: settings, seeds, env steps, final and best values, and status."""
    names, unit, metrics = varied_fields(record.trials), UNIT[record.asked["mode"]], record.metrics
    header = [unit, *(name.removeprefix("policies.") for name in names), "seeds", "env steps"]
    header += [f"{which} {metric}" for metric in metrics for which in ("final", "best")]
    table = []
    for own in record.ranked():
        begun = [rows[-1]["env_steps"] for rows in own.runs if rows]
        cells = [spread(of(own, metric)) for metric in metrics for of in (finals, bests)]
        seeds = f"{len(begun)} of {len(own.runs)}" if len(begun) < len(own.runs) else len(begun)
        steps = f"{min(begun, default=0):,}"
        values = (short_value(own.values.get(name, "")) for name in names)
        table.append([own.number, *values, seeds, steps, *cells, own.status])
    states = [own.status for own in record.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    more = STOPPED if "stopped" in states else ""
    return Section("Trials", html_table(table, [*header, "status"]), f"{counts}. {more}{WORDS}")


def of_settings(record: SweepRecord) -> Section:
    """Show how the sweep was started, and all fields of its base configuration."""
    asked = record.asked
    members = asked["members"] if asked["mode"] == "grid" else ()
    seeds = asked.get("seeds") or list(dict.fromkeys(own["seed"] for own in members))
    left_out = ("config", "members", "seeds")
    more = {name: value for name, value in _given(asked).items() if name not in left_out}
    rows = [["env", asked["config"]["env"]], *flat(more).items(), ["seeds", seeds or None]]
    whole = html_table(flat(asked["config"]).items())
    table = html_table([row for row in rows if row[1] is not None])
    return Section("Sweep", table + folded("All fields of the base configuration", whole))
