"""Simple opponents for both games of Tag: taggers chase the nearest runner, runners flee the nearest tagger.

Each is a pure function of (env, state, params, key) of one replica that returns the actions of its whole group. It sees
the true state, follows one rule, and draws nothing: the key is there for scripts of one's own that do. The games name
theirs in `scripts`; `chase_nearest` and `flee_nearest` here are those of whichever game is given.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.envs.tag.moves import X_STEPS, Y_STEPS, level, wrap


def chase_nearest(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """The taggers' actions in either game: [num_taggers, 2] int32 in tag_continuous, [num_taggers] in tag_gridworld."""
    return (chase_in_plane if hasattr(state, "direction") else chase_on_grid)(
        env, state, params, key
    )


def flee_nearest(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """The runners' actions in either game: [num_runners, 2] int32 in tag_continuous, [1] in tag_gridworld."""
    return (flee_in_plane if hasattr(state, "direction") else flee_on_grid)(env, state, params, key)


# Name -> (the group that plays it, the function).
SCRIPTS: dict[str, tuple[str, Callable]] = {
    "chase_nearest": ("tagger", chase_nearest),
    "flee_nearest": ("runner", flee_nearest),
}


# --- in the plane ---


def chase_in_plane(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """Every tagger turns and accelerates towards the live runner nearest to it, [num_taggers, 2] int32."""
    taggers, runners = _taggers_and_runners(env)
    dx, dy = _to_nearest(state, taggers, runners)
    return _head_for(env, state, params, taggers, jnp.arctan2(dy, dx), jnp.hypot(dx, dy))


def flee_in_plane(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """Every runner turns away from the tagger nearest to it at full speed, [num_runners, 2] int32."""
    taggers, runners = _taggers_and_runners(env)
    dx, dy = _to_nearest(state, runners, taggers)
    return _head_for(
        env, state, params, runners, jnp.arctan2(-dy, -dx), jnp.full(env.num_runners, jnp.inf)
    )


def _taggers_and_runners(env: Any) -> tuple[slice, slice]:
    return slice(0, env.num_taggers), slice(env.num_taggers, env.num_agents)


def _to_nearest(state: Any, who: slice, whom: slice) -> tuple[jax.Array, jax.Array]:
    """Returns (dx, dy) from each agent of `who` to the nearest of `whom` that is in the game, [n] each."""
    dx = state.x[None, whom] - state.x[who, None]
    dy = state.y[None, whom] - state.y[who, None]
    distance = jnp.where(state.active[None, whom], jnp.hypot(dx, dy), jnp.inf)
    nearest = jnp.argmin(distance, axis=1, keepdims=True)
    return jnp.take_along_axis(dx, nearest, axis=1)[:, 0], jnp.take_along_axis(dy, nearest, axis=1)[
        :, 0
    ]


def _head_for(
    env: Any, state: Any, params: Any, who: slice, angle: jax.Array, speed: jax.Array
) -> jax.Array:
    """Returns the levels that bring direction and speed nearest to the wanted ones, [n, 2] int32.

    Who cannot turn near enough (within a quarter circle) slows down. Acceleration adds up over steps: the level wanted
    is speed' - speed - acceleration.
    """
    turns = level(
        jnp.arange(env.num_turn_levels + 1), params.min_turn, params.max_turn, env.num_turn_levels
    )
    off = _signed(angle[:, None] - state.direction[who, None] - turns[None])
    turn = jnp.argmin(jnp.abs(off), axis=1)
    ahead = jnp.min(jnp.abs(off), axis=1) < math.pi / 2
    fast = params.max_speed * jnp.where(
        env.is_tagger[who], params.skill_level_tagger, params.skill_level_runner
    )
    wanted = (
        jnp.where(ahead, jnp.minimum(speed, fast), 0.0) - state.speed[who] - state.acceleration[who]
    )
    num_levels = env.num_acceleration_levels
    levels = level(
        jnp.arange(num_levels + 1), params.min_acceleration, params.max_acceleration, num_levels
    )
    accelerate = jnp.argmin(jnp.abs(wanted[:, None] - levels[None]), axis=1)
    return jnp.stack([accelerate, turn], axis=1).astype(jnp.int32)


def _signed(angle: jax.Array) -> jax.Array:
    """Returns an angle between -pi and pi."""
    return wrap(angle + math.pi) - math.pi


# --- on the grid ---


def chase_on_grid(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """Every tagger steps towards the runner, [num_taggers] int32."""
    distance = _square_distances(
        state, params, jnp.arange(env.num_taggers), jnp.array([env.num_taggers])
    )
    return jnp.argmin(distance[..., 0], axis=0).astype(jnp.int32)


def flee_on_grid(env: Any, state: Any, params: Any, key: jax.Array) -> jax.Array:
    """The runner takes the step that leads farthest from the nearest tagger, and stays where none does, [1] int32."""
    distance = _square_distances(
        state, params, jnp.array([env.num_taggers]), jnp.arange(env.num_taggers)
    )
    return jnp.argmax(jnp.min(distance, axis=-1), axis=0).astype(jnp.int32)


def _square_distances(state: Any, params: Any, who: jax.Array, whom: jax.Array) -> jax.Array:
    """Returns [5 actions, who, whom]: the square of the distance after a move of `who`, walls included."""
    x = jnp.clip(state.x[None, who] + X_STEPS[:, None], 0, params.grid_length)
    y = jnp.clip(state.y[None, who] + Y_STEPS[:, None], 0, params.grid_length)
    return (x[..., None] - state.x[None, None, whom]) ** 2 + (
        y[..., None] - state.y[None, None, whom]
    ) ** 2
