"""Algorithms by name, and what they make of a configuration: their options, and their hyperparameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from wdjax.checks import require
from wdjax.named import find_named
from wdjax.train.config.facts import is_required
from wdjax.train.config.reading import from_mapping, register
from wdjax.train.config.schema import PolicyConfig, TrainConfig, policy_fields
from wdjax.train.state.algorithm import Algorithm
from wdjax.train.state.hypers import Hypers, hypers_of

# Name in a preset -> where its class is, or the class; any other algorithm is named by its import path.
ALGORITHMS: dict[str, str | type[Algorithm]] = {
    "A2C": "wdjax.train.algorithms.on_policy.update:A2C",
    "PPO": "wdjax.train.algorithms.on_policy.update:PPO",
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
    """Returns a run's configuration, strictly, from nested mappings or another one: with the options of every policy's
    algorithm as the dataclass that they are, those that are not given at their defaults.

    Raises:
        ValueError, TypeError: naming the field, its value and what is allowed.
    """
    config = from_mapping(TrainConfig, values)
    policies = {name: with_options(f"policies.{name}", policy) for name, policy in config.policies.items()}
    return dataclasses.replace(config, policies=policies)


def with_options(path: str, config: PolicyConfig) -> PolicyConfig:
    """Return a policy's configuration with the options of its algorithm read; `path` stands before the names.

    Raises:
        ValueError, TypeError: naming the field, its value and what is allowed.
    """
    cls, given = find_algorithm(config.algorithm, f"{path}.algorithm").Options, config.options
    if dataclasses.is_dataclass(given) and not isinstance(given, cls):  # those of another algorithm
        given = dataclasses.asdict(given)
    if not dataclasses.fields(cls) and isinstance(given, Mapping) and given:
        name = next(iter(given))
        near = policy_fields(name, [path.removeprefix("policies.")])
        words = f": did you mean '{near[0]}'?" if near else ". Set its hyperparameters as fields of the policy."
        raise ValueError(f"unknown field {path}.options.{name}: {config.algorithm} has no options{words}")
    options = from_mapping(cls, given, f"{path}.options.")
    return dataclasses.replace(config, options=options if dataclasses.fields(cls) else {})


def make_hypers(config: PolicyConfig) -> Hypers:
    """Returns the traced hyperparameters of a policy as float32 arrays."""
    return hypers_of(config, find_algorithm(config.algorithm).takes)
