"""The environments: rules only, one environment a file. A new one is one file and one line in the list below."""

from typing import Any

from wdjax.checks import require, require_known
from wdjax.env import Env, cast_params, split_arguments
from wdjax.envs.classic_control import Acrobot, CartPole, ContinuousMountainCar, MountainCar, Pendulum
from wdjax.envs.tag import TagContinuous, TagGridworld

_REGISTRY: dict[str, type[Env]] = {
    "acrobot": Acrobot,
    "cartpole": CartPole,
    "continuous_mountain_car": ContinuousMountainCar,
    "mountain_car": MountainCar,
    "pendulum": Pendulum,
    "tag_continuous": TagContinuous,
    "tag_gridworld": TagGridworld,
}

__all__ = [
    "Acrobot", "CartPole", "ContinuousMountainCar", "MountainCar", "Pendulum", "TagContinuous", "TagGridworld",
    "env_class", "list_envs", "make", "register",
]  # fmt: skip


def make(name: str, **arguments: Any) -> tuple[Env, Any]:
    """Builds an environment and its params.

    Args:
        name: of a registered environment (`list_envs`).
        **arguments: static fields of the environment and fields of its params, by name; the rest keep their defaults.

    Returns:
        (env, params): a frozen, hashable Env, and a pytree of NumPy scalars (float32, int32) and arrays.

    Raises:
        ValueError: for an unknown name, with the nearest right one, and for a value out of range.
        TypeError: for a value of the wrong kind.
    """
    cls = env_class(name)
    static, changes = split_arguments(cls, arguments)
    env = cls(**static)
    params = cast_params(env.default_params.replace(**changes), env.default_params)
    env.check_params(params)
    return env, params


def register(name: str, cls: type[Env]) -> None:
    """Adds an environment under a name of its own, so that `make` and presets know it.

    Raises:
        ValueError: where another class already has the name.
        TypeError: where `name` is not a string, or `cls` not a subclass of Env.
    """
    if not isinstance(name, str):
        raise TypeError(f"name = {name!r}: must be a string")
    if not (isinstance(cls, type) and issubclass(cls, Env)):
        raise TypeError(f"cls = {cls!r}: must be a subclass of wdjax.Env")
    require(_REGISTRY.get(name, cls) is cls, "name", name, "a name that no other environment has")
    _REGISTRY[name] = cls


def list_envs() -> list[str]:
    """Returns the names of all registered environments, sorted."""
    return sorted(_REGISTRY)


def env_class(name: str) -> type[Env]:
    """Returns the class registered under a name; raises ValueError with the nearest right name."""
    require_known("environment", name, _REGISTRY)
    return _REGISTRY[name]
