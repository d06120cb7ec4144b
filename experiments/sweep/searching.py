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
from collections.abc import Callable, Collection, Mapping, Sequence
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
    plain_values,
    varying,
)
from wdjax.experiments.sweep.optuna_study import Study, Trial, open_study, require_optuna
from wdjax.experiments.sweep.table import best_member, last_known, point_words, write_table
from wdjax.files import write_text
from wdjax.train import Population, TrainConfig
from wdjax.train.host.callbacks import Callback
from wdjax.train.load import change_config
from wdjax.train.storage.folder import plain_config, read_json, require_fields


def search(  # noqa: D417  (as for `sweep`)
    config: TrainConfig | str | Path,
    values: Mapping[str, Any],
    trials: int,
    seeds: int | Sequence[int] = 1,
    batch: int = 16,
    halving: Halving | None = None,
    storage: str | None = None,
    study: str = "wdjax",
    workdir: str | Path | None = None,
    metric: str | None = None,
    members_at_once: int = 0,
    devices: int = 0,
    resume: bool = False,
    quiet: bool = True,
    stop: threading.Event | None = None,
    trust: Collection[str] = (),
    callbacks: Sequence[Callback | str] = (),
) -> list[Row]:
    """Search for the best values with Optuna's tree-structured Parzen estimator.

        ranges = {"policies.agent.learning_rate": "log:1e-4:1e-2"}
        table = search("cartpole_ppo", ranges, trials=64, seeds=2)

    Args:
        config: a configuration, the name of a preset, or a YAML file.
        values: dotted field -> a range ("log:1e-4:1e-2", "uniform:0.9:0.999", "int:1:8") or a list
            of choices. A single value changes the field for all trials.
        trials: number of trials of the study, over all workers. A resumed search may have more
            than before.
        seeds: seeds of every trial: their number, counted up from the configuration's seed, or a
            list.
        batch: trials that are proposed and trained together.
        halving: successive halving; None: train all trials to the end.
        storage: Optuna storage that workers share, each with its own workdir: a journal file or a
            database URL; None: optuna.log in the workdir.
        study: name of the study in the storage.
        workdir, metric, members_at_once, devices, resume, quiet, stop, trust, callbacks: as for
            `sweep`.

    Returns:
        One row per trial of the study, from all workers: number, values, score, state and env
        steps.

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
    settings = {name: parse_values(name, own) for name, own in values.items()}
    seeds = make_seeds(seeds, base.seed)
    possible = check_values(base, settings, seeds)
    words = "omitted with halving, which compares members after the same number of updates"
    goals = next((own.config.stop_at for own in possible if own.config.stop_at), None)
    require(not (halving and goals), "stop_at", goals, words)
    metric = choose_metric(metric, make_populations(possible[:1], devices, trust)[0])
    question = {  # equal for all workers of a study
        "config": plain_config(base),
        "metric": metric,
        "seeds": seeds,
        "values": plain_values(settings),
        "halving": dataclasses.asdict(halving) if halving else None,
    }
    asked = {"mode": "search", **question, "batch": batch, "storage": storage, "study": study}
    configs = [member.config for member in possible]
    opened = open_sweep(
        workdir, asked, configs, resume, devices, members_at_once, quiet, stop, trust, callbacks
    )
    with opened as running:
        own = open_study(storage, study, running.workdir, settings, question, base.seed)
        return run_trials(running, own, base, seeds, trials, batch, halving, metric)


def check_values(
    base: TrainConfig, settings: Mapping[str, Values], seeds: Sequence[int]
) -> list[Member]:
    """Check every value that a trial may have, one field at a time.

    Returns:
        Members with these values; the first one has the first value of every field.

    Raises:
        ValueError, TypeError: as `load_config`, and if no field varies.
    """
    varying(settings)
    ends = lambda own: [own.low, own.high] if isinstance(own, Range) else own  # noqa: E731
    several = {name: ends(own) for name, own in settings.items()}
    first = {name: own[0] for name, own in several.items()}
    others = [{**first, name: value} for name, own in several.items() for value in own[1:]]
    return make_members(base, [first, *others], seeds)


def run_trials(
    running: Sweep,
    study: Study,
    base: TrainConfig,
    seeds: Sequence[int],
    trials: int,
    batch: int,
    halving: Halving | None,
    metric: str,
) -> list[Row]:
    """Ask for batches, train them and tell their results, until the study has all its trials.

    Returns:
        The table.
    """
    known: list[Population] = []
    held, members, rows = [], [], []
    for folder in (running.workdir / "batches" / f"{number:03d}" for number in itertools.count()):
        if running.stop.is_set():
            return study.table()
        proposed = read_batch(folder, functools.partial(study.ask, batch, trials, held))
        if not proposed:
            break
        first, held = not held, held + [number for number, _ in proposed]
        own = trial_members(running, study, base, proposed, seeds)
        if not own:
            continue
        if first:
            known = make_populations(own, running.devices, running.trust)
            running.announce(own, known[0], len(known))
        results, done = train_trials(running, folder, own, halving, metric, known)
        members, rows = members + own, rows + done
        for trial in results or ():
            study.tell(trial)
        write_table(running.workdir, study.table())
        if results is None:
            return study.table()
    conclude(running, study, members, rows, metric)
    return study.table()


def read_batch(folder: Path, ask: Callable[[], list[tuple[int, Point]]]) -> list[tuple[int, Point]]:
    """Return the (number, values) of a batch that was started, or of a new one, which is stored."""
    file = folder / "batch.json"
    if not file.exists():
        content = [{"trial": number, "values": values} for number, values in ask()]
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
            change_config(base, trust=running.trust, **values)
        except (ValueError, TypeError) as error:
            running.say(f"Skipped trial {trial}: {error}")
            study.tell(Trial(trial, None, False, ()))
            continue
        for own in make_members(base, [values], seeds):
            number = trial * len(seeds) + own.number
            members.append(dataclasses.replace(own, number=number, point=trial))
    return members


def conclude(
    running: Sweep, study: Study, members: Sequence[Member], rows: Sequence[Row], metric: str
) -> None:
    """Draw the trials of this worker, write the best run if it is among them, and print it."""
    table = study.table()
    write_table(running.workdir, table)
    running.say(f"Wrote {running.workdir}/table.csv, table.jsonl: {len(table)} trials")
    if members:
        running.draw(members, rows, metric)
    best = best_member([row for row in table if row["state"] == "complete"])
    if best is None:
        running.say("No trial has a score, because no episode ended")
        return
    trial, words = best["trial"], point_words(best, varying(study.settings))
    running.say(f"Best trial: {trial} ({words}), score {best['score']:.2f}")
    known = last_known(rows, metric)
    own = [m for m in members if m.point == trial and known.get(m.number) is not None]
    if own:
        member = max(own, key=lambda member: known[member.number])
        words = f"the run with seed {member.config.seed} of the best trial"
        running.export(member.number, rows, known[member.number], words)
