"""wdjax: end-to-end multi-agent reinforcement learning on one accelerator, as pure JAX functions.

    env, params = wdjax.make("tag_continuous", num_taggers=5, num_runners=100)
    obs, state = env.reset(key, params)
    obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)

Names are imported on first use, so `import wdjax` is fast and touches no device.
"""

import os
from typing import TYPE_CHECKING

from wdjax.lazy import import_when_used
from wdjax.version import __version__  # noqa: F401

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "envs")):
    raise ImportError(
        "wdjax/envs, train and experiments are symbolic links, which this checkout does not "
        "contain. Clone again with git -c core.symlinks=true clone, on Linux, macOS or in WSL2."
    )

if TYPE_CHECKING:
    from wdjax import adapters, drawing, envs, experiments, train
    from wdjax.controls import Controls
    from wdjax.env import Env
    from wdjax.env_checker import EnvCheckError, check_env
    from wdjax.envs import list_envs, make, register
    from wdjax.playing import PlayState, Transition, play, start_play
    from wdjax.rendering import render
    from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete
    from wdjax.train.live.server import play_live
    from wdjax.train.load import load_policy
    from wdjax.vector import ResetPool, VectorEnv, VectorState, vectorize

__all__ = [
    "Box",
    "Controls",
    "Dict",
    "Discrete",
    "Env",
    "EnvCheckError",
    "MultiDiscrete",
    "PlayState",
    "ResetPool",
    "Transition",
    "VectorEnv",
    "VectorState",
    "adapters",
    "check_env",
    "drawing",
    "envs",
    "experiments",
    "list_envs",
    "load_policy",
    "make",
    "play",
    "play_live",
    "register",
    "render",
    "start_play",
    "train",
    "vectorize",
]

if not TYPE_CHECKING:
    __getattr__, __dir__, _HOME = import_when_used(__name__)
