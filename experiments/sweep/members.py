"""The members of a sweep: values of fields, their combinations and seeds."""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from wdjax.checks import require, require_integer
from wdjax.train import Population, TrainConfig, change_config, load_config
from wdjax.yaml_reader import read_yaml_value

_RANGE = re.compile(r"(log|uniform|int):([^:]+):([^:]+)")

MOST_SEEDS = 100_000  # the list of members of far more would not fit into memory


Kind = Literal["log", "uniform", "int"]


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers to sample: "uniform:0.9:0.999", "log:1e-4:1e-2" (uniform logarithm), "int:1:8"."""

    kind: Kind
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
    point: int  # number of the combination of values, shared with other seeds
    values: Point
    config: TrainConfig  # with its seed


def as_config(config: TrainConfig | str | Path) -> TrainConfig:
    """Return a configuration, loaded if it is a preset or YAML file."""
    return config if isinstance(config, TrainConfig) else load_config(config)


def varying(settings: Mapping[str, Values]) -> list[str]:
    """Return the fields with several values or a range. Raise ValueError if there is none."""
    names = [name for name, own in settings.items() if isinstance(own, Range) or len(own) > 1]
    require(
        names,
        "values",
        dict(settings),
        "several values or a range of at least one field. "
        "Use --FIELD VALUE,VALUE or --FIELD log:LOW:HIGH",
    )
    return names


def plain_values(settings: Mapping[str, Values]) -> dict[str, Any]:
    """Return field -> list of values, or text of a range, for YAML."""
    return {name: own if isinstance(own, list) else str(own) for name, own in settings.items()}


def parse_settings(
    settings: Iterable[str], known: Mapping[str, Values] | None = None
) -> dict[str, Values]:
    """Return field -> values of texts "field=value,value" or "field=log:1e-4:1e-2".

    Values are read as YAML. The fields of `known` come first.

    Raises:
        ValueError: if a text has another form, or a field is repeated.
    """
    parsed = dict(known or {})
    for setting in settings:
        name, equals, text = setting.partition("=")
        complete = name and equals and text
        require(complete, "--set", setting, "FIELD=VALUE,VALUE or FIELD=log:LOW:HIGH")
        require(name not in parsed, "--set", setting, f"given once for {name}")
        parsed[name] = parse_values(name, text if _RANGE.fullmatch(text) else yaml_list(name, text))
    return parsed


def parse_point(settings: Iterable[str]) -> Point:
    """Return field -> value of texts "field=value"."""
    point: Point = {}
    for name, values in parse_settings(settings).items():
        single = isinstance(values, list) and len(values) == 1
        words = "one value. Use --FIELD VALUE,VALUE for several"
        require(single, f"--point {name}", values, words)
        (point[name],) = cast(list, values)
    return point


def read_settings(file: Path) -> tuple[dict[str, Values], list[Point]]:
    """Return (field -> values, points) of a YAML file.

    The file contains a mapping of fields to lists, or a list of points.

    Raises:
        ValueError: naming the file.
    """
    require(file.is_file(), "--file", str(file), "a YAML file")
    content = read_yaml_value(file)
    if isinstance(content, Mapping):
        return {str(name): parse_values(str(name), own) for name, own in content.items()}, []
    if isinstance(content, list) and all(isinstance(point, Mapping) for point in content):
        return {}, [{str(name): value for name, value in point.items()} for point in content]
    raise ValueError(
        f"{file}: must contain FIELD: [VALUE, VALUE], or a list of points, each FIELD: VALUE"
    )


def parse_values(name: str, values: Any) -> Values:
    """Return the values of a field as a list, or as the Range of a text.

    Raises:
        ValueError: for no value, or a repeated one.
    """
    if isinstance(values, Range):
        return values
    if isinstance(values, str):
        return parse_range(name, values)
    values = getattr(values, "tolist", lambda: values)()  # an array becomes a list
    several = list(values) if isinstance(values, list | tuple) else [values]
    require(several, name, values, "at least one value")
    unique = all(value not in several[:i] for i, value in enumerate(several))
    require(unique, name, several, "different values")
    return several


def parse_range(name: str, text: str) -> Values:
    """Return the Range of a text, or a list with the text if it has another form."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    kind, *bounds = match.groups()
    try:
        low, high = map(int if kind == "int" else float, bounds)
    except ValueError:
        raise ValueError(f"{name} = {text!r}: must be {kind}:LOW:HIGH with two numbers") from None
    finite = low < high and np.isfinite([low, high]).all()
    require(finite, name, text, "finite, with LOW below HIGH")
    require(kind != "log" or low > 0, name, text, "above 0 for log")
    return Range(cast(Kind, kind), low, high)


def yaml_list(name: str, text: str) -> list:
    """Return the values of a text, separated by commas."""
    try:
        return read_yaml_value(f"[{text}]")
    except ValueError:
        raise ValueError(f"{name} = {text!r}: must be YAML values separated by commas") from None


def make_points(settings: Mapping[str, Values], points: Sequence[Point] = ()) -> list[Point]:
    """Return every combination of values with every point.

    Raises:
        ValueError: for a Range, a field in both, or points with different fields.
    """
    for name, values in settings.items():
        listed = isinstance(values, list)
        require(listed, name, str(values), "a list of values. Ranges need --search or --pbt")
        require(
            not any(name in point for point in points),
            name,
            values,
            "in the points or in the values, not in both",
        )
    for point in points:
        require(
            point.keys() == points[0].keys(),
            "fields of a point",
            sorted(point),
            f"{sorted(points[0])}, as others",
        )
    products = itertools.product(*cast(Mapping[str, list], settings).values())
    grid = [dict(zip(settings, values, strict=True)) for values in products]
    combined = [{**point, **values} for point in points or [{}] for values in grid]
    repeated = [point for i, point in enumerate(combined) if point in combined[:i]]
    require(not repeated, "points", repeated[:1], "different from each other")
    return combined


def make_seeds(seeds: int | Sequence[int], first: int) -> list[int]:
    """Return the given seeds, or this number of seeds counted up from `first`.

    Raises:
        TypeError, ValueError: for invalid seeds.
    """
    if not isinstance(seeds, Sequence) or isinstance(seeds, str):
        require_integer("seeds", seeds, 1, MOST_SEEDS)
        seeds = range(first, first + seeds)
    for seed in seeds:
        require_integer("seeds", seed, 0, 2**32 - 1)
    unique = len(set(seeds)) == len(seeds) > 0
    require(unique, "seeds", seeds, "at least one seed, without duplicates")
    return list(seeds)


def make_members(
    config: TrainConfig,
    points: Sequence[Point],
    seeds: Sequence[int],
    trust: Collection[str] | None = None,
    first: int = 0,
) -> list[Member]:
    """Return a member for every seed of every point, point by point.

    Args:
        config: configuration that the points change.
        points: combinations of values.
        seeds: seeds of every point.
        trust: modules that the points may name; None: any module, see `change_config`.
        first: number of the first point.

    Raises:
        ValueError, TypeError: as `load_config`, and for a swept seed or number of devices.
    """
    for name, option in (("seed", "--seeds"), ("devices", "--devices")):
        used = any(name in point for point in points)
        require(not used, "swept field", name, f"an option of the sweep, {option}")
    members: list[Member] = []
    for number, point in enumerate(points, first):
        own = dataclasses.replace(change_config(config, trust=trust, **point), devices=1)
        for member, seed in enumerate(seeds, number * len(seeds)):
            members.append(Member(member, number, point, dataclasses.replace(own, seed=int(seed))))
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
