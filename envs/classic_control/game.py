"""What the games share: one agent, a time limit, starts that are a few numbers to draw, and some arithmetic."""

import dataclasses
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.env import Env

StateT = TypeVar("StateT")
# as Env.step says
StepResult = tuple[jax.Array, StateT, jax.Array, jax.Array, jax.Array, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class ClassicControl(Env):
    """A game with a `time` in its state and an `episode_length` in its params; `drawing.py` draws it."""

    can_truncate: ClassVar[bool] = True
    cheap_reset: ClassVar[bool] = True
    drawing: ClassVar[str]  # which of the `SCENES` there does

    def scene(self, states: Any, params: Any) -> Any:
        from wdjax.envs.classic_control.drawing import SCENES

        return SCENES[self.drawing](self, states, params)


def hold_where(ended: jax.Array, state: Any, moved: Any) -> Any:
    """Returns the next state: `moved`, or where the game had ended the old one, in which only time goes on."""
    held = jax.tree.map(lambda old, new: jnp.where(ended, old, new), state, moved)
    return held.replace(time=moved.time)


def wrap_angle(angle: jax.Array) -> jax.Array:
    """Returns an angle [...] in rad less whole turns, from -pi to pi (up to rounding); one within keeps its bits."""
    turns = jnp.floor((angle + jnp.pi) / (2 * jnp.pi))
    return angle - 2 * jnp.pi * turns


def stack_bounds(*bounds: Any) -> np.ndarray | jax.Array:
    """Returns scalars as [n] float32: bounds of a Box, of NumPy unless a parameter among them is on a device."""
    module = jnp if any(isinstance(bound, jax.Array) for bound in bounds) else np
    return module.stack([module.asarray(bound, np.float32) for bound in bounds])
