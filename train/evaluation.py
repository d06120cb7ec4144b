"""Whole episodes of trained and of random policies, and the cross-play table between them."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require_integer, require_known
from wdjax.train.learner import Learner
from wdjax.train.policies import from_groups, gather, scatter, to_groups
from wdjax.train.rollout import clip_action
from wdjax.train.state import PolicyState, Setup, TrainState
from wdjax.vector import all_agents, as_counts


class UnfinishedEpisodeError(ValueError):
    """An episode did not end within the steps allowed."""


@struct.dataclass
class Episodes:
    """What whole episodes came to; leaves [num_episodes] (with leading [cells] from `cross_play`)."""

    episode_return: dict[str, Any]  # by policy, float32, summed over its agents
    episode_length: Any  # int32
    episode_info: dict[str, Any]  # the environment's own statistics (tags, say)


@struct.dataclass
class Trajectory:
    """One episode of one replica, NumPy arrays: T steps, T + 1 states, the last one that in which it ended."""

    states: Any  # the environment's state, leaves [T + 1, ...]
    action: Any  # as the environment takes it, leaves [T, ...]
    reward: Any  # as the environment gives it, leaves [T, ...]


def evaluate(
    learner: Learner,
    state: TrainState,
    key: jax.Array,
    num_episodes: int = 128,
    greedy: bool = True,
    random: Sequence[str] = (),
    max_steps: int = 20_000,
) -> Episodes:
    """Plays `num_episodes` whole episodes from fresh starts, side by side in one program.

    Args:
        learner, state: what was trained; the state's replicas are not touched.
        key: of starts and actions.
        num_episodes: one replica each.
        greedy: take the most likely action (else draw it).
        random: the policies that act uniformly at random in place of what they learned.
        max_steps: raises where an episode goes on for longer.

    Returns:
        Episodes, as NumPy arrays.

    Raises:
        ValueError: for an unknown policy in `random`, or an episode that does not end.
    """
    mask = random_mask(learner, random)[None]
    return jax.tree.map(lambda leaf: leaf[0], _play_cells(learner, state, key, mask, num_episodes, greedy, max_steps))


def random_mask(learner: Learner, random: Sequence[str]) -> np.ndarray:
    """Returns [policies] bool: who is named in `random`; raises for what is no policy's name."""
    names = list(learner.setup.policies)
    if isinstance(random, str):
        raise TypeError(f"random = {random!r}: must be a list of policies")
    for name in random:
        require_known("policy", name, names)
    return np.array([name in random for name in names])


def cross_play(
    learner: Learner,
    state: TrainState,
    key: jax.Array,
    num_episodes: int = 256,
    greedy: bool = False,
    max_steps: int = 20_000,
) -> dict[tuple[str, ...], Episodes]:
    """Plays every combination of trained and random policies.

    Arguments as in `evaluate`. All cells share their starts.

    Returns:
        {("trained", "random"): Episodes, ...}: one word for each policy, in their order.
    """
    sides = list(itertools.product((False, True), repeat=len(learner.setup.policies)))
    cells = _play_cells(learner, state, key, np.array(sides), num_episodes, greedy, max_steps)
    words = [tuple("random" if side else "trained" for side in cell) for cell in sides]
    return {word: jax.tree.map(lambda leaf, i=i: leaf[i], cells) for i, word in enumerate(words)}


def _play_cells(
    learner: Learner, state: TrainState, key: jax.Array, mask: np.ndarray, num_episodes: int, greedy: bool,
    max_steps: int,
) -> Episodes:  # fmt: skip
    require_integer("num_episodes", num_episodes, 1)
    learned = acting(state)
    episodes, finished = _play_jit(learner.setup, learned, state.env_params, key, mask, num_episodes, greedy, max_steps)
    if not finished.all():
        raise UnfinishedEpisodeError(f"max_steps = {max_steps}: must be at least as long as the longest episode")
    return jax.tree.map(np.asarray, episodes)


def acting(state: TrainState) -> dict[str, PolicyState]:
    """Returns what each policy has learned, without what only learning needs."""
    return {name: policy.replace(opt_state=None) for name, policy in state.policies.items()}


@functools.partial(jax.jit, static_argnames=("setup", "num_episodes", "greedy", "max_steps"))
def _play_jit(
    setup: Setup, learned: Any, env_params: Any, key: jax.Array, mask: jax.Array, num_episodes: int, greedy: bool,
    max_steps: int,
) -> tuple[Episodes, jax.Array]:  # fmt: skip
    cell = functools.partial(play_episodes, setup, num_episodes=num_episodes, greedy=greedy, max_steps=max_steps)
    return jax.vmap(cell, in_axes=(None, None, None, 0))(learned, env_params, key, mask)


def play_episodes(
    setup: Setup,
    learned: Mapping[str, PolicyState],
    env_params: Any,
    key: jax.Array,
    is_random: jax.Array,
    num_episodes: int,
    greedy: bool,
    max_steps: int,
) -> tuple[Episodes, jax.Array]:
    """Steps `num_episodes` replicas until every first episode is over; no replica is reset.

    Args:
        learned: by policy.
        is_random: [policies] bool.

    Returns:
        (Episodes, finished [num_episodes] bool).
    """
    reset_key, step_key = jax.random.split(key)
    obs, env_state = jax.vmap(setup.env.reset, (0, None))(jax.random.split(reset_key, num_episodes), env_params)
    carries = empty_carries(setup, num_episodes)

    def step(env_state: Any, obs: Any, carries: Any, key: jax.Array) -> tuple:
        action_key, env_key = jax.random.split(key)
        action, carries = choose_actions(
            setup, learned, carries, action_key, to_groups(setup.env, obs), is_random, greedy
        )
        env_keys = jax.random.split(env_key, num_episodes)
        *played, info = jax.vmap(setup.env.step, (0, 0, 0, None))(env_keys, env_state, action, env_params)
        return *played, as_counts(info), carries

    shapes = jax.eval_shape(step, env_state, obs, carries, step_key)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (shapes[2], shapes[5]))

    def body(carry: tuple) -> tuple:
        time, env_state, obs, carries, sums, length, finished = carry
        key = jax.random.fold_in(step_key, time)
        obs, env_state, reward, terminated, truncated, info, carries = step(env_state, obs, carries, key)
        sums = jax.tree.map(lambda total, new: _add_where(~finished, total, new), sums, (reward, info))
        length = length + ~finished
        finished |= all_agents(jax.tree.map(jnp.logical_or, terminated, truncated))
        return time + 1, env_state, obs, carries, sums, length, finished

    length, finished = jnp.zeros(num_episodes, jnp.int32), jnp.zeros(num_episodes, bool)
    start = (jnp.int32(0), env_state, obs, carries, zeros, length, finished)
    end = jax.lax.while_loop(lambda carry: (carry[0] < max_steps) & ~carry[-1].all(), body, start)
    (returns, info), length, finished = end[4:]
    by_group = to_groups(setup.env, returns)
    totals = {name: gather(policy.assignment, by_group).sum(axis=1) for name, policy in setup.policies.items()}
    return Episodes(totals, length, info), finished


def empty_carries(setup: Setup, num_envs: int) -> dict[str, Any]:
    """Returns what each policy carries into the first step of an episode."""
    return {name: policy.algorithm.init_carry(policy, num_envs) for name, policy in setup.policies.items()}


def choose_actions(
    setup: Setup,
    learned: Mapping[str, PolicyState],
    carries: Mapping[str, Any],
    key: jax.Array,
    obs: dict[str, Any],
    is_random: jax.Array,
    greedy: bool,
) -> tuple[Any, dict[str, Any]]:
    """Returns (actions of all policies in the environment's own form, [N, ...], carries), for observations by group."""
    actions, carries_after = {}, {}
    keys = jax.random.split(key, (len(setup.policies), 2))
    for i, (name, policy) in enumerate(setup.policies.items()):
        seen = gather(policy.assignment, obs)
        chosen, carries_after[name] = policy.algorithm.play(
            policy, learned[name], carries[name], seen, keys[i, :1], greedy
        )
        uniform = policy.sample_uniform(keys[i, 1], seen)
        actions[name] = jnp.where(is_random[i], uniform, clip_action(policy, chosen))
    return from_groups(setup.env, scatter(setup.assignments, actions)), carries_after


def record_episode(
    learner: Learner,
    state: TrainState,
    key: jax.Array,
    greedy: bool = False,
    random: Sequence[str] = (),
    max_steps: int = 1_000,
) -> Trajectory:
    """Plays one episode and keeps everything, for pictures and analysis.

    Arguments as in `evaluate`; an episode longer than max_steps is cut there.
    """
    is_random = random_mask(learner, random)
    recorded = _record_jit(learner.setup, acting(state), state.env_params, key, is_random, greedy, max_steps)
    first, states, action, reward, over = jax.tree.map(np.asarray, recorded)
    length = int(np.argmax(over)) + 1 if over.any() else max_steps
    states = jax.tree.map(lambda start, rest: np.concatenate([start, rest[:length, 0]]), first, states)
    return Trajectory(states, *jax.tree.map(lambda leaf: leaf[:length, 0], (action, reward)))


@functools.partial(jax.jit, static_argnames=("setup", "greedy", "max_steps"))
def _record_jit(
    setup: Setup, learned: Any, env_params: Any, key: jax.Array, is_random: jax.Array, greedy: bool, max_steps: int
) -> tuple:
    reset_key, step_key = jax.random.split(key)
    obs, first = jax.tree.map(lambda leaf: leaf[None], setup.env.reset(reset_key, env_params))

    def step(carry: tuple, key: jax.Array) -> tuple:
        obs, env_state, carries = carry
        action_key, env_key = jax.random.split(key)
        by_group = to_groups(setup.env, obs)
        action, carries = choose_actions(setup, learned, carries, action_key, by_group, is_random, greedy)
        obs, env_state, reward, terminated, truncated, _ = jax.vmap(setup.env.step, (None, 0, 0, None))(
            env_key, env_state, action, env_params
        )
        over = all_agents(jax.tree.map(jnp.logical_or, terminated, truncated))[0]
        return (obs, env_state, carries), (env_state, action, reward, over)

    _, rows = jax.lax.scan(step, (obs, first, empty_carries(setup, 1)), jax.random.split(step_key, max_steps))
    return (first, *rows)


def _add_where(rows: jax.Array, total: jax.Array, new: jax.Array) -> jax.Array:
    return total + jnp.where(rows.reshape(rows.shape + (1,) * (new.ndim - 1)), new, 0)
