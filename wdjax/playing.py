"""Play: a policy in many replicas of an environment for many steps, in one program, with same-step auto-reset.

What `VectorEnv.step` does in a loop, `play` does in one kernel on NVIDIA GPUs (`wdjax.replicas`), for games whose
rules fit into one. Every replica draws from keys of its own, so that what happens in it depends on nothing else:

    (action, step, start) keys of replica i = split(fold_in(key, i), 3),
    in its t-th step the policy draws from fold_in(action, t), the rules from fold_in(step, t),
    its e-th episode starts as `env.reset` of fold_in(start, e) has it,

with t counted from the first call of `start_play` on, and e from 0.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.checks import require_integer
from wdjax.env import Env
from wdjax.replicas import scan_replicas
from wdjax.spaces import Dict, Discrete, MultiDiscrete, Space
from wdjax.vector import select, when_any

# steps between draws of the starts that were used up, all replicas of a block together
DRAW_AHEAD = 8


class PlayState(struct.PyTreeNode):
    """The replicas between two steps, each leaf with a leading [num_envs]; one replica's within a step."""

    keys: tuple[jax.Array, jax.Array, jax.Array]  # of actions, steps, starts; they never change
    time: jax.Array  # int32, steps since `start_play`
    episode: jax.Array  # int32, which episode this is, from 0
    obs: Any  # the last observation
    env_state: Any  # the environment's state
    next_start: Any  # (obs, env_state) with which the next episode starts, drawn ahead
    has_next: jax.Array
    """bool: next_start is that; else it was used, and is drawn again before it is needed"""
    episode_return: Any  # like the reward, float32: sum of rewards so far
    episode_length: jax.Array  # int32: steps so far
    episode_info: dict[str, jax.Array]  # sums so far of what the environment's info gives


class Transition(struct.PyTreeNode):
    """One step of one replica."""

    obs: Any  # what the policy saw
    action: Any  # what it did
    reward: Any  # float32, of every agent
    terminated: Any  # bool, like the reward
    truncated: Any  # bool, like the reward
    final_obs: Any  # what the rules returned
    next_obs: Any
    """what the policy sees next: the first observation of a new episode where this one is over"""
    over: jax.Array
    """bool; the following are of the episode up to this step, the whole one where it is over"""
    episode_return: Any  # like the reward, float32
    episode_length: jax.Array  # () int32, steps
    episode_info: dict[str, jax.Array]  # sums of what the environment's info gives


def start_play(env: Env, params: Any, key: jax.Array, num_envs: int) -> PlayState:
    """Starts `num_envs` replicas of `env` with `params`, from one typed key. Raises ValueError for num_envs below 1."""
    require_integer("num_envs", num_envs, 1)

    def start(key: jax.Array) -> PlayState:
        keys, zero = tuple(jax.random.split(key, 3)), jnp.int32(0)
        first = env.reset(jax.random.fold_in(keys[2], 0), params)
        action = jax.eval_shape(env.action_space(params).sample, key)
        played = jax.eval_shape(env.step, key, first[1], action, params)
        sums = played[2], jax.eval_shape(_as_counts, played[5])
        reward, info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)
        return PlayState(keys, zero, zero, *first, first, jnp.bool_(False), reward, zero, info)

    return jax.vmap(start)(jax.random.split(key, num_envs))


def play(
    env: Env,
    params: Any,
    policy: Callable[[jax.Array, Any], Any],
    state: PlayState,
    num_steps: int,
    record: Callable[[Any, Transition], tuple[Any, Any]] | None = None,
    memory: Any = None,
) -> tuple[PlayState, Any, Any]:
    """Plays `num_steps` in every replica.

    Args:
        env, params: the environment of one replica. Params that are numbers, not traced, make a faster kernel.
        policy: (key, obs) -> action of one replica; what it closes over (weights) is the same for all.
        state: from `start_play` or the last `play`.
        num_steps: T.
        record: (memory, transition) -> (memory, output) of one replica; None keeps nothing.
        memory: what it starts from, leaves [num_envs, ...]; a running sum, say.

    Returns:
        (state, memory, outputs): outputs [T, num_envs, ...]; leaves that nobody reads cost nothing.

    Raises:
        ValueError, TypeError: for a number of steps that is none, or below 1.
    """
    require_integer("num_steps", num_steps, 1)

    def step(carry: tuple[PlayState, Any], _: None) -> tuple[tuple[PlayState, Any], Any]:
        state, memory = carry
        state, transition = play_step(env, params, policy, state)
        memory, output = record(memory, transition) if record else (memory, None)
        return (state, memory), output

    (state, memory), outputs = scan_replicas(step, (state, memory), length=num_steps)
    return state, memory, outputs


def play_step(
    env: Env, params: Any, policy: Callable[[jax.Array, Any], Any], state: PlayState
) -> tuple[PlayState, Transition]:
    """One step of one replica."""
    action_key, step_key, start_key = state.keys
    action = policy(jax.random.fold_in(action_key, state.time), state.obs)
    played = env.step(jax.random.fold_in(step_key, state.time), state.env_state, action, params)
    final_obs, env_state, reward, terminated, truncated, info = played
    over = _is_over(terminated, truncated)
    sums = (state.episode_return, state.episode_length, state.episode_info)
    sums = jax.tree.map(jnp.add, sums, (reward, jnp.int32(1), _as_counts(info)))
    next_start = _draw_ahead(env, params, start_key, state, over)
    obs, env_state = select(over, next_start, (final_obs, env_state))
    transition = Transition(
        state.obs,
        action,
        reward,
        terminated,
        truncated,
        final_obs,
        obs,
        over,
        *sums,
    )
    sums = select(over, jax.tree.map(jnp.zeros_like, sums), sums)
    state = PlayState(
        state.keys,
        state.time + 1,
        state.episode + over,
        obs,
        env_state,
        next_start,
        (state.has_next | _draws(state, over)) & ~over,
        *sums,
    )
    return state, transition


def uniform_action(space: Space, key: jax.Array) -> Any:
    """Draws an action uniformly, like `space.sample`, at a quarter of its cost where the space is discrete.

    One word is drawn for each component and its remainder taken: probabilities are off by less than n / 2^32. Every
    space of a Dict is drawn so, from a key of its own.
    """
    if isinstance(space, Dict):
        return space.sample_with(uniform_action, key)
    if isinstance(space, (Discrete, MultiDiscrete)):
        sizes = jnp.asarray(space.n if isinstance(space, Discrete) else space.nvec, jnp.uint32)
        return (jax.random.bits(key, space.shape) % jnp.broadcast_to(sizes, space.shape)).astype(
            space.dtype
        )
    return space.sample(key)


def _draws(state: PlayState, over: jax.Array) -> jax.Array:
    """Returns whether a replica draws its next start now: in some steps if it has none, else when it needs it."""
    return ~state.has_next & ((state.time % DRAW_AHEAD == 0) | over)


def _draw_ahead(
    env: Env, params: Any, start_key: jax.Array, state: PlayState, over: jax.Array
) -> Any:
    """Returns the start of the next episode, drawn now or before.

    Episodes end at any time, and in nearly every step in some replica of a block: each end would cost the whole block a
    draw. Drawn ahead, all that were used up are drawn in one step of DRAW_AHEAD, and few in between.
    """

    def draw(
        current: Any, draws: jax.Array, key: jax.Array, episode: jax.Array, params: Any
    ) -> Any:
        return select(draws, env.reset(jax.random.fold_in(key, episode + 1), params), current)

    draws = _draws(state, over)
    return when_any(draws, draw, state.next_start, draws, start_key, state.episode, params)


def _is_over(terminated: Any, truncated: Any) -> jax.Array:
    flags = jax.tree.leaves(jax.tree.map(jnp.logical_or, terminated, truncated))
    return jnp.stack([jnp.all(flag) for flag in flags]).all()


def _as_counts(info: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns an environment's info as numbers that sum up over an episode: flags become 0 and 1."""
    return {
        name: value.astype(jnp.int32) if value.dtype == bool else value
        for name, value in info.items()
    }
