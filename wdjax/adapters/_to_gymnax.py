"""wdjax environments in gymnax's form, for loops and wrappers that are written for it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from wdjax.adapters._translate import MASK, check_single_agent
from wdjax.env import Env
from wdjax.spaces import Box, Dict, Discrete, Space

# gymnax 1.0 tells terminated from truncated; before it, steps gave one `done` for both.
_HAS_TRUNCATION = hasattr(Environment, "is_truncated")


@struct.dataclass
class GymnaxState:
    """The state of an environment, and how its last step ended: gymnax asks the state for it."""

    env_state: Any  # the environment's own
    terminated: jax.Array  # () bool
    truncated: jax.Array  # () bool
    time: jax.Array  # () int32, steps since the reset


class WdjaxInGymnax(Environment):
    """A single-agent environment as a gymnax `Environment`; `wdjax_env` is what it plays::

        env = to_gymnax(*wdjax.make("cartpole"))
        params = env.default_params
        obs, state = env.reset(key, params)
        obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)

    Its `step` resets by itself, in the step in which an episode ends, as all of gymnax's do. With gymnax before 1.0,
    steps give (obs, state, reward, done, info), and truncation is part of `done`. Its `default_params` are the params,
    and their `episode_length` also goes by gymnax's name, `max_steps_in_episode`, which rollouts of others read.

    Args:
        env: an environment without groups, with spaces that gymnax has: Box, Discrete and Dict.
        params: what `default_params` is to be; None: the environment's own.

    Raises:
        ValueError, TypeError: for an environment with groups, a space that gymnax does not have, and params of another
            environment or out of range.
    """

    def __init__(self, env: Env, params: Any = None):
        self.wdjax_env = env
        self._params = with_gymnaxs_limit(check_single_agent(env, params, "gymnax"))
        self.observation_space(), self.action_space()  # refuses, now, what cannot be translated

    @property
    def default_params(self) -> Any:
        return self._params

    @property
    def name(self) -> str:
        return type(self.wdjax_env).__name__

    @property
    def num_actions(self) -> int:
        """The number of discrete actions, or of real numbers in one action."""
        space = self.wdjax_env.action_space(self._params)
        return (
            space.n
            if isinstance(space, Discrete) and not space.shape
            else int(np.prod(space.shape))
        )

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, GymnaxState]:
        """Returns (obs, state) of a new episode."""
        obs, env_state = self.wdjax_env.reset(key, params)
        return obs, GymnaxState(env_state, jnp.bool_(False), jnp.bool_(False), jnp.int32(0))

    def step_env(self, key: jax.Array, state: GymnaxState, action: Any, params: Any) -> tuple:
        """Plays one step without a reset. Returns (obs, state, reward, terminated, info), as gymnax asks.

        Whether the step was truncated is in the state, for `is_truncated`; gymnax before 1.0 gets it in `terminated`.
        """
        obs, env_state, reward, terminated, truncated, info = self.wdjax_env.step(
            key, state.env_state, action, params
        )
        state = GymnaxState(env_state, terminated, truncated, state.time + 1)
        ended = terminated if _HAS_TRUNCATION else terminated | truncated
        return obs, state, reward, ended, dict(info)

    def is_truncated(self, state: GymnaxState, params: Any) -> jax.Array:
        """Returns whether the last step was cut off by the time limit: a bool scalar."""
        return state.truncated

    def is_terminated(self, state: GymnaxState, params: Any) -> jax.Array:
        """Returns whether the last step ended the game: a bool scalar."""
        return state.terminated

    def is_terminal(self, state: GymnaxState, params: Any) -> jax.Array:
        """Returns `is_terminated`; for gymnax before 1.0, whether the episode is over either way."""
        return state.terminated if _HAS_TRUNCATION else state.terminated | state.truncated

    def discount(self, state: GymnaxState, params: Any) -> jax.Array:
        """Returns 0 where the game has ended, else 1, also where it was cut off: a float32 scalar."""
        return jnp.where(state.terminated, 0.0, 1.0)

    def action_space(self, params: Any = None) -> spaces.Space:
        params = self._params if params is None else params
        return to_gymnax_space(self.wdjax_env.action_space(params), "action")

    def observation_space(self, params: Any = None) -> spaces.Space:
        params = self._params if params is None else params
        return to_gymnax_space(self.wdjax_env.observation_space(params), "observation")


to_gymnax = WdjaxInGymnax


def with_gymnaxs_limit(params: Any) -> Any:
    """Returns params whose `episode_length`, where they have one, can be read as `max_steps_in_episode`, too."""
    if hasattr(params, "max_steps_in_episode") or not hasattr(params, "episode_length"):
        return params
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    return _with_limit(type(params))(**values)


@functools.cache  # once: params of two classes are two kinds of pytree
def _with_limit(kind: type) -> type:
    members = {
        "max_steps_in_episode": property(lambda params: params.episode_length),
        "__module__": kind.__module__,
    }
    return struct.dataclass(type(kind.__name__, (kind,), members))


def to_gymnax_space(space: Space, name: str) -> spaces.Space:
    """Returns a space in gymnax's form; raises TypeError, with `name`, for one that gymnax does not have."""
    if isinstance(space, Dict):
        return spaces.Dict(
            {key: to_gymnax_space(part, f"{name}[{key!r}]") for key, part in space.spaces.items()}
        )
    if name.endswith(f"[{MASK!r}]"):
        return spaces.Box(0, 1, space.shape, space.dtype)
    if isinstance(space, Box):
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if isinstance(space, Discrete) and not space.shape:
        return spaces.Discrete(space.n)
    raise TypeError(f"the space of {name} is {space}: gymnax has only Box, Discrete and Dict")
