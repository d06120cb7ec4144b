"""A study of Optuna: what trials there are, what they may choose from, and how they ended."""

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

SURPLUS = "surplus"  # a trial that two workers asked for at once, when one was left
OWNER = "workdir"  # of the worker that has a trial


@dataclasses.dataclass(frozen=True)
class Trial:
    """How a trial ended."""

    number: int
    score: float | None  # None: no episode ended in it, or it ended with bad numbers
    pruned: bool
    reached: tuple[tuple[int, float], ...]  # (env steps, score) after each rung


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A study in its storage, as one worker sees it."""

    study: Any  # optuna.Study
    storage: Any
    settings: Mapping[str, Values]
    seed: int  # of what the sampler draws
    owner: str  # this worker's folder
    shared: bool

    def ask(self, batch: int, trials: int, held: Sequence[int]) -> list[tuple[int, Point]]:
        """Returns (number, values) of the next trials: `batch`, or as many as the study has left of `trials`.

        First those that this worker had asked for when it was killed, and that are in none of its batches (`held`).
        """
        import optuna

        asked = self._orphans(held)[:batch]
        while len(asked) < batch:
            counted = [trial for trial in self.study.get_trials(deepcopy=False) if SURPLUS not in trial.user_attrs]
            if len(counted) >= trials:
                break
            # a sampler of its own for every trial: a search that is resumed proposes what it would have proposed
            self.study.sampler = optuna.samplers.TPESampler(seed=(self.seed + len(counted)) % 2**32)
            trial = self.study.ask(distributions(self.settings))
            trial.set_user_attr(OWNER, self.owner)
            before = [other for other in self.study.get_trials(deepcopy=False) if other.number < trial.number]
            if sum(SURPLUS not in other.user_attrs for other in before) >= trials:
                trial.set_user_attr(SURPLUS, True)
                self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                break
            asked.append(trial)
        return [(trial.number, point_of(self.settings, trial.params)) for trial in asked]

    def _orphans(self, held: Sequence[int]) -> list[Any]:
        trials = self.study.get_trials(deepcopy=False)
        mine = [trial for trial in trials if not self.shared or trial.user_attrs.get(OWNER) == self.owner]
        return [trial for trial in mine if not trial.state.is_finished() and trial.number not in held]

    def tell(self, trial: Trial) -> None:
        """Says how a trial ended; nothing where that is known already."""
        from optuna.trial import TrialState

        if self.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
            return
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        for env_steps, score in trial.reached:
            self.storage.set_trial_intermediate_value(trial_id, env_steps, score)
        if trial.pruned or trial.score is None:
            self.study.tell(trial.number, state=TrialState.PRUNED if trial.pruned else TrialState.FAIL)
        else:
            self.study.tell(trial.number, trial.score)

    def table(self) -> list[Row]:
        """Returns a row for every trial of the study, whoever has it."""
        rows = []
        for trial in self.study.get_trials(deepcopy=False):
            if SURPLUS not in trial.user_attrs:
                end = {"score": trial.value, "state": trial.state.name.lower(), "env_steps": trial.last_step}
                owner = {OWNER: trial.user_attrs.get(OWNER)} if self.shared else {}
                rows.append({"trial": trial.number, **point_of(self.settings, trial.params), **end, **owner})
        return rows


def require_optuna() -> None:
    """Raises ImportError, saying what to install, where there is no Optuna."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ImportError('a search needs Optuna. Run pip install "wdjax[search]" (or pip install optuna)') from None


def open_study(
    storage: str | None, name: str, workdir: Path, settings: Mapping[str, Values], question: Mapping[str, Any],
    seed: int,
) -> Study:  # fmt: skip
    """Opens a study, or creates it where there is none.

    Args:
        storage: a journal file or the URL of a database, shared with other workers; None: optuna.log in `workdir`.
        question: all that decides what a trial's score is.
        seed: of the configuration.

    Raises:
        ValueError: for a storage that cannot be opened, or that holds a study of this name about something else.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it tells of every study that it creates
    place = storage or str(workdir / "optuna.log")
    try:
        if storage is None:
            open_regular(place, "ab").close()  # no link, which Optuna would write through
        opened = open_storage(place)
        study = optuna.create_study(storage=opened, study_name=name, direction="maximize", load_if_exists=True)
        if "question" not in study.user_attrs:
            study.set_user_attr("question", yaml.safe_dump(dict(question), sort_keys=False))
        begun = read_yaml_value(study.user_attrs["question"])
    except Exception as error:  # databases and their drivers have errors of their own
        raise ValueError(f"storage = {place!r}: {one_line(error)}") from error
    require_same(f"the study {name!r} in {place}", begun, question)
    owner = str(workdir.absolute())
    own_seed = seed + (zlib.crc32(owner.encode()) if storage else 0)  # no two workers must propose the same
    return Study(study, opened, settings, own_seed, owner, storage is not None)


def open_storage(place: str) -> Any:
    """Returns Optuna's storage of a database's URL, or of a journal file."""
    import optuna
    from optuna.storages import journal

    if "://" in place:
        return optuna.storages.get_storage(place)
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    return optuna.storages.JournalStorage(journal.JournalFileBackend(place))


def distributions(settings: Mapping[str, Values]) -> dict[str, Any]:
    """Returns Optuna's distribution of every field that has more than one value."""
    import optuna

    found: dict[str, Any] = {}
    for name, values in settings.items():
        if isinstance(values, Range) and values.kind == "int":
            found[name] = optuna.distributions.IntDistribution(int(values.low), int(values.high))
        elif isinstance(values, Range):
            found[name] = optuna.distributions.FloatDistribution(values.low, values.high, log=values.kind == "log")
        elif len(values) > 1:
            found[name] = optuna.distributions.CategoricalDistribution([choice(value) for value in values])
    return found


def choice(value: Any) -> Any:
    """Returns a value as Optuna stores it among others: lists and mappings as JSON."""
    return json.dumps(value) if isinstance(value, (list, tuple, dict)) else value


def point_of(settings: Mapping[str, Values], chosen: Mapping[str, Any]) -> Point:
    """Returns the values of a trial from what Optuna chose; a field that has only one value has that."""
    point = {}
    for name, values in settings.items():
        listed = isinstance(values, list)
        own = chosen.get(name, choice(values[0]) if listed and len(values) == 1 else None)
        point[name] = next((value for value in values if choice(value) == own), own) if listed else own
    return point
