"""What is true of a field of a configuration, said once, at the field; everybody else reads it there.

    gamma: float = traced(0.99)                  # a leaf of TrainState.hypers: swept under vmap, never recompiled
    learning_rate: Schedule = traced(3e-4)       # likewise, and a schedule may change it: its type says so
    clip: float = traced(0.2, on="PPO")          # means something only to algorithms that take "PPO"
    twin_critics: bool = static(False, read=True)    # says how parameters are read: who shares them must agree on it

Options of an algorithm of one's own are a dataclass with such fields.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

import numpy as np

from wdjax.checks import require

# A constant, or (env_step, value) pairs: linear between them, flat outside.
Schedule = float | tuple[tuple[float, float], ...]

Config = TypeVar("Config")

_LARGEST = float(np.finfo(np.float32).max)


def traced(default: Any, on: str | None = None, logged: bool = True) -> Any:
    """Returns a field that becomes a leaf of the state's hypers.

    Args:
        default: its value where nothing else is said.
        on: what an algorithm must take (`Algorithm.takes`) for the field to mean anything; None: all do.
        logged: a schedule's value is among the metrics.
    """
    return dataclasses.field(default=default, metadata={"traced": True, "on": on, "logged": logged})


def static(default: Any, on: str | None = None, read: bool = False) -> Any:
    """Returns a field that fixes shapes or code paths.

    Args:
        default: its value where nothing else is said, or a function that makes it.
        on: as for `traced`.
        read: it says how parameters are read: policies that share parameters must agree on it.
    """
    facts = {"on": on, "read": read}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


def is_traced(field: dataclasses.Field) -> bool:
    """Returns whether a field is a leaf of the hypers."""
    return field.metadata.get("traced", False)


def is_scheduled(field: dataclasses.Field) -> bool:
    """Returns whether a schedule may change a traced field."""
    return is_traced(field) and field.type in (Schedule, "Schedule")


def is_taken(field: dataclasses.Field, takes: Collection[str]) -> bool:
    """Returns whether a field means anything to an algorithm that takes these kinds of options."""
    return field.metadata.get("on") in (None, *takes)


def words_of(field: dataclasses.Field) -> str:
    """Returns what the facts of a field say before its help: "(traced, PPO)"."""
    facts = [*(["traced"] if is_traced(field) else []), *filter(None, [field.metadata.get("on")])]
    return f"({', '.join(facts)})" if facts else ""


def default_of(field: dataclasses.Field) -> Any:
    """Returns the default of a field."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def static_part(config: Config) -> Config:
    """Returns a configuration with everything that is traced at its default: what a compiled program is made from.

    What is no dataclass, as the options of an algorithm that has none, is returned as it is.
    """
    changes = {}
    if not dataclasses.is_dataclass(config):
        return config
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_traced(field):
            changes[field.name] = default_of(field)
        elif dataclasses.is_dataclass(value):
            changes[field.name] = static_part(value)
    return dataclasses.replace(config, **changes)


def read_part(config: Any, path: str = "") -> dict[str, Any]:
    """Returns dotted name -> value of the fields that say how parameters are read."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= read_part(value, f"{path}{field.name}.")
        elif field.metadata.get("read"):
            found[f"{path}{field.name}"] = value
    return found


def require_taken(path: str, config: Any, takes: Collection[str], algorithm: str) -> None:
    """Raises ValueError, naming the field, where one that means nothing to an algorithm has been set: it would be
    silently ignored.

    Args:
        path: of the configuration, for the sentence: "policies.runner".
        takes: what the algorithm takes.
        algorithm: its name.
    """
    for field in dataclasses.fields(config):
        value, default, name = getattr(config, field.name), default_of(field), f"{path}.{field.name}"
        if is_taken(field, takes):
            continue
        for own, inner, usual in _leaves(name, value, default):
            require(inner == usual, own, inner, f"{usual} (left out) for {algorithm}")


def _leaves(path: str, value: Any, default: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields (path, value, default) of a field, or of each field of a dataclass in it."""
    if not dataclasses.is_dataclass(value):
        yield path, value, default
        return
    for field in dataclasses.fields(value):
        yield from _leaves(f"{path}.{field.name}", getattr(value, field.name), getattr(default, field.name))


def require_schedules(path: str, config: Any) -> None:
    """Raises ValueError for a schedule in a configuration that is none (`require_schedule`)."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_scheduled(field):
            require_schedule(f"{path}.{field.name}", value)
        elif dataclasses.is_dataclass(value):
            require_schedules(f"{path}.{field.name}", value)


def require_schedule(path: str, schedule: Any) -> None:
    """Raises ValueError, naming the field `path`, for a schedule that is empty, unsorted, negative or not finite."""
    points = [(0.0, schedule)] if isinstance(schedule, (int, float)) else schedule
    require(len(points) > 0, path, schedule, "a number or at least one [env_step, value] pair")
    steps, values = [step for step, _ in points], [value for _, value in points]
    sound = all(0 <= number <= _LARGEST for number in steps + values)
    require(sound, path, schedule, "finite and at least 0, within the range of float32")
    require(all(a < b for a, b in itertools.pairwise(steps)), path, schedule, "sorted by env_step, each once")
