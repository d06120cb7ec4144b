"""Curves of runs and sweeps as rows of one table, for pandas."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wdjax.checks import did_you_mean
from wdjax.files import find_files, read_json, require_fields
from wdjax.train.storage.folder import CONFIG, SWEEP, without_version
from wdjax.train.storage.metrics_log import METRICS, read_metrics
from wdjax.yaml_reader import flat, read_yaml


@dataclasses.dataclass(frozen=True)
class _Curve:
    run: str
    seed: int | None
    values: Mapping[str, Any]  # set by a sweep: always columns
    config: Mapping[str, Any]  # dotted field -> value; columns where runs differ
    rows: list[dict[str, Any]]


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
    curves = [curve for file in find_files(root, METRICS) for curve in _curves_of(file, root)]
    if not curves:
        words = f"must contain a run or a sweep that has written {METRICS}"
        raise FileNotFoundError(f"folder = {folder}: {words}")
    configs = [curve.config for curve in curves if curve.config]
    names = dict.fromkeys(name for config in configs for name in config)
    differ = [n for n in names if any(own.get(n) != configs[0].get(n) for own in configs)]
    return [
        {"run": curve.run, "seed": curve.seed, **_plain(curve, differ), **row}
        for curve in sorted(curves, key=lambda curve: curve.run)
        for row in curve.rows
    ]


def _plain(curve: _Curve, differ: list[str]) -> dict[str, Any]:
    """Return the settings of a run as columns."""
    settings = {**{n: curve.config[n] for n in differ if n in curve.config}, **curve.values}
    return {
        name: json.dumps(value) if isinstance(value, list | dict | tuple) else value
        for name, value in settings.items()
    }


def _curves_of(file: Path, root: Path) -> Iterator[_Curve]:
    """Yield the curve of each run in a metrics.jsonl."""
    folder, above = file.parent, [file.parent, *file.parent.parents]
    inside = above[: above.index(root) + 1]
    sweep = next((path for path in inside if (path / SWEEP.locked).exists()), None)
    members = folder / "members.json"
    if members.exists():
        content = read_json(members)
        require_fields(members, content, members=list)
        place, rows = (sweep or folder).relative_to(root), read_metrics(file)
        for member in content["members"]:
            member = {"values": {}, "config": {}} | member if isinstance(member, dict) else {}
            require_fields(members, member, member=int, values=dict, config=dict)
            number, config = member["member"], dict(member["config"])
            seed = config.pop("seed", member.get("seed"))
            own = [row for row in rows if row.get("member") == number]
            name = (place / f"{number:03d}").as_posix()
            yield _Curve(name, seed, member["values"], flat(config), own)
    elif sweep is None:  # the best run of a sweep is one of its members
        config = without_version(read_yaml(folder / CONFIG) if (folder / CONFIG).exists() else {})
        seed = config.pop("seed", None)
        name = folder.relative_to(root).as_posix()
        yield _Curve(name, seed, {}, flat(config), read_metrics(file))
