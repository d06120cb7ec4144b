"""Search: Optuna proposes trials in batches, a population each; several workers share its storage.

A trial is one combination of values, with every seed; its score is the mean over seeds. With successive halving
(Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", 2016) a batch is
trained in rungs, and only its best go on to the next; the others are told to Optuna as pruned, with what they reached.
"""

import dataclasses
import itertools
import json
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any


from wdjax.checks import require, require_integer
from wdjax.experiments.sweep.driver import Sweep, choose_metric, open_sweep
from wdjax.experiments.sweep.halving import Halving, train_trials
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
    varying,
)
from wdjax.experiments.sweep.optuna_study import Study, Trial, open_study, require_optuna
from wdjax.experiments.sweep.table import best_member, last_known, point_words, write_table
from wdjax.files import write_text
from wdjax.train import Population, TrainConfig
from wdjax.train.host.callbacks import Callback
from wdjax.train.load import change_config
from wdjax.train.storage.folder import plain_config, read_json, require_fields


def search(
    config: TrainConfig | str | Path, values: Mapping[str, Any], trials: int, seeds: int | Sequence[int] = 1,
    batch: int = 16, halving: Halving | None = None, storage: str | None = None, study: str = "wdjax",
    workdir: str | Path | None = None, metric: str | None = None, members_at_once: int = 0, devices: int = 0,
    resume: bool = False, quiet: bool = True, stop: threading.Event | None = None,
    trust: Collection[str] = (), callbacks: Sequence[Callback | str] = (),
) -> list[Row]:  # fmt: skip
    """Search for the values with the highest score with Optuna's tree-structured Parzen estimator.

        table = search("cartpole_ppo", {"policies.agent.learning_rate": "log:1e-4:1e-2"}, trials=64, seeds=2)

    Args:
        config: a configuration, the name of a preset, or a YAML file.
        values: dotted field -> a range ("log:1e-4:1e-2", "uniform:0.9:0.999", "int:1:8") or a list of choices. A single
            value changes the field for all trials.
        trials: number of trials of the study, over all workers. A resumed search may have more than before.
        seeds: seeds of every trial: their number, counted up from the configuration's seed, or a list.
        batch: trials that are proposed and trained together.
        halving: successive halving; None: train all trials to the end.
        storage: Optuna storage that workers share, each with its own workdir: a journal file or a database URL; None:
            optuna.log in the workdir.
        study: name of the study in the storage.
        workdir, metric, members_at_once, devices, resume, quiet, stop, trust, callbacks: as for `sweep`.

    Returns:
        One row per trial of the study, from all workers: number, values, score, state and env steps.

    Raises:
        ImportError: if Optuna is not installed.
        ValueError: as `sweep`, and if the storage holds a different study of this name.
        TypeError: as `sweep`.
        FileExistsError: as `sweep`.
    """
    require_optuna()
    base = as_config(config)
    require_integer("trials", trials, 1)
    require_integer("batch", batch, 1)
    settings, seeds = {name: parse_values(name, own) for name, own in values.items()}, make_seeds(seeds, base.seed)
    possible = check_values(base, settings, seeds)
    words = "omitted with halving, which compares members after the same number of updates"
    goals = next((own.config.stop_at for own in possible if own.config.stop_at), None)
    require(not (halving and goals), "stop_at", goals, words)
    (first,) = make_populations(possible[:1], devices, trust)
    metric = choose_metric(metric, first)
    question = study_question(base, metric, seeds, settings, halving)
    asked = {"mode": "search", **question, "batch": batch, "storage": storage, "study": study}
    configs = [member.config for member in possible]
    opened = open_sweep(workdir, asked, configs, resume, devices, members_at_once, quiet, stop, trust, callbacks)
    with opened as running:
        own = open_study(storage, study, running.workdir, settings, question, base.seed)
        return run_trials(running, own, base, seeds, trials, batch, halving, metric)


def study_question(
    base: TrainConfig, metric: str, seeds: Sequence[int], settings: Mapping[str, Values], halving: Halving | None
) -> dict[str, Any]:
    """Returns what all workers of a study must have asked alike, as YAML holds it."""
    return {
        "config": plain_config(base), "metric": metric, "seeds": seeds,
        "values": {name: own if isinstance(own, list) else str(own) for name, own in settings.items()},
        "halving": dataclasses.asdict(halving) if halving else None,
    }  # fmt: skip


def check_values(base: TrainConfig, settings: Mapping[str, Values], seeds: Sequence[int]) -> list[Member]:
    """Checks every value that a trial may get, one field at a time; returns members, the first with the first of all.

    Raises:
        ValueError, TypeError: as `load_config`, and where nothing is to be found.
    """
    several = {
        name: [values.low, values.high] if isinstance(values, Range) else values for name, values in settings.items()
    }
    first = {name: values[0] for name, values in several.items()}
    varying(settings)
    points = [first] + [{**first, name: value} for name, values in several.items() for value in values[1:]]
    return make_members(base, points, seeds)


def run_trials(
    host: Sweep, study: Study, base: TrainConfig, seeds: Sequence[int], trials: int, batch: int,
    halving: Halving | None, metric: str,
) -> list[Row]:  # fmt: skip
    """Asks, trains and tells batches until the study has its trials, or until told to stop. Returns the table."""
    known: list[Population] = []
    held, members, rows = [], [], []
    for folder in (host.workdir / "batches" / f"{number:03d}" for number in itertools.count()):
        if host.stop.is_set():
            return study.table()
        proposed = read_batch(folder) or write_batch(folder, study.ask(batch, trials, held))
        if not proposed:
            break
        first, held = not held, held + [number for number, _ in proposed]
        own = trial_members(base, fitting_trials(host, study, base, proposed), seeds)
        if not own:
            continue
        if first:
            known = make_populations(own, host.devices, host.trust)
            host.announce(own, known[0], len(known))
        ended, done = train_trials(host, folder, own, halving, metric, known)
        members, rows = members + own, rows + done
        for trial in ended or ():
            study.tell(trial)
        write_table(host.workdir, study.table())
        if ended is None:
            return study.table()
    conclude(host, study, members, rows, metric)
    return study.table()


def read_batch(folder: Path) -> list[tuple[int, Point]] | None:
    """Returns the (number, values) of a batch that this worker has begun; None where it has not."""
    file = folder / "batch.json"
    if not file.exists():
        return None
    begun = {"trials": read_json(file)}
    require_fields(file, begun, trials=list)
    for trial in begun["trials"]:
        require_fields(file, trial, trial=int, values=dict)
    return [(trial["trial"], trial["values"]) for trial in begun["trials"]]


def write_batch(folder: Path, proposed: list[tuple[int, Point]]) -> list[tuple[int, Point]]:
    """Notes down which trials make a batch, if any do. Returns them."""
    if proposed:
        folder.mkdir(parents=True, exist_ok=True)
        content = [{"trial": number, "values": values} for number, values in proposed]
        write_text(folder / "batch.json", json.dumps(content) + "\n", sync=True)
    return proposed


def fitting_trials(
    host: Sweep, study: Study, base: TrainConfig, proposed: Sequence[tuple[int, Point]]
) -> list[tuple[int, Point]]:
    """Returns the trials that can be trained; of values that are right alone but not together, the study is told."""
    fitting = []
    for number, values in proposed:
        try:
            change_config(base, trust=host.trust, **values)
            fitting.append((number, values))
        except (ValueError, TypeError) as error:
            host.say(f"Skipped trial {number}: {error}")
            study.tell(Trial(number, None, False, ()))
    return fitting


def trial_members(base: TrainConfig, proposed: Sequence[tuple[int, Point]], seeds: Sequence[int]) -> list[Member]:
    """Returns the members of a batch: numbers and points are those of the study's trials."""
    trials = [number for number, _ in proposed]
    members = [(trials[own.point], own) for own in make_members(base, [values for _, values in proposed], seeds)]
    return [
        dataclasses.replace(own, number=trial * len(seeds) + own.number % len(seeds), point=trial)
        for trial, own in members
    ]


def conclude(host: Sweep, study: Study, members: Sequence[Member], rows: Sequence[Row], metric: str) -> None:
    """Draws this worker's trials, writes the best of all as a run where it is one of these, and says what was found."""
    table = study.table()
    write_table(host.workdir, table)
    host.say(f"Wrote {host.workdir}/table.csv, table.jsonl: {len(table)} trials")
    if members:
        host.draw(members, rows, metric)
    best = best_member([row for row in table if row["state"] == "complete"])
    if best is None:
        host.say("No trial has a score, because no episode ended")
        return
    host.say(f"Best trial: {best['trial']} ({point_words(best, varying(study.settings))}), score {best['score']:.2f}")
    known = last_known(rows, metric)
    own = [member for member in members if member.point == best["trial"] and known.get(member.number) is not None]
    if own:
        member = max(own, key=lambda member: known[member.number])
        words = f"the run with seed {member.config.seed} of the best trial"
        host.export(member.number, rows, known[member.number], words)
