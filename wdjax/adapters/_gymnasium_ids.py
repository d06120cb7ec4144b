"""Registration of wdjax environments with gymnasium, for `gymnasium.make("wdjax/NAME")`."""

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium

from wdjax.adapters import _translate as translate
from wdjax.adapters._to_gymnasium import GymnasiumEnv, GymnasiumVectorEnv
from wdjax.envs import list_envs, make


def register_gymnasium() -> list[str]:
    """Register every single-agent environment with gymnasium as "wdjax/NAME".

        wdjax.adapters.register_gymnasium()
        env = gymnasium.make("wdjax/cartpole", length=0.7)
        envs = gymnasium.make_vec("wdjax/cartpole", num_envs=64)

    Both accept the keyword arguments of `wdjax.make` and of `to_gymnasium` or
    `to_gymnasium_vector`. Ids that are already registered are skipped. Episodes end at the time
    limit `episode_length`, which the spec reports as `max_episode_steps`. Passing
    `max_episode_steps` to `gymnasium.make` adds a second limit; passing it to `make_vec` sets
    `episode_length`.

    This is not a gymnasium plug-in, because gymnasium would then import wdjax and jax in every
    program that imports gymnasium.

    Returns:
        The ids of all single-agent environments.
    """
    envs = {name: make(name)[0] for name in list_envs()}
    ids = {f"wdjax/{name}": name for name, env in envs.items() if not env.groups}
    for env_id, name in ids.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point=f"{__name__}:_make_env",
                vector_entry_point=f"{__name__}:_make_vector",
                reward_threshold=envs[name].reward_threshold,
                kwargs={"name": name},
            )
    return list(ids)


def _make_env(name: str, **arguments: Any) -> GymnasiumEnv:
    return _make(GymnasiumEnv, name, arguments)


# gymnasium reads this to decide that its wrappers implement "human" and "rgb_array_list"
_make_env.metadata = translate.METADATA  # type: ignore[attr-defined]


def _make_vector(
    name: str, num_envs: int, max_episode_steps: int | None = None, **arguments: Any
) -> GymnasiumVectorEnv:
    if max_episode_steps is not None:
        arguments["episode_length"] = max_episode_steps
    return _make(GymnasiumVectorEnv, name, {**arguments, "num_envs": num_envs})


def _make(adapter: Callable, name: str, arguments: dict[str, Any]) -> Any:
    accepted = set(inspect.signature(adapter).parameters) - {"env", "params"}
    own = {key: arguments.pop(key) for key in accepted & arguments.keys()}
    env, params = make(name, **arguments)
    return adapter(env, params=params, **own)
