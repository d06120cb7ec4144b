"""Base class and helpers of the classic control environments."""

import abc
import dataclasses
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.controls import Controls
from wdjax.env import Env, require_action

StateT = TypeVar("StateT")


@dataclasses.dataclass(frozen=True)
class ClassicControl(Env, Generic[StateT]):
    """Single-agent environment with `time` in its state and `episode_length` in its params.

    An environment defines its physics: `start`, `dynamics`, `is_over`, `reward` and `observe`.
    """

    cheap_reset: ClassVar[bool] = True
    key_explanation: ClassVar[str] = "←: push left. →: push right"

    @abc.abstractmethod
    def start(self, key: jax.Array) -> StateT:
        """Return the state at the start of an episode."""

    @abc.abstractmethod
    def dynamics(self, state: StateT, action: jax.Array, params: Any) -> Any:
        """Return the state after one step."""

    def is_over(self, state: StateT, params: Any) -> jax.Array:
        """Return whether the episode has terminated, () bool."""
        raise NotImplementedError

    def reward(self, action: jax.Array, over_before: jax.Array, terminated: jax.Array) -> jax.Array:
        """Return the reward of a step, () float32."""
        raise NotImplementedError

    def reset(self, key: jax.Array, params: Any) -> tuple[jax.Array, StateT]:
        """Return the first observation and the state drawn by `start`."""
        state = self.start(key)
        return self.observe(state, params), state

    def controls(self, group: str, params: Any) -> Controls:
        """Return the default controls, explained by `key_explanation`."""
        return dataclasses.replace(
            super().controls(group, params), explanation=self.key_explanation
        )

    def step(
        self, key: jax.Array, state: StateT, action: jax.Array, params: Any
    ) -> tuple[jax.Array, StateT, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Advance by one step of `dynamics`, unless the episode has terminated."""
        require_action(self, action, params, owner=ClassicControl)
        over_before = self.is_over(state, params)
        moved = self.dynamics(state, action, params)
        held = jax.tree.map(lambda old, new: jnp.where(over_before, old, new), state, moved)
        state = held.replace(time=moved.time)
        terminated = self.is_over(state, params)
        truncated = (moved.time >= params.episode_length) & ~terminated
        reward = self.reward(action, over_before, terminated)
        return self.observe(state, params), state, reward, terminated, truncated, {}


def wrap_angle(angle: jax.Array) -> jax.Array:
    """Wrap an angle [rad] to [-pi, pi], up to rounding.

    Angles already in this range are returned bit-exactly.
    """
    turns = jnp.floor((angle + jnp.pi) / (2 * jnp.pi))
    return angle - 2 * jnp.pi * turns


def stack_bounds(*bounds: Any) -> np.ndarray | jax.Array:
    """Stack scalars into Box bounds [n] float32, in NumPy unless one of them is a jax.Array."""
    module = jnp if any(isinstance(bound, jax.Array) for bound in bounds) else np
    return module.stack([module.asarray(bound, np.float32) for bound in bounds])
