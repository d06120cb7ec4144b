"""Metadata of configuration fields, and the functions that read it.

    gamma: float = traced(0.99)                    # a leaf of TrainState.hypers, swept with vmap
    learning_rate: Schedule = traced(3e-4)         # traced; may be a schedule (by its type)
    twin_critics: bool = static(False, read=True)  # policies that share parameters must agree
    n_step: int = static(1, allowed="at least 1")  # other values raise an error with this text

The options of an algorithm are a dataclass with such fields.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wdjax.checks import require

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Dataclass = DataclassInstance | type[DataclassInstance]


class Fraction(tuple):
    """A schedule over the run: (fraction, value) pairs, as in `{fraction: [[0, 1e-3], [1, 0]]}`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fraction) and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return repr({"fraction": [list(point) for point in self]})

    def in_env_steps(self, total: int) -> tuple[tuple[float, float], ...]:
        """Return the schedule in env steps of a run of `total`, rounded.

        If several points have the same step, the last one is used.
        """
        return tuple({float(round(position * total)): value for position, value in self}.items())


# A constant; (env_step, value) pairs, linear between them and constant outside; or a `Fraction`.
Schedule = float | tuple[tuple[float, float], ...] | Fraction


_LARGEST = float(np.finfo(np.float32).max)

_RULES: dict[str, Callable[[Any], bool]] = {
    "at least 0": lambda value: value >= 0,
    "at least 1": lambda value: value >= 1,
    "at least 2": lambda value: value >= 2,
    "above 0": lambda value: value > 0,
    "below 1": lambda value: value < 1,
    "at most 1": lambda value: value <= 1,
    "between 0 and 1": lambda value: 0 <= value <= 1,
    "below 2**31": lambda value: value < 2**31,
    "below 2**32": lambda value: value < 2**32,
    "finite": math.isfinite,
}


def traced(default: Any, logged: bool = True, allowed: str = "", explores: bool = False) -> Any:
    """Return a dataclass field for a traced hyperparameter.

    It becomes a leaf of `TrainState.hypers`, which can be swept with vmap and changed without
    recompilation. A field annotated with `Schedule` instead of `float` also accepts a schedule;
    its current value is logged as `POLICY/NAME`.

    Args:
        default: default value.
        logged: whether metrics include the current value of a schedule.
        allowed: condition on the value, for example "at least 0 and below 1", checked and shown in
            errors.
        explores: whether it scales exploration in training: it is 0 where the policy acts as an
            opponent.
    """
    facts = {"traced": True, "logged": logged, "allowed": allowed, "explores": explores}
    return dataclasses.field(default=default, metadata=facts)


def static(
    default: Any, read: bool = False, allowed: str = "", code: bool = False, flat: bool = False
) -> Any:
    """Return a dataclass field that determines shapes or code paths.

    Args:
        default: default value, or a function that returns it.
        read: whether the field affects how parameters are used. Policies that share parameters must
            agree on it.
        allowed: as for `traced`.
        code: whether the field may name code to import, "package.module:Name" (config/trust.py).
        flat: whether names of fields inside the value omit the name of this field: "clip", not
            "options.clip".
    """
    facts = {"read": read, "allowed": allowed, "code": code, "flat": flat}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


def is_traced(field: dataclasses.Field) -> bool:
    """Return whether a field is a leaf of the hypers."""
    return field.metadata.get("traced", False)


def is_scheduled(field: dataclasses.Field) -> bool:
    """Return whether a traced field may be a schedule."""
    return is_traced(field) and field.type in (Schedule, "Schedule")


def is_required(field: dataclasses.Field) -> bool:
    """Return whether a field has no default."""
    return field.default is field.default_factory is dataclasses.MISSING


def default_of(field: dataclasses.Field) -> Any:
    """Return the default of a field."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def leaves(
    config: "Dataclass", path: str = "", inside: tuple[dataclasses.Field, ...] = ()
) -> Iterator[tuple[str, tuple[dataclasses.Field, ...], Any]]:
    """Yield every leaf of a configuration.

    Args:
        config: the configuration, or a part of one.
        path: prefix of the names.
        inside: enclosing fields.

    Yields:
        (dotted name, enclosing fields and the field, value).
    """
    for field in dataclasses.fields(config):
        name, fields, value = f"{path}{field.name}", (*inside, field), getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, path if field.metadata.get("flat") else f"{name}.", fields)
        else:
            yield name, fields, value


def changed(config: "Dataclass", path: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted name after `path`, value) of all fields that differ from their defaults."""
    for name, fields, value in leaves(config, path):
        if isinstance(value, Mapping) and any(map(dataclasses.is_dataclass, value.values())):
            for key, inside in value.items():
                yield from changed(inside, f"{name}.{key}.")
        elif is_required(fields[-1]) or value != default_of(fields[-1]):
            yield name, value


def static_part(config: Any) -> Any:
    """Return a configuration with all traced fields at their defaults.

    A compiled program depends only on this part. A value that is not a dataclass, such as the empty
    options of an algorithm, is returned unchanged.
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    changes = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_traced(field):
            changes[field.name] = default_of(field)
        elif dataclasses.is_dataclass(value):
            changes[field.name] = static_part(value)
    return dataclasses.replace(config, **changes)


def read_part(config: "Dataclass") -> dict[str, object]:
    """Return dotted name -> value of the fields that affect how parameters are used."""
    return {
        name: value for name, fields, value in leaves(config) if fields[-1].metadata.get("read")
    }


def require_allowed(path: str, config: "Dataclass") -> None:
    """Raise ValueError for an invalid value of any field (`require_value`).

    Args:
        path: prefix of the names of fields in the message.
        config: the configuration, or a part of one.
    """
    for name, (*_, field), value in leaves(config, path):
        require_value(name, field, value)


def require_value(name: str, field: dataclasses.Field, value: Any) -> None:
    """Raise ValueError, with the `name` of the field, for a value that is not allowed."""
    allowed, scheduled = field.metadata.get("allowed", ""), is_scheduled(field)
    values = value if isinstance(value, tuple) else (value,)
    if scheduled:
        values = tuple(number for _, number in points_of(value))
    is_nan = any(isinstance(number, float) and math.isnan(number) for number in values)
    require(scheduled or not is_nan, name, value, allowed or "a number, not nan")
    rules = [rule for phrase, rule in _RULES.items() if phrase in allowed]
    require(all(rule(number) for rule in rules for number in values), name, value, allowed)
    if scheduled:
        require_schedule(name, value)


def require_schedule(path: str, schedule: Schedule, signed: bool = False) -> None:
    """Raise ValueError, with the field `path`, unless a schedule is sorted, finite and positive.

    Args:
        path: name of the field.
        schedule: the schedule.
        signed: whether values may be negative.
    """
    points = points_of(schedule)
    require(len(points) > 0, path, schedule, "a number or at least one [env_step, value] pair")
    steps, values = [step for step, _ in points], [value for _, value in points]
    is_valid = all(0 <= step <= _LARGEST for step in steps)
    lowest = -_LARGEST if signed else 0
    is_valid &= all(lowest <= value <= _LARGEST for value in values)
    allowed = "finite, with env steps of at least 0" if signed else "finite and at least 0"
    require(is_valid, path, schedule, f"{allowed}, within the range of float32")
    is_sorted = all(a < b for a, b in itertools.pairwise(steps))
    require(is_sorted, path, schedule, "sorted by env_step, without duplicates")


def in_env_steps(config: Any, total: int, old: object = None) -> Any:
    """Convert all schedules of a configuration, or of a part of one, to env steps.

    A resumed run keeps its original schedules even if its length changed: a schedule in fractions
    is replaced by the one of `old` if the two are proportional.

    Args:
        config: the configuration, or a part of one.
        total: env steps of the run.
        old: the same part of the configuration that the run started with; None for a new run.
    """
    if isinstance(config, Fraction):
        return old if _is_proportional(config, old) else config.in_env_steps(total)
    is_mapping = isinstance(config, Mapping)
    if not (is_mapping or dataclasses.is_dataclass(config)):
        return config
    names = list(config) if is_mapping else [field.name for field in dataclasses.fields(config)]
    parts = {name: _part(config, name) for name in names}
    new = {name: in_env_steps(part, total, _part(old, name)) for name, part in parts.items()}
    changes = {name: part for name, part in new.items() if part is not parts[name]}
    if not changes:
        return config
    return new if is_mapping else dataclasses.replace(config, **changes)


def _part(config: object, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _is_proportional(fraction: Fraction, old: object) -> bool:
    """Return whether rounding a schedule in fractions, for some run length, gives `old`."""
    if type(old) is not tuple or [value for _, value in old] != [value for _, value in fraction]:
        return False
    total = old[-1][0] / fraction[-1][0] if fraction[-1][0] else 0.0
    pairs = zip(old, fraction, strict=True)
    return all(abs(step - position * total) <= 1 for (step, _), (position, _) in pairs)


def points_of(schedule: Schedule) -> Sequence[tuple[float, float]]:
    """Return the (env_step, value) pairs of a schedule; a number is one pair at env step 0."""
    return [(0.0, schedule)] if isinstance(schedule, (int, float)) else schedule
