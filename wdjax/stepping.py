"""One step of many replicas, with the statistics of their episodes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.branches import all_agents, select
from wdjax.checks import require
from wdjax.env import Env, may_observe_late

RESERVED_INFO = ("over", "final_obs", "episode_return", "episode_length", "episode_info")

# obs, state, reward, terminated, truncated, info
StepResult = tuple[Any, Any, Any, Any, Any, dict[str, Any]]
# (over, (scene, obs, env_state), starts) -> (obs, env_state, starts), see `step_replicas`
Restart = Callable[[jax.Array, tuple[Any, Any, Any], Any], tuple[Any, Any, Any]]


class VectorState(struct.PyTreeNode):
    """State of a batch: environment states, running episode statistics, and shared starts."""

    env_state: Any  # the environment's state, each leaf with a leading [num_envs]
    episode_return: Any  # sum of rewards, structured like the reward, [num_envs, ...] float32
    episode_length: jax.Array  # [num_envs] int32: steps in the current episode
    episode_info: dict[str, jax.Array]
    """Sums of the environment's info over the current episode, each [num_envs]."""
    starts: Any
    """(obs, state) of the n starts, [n, ...] ([num_envs, n, ...] with params_axis=0); None for
    "fresh"."""


def step_replicas(
    env: Env,
    keys: jax.Array,
    state: VectorState,
    action: Any,
    params: Any,
    restart: Restart | None = None,
    params_axis: int | None = None,
    with_final_state: bool = False,
) -> StepResult:
    """Advance N replicas by one step: for training, evaluation, recordings and `wdjax.play`.

    No other function steps replicas. The callers differ in their keys and in `restart`.

    Args:
        env: the environment of one replica.
        keys: [N] typed keys, one per replica. A single key, (), steps one replica: all leaves are
            then without the axis N, so that the caller can vectorize the step itself.
        state: from `begin_episodes` or the previous step, leaves [N, ...].
        action: structured like the environment's, leaves [N, ...].
        params: environment params, leaves [N, ...] if params_axis is 0.
        restart: (over, (scene, obs, env_state), starts) -> (obs, env_state, starts). It returns a
            new start where over, [N] bool, and the current obs and env_state elsewhere. `scene` is
            that of `Env.advance`, or obs if the environment does not observe late; `starts` is
            state.starts. None: no replica restarts, and the statistics continue after the end.
        params_axis: 0 if params have a leading [N]; None if all replicas share them.
        with_final_state: put the environment's state before any reset into `info["final_state"]`.

    Returns:
        (obs, state, reward, terminated, truncated, info), leaves [N, ...], as `VectorEnv.step`.
    """
    scene, env_state, reward, terminated, truncated, env_info = _advance_replicas(
        env, keys, state.env_state, action, params, params_axis
    )
    obs = scene
    if may_observe_late(env):
        obs = _of_replicas(env.observe, keys, (0, params_axis))(scene, params)
    over = all_agents(jax.tree.map(jnp.logical_or, terminated, truncated), keys.ndim)
    before = (state.episode_return, state.episode_length, state.episode_info)
    sums = jax.tree.map(jnp.add, before, (reward, 1, env_info))
    info = {**env_info, **dict(zip(RESERVED_INFO, (over, obs, *sums), strict=True))}
    if with_final_state:
        info["final_state"] = env_state
    starts = state.starts
    if restart is not None:
        obs, env_state, starts = restart(over, (scene, obs, env_state), starts)
        sums = select(over, jax.tree.map(jnp.zeros_like, sums), sums)
    episode_return, episode_length, episode_info = sums
    state = VectorState(env_state, episode_return, episode_length, episode_info, starts)
    return obs, state, reward, terminated, truncated, info


def begin_episodes(
    env: Env,
    keys: jax.Array,
    env_state: Any,
    params: Any,
    starts: Any = None,
    params_axis: int | None = None,
) -> VectorState:
    """Return the state of N replicas at the start of their episodes, with statistics of 0.

    Args:
        env: the environment of one replica.
        keys: [N] typed keys, or () as for `step_replicas`. Only their shape is used.
        env_state: from `Env.reset`, leaves [N, ...].
        params: environment params; leaves [N, ...] if params_axis is 0.
        starts: passed to `restart` of `step_replicas`.
        params_axis: 0 if params have a leading [N]; None if all replicas share them.
    """

    def probe(draw_keys: jax.Array, step_keys: jax.Array, env_state: Any, params: Any) -> tuple:
        def draw(key: jax.Array, params: Any) -> Any:
            return env.action_space(params).sample(key)

        action = _of_replicas(draw, draw_keys, (0, params_axis))(draw_keys, params)
        return _advance_replicas(env, step_keys, env_state, action, params, params_axis)

    like = jax.ShapeDtypeStruct(keys.shape, keys.dtype)
    _, _, reward, _, _, info = jax.eval_shape(probe, like, like, env_state, params)
    reward, info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (reward, info))
    return VectorState(env_state, reward, jnp.zeros(keys.shape, jnp.int32), info, starts)


def _advance_replicas(
    env: Env, keys: jax.Array, env_state: Any, action: Any, params: Any, params_axis: int | None
) -> tuple:
    """Step every replica. The first output is obs, or a scene if the environment observes late."""
    advance = env.advance if may_observe_late(env) else env.step
    *outputs, info = _of_replicas(advance, keys, (0, 0, 0, params_axis))(
        keys, env_state, action, params
    )
    return *outputs, as_counts(info, keys.ndim)


def _of_replicas(function: Callable, keys: jax.Array, in_axes: tuple) -> Callable:
    """Vectorize a function of one replica over [N] keys; return it unchanged for a single key."""
    return jax.vmap(function, in_axes) if keys.ndim else function


def as_counts(info: dict[str, jax.Array], ndim: int = 1) -> dict[str, jax.Array]:
    """Return an environment's info ([num_envs] each) with bools converted to summable int32.

    Args:
        info: statistics of a step by name.
        ndim: 1; 0 for one replica without the axis [num_envs].

    Raises:
        ValueError: for a statistic that is not a scalar or that has a reserved name.
    """
    for name, values in info.items():
        require(
            name not in RESERVED_INFO,
            "name in info",
            name,
            f"none of the reserved names {', '.join(RESERVED_INFO)}",
        )
        require(
            values.ndim == ndim,
            f"info[{name!r}]",
            f"array of {values.shape[ndim:]}",
            "a scalar per step",
        )
    return {
        name: values.astype(jnp.int32) if values.dtype == bool else values
        for name, values in info.items()
    }
