"""Opponents: snapshots, other runs, scripts and random play that act in place of a policy.

The pool of a policy contains, in this order, `past_selves` snapshots of the policy, and the runs
and rules (scripts and random play) of `opponents`. An opponent is identified by its index in the
pool. All snapshots are the initial policy at the start. Every `past_selves_every` updates, the
policy replaces the oldest one.

Every `opponents_every` rollouts, each block of replicas draws its opponent. With a probability of
the sum of all shares (`past_selves_fraction`, `opponents`) it is an opponent, chosen by share and
win rate (pool.py), otherwise the policy itself acts. The transitions of an opponent are not
valid for the policy, so only the other policies learn from them. Pools draw independently: where
two opponents meet, no policy learns. Opponents do not explore (`explores` in config/facts.py).

If the opponent of a block changes in the middle of an episode, the carry and the discounted return
start anew and n-step targets end, so that none of them mixes two opponents.

A rollout calls `begin` before its first step and `act_with_opponents` in every step. An update
calls `finish` after the policies have learned.
"""

import functools
from collections.abc import Callable, Mapping
from typing import cast

import chex
import jax
import jax.numpy as jnp
from flax import struct

from wdjax.env import Env
from wdjax.train.config.schema import PolicyConfig
from wdjax.train.devices.blocks import block_keys
from wdjax.train.devices.collectives import total
from wdjax.train.rollout.pool import RANDOM, count_episodes, keeps_standings, new_standings, pool_of
from wdjax.train.state.actors import Actor
from wdjax.train.state.aliases import (
    ActingState,
    Carry,
    EnvParams,
    EnvState,
    Metrics,
    Observation,
)
from wdjax.train.state.hypers import Hypers, schedule_arrays
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import (
    PRESENT,
    REPLACED,
    BlockState,
    Memory,
    Opponents,
    PolicyState,
    PoolState,
    TrainState,
)
from wdjax.vector import select

VALID, OVERRIDES = "valid", "overrides"  # notes of `act_with_opponents`


class Acting(struct.PyTreeNode):
    """The opponents of a policy in one rollout."""

    active: jax.Array  # [num_blocks] int32: number of the opponent, or PRESENT
    networks: ActingState | None  # acting state by block, leaves [num_blocks, ...]


def init_opponents(
    setup: Setup, policies: Mapping[str, PolicyState], runs: Mapping[str, PolicyState]
) -> Opponents:
    """Return the opponents at the start of a run.

    Args:
        setup: static part of the run.
        policies: initial states by policy.
        runs: states of other runs by "POLICY/RUN"; missing ones equal the policy.
    """
    pools, blocks = {}, {}
    for name, policy in setup.policies.items():
        pool = pool_of(policy.config)
        if not pool.size:
            continue
        networks = new_networks(policies[name], pool.networks) if pool.networks else None
        for i, run in enumerate(pool.runs, pool.past):
            if f"{name}/{run}" in runs:
                state = acting_state(runs[f"{name}/{run}"])
                networks = jax.tree.map(lambda all_, one, i=i: all_.at[i].set(one), networks, state)
        counts, shape = keeps_standings(setup.config), setup.config.blocks
        pools[name] = PoolState(networks, new_standings(pool.size) if counts else None)
        since = jnp.zeros(shape, jnp.int32) if counts else None
        blocks[name] = BlockState(jnp.full(shape, PRESENT, jnp.int32), since)
    return Opponents(pools, blocks)


def new_networks(state: PolicyState, size: int) -> PolicyState:
    """Return `size` copies of the acting state of a policy, leaves [size, ...]."""
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), acting_state(state)
    )


def acting_state(state: PolicyState) -> PolicyState:
    """Return a state without the parts that only learning needs."""
    return PolicyState(state.params, None, state.normalizer, gradient_steps=state.gradient_steps)


# Before a rollout


def begin(
    setup: Setup, state: TrainState, hypers: Mapping[str, Hypers], key: jax.Array
) -> tuple[TrainState, dict[str, Acting]]:
    """Draw the opponents of a rollout.

    Args:
        setup: static part of the run.
        state: state before the rollout.
        hypers: by policy, with schedules evaluated.
        key: key of the rollout.

    Returns:
        (state, opponents of every policy that has a pool).
    """
    memory, blocks, acting = dict(state.memory), dict(state.opponents.blocks), {}
    env_steps = state.num_updates.astype(jnp.float32) * setup.config.env_steps_per_update
    for i, (name, policy) in enumerate(setup.policies.items()):
        if name not in blocks:
            continue
        pool, before = state.opponents.pools[name], blocks[name].active
        policy_key = jax.random.fold_in(key, 2**31 + i)  # far from the numbers of blocks
        active = draw_opponents(
            policy.config, pool, hypers[name], env_steps, policy_key, len(before)
        )
        if policy.config.opponents_every > 1:
            redraw = (state.num_updates % policy.config.opponents_every == 0) | (before == REPLACED)
            active = jnp.where(redraw, active, before)
        changed, since = active != before, blocks[name].since
        start = policy.algorithm.init_carry(policy, setup.replicas.num_envs)
        memory[name] = forget(memory[name], changed, start)
        since = None if since is None else jnp.where(changed, 0, since)
        blocks[name] = BlockState(active, since)
        acting[name] = acting_networks(state.policies[name], pool, active)
    opponents = state.opponents.replace(blocks=blocks)
    return state.replace(memory=memory, opponents=opponents), acting


def draw_opponents(
    config: PolicyConfig,
    pool: PoolState,
    hypers: Hypers,
    env_steps: jax.Array,
    key: jax.Array,
    num_blocks: int,
) -> jax.Array:
    """Draw the opponent of each block of replicas, from fold_in(key, block).

    Args:
        config: configuration of a policy with a pool.
        pool: its opponents.
        hypers: its hyperparameters, with schedules evaluated.
        env_steps: () float32, env steps of the run.
        key: a typed key.
        num_blocks: number of blocks.

    Returns:
        [num_blocks] int32, the number of an opponent, or PRESENT.
    """
    if config.opponents or config.opponents_priority:
        probabilities = opponent_probabilities(config, pool, hypers, env_steps)
        total_probability, logits = probabilities.sum(), jnp.log(probabilities)
    else:  # snapshots only, equally likely
        total_probability, logits = hypers["past_selves_fraction"], None

    def draw(key: jax.Array) -> jax.Array:
        coin_key, opponent_key = jax.random.split(key)
        if logits is None:
            opponent = jax.random.randint(opponent_key, (), 0, config.past_selves, jnp.int32)
        else:
            opponent = jax.random.categorical(opponent_key, logits)
        return jnp.where(jax.random.bernoulli(coin_key, total_probability), opponent, PRESENT)

    return jax.vmap(draw)(block_keys(key, num_blocks))


def opponent_probabilities(
    config: PolicyConfig, pool: PoolState, hypers: Hypers, env_steps: jax.Array
) -> jax.Array:
    """Return the probability of each opponent to act in a block of replicas, [opponents] float32.

        share_i (1 - w_i)^p, scaled to the sum of the shares,

    with w_i the win rate of the other policies against opponent i and p = `opponents_priority`.
    Arguments as for `draw_opponents`.
    """
    shares = {
        name: schedule_arrays(share)(env_steps)[None] for name, share in config.opponents.items()
    }
    names, past = pool_of(config), []
    if config.past_selves:
        each = hypers["past_selves_fraction"] / config.past_selves
        past = [jnp.full(config.past_selves, each, jnp.float32)]
    share = jnp.concatenate([*past, *(shares[name] for name in (*names.runs, *names.rules))])
    if not config.opponents_priority:
        return share
    tiny = jnp.finfo(jnp.float32).tiny
    loss_rate = jnp.where(share > 0, 1 - pool.standings.win_rate[:-1], 0.0)
    loss_rate /= jnp.maximum(loss_rate.max(), tiny)  # else a high power underflows for all
    weight = share * loss_rate**config.opponents_priority
    return weight * share.sum() / jnp.maximum(weight.sum(), tiny)


def forget(memory: Memory, changed: jax.Array, start: Carry) -> Memory:
    """Return the memory of a policy without what belongs to the opponents before.

    Args:
        memory: at the end of a rollout.
        changed: [num_blocks] bool, blocks in which another opponent acts.
        start: carry at the start of an episode, from `Algorithm.init_carry`.
    """

    def replicas(leaf: jax.Array) -> jax.Array:
        return jnp.repeat(changed, leaf.shape[0] // changed.shape[0])

    zeros = jax.tree.map(jnp.zeros_like, memory.discounted_return)
    carry, discounted_return = jax.tree.map(
        lambda new, old: select(replicas(old), new, old),
        (start, zeros),
        (memory.carry, memory.discounted_return),
    )
    # `Replay.cut`; a custom replay may have none
    replay = memory.replay.cut(changed) if hasattr(memory.replay, "cut") else memory.replay
    return memory.replace(carry=carry, discounted_return=discounted_return, replay=replay)


def acting_networks(state: PolicyState, pool: PoolState, active: jax.Array) -> Acting:
    """Return the opponents of a rollout with the network that acts in each block."""
    if pool.networks is None:
        return Acting(active, None)
    last = jax.tree.leaves(pool.networks.params)[0].shape[0] - 1
    # blocks of rules compute the last network, whose actions `act_with_opponents` overrides
    others = jax.tree.map(lambda leaf: leaf[jnp.minimum(active, last)], pool.networks)
    policy = jax.tree.map(lambda leaf: leaf[None], acting_state(state))
    return Acting(active, select(active != PRESENT, others, policy))


# In a rollout


def act_with_opponents(
    act: Callable[..., tuple],
    acting: Acting,
    env: Env,
    situation: tuple[EnvState, EnvParams],
    policy: Policy,
    state: ActingState,
    carry: Carry,
    obs: Observation,
    keys: jax.Array,
    hypers: Hypers,
) -> tuple[jax.Array, dict[str, chex.ArrayTree], Carry]:
    """Let a policy act, and its opponents in their blocks of replicas.

    Args:
        act: `Algorithm.act` of the policy.
        acting: from `begin`.
        env: the environment.
        situation: (environment states [N, ...], params), for scripts.
        policy: an argument of `act`, as the following ones.
        state: acting state.
        carry: leaves [N, n, ...].
        obs: leaves [N, n, ...].
        keys: [num_blocks].
        hypers: hyperparameters.

    Returns:
        The results of `act`. The notes also contain

        * VALID: [N, 1] bool, whether the policy itself acts.
        * OVERRIDES: pairs (replicas, action): the environment receives `action` [N, n, ...] in
          `replicas`, [N] bool.
    """
    pool, num_blocks = pool_of(policy.config), len(keys)
    size = jax.tree.leaves(obs)[0].shape[0] // num_blocks
    overrides: tuple[tuple[jax.Array, jax.Array], ...] = ()
    if pool.rules:
        pairs = jax.vmap(jax.random.split)(keys)
        keys, rule_keys = pairs[:, 0], pairs[:, 1]
        rules = rule_actions(env, policy, obs, situation, rule_keys)
        overrides = tuple(
            (jnp.repeat(acting.active == i, size), action)
            for i, action in enumerate(rules, pool.networks)
        )
    if acting.networks is None:
        action, notes, carry = act(policy, state, carry, obs, keys, hypers)
    else:
        carries, seen = in_blocks((carry, obs), num_blocks)
        results = jax.vmap(
            lambda state, carry, obs, key, is_own: act(
                policy, state, carry, obs, key[None], hypers.without_exploration(is_own)
            )
        )(acting.networks, carries, seen, keys, acting.active == PRESENT)
        action, notes, carry = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)
    valid = jnp.repeat(acting.active == PRESENT, size)[:, None]
    return action, {**notes, VALID: valid, OVERRIDES: overrides}, carry


def rule_actions(
    env: Env,
    policy: Policy,
    obs: Observation,
    situation: tuple[EnvState, EnvParams],
    keys: jax.Array,
) -> list[jax.Array]:
    """Return the actions of each rule for a policy's agents, [N, n, ...] in their space.

    Args:
        env: the environment.
        policy: policy of the agents.
        obs: observations of these agents, leaves [N, n, ...].
        situation: (environment states [N, ...], params).
        keys: [num_blocks].
    """
    (states, params), actions = situation, []
    seen, replicas = in_blocks((obs, states), len(keys))
    for i, name in enumerate(pool_of(policy.config).rules):
        kind = ("random",) if name == RANDOM else ("script", env.scripts[name][1])
        choose = functools.partial(Actor(policy, *kind).choose, env, None, None, greedy=False)
        pairs = jax.vmap(lambda key, i=i: jax.random.split(jax.random.fold_in(key, i)))(keys)
        action, _ = jax.vmap(
            lambda obs, states, keys, choose=choose: choose(obs, keys, (states, params))
        )(seen, replicas, pairs)
        actions.append(action.reshape(-1, *action.shape[2:]))
    return actions


def in_blocks(tree: chex.ArrayTree, num_blocks: int) -> chex.ArrayTree:
    """Return leaves [num_blocks, N / num_blocks, ...] of leaves [N, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(num_blocks, -1, *leaf.shape[1:]), tree)


# After an update


def finish(setup: Setup, state: TrainState, played: Rollout) -> tuple[TrainState, Metrics]:
    """Update win rates and snapshots after the policies have learned from a rollout.

    Returns:
        (state, metrics by name).
    """
    opponents = state.opponents
    metrics: Metrics = {}
    if keeps_standings(setup.config):
        names = {name: pool_of(setup.policies[name].config).names for name in opponents.pools}
        opponents, metrics = count_episodes(names, opponents, played)
    pools, blocks = dict(opponents.pools), dict(opponents.blocks)
    for name in pools:
        config = setup.policies[name].config
        if config.past_selves:
            active = blocks[name].active
            is_past = (active >= 0) & (active < config.past_selves)
            metrics[f"{name}/past_self_blocks"] = total(jnp.sum(is_past))
            pools[name], blocks[name] = take_snapshot(
                config, state.policies[name], pools[name], blocks[name], state.num_updates + 1
            )
    return state.replace(opponents=Opponents(pools, blocks)), metrics


def take_snapshot(
    config: PolicyConfig,
    state: PolicyState,
    pool: PoolState,
    blocks: BlockState,
    num_updates: jax.Array,
) -> tuple[PoolState, BlockState]:
    """Replace the oldest snapshot by the policy if this update is due.

    Args:
        config: configuration of the policy.
        state: its state after the update.
        pool: its opponents.
        blocks: its opponents by block.
        num_updates: () int32, updates done.

    Returns:
        (pool, blocks). Games against the replaced snapshot are forgotten, and its blocks are
        REPLACED.
    """
    due = num_updates % config.past_selves_every == 0
    place = (num_updates // config.past_selves_every - 1) % config.past_selves
    taken = jnp.where(due, place, REPLACED)
    networks = cast(PolicyState, pool.networks)
    outside = jax.tree.leaves(networks.params)[0].shape[0]  # writes there are dropped
    place = jnp.where(due, place, outside)
    networks = jax.tree.map(
        lambda leaf, new: leaf.at[place].set(new, mode="drop"), networks, acting_state(state)
    )
    standings = None if pool.standings is None else pool.standings.without(taken)
    active = jnp.where(blocks.active == taken, REPLACED, blocks.active)
    return PoolState(networks, standings), blocks.replace(active=active)
