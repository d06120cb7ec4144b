"""Simple opponents for both games of Tag: taggers chase the nearest runner, runners flee the nearest tagger.

Each is a pure function of (env, state, params, key) of one replica that returns the actions of its whole group. It sees
the true state, follows one rule, and draws nothing: the key is there for scripts of one's own that do.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.env import Env
from wdjax.envs.tag import continuous, gridworld


def chase_nearest(env: Env, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """Every tagger turns and accelerates, or on the grid steps, towards the live runner nearest to it.

    Returns:
        the taggers' actions: [num_taggers, 2] int32 in tag_continuous, [num_taggers] int32 in tag_gridworld.
    """
    if isinstance(env, continuous.TagContinuous):
        taggers, runners = _taggers_and_runners(env)
        dx, dy = _to_nearest(state, taggers, runners)
        return _head_for(env, state, params, taggers, jnp.arctan2(dy, dx), jnp.hypot(dx, dy))
    distance = _square_distances(state, params, jnp.arange(env.num_taggers), jnp.array([env.num_taggers]))
    return jnp.argmin(distance[..., 0], axis=0).astype(jnp.int32)


def flee_nearest(env: Env, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """Every runner turns away from the tagger nearest to it at full speed; on the grid it takes the step that leads
    farthest from the nearest tagger (and stays where none leads farther).

    Returns:
        the runners' actions: [num_runners, 2] int32 in tag_continuous, [1] int32 in tag_gridworld.
    """
    if isinstance(env, continuous.TagContinuous):
        taggers, runners = _taggers_and_runners(env)
        dx, dy = _to_nearest(state, runners, taggers)
        return _head_for(env, state, params, runners, jnp.arctan2(-dy, -dx), jnp.full(env.num_runners, jnp.inf))
    distance = _square_distances(state, params, jnp.array([env.num_taggers]), jnp.arange(env.num_taggers))
    return jnp.argmax(jnp.min(distance, axis=-1), axis=0).astype(jnp.int32)


# Name -> (the group that plays it, the function).
SCRIPTS: dict[str, tuple[str, Callable]] = {
    "chase_nearest": ("tagger", chase_nearest), "flee_nearest": ("runner", flee_nearest)
}  # fmt: skip


# --- in the plane ---


def _taggers_and_runners(env: continuous.TagContinuous) -> tuple[slice, slice]:
    return slice(0, env.num_taggers), slice(env.num_taggers, env.num_agents)


def _to_nearest(state: continuous.State, who: slice, whom: slice) -> tuple[jax.Array, jax.Array]:
    """Returns (dx, dy) from each agent of `who` to the nearest of `whom` that is in the game, [n] each."""
    dx = state.x[None, whom] - state.x[who, None]
    dy = state.y[None, whom] - state.y[who, None]
    distance = jnp.where(state.active[None, whom], jnp.hypot(dx, dy), jnp.inf)
    nearest = jnp.argmin(distance, axis=1, keepdims=True)
    return jnp.take_along_axis(dx, nearest, axis=1)[:, 0], jnp.take_along_axis(dy, nearest, axis=1)[:, 0]


def _head_for(
    env: continuous.TagContinuous, state: continuous.State, params: continuous.Params, who: slice, angle: jax.Array,
    speed: jax.Array,
) -> jax.Array:  # fmt: skip
    """Returns the levels that bring direction and speed nearest to the wanted ones, [n, 2] int32.

    Who cannot turn near enough (within a quarter circle) slows down. Acceleration adds up over steps: the level wanted
    is speed' - speed - acceleration.
    """
    turns = continuous.level(jnp.arange(env.num_turn_levels + 1), params.min_turn, params.max_turn, env.num_turn_levels)
    off = _signed(angle[:, None] - state.direction[who, None] - turns[None])
    turn = jnp.argmin(jnp.abs(off), axis=1)
    ahead = jnp.min(jnp.abs(off), axis=1) < math.pi / 2
    fast = params.max_speed * jnp.where(env.is_tagger[who], params.skill_level_tagger, params.skill_level_runner)
    wanted = jnp.where(ahead, jnp.minimum(speed, fast), 0.0) - state.speed[who] - state.acceleration[who]
    levels = continuous.level(
        jnp.arange(env.num_acceleration_levels + 1), params.min_acceleration, params.max_acceleration,
        env.num_acceleration_levels,
    )  # fmt: skip
    accelerate = jnp.argmin(jnp.abs(wanted[:, None] - levels[None]), axis=1)
    return jnp.stack([accelerate, turn], axis=1).astype(jnp.int32)


def _signed(angle: jax.Array) -> jax.Array:
    """Returns an angle between -pi and pi."""
    return continuous.wrap(angle + math.pi) - math.pi


# --- on the grid ---


def _square_distances(state: gridworld.State, params: gridworld.Params, who: jax.Array, whom: jax.Array) -> jax.Array:
    """Returns [5 actions, who, whom]: the square of the distance after a move of `who`, walls included."""
    x = jnp.clip(state.x[None, who] + gridworld.X_STEPS[:, None], 0, params.grid_length)
    y = jnp.clip(state.y[None, who] + gridworld.Y_STEPS[:, None], 0, params.grid_length)
    return (x[..., None] - state.x[None, None, whom]) ** 2 + (y[..., None] - state.y[None, None, whom]) ** 2
