"""Base class and helpers of the classic control environments."""

import dataclasses
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.env import Env

StateT = TypeVar("StateT")
# (obs, state, reward, terminated, truncated, info), as in Env.step
StepResult = tuple[jax.Array, StateT, jax.Array, jax.Array, jax.Array, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class ClassicControl(Env):
    """Single-agent environment with `time` in its state and `episode_length` in its params."""

    can_truncate: ClassVar[bool] = True
    cheap_reset: ClassVar[bool] = True
    drawing: ClassVar[str]  # key in `SCENES` of drawing.py

    def scene(self, states: Any, params: Any) -> Any:
        from wdjax.envs.classic_control.drawing import SCENES

        return SCENES[self.drawing](self, states, params)


def hold_where(ended: jax.Array, state: Any, moved: Any) -> Any:
    """Return `moved`, or if the episode had `ended`, the old `state` with its time advanced."""
    held = jax.tree.map(lambda old, new: jnp.where(ended, old, new), state, moved)
    return held.replace(time=moved.time)


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
