"""Algorithms by name, and what they make of a configuration: their options, and their hyperparameters."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from wdjax.checks import did_you_mean, require
from wdjax.named import find_named
from wdjax.train.config.facts import changed, default_of, is_required, leaves
from wdjax.train.config.reading import SHORT, from_mapping, register
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.state.algorithm import Algorithm

# Name in a preset -> where its class is, or the class; any other algorithm is named by its import path.
ALGORITHMS: dict[str, str | type[Algorithm]] = {
    "A2C": "wdjax.train.algorithms.a2c:A2C",
    "PPO": "wdjax.train.algorithms.ppo:PPO",
    "DDPG": "wdjax.train.algorithms.ddpg.update:DDPG",
}


def register_algorithm(name: str, algorithm: type[Algorithm]) -> None:
    """Register an algorithm in this process, so that the field `algorithm` of a policy can name it.

    To resume or load a run, register the name again. "package.module:Class" needs no registration.

    Args:
        name: name of the algorithm.
        algorithm: its class.

    Raises:
        TypeError: if `algorithm` is not a subclass of `wdjax.train.Algorithm`, or its `Options` is not a frozen
            dataclass with a default for every field.
        ValueError: if the name contains ":" or belongs to another class.
    """
    _require_algorithm(f"algorithm {name!r}", algorithm)
    register("algorithm", ALGORITHMS, name, algorithm)


def find_algorithm(name: str, field: str = "algorithm") -> Algorithm:
    """Returns the algorithm of a name of ALGORITHMS, or of "package.module:Class".

    Raises:
        ValueError: naming the field, for an unknown name, a module that cannot be imported, or one without such a
            class.
        TypeError: for what is no algorithm.
    """
    custom = 'a custom algorithm is "package.module:Class", or registered in this process by register_algorithm'
    found = find_named(field, name, ALGORITHMS, custom)
    _require_algorithm(f"{field} = {name!r}", found)
    return found()


def _require_algorithm(what: str, found: Any) -> None:
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise TypeError(f"{what}: must be a subclass of wdjax.train.Algorithm, not {found!r}")
    missing = ", ".join(sorted(found.__abstractmethods__))
    require(not missing, what, found.__name__, f"a complete algorithm. Implement {missing}.")
    options = found.Options
    words = f"{what}: Options must be a frozen dataclass with a default for every field"
    if not (isinstance(options, type) and dataclasses.is_dataclass(options) and options.__dataclass_params__.frozen):
        raise TypeError(f"{words}, not {options!r}")
    bare = [field.name for field in dataclasses.fields(options) if is_required(field)]
    if bare:
        raise TypeError(f"{words}: {bare[0]} has none")


def read_config(values: Any) -> TrainConfig:
    """Read a run's configuration from nested mappings, or check one that was built in Python.

    Options of algorithms become their `Options` dataclasses; those that are not given have their defaults.

    Raises:
        ValueError, TypeError: naming the field, its value and what is allowed.
    """
    if isinstance(values, Mapping) and isinstance(values.get("policies"), Mapping):
        placed = {name: place_options(f"policies.{name}", own) for name, own in values["policies"].items()}
        values = {**values, "policies": placed}
    config = from_mapping(TrainConfig, values)
    policies = {name: with_options(f"policies.{name}", policy) for name, policy in config.policies.items()}
    return dataclasses.replace(config, policies=policies)


def place_options(path: str, given: Any) -> Any:
    """Return the fields of a policy with those of its algorithm moved into `options`.

    Options of other built-in algorithms are dropped where they are at their defaults: files of 0.2 hold them all.

    Raises:
        ValueError: for a name that neither the policy nor its algorithm has, with the closest one, and for an option
            that is given twice.
    """
    if not isinstance(given, Mapping):
        return given
    given = flat_policy(path, given)
    algorithm = given.get("algorithm", PolicyConfig.algorithm)
    owned = find_algorithm(algorithm, f"{path}.algorithm").Options.__dataclass_fields__
    fields, options = {}, {}
    for name, value in given.items():
        if name in owned:
            options[name] = value
        elif name in PolicyConfig.__dataclass_fields__ or name in SHORT:
            fields[name] = value
        else:
            require_unused(path, name, value, algorithm, owned)
    return {**fields, "options": options}


def flat_policy(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a policy with its blocks `options` and `ddpg` (until 0.2) written flat.

    Raises:
        ValueError: for an option that is given twice.
    """
    flat = dict(given)
    for block in ("options", "ddpg"):
        inside = flat.pop(block, {})
        if not isinstance(inside, Mapping):
            raise TypeError(f"{path}.{block} = {inside!r}: must be a mapping of fields")
        for name, value in inside.items():
            if name in flat:
                raise ValueError(f"{path}.{name} = {flat[name]!r}: also given as {path}.{block}.{name}. Remove one.")
            flat[name] = value
    return flat


def require_unused(path: str, name: str, value: Any, algorithm: str, owned: Mapping[str, Any]) -> None:
    """Raise ValueError for a field that an algorithm does not have, unless it is another's at its default."""
    others = {other: find_algorithm(other).Options.__dataclass_fields__.get(name) for other in ALGORITHMS}
    defaults = {other: default_of(field) for other, field in others.items() if field is not None}
    if any(str(value) == str(default) for default in defaults.values()):
        return
    if defaults:
        owners = f"{' and '.join(defaults)} {'has' if len(defaults) == 1 else 'have'} it"
        raise ValueError(f"{path}.{name} = {value!r}: {algorithm} has no such option ({owners}). Remove it.")
    near = did_you_mean(str(name), [*PolicyConfig.__dataclass_fields__, *owned])
    raise ValueError(f"unknown field {path}.{name} of a policy that learns by {algorithm}: {near}")


def with_options(path: str, config: PolicyConfig) -> PolicyConfig:
    """Return a policy's configuration with the options of its algorithm read; `path` stands before the names.

    Raises:
        ValueError, TypeError: naming the field, its value and what is allowed.
    """
    cls, given = find_algorithm(config.algorithm, f"{path}.algorithm").Options, config.options
    if dataclasses.is_dataclass(given) and not isinstance(given, cls):  # of another algorithm
        given = dict(changed(given))
    return dataclasses.replace(config, options=from_mapping(cls, given, f"{path}."))


def policy_fields(name: str, policies: Iterable[str]) -> list[str]:
    """Return the dotted names of a field of every policy, such as ["policies.agent.learning_rate"] for "lr".

    Empty if neither policies nor the options of any algorithm have such a field.
    """
    name = SHORT.get(name, name)
    found = next((path for path in sorted(known_fields(), key=len) if path.split(".")[-1] == name), None)
    return [f"policies.{policy}.{found}" for policy in policies] if found else []


def known_fields() -> dict[str, dataclasses.Field]:
    """Return the fields of a policy by dotted name, those of all registered algorithms' options included."""
    options = [find_algorithm(algorithm).Options() for algorithm in ALGORITHMS]
    return {path: field for one in (PolicyConfig(), *options) for path, (*_, field), _ in leaves(one)}
