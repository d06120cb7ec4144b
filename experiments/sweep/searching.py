"""Search: Optuna proposes batches of trials. Several workers may share its storage.

A trial is one combination of values, with every seed; its score is the mean over seeds. With
successive halving (Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and
Hyperparameter Optimization", 2016), a batch is trained in rungs, and only its best trials continue.
The others are pruned trials of the study.
"""

import dataclasses
import functools
import itertools
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wdjax.checks import require, require_integer
from wdjax.experiments.sweep.driver import Batch, Sweep, choose_metric, drive, read_rows
from wdjax.experiments.sweep.members import (
    Member,
    Point,
    Range,
    Row,
    Values,
    as_config,
    make_members,
    make_populations,
    make_seeds,
    parse_values,
    plain_values,
    varying,
)
from wdjax.experiments.sweep.optuna_study import Study, open_study, require_optuna
from wdjax.experiments.sweep.table import best_member, final_table, last_known, trial_table
from wdjax.files import read_json, require_fields, write_text
from wdjax.train import Callback, Population, TrainConfig, plain_config


@dataclasses.dataclass(frozen=True)
class Halving:
    """Successive halving: after each rung the best 1/reduction of a batch continue."""

    reduction: int = 4
    """One of this many trials continues, to `reduction` times the length."""
    rungs: int = 2
    """Number of halving steps."""

    def __post_init__(self):
        require_integer("halving", self.reduction, 2)
        require_integer("rungs", self.rungs, 1)


def search(  # noqa: D417  (as for `sweep`)
    config: TrainConfig | str | Path, values: Mapping[str, Any], trials: int,
    seeds: int | Sequence[int] = 1, batch: int = 16, halving: Halving | None = None,
    storage: str | None = None, study: str = "wdjax", workdir: str | Path | None = None,
    metric: str | None = None, members_at_once: int = 0, devices: int = 0, resume: bool = False,
    quiet: bool = True, stop: threading.Event | None = None, trust: Collection[str] = (),
    callbacks: Sequence[Callback | str] = (),
) -> list[Row]:  # fmt: skip
    """Search for the best values with Optuna's tree-structured Parzen estimator.

        ranges = {"policies.agent.learning_rate": "log:1e-4:1e-2"}
        table = search("cartpole_ppo", ranges, trials=64, seeds=2)

    Args:
        config: a configuration, the name of a preset, or a YAML file.
        values: dotted field -> a range ("log:1e-4:1e-2", "uniform:0.9:0.999", "int:1:8") or a list
            of choices. A single value changes the field for all trials.
        trials: number of trials of all workers. A resumed search may have more than before.
        seeds: seeds of every trial, as for `sweep`.
        batch: trials that are proposed and trained together.
        halving: successive halving; None: train all trials to the end.
        storage: Optuna storage that workers share, each with its own workdir: a journal file or a
            database URL; None: optuna.log in the workdir.
        study: name of the study in the storage.
        workdir, metric, members_at_once, devices, resume, quiet, stop, trust, callbacks: as for
            `sweep`.

    Returns:
        One row per trial, from all workers: number, values, score, state and env steps.

    Raises:
        ImportError: if Optuna is not installed.
        ValueError, TypeError, FileExistsError: as `sweep`, and for a study of this name with
            other values.
    """
    require_optuna()
    base = as_config(config)
    require_integer("trials", trials, 1)
    require_integer("batch", batch, 1)
    settings = {name: parse_values(name, own) for name, own in values.items()}
    seeds = make_seeds(seeds, base.seed)
    possible = check_values(base, settings, seeds, halving)
    metric = choose_metric(metric, make_populations(possible[:1], devices, trust)[0])
    question = {  # equal for all workers of a study
        "config": plain_config(base),
        "metric": metric,
        "seeds": seeds,
        "values": plain_values(settings),
        "halving": dataclasses.asdict(halving) if halving else None,
    }
    asked = {"mode": "search", **question, "batch": batch, "storage": storage, "study": study}

    def kind(running: Sweep) -> Iterator[list[Row]]:
        own = open_study(storage, study, running.workdir, settings, question, base.seed)
        return run_trials(running, own, base, seeds, trials, batch, halving, metric)

    return drive(
        kind, asked, possible, workdir, resume, devices, members_at_once, quiet, stop, trust,
        callbacks
    )  # fmt: skip


def check_values(
    base: TrainConfig,
    settings: Mapping[str, Values],
    seeds: Sequence[int],
    halving: Halving | None,
) -> list[Member]:
    """Check every value that a trial may have, one field at a time.

    Returns:
        Members with these values; the first one has the first value of every field.

    Raises:
        ValueError, TypeError: as `load_config`, if no field varies, and for halving with `stop_at`.
    """
    varying(settings)
    ends = lambda own: [own.low, own.high] if isinstance(own, Range) else own  # noqa: E731
    several = {name: ends(own) for name, own in settings.items()}
    first = {name: own[0] for name, own in several.items()}
    others = [{**first, name: value} for name, own in several.items() for value in own[1:]]
    members = make_members(base, [first, *others], seeds)
    words = "omitted with halving, which compares members after the same number of updates"
    for member in members if halving else ():
        require(not member.config.stop_at, "stop_at", member.config.stop_at, words)
    return members


def run_trials(
    running: Sweep,
    study: Study,
    base: TrainConfig,
    seeds: Sequence[int],
    trials: int,
    batch: int,
    halving: Halving | None,
    metric: str,
) -> Iterator[list[Row]]:
    """Ask for batches, train them and tell their results, until the study has all its trials."""
    known: list[Population] = []
    held: list[int] = []
    members: list[Member] = []
    rows: list[Row] = []
    for number in itertools.count():
        if running.stop.is_set():
            break
        folder = running.workdir / "batches" / f"{number:03d}"
        proposed = read_batch(folder, functools.partial(study.ask, batch, trials, held))
        own = trial_members(running, study, base, proposed, seeds)
        yield study.table()
        if not proposed:
            conclude(running, study, members, rows, metric)
            return
        held += [trial for trial, _ in proposed]
        if not own:
            continue
        if not known:
            known += make_populations(own, running.devices, running.trust)
            running.announce(own, known[0], len(known))
        rows += train_trials(running, study, folder, own, halving, metric, known)
        members += own
    yield study.table()


def read_batch(folder: Path, ask: Callable[[], list[tuple[int, Point]]]) -> list[tuple[int, Point]]:
    """Return the (number, values) of a batch that was started, or of a new one, which is stored."""
    file = folder / "batch.json"
    if not file.exists():
        content: Any = [{"trial": number, "values": values} for number, values in ask()]
        if content:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(content) + "\n", sync=True)
    else:
        content = read_json(file)
        require_fields(file, {"trials": content}, trials=list)
    for trial in content:
        require_fields(file, trial, trial=int, values=dict)
    return [(trial["trial"], trial["values"]) for trial in content]


def trial_members(
    running: Sweep,
    study: Study,
    base: TrainConfig,
    proposed: Sequence[tuple[int, Point]],
    seeds: Sequence[int],
) -> list[Member]:
    """Return the members of a batch, numbered by the trials of the study.

    A trial whose values are invalid in combination is told to the study as failed.
    """
    members = []
    for trial, values in proposed:
        try:
            members += make_members(base, [values], seeds, running.trust, trial)
        except (ValueError, TypeError) as error:
            running.say(f"Skipped trial {trial}: {error}")
            study.tell(trial)
    return members


def rung_spans(num_updates: int, halving: Halving | None) -> list[tuple[int, int]]:
    """Return the (first, last) number of updates of each rung; the last rung ends with the run."""
    reduction, rungs = (halving.reduction, halving.rungs) if halving else (1, 0)
    ends = [max(1, num_updates // reduction**k) for k in range(rungs, -1, -1)]
    return list(itertools.pairwise([0, *ends]))


def train_trials(
    running: Sweep,
    study: Study,
    folder: Path,
    members: Sequence[Member],
    halving: Halving | None,
    metric: str,
    known: list[Population],
) -> list[Row]:
    """Train the members of a batch's trials (`Member.point`), and tell their results to the study.

    Args:
        running: the sweep.
        study: the study of the trials.
        folder: folder of the batch.
        members: members of all trials.
        halving: None: train all trials to the end.
        metric: score of a member.
        known: populations whose programs are used again; new ones are added.

    Returns:
        Rows of all chunks.

    Raises:
        Stopped: as `Sweep.train`.
    """
    configs = {member.point: member.config for member in members}
    batches: list[Batch] = []
    scores: dict[int, float | None] = {}
    alive, rows = list(configs), []
    share = trained_share(members, halving)
    with running.progress(members, folder / "rungs", share) as bar:
        for rung in range(1 + (halving.rungs if halving else 0)):
            going = [member for member in members if member.point in alive]
            populations = make_populations(going, running.devices, running.trust, known)
            known += populations
            span = lambda updates, rung=rung: rung_spans(updates, halving)[rung]  # noqa: E731
            place = folder / "rungs" / f"{rung}"
            each = [(place / f"{i:03d}", own) for i, own in enumerate(populations)]
            batches += running.train(each, bar, span, tuple(batches))
            rows += read_rows(place)
            scores |= trial_scores(going, rows, metric)
            for trial in alive:
                if (score := scores[trial]) is not None:
                    steps = span(configs[trial].num_updates)[1]
                    study.report(trial, steps * configs[trial].env_steps_per_update, score)
            if halving and rung < halving.rungs:
                alive = survivors(alive, scores, halving.reduction)
    for trial in configs:
        study.tell(trial, scores[trial], pruned=trial not in alive)
    return rows


def trial_scores(
    members: Sequence[Member], rows: Sequence[Row], metric: str
) -> dict[int, float | None]:
    """Return trial -> mean over its seeds of the metric's last value; None without a value."""
    known = last_known(rows, metric)
    values: dict[int, list[float | None]] = {}
    for member in members:
        values.setdefault(member.point, []).append(known.get(member.number))
    return {
        trial: None if None in own else float(np.mean(np.array(own, float)))
        for trial, own in values.items()
    }


def survivors(trials: Sequence[int], scores: dict[int, float | None], reduction: int) -> list[int]:
    """Return the best 1 / reduction of trials, rounded up, in their order."""
    known = {trial: -np.inf if score is None else score for trial, score in scores.items()}
    best = sorted(trials, key=known.__getitem__, reverse=True)  # of equal ones the earlier
    return [trial for trial in trials if trial in best[: -(-len(trials) // reduction)]]


def trained_share(members: Sequence[Member], halving: Halving | None) -> float:
    """Return the share of the members' env steps that is trained; halving skips the others.

    It is exact if all trials have the same number of updates.
    """
    updates = max(member.config.num_updates for member in members)
    going = trials = len({member.point for member in members})
    trained = 0
    for first, last in rung_spans(updates, halving):
        trained += going * (last - first)
        going = -(-going // halving.reduction) if halving else going
    return trained / (trials * updates)


def conclude(
    running: Sweep, study: Study, members: Sequence[Member], rows: Sequence[Row], metric: str
) -> None:
    """Draw the trials of this worker, write the best run if it is among them, and print it."""
    if members:
        running.draw(members, rows, metric)
    best = best_member([row for row in study.table() if row["state"] == "complete"])
    if best is None:
        running.say("No trial has a score, because no episode ended")
        return
    names = varying(study.settings)
    running.console.print(trial_table(study.table(), names))
    own = {member.number: member for member in members if member.point == best["trial"]}
    run = best_member(final_table(list(own.values()), rows, metric))
    if run is not None:
        running.export(own[run["member"]], rows, run["score"], names)
