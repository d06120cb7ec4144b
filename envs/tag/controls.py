"""Keys and pointer of both games of Tag, for `wdjax play`: methods of the games."""

from typing import Any

import jax
import jax.numpy as jnp

from wdjax.controls import Controls
from wdjax.envs.tag.scripted import head_for


def plane_controls(self: Any, group: str, params: Any) -> Controls:
    """Return controls: left and right turn by the smallest level, up and down change the speed."""
    accelerations, turns = self.num_acceleration_levels, self.num_turn_levels
    left = min(turns, (turns + 1) // 2 + 1)  # the lower half of the levels turns right
    keys = {"ArrowLeft": {1: left}, "ArrowUp": {0: accelerations}}
    keys |= {"ArrowDown": {0: min(1, accelerations)}, "ArrowRight": {1: turns // 2}}
    return Controls(keys, (0, 0), speed=0.25, explanation="← →: turn. ↑ ↓: accelerate, brake")


def steer_in_plane(
    self: Any, state: Any, group: str, agent: Any, point: Any, params: Any
) -> jax.Array:
    """Return the action [2] int32 of an agent towards a point, see `Env.steer`."""
    index = agent + (0 if group == "tagger" else self.num_taggers)
    dx, dy = point[0] - state.x, point[1] - state.y
    actions = head_for(self, state, params, slice(None), jnp.arctan2(dy, dx), jnp.hypot(dx, dy))
    return actions[index]


def grid_controls(self: Any, group: str, params: Any) -> Controls:
    """Return controls: an arrow key moves one cell in its direction."""
    moves = {"ArrowLeft": 2, "ArrowUp": 3, "ArrowDown": 4, "ArrowRight": 1}
    keys = {key: {0: move} for key, move in moves.items()}
    return Controls(keys, (0,), speed=0.2, explanation="← ↑ ↓ →: move by one cell")


def steer_on_grid(
    self: Any, state: Any, group: str, agent: Any, point: Any, params: Any
) -> jax.Array:
    """Return the move () int32 of an agent towards a cell, see `Env.steer`."""
    index = agent + (0 if group == "tagger" else self.num_taggers)
    dx, dy = jnp.round(point[0]) - state.x[index], jnp.round(point[1]) - state.y[index]
    steps = jnp.stack([jnp.zeros_like(dx), dx, -dx, dy, -dy])  # 0 stays; ties: the lower index
    return jnp.argmax(steps).astype(jnp.int32)
