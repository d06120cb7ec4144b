"""The environments: rules only, one environment a file. A new one is one file and one line in the list below."""

import dataclasses
import importlib
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Literal, overload

from wdjax.checks import require, require_known
from wdjax.env import Env, cast_params, split_arguments, with_static
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

# What stands before the colon in the name of another library's environment -> the module whose `make` builds it.
LIBRARIES = {"gymnax": "wdjax.adapters._from_gymnax", "jaxmarl": "wdjax.adapters._from_jaxmarl"}

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


# What type checkers know of a name.
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
    """Builds an environment and its params.

    Args:
        name: of an environment that is registered or that an installed package announces (`list_envs`);
            "package.module:Class" of one's own; or of another library's: "gymnax:CartPole-v1",
            "jaxmarl:MPE_simple_spread_v3" (`wdjax.adapters.from_gymnax` and `from_jaxmarl` say what becomes of it).
        **arguments: static fields of the environment and fields of its params, by name; the rest keep their defaults.

    Returns:
        (env, params): a frozen, hashable Env, and a pytree of NumPy scalars (float32, int32) and arrays.

    Raises:
        ValueError: for an unknown name, with the nearest right one, and for a value out of range.
        TypeError: for a value of the wrong kind, and for "package.module:Name" that is no environment.
        ImportError: where the library is not installed.
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
    """Adds an environment under a name of its own, so that `make` and presets know it.

    Args:
        name: its name from now on, in this process.
        env: a class, or one environment of it, whose static fields and params are then the defaults of `make`:
            `wdjax.register("mine", wdjax.adapters.from_gymnax(MyEnv())[0])`.
        replace: whether it may take the name of another one. A class that is defined anew, as when a notebook's cell
            runs twice, takes its own name in any case.

    Raises:
        ValueError: where another environment already has the name.
        TypeError: where `name` is not a string, `env` neither a wdjax.Env nor a subclass of it, or a class with a field
            that has no default, which `make(name)` could not build.
    """
    if not isinstance(name, str):
        raise TypeError(f"name = {name!r}: must be a string")
    # before a colon stands another library
    plain = name and ":" not in name and name == name.strip()
    require(plain, "name", name, "a name without ':' and without spaces around it")
    _require_env("env", env)
    old = _REGISTRY.get(name, env)
    again = old == env or (
        isinstance(old, type) and isinstance(env, type) and _full_name(old) == _full_name(env)
    )
    require(
        again or replace, "name", name, "a name that no other environment has (or replace=True)"
    )
    _REGISTRY[name] = env


def _full_name(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def list_envs() -> list[str]:
    """Returns the names of all environments that are registered or that installed packages announce by the entry points
    `wdjax.envs`, sorted; those of other libraries are not among them."""
    return sorted({*_REGISTRY, *(entry.name for entry in announced("wdjax.envs"))})


def env_class(name: str) -> type[Env]:
    """Returns the class that `make` builds for a name; raises as `make`, with the nearest right name."""
    source = _find(name)
    return source if isinstance(source, type) else type(source)


def _find(name: str) -> type[Env] | Env:
    """Returns what is registered or announced under a name, or what "package.module:Name" names."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    if isinstance(name, str) and ":" in name:
        if _is_library(name.partition(":")[0]):
            require_known("library", name.partition(":")[0], LIBRARIES)
        path = name
    else:
        others = {entry.name: entry.value for entry in announced("wdjax.envs")}
        require_known("environment", name, {*_REGISTRY, *others})
        path = others[name]
    found = import_named("environment", path)
    _require_env(f"environment {name!r}", found)
    return found


def _is_library(word: str) -> bool:
    """Whether a word before a colon is meant as a library's name: near to one of these, and no module that there is."""
    near = word.isidentifier() and bool(get_close_matches(word, LIBRARIES))
    # which fails for __main__
    return not word or (near and not lies_here(word) and find_spec(word) is None)


def _require_env(what: str, found: Any) -> None:
    if not (isinstance(found, Env) or (isinstance(found, type) and issubclass(found, Env))):
        raise TypeError(
            f"{what} = {found!r}: must be a subclass of wdjax.Env, or an environment of one"
        )
    for field in dataclasses.fields(found) if isinstance(found, type) else ():
        if (
            field.init
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ):
            raise TypeError(
                f"{found.__name__}.{field.name} has no default: give it one, or register an environment"
            )
