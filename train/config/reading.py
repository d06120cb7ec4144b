"""Conversion of nested mappings to dataclasses. Unknown names and wrong types are errors."""

import contextlib
import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from wdjax.checks import did_you_mean, require
from wdjax.train.config.facts import Fraction, is_required

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHORT = {"lr": "learning_rate"}  # abbreviation -> name of the field
WARP_DRIVE = (
    "this is a WarpDrive configuration. Save it in a file that is not named config.yaml, and read "
    "that with wdjax.train.load_config or wdjax train FILE"
)

T = TypeVar("T", bound="DataclassInstance")


def from_mapping(cls: type[T], values: Any, path: str = "") -> T:
    """Build a dataclass from nested mappings, or check an instance that was built in Python.

    Args:
        cls: the dataclass.
        values: mapping of its fields, or an instance.
        path: prefix of the names of fields in messages.

    Raises:
        ValueError: for an unknown or missing field, with the closest name.
        TypeError: for a value of another type.
    """
    fields = dataclasses.fields(cls)
    if isinstance(values, cls):
        values = {field.name: getattr(values, field.name) for field in fields}
    where = path.rstrip(".") or cls.__name__
    require(isinstance(values, Mapping), where, values, "a mapping of fields", TypeError)
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            if "policies" in hints and {"trainer", "policy"} & set(values):
                raise ValueError(f"unknown field {name}: {WARP_DRIVE}")
            raise unknown_field(path, name, hints)
    for field in fields:
        if is_required(field) and field.name not in values:
            raise ValueError(f"field {path}{field.name} is missing")
    return cls(
        **{name: convert(hints[name], value, f"{path}{name}") for name, value in values.items()}
    )


def unknown_field(path: str, name: Any, hints: Mapping[str, object]) -> ValueError:
    """Return the error for an unknown field, with the closest known one.

    Args:
        path: prefix of the name in the message.
        name: the unknown name.
        hints: known name -> type; fields of these types are known, too.
    """
    short = SHORT.get(name, str(name))
    fields = {block: getattr(hint, "__dataclass_fields__", ()) for block, hint in hints.items()}
    blocks = [block for block, inside in fields.items() if short in inside]
    near = f"did you mean '{blocks[0]}.{short}'?" if blocks else did_you_mean(short, hints)
    return ValueError(f"unknown field {f'{path}{name}' or repr(name)}: {near}")


def convert(hint: Any, value: Any, path: str) -> Any:
    """Return `value` as the type of `hint`.

    Raises:
        TypeError, ValueError: with the `path` of the field and the allowed values.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{path} = {value!r}: {did_you_mean(str(value), map(str, arguments))}")
        return value
    if origin in (typing.Union, types.UnionType):
        # {fraction: [...]}, but not {0: 1e-3}
        written = isinstance(value, Mapping) and all(not isinstance(n, float | int) for n in value)
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
        return tuple(
            convert(type_, item, f"{path}[{i}]")
            for i, (type_, item) in enumerate(zip(types_, value, strict=True))
        )
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_mapping(hint, value, f"{path}.")
    return _convert_plain(hint, value, path)


def _convert_union(hints: tuple[object, ...], value: object, path: str) -> object:
    for hint in hints:
        with contextlib.suppress(TypeError, ValueError):
            return convert(hint, value, path)
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


def _convert_plain(hint: type, value: object, path: str) -> object:
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)  # PyYAML reads 1e-4 as text
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise TypeError(f"{path} = {value!r}: must be {_words(hint)}")


def _words(hint: Any) -> str:
    """Return the values of a type, for messages."""
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if hint is Fraction:
        return "{fraction: [[0, value], [1, value]]}, a list of [fraction of the run, value] pairs"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, "a list of [env_step, value] pairs")


def set_dotted(raw: dict[str, Any], name: str, value: object) -> None:
    """Set raw["a"]["b"] for the name "a.b". Unknown fields are added: `from_mapping` checks."""
    *parents, last = name.split(".")
    for depth, parent in enumerate(parents):
        inner = raw.get(parent, {})
        if not isinstance(inner, Mapping):
            raise TypeError(
                f"{'.'.join(parents[: depth + 1])} = {inner!r}: must be a mapping to have a field "
                f"{'.'.join([*parents[depth + 1 :], last])}"
            )
        raw[parent] = dict(inner)
        raw = raw[parent]
    raw[last] = value


def register(kind: str, table: dict[str, Any], name: str, found: type) -> None:
    """Add a class to a table.

    Raises:
        ValueError: if the name contains ":" or belongs to another class.
    """
    require(isinstance(name, str) and name and ":" not in name, "name", name, "a name without ':'")
    known = table.get(name, found)
    # a cell of a notebook that runs again defines its class again
    again = getattr(known, "__qualname__", None) == found.__qualname__
    require(known == found or again, "name", name, f"a name that is not used by another {kind}")
    table[name] = found
