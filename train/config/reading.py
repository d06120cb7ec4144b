"""From YAML to dataclasses, strictly: unknown names and wrong types are refused, in words."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from wdjax.checks import did_you_mean, require
from wdjax.train.config.facts import Fraction, is_required

SHORT = {"lr": "learning_rate"}  # what many type -> the field's name here


def from_mapping(cls: type, values: Any, path: str = "") -> Any:
    """Builds a dataclass from nested mappings, strictly; `path` stands before the names in messages.

    An instance of the class is checked likewise: Python lets anything into a field.
    """
    if isinstance(values, cls):
        values = {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
    require(
        isinstance(values, Mapping),
        path.rstrip(".") or cls.__name__,
        values,
        "a mapping of fields",
        TypeError,
    )
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            if "policies" in hints and {"trainer", "policy"} & set(values):
                words = "this is a WarpDrive configuration, which wdjax does not read. docs/from_warp_drive.md"
                raise ValueError(
                    f"unknown field {name}: {words} lists the wdjax field for each of its fields"
                )
            raise unknown_field(path, name, hints)
    for field in dataclasses.fields(cls):
        if is_required(field) and field.name not in values:
            raise ValueError(f"field {path}{field.name} is missing")
    return cls(
        **{name: convert(hints[name], value, f"{path}{name}") for name, value in values.items()}
    )


def unknown_field(path: str, name: Any, hints: Mapping[str, Any]) -> ValueError:
    """Return the error for a field that is not in `hints`, {name: type}, with the closest one, also inside of these."""
    short = SHORT.get(name, str(name))
    blocks = [
        block for block, hint in hints.items() if short in getattr(hint, "__dataclass_fields__", ())
    ]
    near = f"did you mean '{blocks[0]}.{short}'?" if blocks else did_you_mean(short, hints)
    return ValueError(f"unknown field {f'{path}{name}' or repr(name)}: {near}")


def convert(hint: Any, value: Any, path: str) -> Any:
    """Returns `value` as the type of `hint`; raises TypeError with the field's path and what is allowed."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{path} = {value!r}: {did_you_mean(str(value), map(str, arguments))}")
        return value
    if origin in (typing.Union, types.UnionType):
        written = isinstance(value, Mapping) and not any(
            isinstance(name, float | int) for name in value
        )  # {0: 1e-3}
        if Fraction in arguments and (written or isinstance(value, Fraction)):
            return _convert_fraction(value, path)
        return _convert_union(arguments, value, path)
    if origin is dict:
        require(isinstance(value, Mapping), path, value, "a mapping", TypeError)
        return {
            str(key): convert(arguments[1], item, f"{path}.{key}") for key, item in value.items()
        }
    if origin is tuple:
        require(isinstance(value, list | tuple), path, value, "a list", TypeError)
        types_ = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        require(len(types_) == len(value), path, value, f"a list of {len(types_)} items", TypeError)
        pairs = zip(types_, value, strict=True)
        return tuple(convert(type_, item, f"{path}[{i}]") for i, (type_, item) in enumerate(pairs))
    if dataclasses.is_dataclass(hint):
        return from_mapping(hint, value, f"{path}.")
    return _convert_plain(hint, value, path)


def _convert_union(hints: tuple, value: Any, path: str) -> Any:
    for hint in hints:
        try:
            return convert(hint, value, path)
        except (TypeError, ValueError):
            continue
    raise TypeError(f"{path} = {value!r}: must be {' or '.join(_words(hint) for hint in hints)}")


def _convert_fraction(value: Fraction | Mapping, path: str) -> Fraction:
    points = value
    if isinstance(value, Mapping):
        for name in value:
            if name != "fraction":
                raise ValueError(f"unknown field {path}.{name}: did you mean 'fraction'?")
        require("fraction" in value, path, value, _words(Fraction))
        points = value["fraction"]
    try:
        return Fraction(convert(tuple[tuple[float, float], ...], points, path))
    except TypeError:
        raise TypeError(f"{path} = {value!r}: must be {_words(Fraction)}") from None


def _convert_plain(hint: type, value: Any, path: str) -> Any:
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # PyYAML reads 1e-4 as text
        except (ValueError, OverflowError):
            pass
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise TypeError(f"{path} = {value!r}: must be {_words(hint)}")


def _words(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if hint is Fraction:
        return "{fraction: [[0, value], [1, value]]}, a list of [fraction of the run, value] pairs"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, "a list of [env_step, value] pairs")


def set_dotted(raw: dict[str, Any], name: str, value: Any) -> None:
    """Sets raw["a"]["b"] for the name "a.b"; a new policy or parameter may be added, a wrong field is found later."""
    *parents, last = name.split(".")
    for depth, parent in enumerate(parents):
        inner = raw.get(parent, {})
        if not isinstance(inner, Mapping):
            inside = ".".join([*parents[depth + 1 :], last])
            raise TypeError(
                f"{'.'.join(parents[: depth + 1])} = {inner!r}: must be a mapping to have a field {inside}"
            )
        raw[parent] = dict(inner)
        raw = raw[parent]
    raw[last] = value


def register(kind: str, table: dict[str, Any], name: str, found: type) -> None:
    """Puts a class in a table under a name; raises ValueError for one that holds ":" or belongs to another class."""
    require(isinstance(name, str) and name and ":" not in name, "name", name, "a name without ':'")
    known = table.get(name, found)
    again = (
        getattr(known, "__qualname__", None) == found.__qualname__
    )  # a notebook's cell makes its class anew
    require(known == found or again, "name", name, f"a name that is not used by another {kind}")
    table[name] = found
