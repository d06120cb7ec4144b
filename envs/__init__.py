"""Bundled environments and their registry.

To add an environment, write its module and add it to `_REGISTRY`.
"""

import dataclasses
import importlib
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Literal, overload

from wdjax.arguments import cast_params, split_arguments, with_static
from wdjax.checks import require, require_known
from wdjax.env import Env
from wdjax.envs.classic_control import (
    Acrobot,
    CartPole,
    ContinuousMountainCar,
    MountainCar,
    Pendulum,
    acrobot,
    cartpole,
    continuous_mountain_car,
    mountain_car,
    pendulum,
)
from wdjax.envs.climate import Rice, rice
from wdjax.envs.commons import TaxedCommons, taxed
from wdjax.envs.covid import CovidEconomy, economy
from wdjax.envs.reaction import ReactionOneAtom, ReactionTwoAtoms, game
from wdjax.envs.tag import TagContinuous, TagGridworld, continuous, gridworld
from wdjax.named import announced, import_named, lies_here

_REGISTRY: dict[str, type[Env] | Env] = {
    "acrobot": Acrobot,
    "cartpole": CartPole,
    "continuous_mountain_car": ContinuousMountainCar,
    "covid_economy": CovidEconomy,
    "mountain_car": MountainCar,
    "pendulum": Pendulum,
    "rice": Rice,
    "reaction_one_atom": ReactionOneAtom,
    "reaction_two_atoms": ReactionTwoAtoms,
    "tag_continuous": TagContinuous,
    "tag_gridworld": TagGridworld,
    "taxed_commons": TaxedCommons,
}

# Library prefix of an environment name ("gymnax:CartPole-v1") -> module with the matching `make`.
LIBRARIES = {
    "gymnax": "wdjax.adapters._from_gymnax",
    "jaxmarl": "wdjax.adapters._from_jaxmarl",
    "jumanji": "wdjax.adapters._from_jumanji",
}

__all__ = [
    "Acrobot",
    "CartPole",
    "ContinuousMountainCar",
    "CovidEconomy",
    "MountainCar",
    "Pendulum",
    "ReactionOneAtom",
    "ReactionTwoAtoms",
    "Rice",
    "TagContinuous",
    "TagGridworld",
    "TaxedCommons",
    "env_class",
    "list_envs",
    "make",
    "register",
]


# Overloads for type checkers: the types of bundled environments by name.
@overload
def make(name: Literal["acrobot"], **arguments: Any) -> tuple[Acrobot, acrobot.Params]: ...
@overload
def make(name: Literal["cartpole"], **arguments: Any) -> tuple[CartPole, cartpole.Params]: ...
@overload
def make(
    name: Literal["continuous_mountain_car"], **arguments: Any
) -> tuple[ContinuousMountainCar, continuous_mountain_car.Params]: ...
@overload
def make(
    name: Literal["covid_economy"], **arguments: Any
) -> tuple[CovidEconomy, economy.Params]: ...
@overload
def make(
    name: Literal["mountain_car"], **arguments: Any
) -> tuple[MountainCar, mountain_car.Params]: ...
@overload
def make(name: Literal["pendulum"], **arguments: Any) -> tuple[Pendulum, pendulum.Params]: ...
@overload
def make(name: Literal["rice"], **arguments: Any) -> tuple[Rice, rice.Params]: ...
@overload
def make(
    name: Literal["reaction_one_atom"], **arguments: Any
) -> tuple[ReactionOneAtom, game.Params]: ...
@overload
def make(
    name: Literal["reaction_two_atoms"], **arguments: Any
) -> tuple[ReactionTwoAtoms, game.Params]: ...
@overload
def make(
    name: Literal["tag_continuous"], **arguments: Any
) -> tuple[TagContinuous, continuous.Params]: ...
@overload
def make(
    name: Literal["tag_gridworld"], **arguments: Any
) -> tuple[TagGridworld, gridworld.Params]: ...
@overload
def make(name: Literal["taxed_commons"], **arguments: Any) -> tuple[TaxedCommons, taxed.Params]: ...
@overload
def make(name: str, **arguments: Any) -> tuple[Env, Any]: ...
def make(name: str, **arguments: Any) -> tuple[Env, Any]:
    """Create an environment and its parameters.

    Args:
        name: a registered environment or one provided by an installed package (see `list_envs`); a
            custom class as "package.module:Class"; or an environment of another library, such as
            "gymnax:CartPole-v1", "jaxmarl:MPE_simple_spread_v3" or "jumanji:Connector-v3" (see
            `from_gymnax`, `from_jaxmarl` and `from_jumanji` in `wdjax.adapters`).
        **arguments: static fields of the environment and fields of its params, by name. Omitted
            fields keep their defaults.

    Returns:
        (env, params): a frozen, hashable Env, and a pytree of NumPy scalars (float32, int32) and
        arrays.

    Raises:
        ValueError: if the name is unknown (the message suggests the closest name) or a value is out
            of range.
        TypeError: if a value has the wrong type, or "package.module:Name" is not an environment.
        ImportError: if the library is not installed.
    """
    library, colon, rest = (
        name.partition(":") if isinstance(name, str) and name not in _REGISTRY else ("", "", "")
    )
    if colon and library in LIBRARIES:
        return importlib.import_module(LIBRARIES[library]).make(rest, **arguments)
    source = _find(name)
    static, changes = split_arguments(source, arguments)
    env = with_static(source, static)
    defaults = env.default_params
    params = cast_params(defaults.replace(**changes), defaults)
    env.check_params(params)
    return env, params


def register(name: str, env: type[Env] | Env, replace: bool = False) -> None:
    """Register an environment for `make` and presets, in the current process.

    Args:
        name: the name to register.
        env: a subclass of wdjax.Env, or an instance whose static fields and params become the
            defaults of `make`:
            `wdjax.register("mine", wdjax.adapters.from_gymnax(MyEnv())[0])`.
        replace: whether to replace another environment of this name. Registering the same class
            again, for example by rerunning a notebook cell, is always allowed.

    Raises:
        ValueError: if another environment has this name and `replace` is false, or the name is
            empty, contains ":", or starts or ends with whitespace.
        TypeError: if `name` is not a string, `env` is neither a wdjax.Env nor a subclass, or a
            field of the class has no default.
    """
    require(isinstance(name, str), "name", name, "a string", TypeError)
    # a colon separates the prefix of another library
    require(
        name and ":" not in name and name == name.strip(),
        "name",
        name,
        "a name without ':' and without surrounding spaces",
    )
    _require_env("env", env)
    old = _REGISTRY.get(name, env)
    is_same = old == env or (
        isinstance(old, type) and isinstance(env, type) and _full_name(old) == _full_name(env)
    )
    require(
        is_same or replace,
        "name",
        name,
        "a name that is not in use. Pass replace=True to replace it",
    )
    _REGISTRY[name] = env


def _full_name(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def list_envs() -> list[str]:
    """Return the sorted names of all registered environments.

    These include environments that installed packages provide through the entry point group
    `wdjax.envs`, but not environments of other libraries such as gymnax.
    """
    return sorted({*_REGISTRY, *(entry.name for entry in announced("wdjax.envs"))})


def env_class(name: str) -> type[Env]:
    """Return the environment class that `make` instantiates for a name.

    Raises the same errors as `make` for an unknown name.
    """
    source = _find(name)
    return source if isinstance(source, type) else type(source)


def _find(name: str) -> type[Env] | Env:
    """Look up a registered name, an entry point, or "package.module:Name"."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    if isinstance(name, str) and ":" in name:
        if _is_library(name.partition(":")[0]):
            require_known("library", name.partition(":")[0], LIBRARIES)
        path = name
    else:
        entry_points = {entry.name: entry.value for entry in announced("wdjax.envs")}
        require_known("environment", name, {*_REGISTRY, *entry_points})
        path = entry_points[name]
    env = import_named("environment", path)
    _require_env(f"environment {name!r}", env)
    return env


def _is_library(prefix: str) -> bool:
    """Return whether a prefix is empty, or a misspelled library name and not a module."""
    is_close = prefix.isidentifier() and bool(get_close_matches(prefix, LIBRARIES))
    # find_spec comes last because it raises for __main__
    return not prefix or (is_close and not lies_here(prefix) and find_spec(prefix) is None)


def _require_env(subject: str, source: Any) -> None:
    """Raise TypeError unless `source` is an Env, or a subclass that needs no arguments."""
    require(
        isinstance(source, Env) or (isinstance(source, type) and issubclass(source, Env)),
        subject,
        source,
        "a subclass of wdjax.Env, or an instance of a subclass",
        TypeError,
    )
    for field in dataclasses.fields(source) if isinstance(source, type) else ():
        if (
            field.init
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ):
            name = f"{source.__name__}.{field.name}"
            raise TypeError(f"{name} has no default. Add a default, or register an instance")
