"""Scripted opponents for Tag: taggers chase the nearest runner, runners flee the nearest tagger.

A script is a pure function (env, state, params, key) of one replica that returns the actions of
its whole group. The scripts in this module read the true state and ignore the key.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.envs.tag.game import X_STEPS, Y_STEPS, level, wrap

# --- in the plane ---


def chase_in_plane(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """Return actions [num_taggers, 2] int32 that steer each tagger to the nearest active runner."""
    taggers, runners = _taggers_and_runners(env)
    dx, dy = _to_nearest(state, taggers, runners)
    return head_for(env, state, params, taggers, jnp.arctan2(dy, dx), jnp.hypot(dx, dy))


def flee_in_plane(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """Return actions [num_runners, 2] int32: away from the nearest tagger, at full speed."""
    taggers, runners = _taggers_and_runners(env)
    dx, dy = _to_nearest(state, runners, taggers)
    return head_for(
        env, state, params, runners, jnp.arctan2(-dy, -dx), jnp.full(env.num_runners, jnp.inf)
    )


def _taggers_and_runners(env: Any) -> tuple[slice, slice]:
    return slice(0, env.num_taggers), slice(env.num_taggers, env.num_agents)


def _to_nearest(state: Any, agents: slice, targets: slice) -> tuple[jax.Array, jax.Array]:
    """Return (dx, dy) from each agent to its nearest active target, [n] each."""
    dx = state.x[None, targets] - state.x[agents, None]
    dy = state.y[None, targets] - state.y[agents, None]
    distance = jnp.where(state.active[None, targets], jnp.hypot(dx, dy), jnp.inf)
    nearest = jnp.argmin(distance, axis=1, keepdims=True)
    dx, dy = (jnp.take_along_axis(to, nearest, axis=1)[:, 0] for to in (dx, dy))
    return dx, dy


def head_for(
    env: Any, state: Any, params: Any, agents: slice, angle: jax.Array, speed: jax.Array
) -> jax.Array:
    """Return the action levels [n, 2] int32 that best match a target direction and speed.

    An agent that remains more than a quarter circle off after its turn slows down. Acceleration
    accumulates over steps, so the target level is speed' - speed - acceleration.
    """
    turns = level(
        jnp.arange(env.num_turn_levels + 1), params.min_turn, params.max_turn, env.num_turn_levels
    )
    error = angle[:, None] - state.direction[agents, None] - turns[None]
    error = wrap(error + math.pi) - math.pi  # in [-pi, pi]
    turn = jnp.argmin(jnp.abs(error), axis=1)
    ahead = jnp.min(jnp.abs(error), axis=1) < math.pi / 2
    speed_limit = params.max_speed * jnp.where(
        env.is_tagger[agents], params.skill_level_tagger, params.skill_level_runner
    )
    target_level = (
        jnp.where(ahead, jnp.minimum(speed, speed_limit), 0.0)
        - state.speed[agents]
        - state.acceleration[agents]
    )
    num_levels = env.num_acceleration_levels
    levels = level(
        jnp.arange(num_levels + 1), params.min_acceleration, params.max_acceleration, num_levels
    )
    accelerate = jnp.argmin(jnp.abs(target_level[:, None] - levels[None]), axis=1)
    return jnp.stack([accelerate, turn], axis=1).astype(jnp.int32)


# --- on the grid ---


def chase_on_grid(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """Return actions [num_taggers] int32 that move each tagger one cell towards the runner."""
    distance = _square_distances(
        state, params, jnp.arange(env.num_taggers), jnp.array([env.num_taggers])
    )
    return jnp.argmin(distance[..., 0], axis=0).astype(jnp.int32)


def flee_on_grid(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """Return the runner's action [1] int32 that maximizes the distance to its nearest tagger.

    The runner stays if no move increases that distance.
    """
    distance = _square_distances(
        state, params, jnp.array([env.num_taggers]), jnp.arange(env.num_taggers)
    )
    return jnp.argmax(jnp.min(distance, axis=-1), axis=0).astype(jnp.int32)


def _square_distances(state: Any, params: Any, agents: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the squared distances to `targets` after each move, [5 actions, agents, targets]."""
    x = jnp.clip(state.x[None, agents] + X_STEPS[:, None], 0, params.grid_length)
    y = jnp.clip(state.y[None, agents] + Y_STEPS[:, None], 0, params.grid_length)
    return (x[..., None] - state.x[None, None, targets]) ** 2 + (
        y[..., None] - state.y[None, None, targets]
    ) ** 2
