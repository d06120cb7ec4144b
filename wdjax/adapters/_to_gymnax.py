"""wdjax environments as gymnax environments."""

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

# gymnax 1.0 separates termination and truncation; earlier versions return one `done`.
_HAS_TRUNCATION = hasattr(Environment, "is_truncated")


@struct.dataclass
class GymnaxState:
    """Environment state and the end flags of the last step, which gymnax reads from the state."""

    env_state: Any  # state of the wdjax environment
    terminated: jax.Array  # () bool
    truncated: jax.Array  # () bool
    time: jax.Array  # () int32, steps since the reset


class WdjaxInGymnax(Environment):
    """A single-agent environment as a gymnax `Environment`.

        env = to_gymnax(*wdjax.make("cartpole"))
        params = env.default_params
        obs, state = env.reset(key, params)
        obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)

    As in gymnax, `step` resets in the step in which an episode ends. With gymnax before 1.0, it
    returns (obs, state, reward, done, info), and `done` includes truncation. `default_params`
    returns `params`, whose `episode_length` can also be read as `max_steps_in_episode`, the name
    in gymnax. The attribute `wdjax_env` is the wrapped environment.

    Args:
        env: an environment without groups whose spaces are Box, Discrete or Dict.
        params: the params that `default_params` returns; None: the defaults of `env`.

    Raises:
        ValueError: if `env` has groups, or a value in `params` is invalid.
        TypeError: for an unsupported space, or an argument of the wrong type, such as the params of
            another environment.
    """

    def __init__(self, env: Env, params: Any = None):
        self.wdjax_env = env
        self._params = with_gymnaxs_limit(check_single_agent(env, params, "gymnax"))
        self.observation_space(), self.action_space()  # raise errors about unsupported spaces here

    @property
    def default_params(self) -> Any:
        return self._params

    @property
    def name(self) -> str:
        return type(self.wdjax_env).__name__

    @property
    def num_actions(self) -> int:
        """Number of discrete actions, or of components of a continuous action."""
        space = self.wdjax_env.action_space(self._params)
        return (
            space.n
            if isinstance(space, Discrete) and not space.shape
            else int(np.prod(space.shape))
        )

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, GymnaxState]:
        """Start an episode. Returns (obs, state)."""
        obs, env_state = self.wdjax_env.reset(key, params)
        return obs, GymnaxState(env_state, jnp.bool_(False), jnp.bool_(False), jnp.int32(0))

    def step_env(self, key: jax.Array, state: GymnaxState, action: Any, params: Any) -> tuple:
        """Advance one step without a reset. Returns (obs, state, reward, terminated, info).

        `is_truncated` reads truncation from the state. With gymnax before 1.0, `terminated`
        includes it.
        """
        obs, env_state, reward, terminated, truncated, info = self.wdjax_env.step(
            key, state.env_state, action, params
        )
        state = GymnaxState(env_state, terminated, truncated, state.time + 1)
        ended = terminated if _HAS_TRUNCATION else terminated | truncated
        return obs, state, reward, ended, dict(info)

    def is_truncated(self, state: GymnaxState, params: Any) -> jax.Array:
        """Return whether the last step was truncated, a () bool."""
        return state.truncated

    def is_terminated(self, state: GymnaxState, params: Any) -> jax.Array:
        """Return whether the last step terminated the episode, a () bool."""
        return state.terminated

    def is_terminal(self, state: GymnaxState, params: Any) -> jax.Array:
        """Return `is_terminated`; with gymnax before 1.0, also true after a truncation."""
        return state.terminated if _HAS_TRUNCATION else state.terminated | state.truncated

    def discount(self, state: GymnaxState, params: Any) -> jax.Array:
        """Return 0 after a termination, else (also after a truncation) 1, a () float32."""
        return jnp.where(state.terminated, 0.0, 1.0)

    def action_space(self, params: Any = None) -> spaces.Space:
        params = self._params if params is None else params
        return to_gymnax_space(self.wdjax_env.action_space(params), "action")

    def observation_space(self, params: Any = None) -> spaces.Space:
        params = self._params if params is None else params
        return to_gymnax_space(self.wdjax_env.observation_space(params), "observation")


to_gymnax = WdjaxInGymnax


def with_gymnaxs_limit(params: Any) -> Any:
    """Add a property `max_steps_in_episode` to params that have an `episode_length`."""
    if hasattr(params, "max_steps_in_episode") or not hasattr(params, "episode_length"):
        return params
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    return _with_limit(type(params))(**values)


@functools.cache  # a second class would be another pytree type
def _with_limit(kind: type) -> type:
    members = {
        "max_steps_in_episode": property(lambda params: params.episode_length),
        "__module__": kind.__module__,
    }
    return struct.dataclass(type(kind.__name__, (kind,), members))


def to_gymnax_space(space: Space, name: str) -> spaces.Space:
    """Convert a space to a gymnax space; `name` appears in the TypeError for unsupported ones."""
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
    raise TypeError(f"{name} space = {space}: must be Box, Dict or a scalar Discrete for gymnax")
