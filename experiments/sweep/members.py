"""What a sweep runs: values of fields, their combinations, and the members that fit into one program."""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from wdjax.checks import require, require_integer
from wdjax.train import Population, TrainConfig, load_config
from wdjax.train.load import change_config
from wdjax.yaml_reader import read_yaml_value

_RANGE = re.compile(r"(log|uniform|int):([^:]+):([^:]+)")

MOST_SEEDS = 100_000  # of far more, the list of members alone fills the memory


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers to draw from: "uniform:0.9:0.999", "log:1e-4:1e-2" (uniform in the logarithm) or "int:1:8"."""

    kind: Literal["log", "uniform", "int"]
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.low}:{self.high}"


Row = dict[str, Any]  # a line of metrics.jsonl, or of a table
Values = list | Range
Point = dict[str, Any]  # dotted field -> value


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of a sweep."""

    number: int
    point: int  # number of the values that it shares with other seeds
    values: Point
    config: TrainConfig  # of the run alone, seed included


def as_config(config: TrainConfig | str | Path) -> TrainConfig:
    """Returns a configuration, or that of a preset or YAML file."""
    return config if isinstance(config, TrainConfig) else load_config(config)


def varying(settings: Mapping[str, Values]) -> list[str]:
    """Return the fields with several values or a range. Raises ValueError if there is none."""
    names = [name for name, values in settings.items() if isinstance(values, Range) or len(values) > 1]
    words = "several values or a range of at least one field. Use --set FIELD=VALUE,VALUE or FIELD=log:LOW:HIGH"
    require(names, "values", dict(settings), words)
    return names


def parse_settings(settings: Iterable[str]) -> dict[str, Values]:
    """Returns field -> values of "field=value,value" and "field=log:1e-4:1e-2", each value as YAML reads it.

    Raises:
        ValueError: for text of another form, and for a field that stands twice.
    """
    parsed: dict[str, Values] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        require(name and equals and text, "--set", setting, "FIELD=VALUE,VALUE or FIELD=log:LOW:HIGH")
        require(name not in parsed, "--set", setting, f"given once for {name}")
        parsed[name] = parse_values(name, text if _RANGE.fullmatch(text) else _yaml_list(name, text))
    return parsed


def parse_point(settings: Iterable[str]) -> Point:
    """Returns field -> value of "field=value" words."""
    values = parse_settings(settings)
    for name, several in values.items():
        single = isinstance(several, list) and len(several) == 1
        require(single, f"--point {name}", several, "one value. Use --set FIELD=VALUE,VALUE for several")
    return {name: several[0] for name, several in values.items()}


def read_settings(file: Path) -> tuple[dict[str, Values], list[Point]]:
    """Returns (field -> values, points) of a YAML file: a mapping of fields to lists, or a list of points.

    Raises:
        ValueError, FileNotFoundError: naming the file.
    """
    content = read_yaml_value(file)
    if isinstance(content, Mapping):
        return {str(name): parse_values(str(name), values) for name, values in content.items()}, []
    if isinstance(content, list) and all(isinstance(point, Mapping) for point in content):
        return {}, [{str(name): value for name, value in point.items()} for point in content]
    raise ValueError(f"{file}: must contain FIELD: [VALUE, VALUE], or a list of points, each FIELD: VALUE")


def parse_values(name: str, values: Any) -> Values:
    """Returns the values of a field as a list, or a Range of its text; raises ValueError for none, or one twice."""
    if isinstance(values, Range):
        return values
    if isinstance(values, str):
        return _parse_range(name, values)
    if not isinstance(values, (list, tuple, np.ndarray, jax.Array)):
        return [values]
    values = values.tolist() if isinstance(values, (np.ndarray, jax.Array)) else list(values)
    require(len(values) > 0, name, values, "at least one value")
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    require(not twice, name, values, "different values")
    return values


def _parse_range(name: str, text: str) -> Values:
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    kind, *bounds = match.groups()
    try:
        low, high = map(int if kind == "int" else float, bounds)
    except ValueError:
        raise ValueError(f"{name} = {text!r}: must be {kind}:LOW:HIGH with two numbers") from None
    require(low < high and np.isfinite([low, high]).all(), name, text, "finite, with LOW below HIGH")
    require(kind != "log" or low > 0, name, text, "above 0 for log")
    return Range(kind, low, high)


def _yaml_list(name: str, text: str) -> list:
    try:
        return read_yaml_value(f"[{text}]")
    except ValueError:
        raise ValueError(f"{name} = {text!r}: must be YAML values separated by commas") from None


def make_points(settings: Mapping[str, Values], points: Sequence[Point] = ()) -> list[Point]:
    """Returns every combination of values with every point.

    Raises:
        ValueError: for a Range, a field in both, and points that name different fields.
    """
    for name, values in settings.items():
        listed = isinstance(values, list)
        require(listed, name, str(values), "a list of values. Ranges need --search or --pbt")
        require(not any(name in point for point in points), name, values, "in the points or in the values, not in both")
    for point in points:
        require(point.keys() == points[0].keys(), "fields of a point", sorted(point), f"{sorted(points[0])}, as others")
    grid = [dict(zip(settings, combination, strict=True)) for combination in itertools.product(*settings.values())]
    combined = [{**point, **values} for point in points or [{}] for values in grid]
    twice = [point for i, point in enumerate(combined) if point in combined[:i]]
    require(not twice, "points", twice[:1], "different from each other")
    return combined


def make_seeds(seeds: int | Sequence[int], first: int) -> list[int]:
    """Returns so many seeds from `first` on, or those that are given.

    Raises:
        TypeError, ValueError: where they are no seeds.
    """
    if isinstance(seeds, Sequence) and not isinstance(seeds, str):
        for seed in seeds:
            require_integer("seeds", seed, 0)
        require(len(set(seeds)) == len(seeds) > 0, "seeds", seeds, "at least one seed, without duplicates")
        return list(seeds)
    require_integer("seeds", seeds, 1, MOST_SEEDS)
    return list(range(first, first + seeds))


def make_members(config: TrainConfig, points: Sequence[Point], seeds: Sequence[int]) -> list[Member]:
    """Returns a member for every seed of every point, point by point; raises as `load_config` does."""
    for name in ("seed", "devices"):
        used = any(name in point for point in points)
        require(not used, "swept field", name, f"an option of the sweep, --{'seeds' if name == 'seed' else name}")
    members: list[Member] = []
    for number, point in enumerate(points):
        own = dataclasses.replace(change_config(config, **point), devices=1)
        for seed in seeds:
            require(seed < 2**32, "seed", seed, "below 2**32")
            members.append(Member(len(members), number, point, dataclasses.replace(own, seed=int(seed))))
    return members


def make_populations(
    members: Sequence[Member],
    devices: int,
    trust: Collection[str],
    known: Sequence[Population] = (),
) -> list[Population]:
    """Return a population for each program that the members need (`Population.group`)."""
    configs = [own.config for own in members]
    return Population.group(configs, devices, trust, member_content(members), known)


def member_content(members: Sequence[Member]) -> list[dict[str, Any]]:
    """Return the content of members.json."""
    return [{"member": m.number, "seed": m.config.seed, "values": m.values} for m in members]
