"""wdjax: end-to-end multi-agent reinforcement learning on one accelerator, as pure functions in JAX.

    env, params = wdjax.make("tag_continuous", num_taggers=5, num_runners=100)
    obs, state = env.reset(key, params)
    obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)

Names are imported when first used, so that `import wdjax` is quick and touches no device.
"""

import importlib
from typing import TYPE_CHECKING, Any

from wdjax.version import __version__  # noqa: F401

if TYPE_CHECKING:
    from wdjax import adapters, envs, experiments, train
    from wdjax.env import Env
    from wdjax.env_checker import EnvCheckError, check_env
    from wdjax.envs import list_envs, make, register
    from wdjax.playing import PlayState, Transition, play, start_play
    from wdjax.rendering import render
    from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete
    from wdjax.vector import ResetPool, VectorEnv, VectorState, vectorize


# Public name -> the module that holds it.
_HOME = {
    "Env": "wdjax.env",
    "EnvCheckError": "wdjax.env_checker",
    "check_env": "wdjax.env_checker",
    "list_envs": "wdjax.envs",
    "make": "wdjax.envs",
    "register": "wdjax.envs",
    "PlayState": "wdjax.playing",
    "Transition": "wdjax.playing",
    "play": "wdjax.playing",
    "start_play": "wdjax.playing",
    "render": "wdjax.rendering",
    "Box": "wdjax.spaces",
    "Dict": "wdjax.spaces",
    "Discrete": "wdjax.spaces",
    "MultiDiscrete": "wdjax.spaces",
    "ResetPool": "wdjax.vector",
    "VectorEnv": "wdjax.vector",
    "VectorState": "wdjax.vector",
    "vectorize": "wdjax.vector",
}
_SUBPACKAGES = ("adapters", "envs", "experiments", "train")

__all__ = [
    "Box", "Dict", "Discrete", "Env", "EnvCheckError", "MultiDiscrete", "PlayState", "ResetPool", "Transition",
    "VectorEnv", "VectorState", "adapters", "check_env", "envs", "experiments", "list_envs", "make", "play", "register",
    "render", "start_play", "train", "vectorize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"wdjax.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'wdjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
