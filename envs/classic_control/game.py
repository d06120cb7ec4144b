"""What the games share: they have one agent, a time limit, and starts that are a few numbers to draw."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from wdjax.env import Env

StepResult = tuple[jax.Array, Any, jax.Array, jax.Array, jax.Array, dict[str, Any]]  # as Env.step says


@dataclasses.dataclass(frozen=True)
class ClassicControl(Env):
    """A game with a `time` in its state and an `episode_length` in its params; `drawing.py` draws it."""

    can_truncate: ClassVar[bool] = True
    cheap_reset: ClassVar[bool] = True
    drawing: ClassVar[str]  # the function there that does

    def draw(self, axes: Any, state: Any, params: Any, history: Any = None) -> None:
        from wdjax.envs.classic_control import drawing

        getattr(drawing, self.drawing)(axes, state, params)


def hold_where(ended: jax.Array, state: Any, moved: Any) -> Any:
    """Returns the next state: `moved`, or where the game had ended the old one, in which only time goes on."""
    held = jax.tree.map(lambda old, new: jnp.where(ended, old, new), state, moved)
    return held.replace(time=moved.time)
