"""Curves of runs and sweeps as rows of one table, for pandas."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wdjax.all_policies import for_each_policy
from wdjax.checks import did_you_mean
from wdjax.files import SWEEP_FILE, find_files, require_fields
from wdjax.train.storage.folder import CONFIG, without_version
from wdjax.train.storage.metrics_log import METRICS, read_metrics
from wdjax.train.storage.sweep_folder import read_members_file, read_sweep, with_new_fields
from wdjax.yaml_reader import flat, read_yaml


@dataclasses.dataclass(frozen=True)
class _Curve:
    place: str  # folder of a run or a sweep
    member: int | None  # number in the sweep
    seed: int | None
    values: Mapping[str, Any]  # set by a sweep: always columns
    config: Mapping[str, Any]  # dotted field -> value; columns where runs differ
    rows: list[dict[str, Any]]

    @property
    def run(self) -> str:
        """Path of the run; a member has its number in place of a folder."""
        number = "" if self.member is None else f"{self.member:03d}"
        return Path(self.place, number).as_posix()


def read_curves(folder: str | Path) -> list[dict[str, Any]]:
    """Return the metrics of all runs in a folder, also during training, with settings and seeds.

        data = pandas.DataFrame(read_curves("runs/sweep"))
        data.groupby(["policies.agent.learning_rate", "env_steps"])["agent/episode_return"].mean()

    Args:
        folder: folder of a run, of a sweep, search or population, or one that contains several.

    Returns:
        A row for each chunk of updates of each run, in the order of training. It starts with `run`,
        the path of the run inside `folder` (a member of a sweep has its number, "sweep/007"), and
        `seed`. Settings follow under their dotted names, lists as text, which can be grouped. These
        are the values that a sweep sets, and the fields in which the configurations of runs differ.
        The rest are the metrics in metrics.jsonl, with `env_steps`. Unknown values are None, such
        as "eval/..." in chunks without an evaluation.

    Raises:
        FileNotFoundError: if the folder does not exist, or contains no metrics.
        ValueError: naming the file, if a file is damaged.
    """
    root = Path(folder)
    if not root.is_dir():
        near = [path.name for path in root.absolute().parent.glob("*/")]
        raise FileNotFoundError(f"folder = {folder}: must exist; {did_you_mean(root.name, near)}")
    bases = {
        file.parent: functools.cache(functools.partial(_base_of, file))
        for file in find_files(root, SWEEP_FILE)
    }
    files = find_files(root, METRICS)
    curves = [curve for file in files for curve in _curves_of(file, root, bases)]
    if not curves:
        words = f"must contain a run or a sweep that has written {METRICS}"
        raise FileNotFoundError(f"folder = {folder}: {words}")
    configs = [curve.config for curve in curves if curve.config]
    names = dict.fromkeys(name for config in configs for name in config)
    is_param = lambda name: name.startswith("env_params.")  # noqa: E731
    # not compared: parameters that a run does not list, of another environment, or of a custom one
    # and not set by a sweep
    known = {n: [own for own in configs if n in own or not is_param(n)] for n in names}
    differ = [n for n, own in known.items() if any(c.get(n) != own[0].get(n) for c in own)]
    return [
        {"run": curve.run, "seed": curve.seed, **_plain(curve, differ), **row}
        for curve in sorted(curves, key=lambda own: (own.place, own.member or 0))
        for row in curve.rows
    ]


def _plain(curve: _Curve, differ: list[str]) -> dict[str, Any]:
    """Return the settings of a run as columns."""
    settings = {**{n: curve.config[n] for n in differ if n in curve.config}, **curve.values}
    return {
        name: json.dumps(value) if isinstance(value, list | dict | tuple) else value
        for name, value in settings.items()
    }


def _base_of(file: Path, total_env_steps: int | None) -> dict[str, Any]:
    """Return the configuration that a sweep changes, with schedules in env steps as in a run.

    Args:
        file: its sweep.yaml.
        total_env_steps: length of a run; None: as in the file.
    """
    asked = read_sweep(file.parent)
    asked["config"] |= {"total_env_steps": total_env_steps} if total_env_steps else {}
    try:
        return with_new_fields(asked)["config"]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error


def _curves_of(file: Path, root: Path, bases: Mapping[Path, Callable]) -> Iterator[_Curve]:
    """Yield the curve of each run in a metrics.jsonl.

    Args:
        file: its path.
        root: folder whose runs are read.
        bases: folder of each sweep in it -> `_base_of` the sweep.
    """
    folder, above = file.parent, [file.parent, *file.parent.parents]
    sweep = next((path for path in above[: above.index(root) + 1] if path in bases), None)
    place = (sweep or folder).relative_to(root).as_posix()
    members = folder / "members.json"
    if members.exists():
        rows = read_metrics(file)
        for member in read_members_file(members)["members"]:
            number, own = member["member"], {"values": {}, "config": {}} | member
            require_fields(members, own, values=dict, config=dict)
            values = own["values"]
            require_fields(members, {"total_env_steps": 0} | values, total_env_steps=int)
            base = bases[sweep](values.get("total_env_steps")) if sweep else {}
            config = {"seed": None, "policies": {}} | (own["config"] or base)
            require_fields(members, config, policies=dict)
            seed = member.get("seed", config.pop("seed"))
            if config["policies"]:  # unknown in a folder inside a sweep
                values = for_each_policy(values, config["policies"])
            mine = [row for row in rows if row.get("member") == number]
            yield _Curve(place, number, seed, values, _overlaid(flat(config), values), mine)
    elif sweep is None:  # the best run of a sweep is one of its members
        config = without_version(read_yaml(folder / CONFIG) if (folder / CONFIG).exists() else {})
        seed = config.pop("seed", None)
        yield _Curve(place, None, seed, {}, flat(config), read_metrics(file))


def _overlaid(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted fields with the values of a member in their place; {} if they are unknown."""
    inside = tuple(f"{name}." for name in values)  # a value may be a mapping of fields
    kept = {name: value for name, value in config.items() if not name.startswith(inside)}
    return {**kept, **values} if config else {}
