"""A study of Optuna: its trials, their distributions, and their results."""

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from wdjax.checks import one_line
from wdjax.experiments.sweep.members import Point, Range, Row, Values
from wdjax.files import open_regular
from wdjax.train.storage.sweep_folder import require_same
from wdjax.yaml_reader import read_yaml_value

OWNER = "workdir"  # attribute: folder of the worker that trains a trial


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A study in its storage, for one worker."""

    study: Any  # optuna.Study
    storage: Any
    settings: Mapping[str, Values]
    seed: int  # sampler seed
    owner: str  # folder of this worker
    shared: bool  # with other workers

    def ask(self, batch: int, trials: int, held: Sequence[int]) -> list[tuple[int, Point]]:
        """Return (number, values) of the next trials: `batch`, or the rest of `trials`.

        Trials that a killed worker asked for, and that are in none of its batches, come first.

        Args:
            batch: number of trials.
            trials: number of trials of the whole study.
            held: trials in the batches of this worker.
        """
        import optuna

        asked = self._orphans(held)[:batch]
        while len(asked) < batch and (count := len(self._trials())) < trials:
            # a new sampler for every trial, so that a resumed search proposes the same
            self.study.sampler = optuna.samplers.TPESampler(seed=(self.seed + count) % 2**32)
            trial = self.study.ask(distributions(self.settings))
            if sum(other.number < trial.number for other in self._trials()) >= trials:
                # two workers asked for the last trial
                self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                break
            trial.set_user_attr(OWNER, self.owner)
            asked.append(trial)
        return [(trial.number, point_of(self.settings, trial.params)) for trial in asked]

    def _trials(self) -> list[Any]:
        """Return the trials, without those that two workers asked for and none trains."""
        trials = self.study.get_trials(deepcopy=False)
        surplus = lambda trial: trial.state.name == "FAIL" and OWNER not in trial.user_attrs  # noqa: E731
        return [trial for trial in trials if not surplus(trial)]

    def _orphans(self, held: Sequence[int]) -> list[Any]:
        going = [trial for trial in self._trials() if not trial.state.is_finished()]
        own = lambda trial: not self.shared or trial.user_attrs.get(OWNER) == self.owner  # noqa: E731
        return [trial for trial in going if own(trial) and trial.number not in held]

    def report(self, trial: int, env_steps: int, score: float) -> None:
        """Store the score of a trial after a rung, unless the trial is finished."""
        if not self.study.get_trials(deepcopy=False)[trial].state.is_finished():
            study_id = self.storage.get_study_id_from_name(self.study.study_name)
            trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, trial)
            self.storage.set_trial_intermediate_value(trial_id, env_steps, score)

    def tell(self, trial: int, score: float | None = None, pruned: bool = False) -> None:
        """Store the result of a trial, unless it has one.

        Args:
            trial: number of the trial.
            score: its score; None: no episode ended, or bad numbers.
            pruned: whether halving ended the trial.
        """
        from optuna.trial import TrialState

        complete = score is not None and not pruned
        ended = TrialState.PRUNED if pruned else TrialState.FAIL
        value, state = (score, None) if complete else (None, ended)
        self.study.tell(trial, value, state, skip_if_finished=True)

    def table(self) -> list[Row]:
        """Return a row for every trial of the study, from all workers."""
        rows = []
        for trial in self._trials():
            result = {"score": trial.value, "state": trial.state.name.lower()}
            owner = {OWNER: trial.user_attrs.get(OWNER)} if self.shared else {}
            point = point_of(self.settings, trial.params)
            rows.append(
                {"trial": trial.number, **point, **result, "env_steps": trial.last_step, **owner}
            )
        return rows


def require_optuna() -> None:
    """Raise ImportError, with the package to install, without Optuna."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ImportError(
            'a search needs Optuna. Run pip install "wdjax[search]" (or pip install optuna)'
        ) from None


def open_study(
    storage: str | None,
    name: str,
    workdir: Path,
    settings: Mapping[str, Values],
    question: Mapping[str, Any],
    seed: int,
) -> Study:
    """Open a study, or create it.

    Args:
        storage: a journal file or a database URL, shared with other workers; None: optuna.log in
            `workdir`.
        name: name of the study.
        workdir: folder of this worker.
        settings: field -> values.
        question: everything that the score of a trial depends on.
        seed: seed of the configuration.

    Raises:
        ValueError: if the storage cannot be opened, or the study has another question.
    """
    import optuna
    from optuna.storages import journal

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place, owner = storage or str(workdir / "optuna.log"), str(workdir.absolute())
    try:
        if storage is None:
            open_regular(place, "ab").close()  # Optuna would write through a link
        if "://" in place:
            opened = optuna.storages.get_storage(place)
        else:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            opened = optuna.storages.JournalStorage(journal.JournalFileBackend(place))
        study = optuna.create_study(
            storage=opened, study_name=name, direction="maximize", load_if_exists=True
        )
        if "question" not in study.user_attrs:
            study.set_user_attr("question", yaml.safe_dump(dict(question), sort_keys=False))
        stored = read_yaml_value(study.user_attrs["question"])
    except Exception as error:  # databases and their drivers raise errors of any type
        raise ValueError(f"storage = {place!r}: {one_line(error)}") from error
    require_same(f"the study {name!r} in {place}", stored, question)
    seed += zlib.crc32(owner.encode()) if storage else 0  # workers propose different values
    return Study(study, opened, settings, seed, owner, storage is not None)


def distributions(settings: Mapping[str, Values]) -> dict[str, Any]:
    """Return Optuna's distribution of every field with several values or a range."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for name, own in settings.items():
        if isinstance(own, Range) and own.kind == "int":
            found[name] = IntDistribution(int(own.low), int(own.high))
        elif isinstance(own, Range):
            found[name] = FloatDistribution(own.low, own.high, log=own.kind == "log")
        elif len(own) > 1:
            found[name] = CategoricalDistribution([choice(value) for value in own])
    return found


def choice(value: Any) -> Any:
    """Return a value as Optuna stores it as a choice: lists and mappings as JSON."""
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def point_of(settings: Mapping[str, Values], chosen: Mapping[str, Any]) -> Point:
    """Return the values of a trial from Optuna's choices, with the fields of a single value."""
    point = {}
    for name, own in settings.items():
        values = {} if isinstance(own, Range) else {choice(value): value for value in own}
        stored = chosen.get(name, next(iter(values)) if len(values) == 1 else None)
        point[name] = values.get(stored, stored)
    return point
