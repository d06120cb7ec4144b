"""Observations of Tag in the plane: features of the other agents and of the agent itself."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require
from wdjax.envs.tag.game import Arrays
from wdjax.neighbors import neighbor_rows


def observe(env: Any, state: Any, params: Any) -> Arrays:
    """Return observations by group; see `TagContinuous.observe`."""
    features, own = features_of(env, state, params), own_features(env, state, params)
    if env.use_full_observation:
        rows = env.by_group(jnp.concatenate([full_rows(env, state, features), own], axis=1))
    else:
        k, sizes = env.num_other_agents_observed, tuple(env.groups.values())
        rows = neighbor_rows(
            state.x, state.y, state.active, features, own, k, num_relative=5, sizes=sizes
        )
        rows = dict(zip(env.groups, rows, strict=True))
    if not env.egocentric:
        return rows
    heading = env.by_group(state.direction)
    return {group: turn_to(heading[group], rows[group], env.num_own) for group in env.groups}


def features_of(env: Any, state: Any, params: Any) -> jax.Array:
    """Return the scaled features of all agents, (num_agents, 7).

    The columns are x and y divided by the diagonal, speed and acceleration divided by
    max_speed, direction divided by 2 pi, type (tagger 1, runner 0), and active.
    """
    diagonal = params.grid_length * jnp.float32(math.sqrt(2))
    speed_unit = params.max_speed + 1e-10
    columns = [
        state.x / diagonal,
        state.y / diagonal,
        state.speed / speed_unit,
        state.acceleration / speed_unit,
        state.direction / jnp.float32(2 * math.pi),
        jnp.asarray(env.is_tagger, jnp.float32),
        state.active.astype(jnp.float32),
    ]
    return jnp.stack(columns, axis=1)


def own_features(env: Any, state: Any, params: Any) -> jax.Array:
    """Return the last columns of an observation, which describe the agent itself.

    The shape is (num_agents, num_own) float32. Rows of inactive agents are zero.
    """
    columns = [jnp.broadcast_to(state.time / params.episode_length, state.x.shape)]
    if env.observe_own_motion:
        speed = state.speed / (params.max_speed + 1e-10)
        columns = [jnp.cos(state.direction), jnp.sin(state.direction), speed, *columns]
    if env.egocentric:
        diagonal, center = (
            params.grid_length * jnp.float32(math.sqrt(2)),
            0.5 * params.grid_length,
        )
        center_offset = along_and_across(
            state.direction, (center - state.x) / diagonal, (center - state.y) / diagonal
        )
        columns = [*center_offset, *columns]
    return jnp.where(state.active[:, None], jnp.stack(columns, axis=1), 0.0)


def full_rows(env: Any, state: Any, features: jax.Array) -> jax.Array:
    """Return for each agent the features of all others in index order, [N, 7 (N - 1)].

    The first five features are differences to the agent itself. They are zero for inactive
    agents. The others' types and `active` are always visible.
    """
    agents = np.arange(env.num_agents)
    others = np.array([np.delete(agents, i) for i in agents]).reshape(
        env.num_agents, env.num_agents - 1
    )
    other = features[others]  # [N, N - 1, 7]
    differences = jnp.where(
        state.active[:, None, None], other[..., :5] - features[:, None, :5], 0.0
    )
    rows = jnp.concatenate([differences, other[..., 5:]], axis=-1)
    return jnp.swapaxes(rows, 1, 2).reshape(env.num_agents, -1)  # feature by feature


def along_and_across(
    heading: jax.Array, dx: jax.Array, dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Rotate a difference into components along and to the left of `heading` [rad].

    Returns:
        (cos h dx + sin h dy, cos h dy - sin h dx).
    """
    cos, sin = jnp.cos(heading), jnp.sin(heading)
    return cos * dx + sin * dy, cos * dy - sin * dx


def turn_to(heading: jax.Array, rows: jax.Array, num_own: int) -> jax.Array:
    """Rotate observation rows [N, 7 k + num_own] into headings (N,) [rad]."""
    dx, dy, speed, acceleration, turns, *rest = jnp.split(rows[:, :-num_own], 7, axis=1)
    dx, dy = along_and_across(heading[:, None], dx, dy)
    columns = [dx, dy, speed, acceleration, turns - jnp.round(turns), *rest, rows[:, -num_own:]]
    return jnp.concatenate(columns, axis=1)


def split_observation(obs: jax.Array, num_own: int = 1) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Split observations for permutation-invariant networks (`network.encoder: deep_sets`).

    Args:
        obs: [..., 7 k + num_own], observations of this environment.
        num_own: 1, plus 3 if `observe_own_motion`, plus 2 if `egocentric`.

    Returns:
        (others [..., k, 7], present [..., k] bool, own [..., num_own]): `present` is false for
        agents that left the game and for padding.

    Raises:
        ValueError: if the length of `obs` does not fit `num_own`.
    """
    length = obs.shape[-1]
    require(
        length > num_own and length % 7 == num_own,
        "length of an observation",
        length,
        f"7 per other agent plus {num_own}",
    )
    others = jnp.swapaxes(obs[..., :-num_own].reshape(*obs.shape[:-1], 7, -1), -1, -2)
    return others, others[..., 6] > 0, obs[..., -num_own:]
