"""Self-play: in some blocks of replicas somebody else plays in the place of a policy, for other policies to learn.

That is one of its earlier selves, what another run has learned, a script of the game, or random play: the members of
its pool, in this order. Earlier selves are a ring of `past_selves` snapshots of what acting reads, all of the first
self at the start; every `past_selves_every` updates of the run the present self is written over the oldest. What runs
have learned, by the same network, stands behind them and stays. Scripts see the state of the game, and nothing is kept
of them.

Every `opponents_every` rollouts a coin falls for each block of replicas: with the sum of their shares
(`past_selves_fraction`, `opponents`) as its probability one of the pool, drawn by share and by how often the others
beat it (rollout/standings.py), plays all agents of the policy there. From these rows the policy does not learn (they
are not live), the other policies do. Where several policies have a pool their coins fall apart from each other: two of
them may meet, and nobody learns. Whoever has a network explores as the present self does (it samples, or adds noise).

A rollout begins in the middle of episodes. Where the member that plays changes there, the carry of acting (a recurrent
state) becomes that of the start of an episode: no member can read the memory of another. The discounted return that
scales rewards starts anew, and n-step targets of DDPG end there: neither contains rewards of another member.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.env import Env
from wdjax.metric_names import USER, free_name
from wdjax.train.config.schema import PolicyConfig
from wdjax.train.devices.blocks import block_keys
from wdjax.train.state.actors import Actor
from wdjax.train.state.hypers import Hypers, schedule_arrays
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.state import Memory, PolicyState
from wdjax.vector import select

PRESENT, NOBODY = -1, -2
RANDOM, NOW = "random", "present"
REFERENCE = "reference:"  # what comes with wdjax in the place of a run's path: "reference:tag_continuous"


@dataclasses.dataclass(frozen=True)
class Pool:
    """Who may play in the place of a policy, by number: earlier selves, runs, then who has no network."""

    past: int
    runs: tuple[str, ...]
    rules: tuple[str, ...]  # scripts, and random play

    @property
    def learned(self) -> int:
        """How many have a network."""
        return self.past + len(self.runs)

    @property
    def size(self) -> int:
        return self.learned + len(self.rules)

    @property
    def names(self) -> dict[str, slice]:
        """Name in metrics -> numbers; all earlier selves have one. A script named like these is `user/NAME`."""
        names = {"past": slice(0, self.past)} if self.past else {}
        for i, name in enumerate((*self.runs, *self.rules), self.past):
            own = free_name(name, USER, lambda name: name in names or name == NOW)
            names[own] = slice(i, i + 1)
        return names


def pool_of(config: PolicyConfig) -> Pool:
    """Returns the pool of a policy; a run is named by a path, or as a reference, which a rule's name is not."""
    runs = tuple(name for name in config.opponents if "/" in name or name.startswith(REFERENCE))
    return Pool(config.past_selves, runs, tuple(name for name in config.opponents if name not in runs))


@struct.dataclass
class Selves:
    """Who plays a policy in one rollout."""

    member: jax.Array  # [num_blocks] int32: a place in the pool, or PRESENT
    learned: PolicyState | None  # what acting reads, leaves [num_blocks, ...]; None: nobody else has a network


def new_pool(state: PolicyState, size: int) -> PolicyState:
    """Returns a pool of `size` selves that are all like this one, leaves [size, ...]."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), what_acting_reads(state))


def what_acting_reads(state: PolicyState) -> PolicyState:
    """Returns a state without what only learning needs."""
    return PolicyState(state.params, None, state.normalizer, gradient_steps=state.gradient_steps)


def remember(
    state: PolicyState, memory: Memory, num_updates: jax.Array, every: int, size: int | None = None
) -> tuple[PolicyState, Memory]:
    """Puts the present self in the pool, over the oldest of its earlier selves, where this update is due for it.

    Args:
        num_updates: () int32, updates done.
        every: updates between two snapshots.
        size: how many earlier selves there are; None: all of the pool are.

    Returns:
        (state, memory): whoever played last in the place that is taken is nobody any more, and has won nothing.
    """
    due = num_updates % every == 0
    members = jax.tree.leaves(state.past.params)[0].shape[0]
    place = (num_updates // every - 1) % (members if size is None else size)
    taken = jnp.where(due, place, NOBODY)  # `members` may be a rule's number
    place = jnp.where(due, place, members)  # there is no such place: what goes there is lost
    write = lambda pool, own: pool.at[place].set(own, mode="drop")  # noqa: E731
    state = state.replace(past=jax.tree.map(write, state.past, what_acting_reads(state)))
    if state.standings is not None:
        state = state.replace(standings=state.standings.without(taken))
    return state, memory.replace(member=jnp.where(memory.member == taken, NOBODY, memory.member))


def chances(config: PolicyConfig, state: PolicyState, fraction: jax.Array | None, env_steps: jax.Array) -> jax.Array:
    """Returns [members] float32, the probability of each of a pool to play a block of replicas.

    share_i (1 - w_i)^p, scaled to the sum of the shares; w_i: how often the others beat member i.

    Args:
        fraction: () float32, of the earlier selves together; None without any.
        env_steps: () float32, of the run so far.
    """
    past = [] if fraction is None else [jnp.full(config.past_selves, fraction / config.past_selves, jnp.float32)]
    shares = [schedule_arrays(share)(env_steps)[None] for share in config.opponents.values()]
    by_name = dict(zip(config.opponents, shares, strict=True))
    pool = pool_of(config)
    share = jnp.concatenate([*past, *(by_name[name] for name in (*pool.runs, *pool.rules))])
    if not config.opponents_priority:
        return share
    beats = jnp.where(share > 0, 1 - state.standings.win_rate[:-1], 0.0)
    beats /= jnp.maximum(beats.max(), jnp.finfo(jnp.float32).tiny)  # a high power of all of them would be 0
    weight = share * beats**config.opponents_priority
    return weight * share.sum() / jnp.maximum(weight.sum(), jnp.finfo(jnp.float32).tiny)


def draw_members(
    config: PolicyConfig, state: PolicyState, fraction: jax.Array | None, env_steps: jax.Array, key: jax.Array,
    num_blocks: int,
) -> jax.Array:  # fmt: skip
    """Draw the player of each block of replicas, [num_blocks] int32, with fold_in(key, block) alone.

    Args:
        config, state: of a policy with a pool.
        fraction: () float32, of the earlier selves together; None without any.
        env_steps: () float32, of the run so far.
    """
    if config.opponents or config.opponents_priority:
        share = chances(config, state, fraction, env_steps)
        probability, choose = share.sum(), lambda key: jax.random.categorical(key, jnp.log(share))
    else:  # earlier selves only, all equally likely
        probability, choose = fraction, lambda key: jax.random.randint(key, (), 0, config.past_selves, jnp.int32)

    def draw(key: jax.Array) -> jax.Array:
        coin_key, place_key = jax.random.split(key)
        return jnp.where(jax.random.bernoulli(coin_key, probability), choose(place_key), PRESENT)

    return jax.vmap(draw)(block_keys(key, num_blocks))


def choose_selves(
    policy: Policy, state: PolicyState, memory: Memory, fraction: jax.Array | None, num_updates: jax.Array,
    env_steps: jax.Array, key: jax.Array,
) -> Selves:  # fmt: skip
    """Returns who plays a policy that has a pool in the rollout that begins.

    Args:
        fraction: () float32, `past_selves_fraction`; None where no earlier selves are kept.
        num_updates, env_steps: of the run so far.
    """
    member = draw_members(policy.config, state, fraction, env_steps, key, memory.member.shape[0])
    if policy.config.opponents_every > 1:
        drawn_anew = (num_updates % policy.config.opponents_every == 0) | (memory.member == NOBODY)
        member = jnp.where(drawn_anew, member, memory.member)
    return selves_of(state, member)


def selves_of(state: PolicyState, member: jax.Array) -> Selves:
    """Returns who plays in each block of replicas, with what they have learned, for `member` [num_blocks]."""
    if state.past is None:
        return Selves(member, None)
    members = jax.tree.leaves(state.past.params)[0].shape[0]
    # a rule has no parameters: who stands there acts, and is not asked
    earlier = jax.tree.map(lambda pool: pool[jnp.minimum(member, members - 1)], state.past)
    present = jax.tree.map(lambda own: own[None], what_acting_reads(state))
    return Selves(member, select(member != PRESENT, earlier, present))


def take_over(memory: Memory, selves: Selves, start: Any) -> Memory:
    """Return the memory of a policy at the start of a rollout.

    Where another member takes over, the carry and the discounted return start anew, and n-step targets end.

    Args:
        start: the carry at the start of an episode, `Algorithm.init_carry`.
    """
    changed = selves.member != memory.member
    replicas = lambda leaf: jnp.repeat(changed, leaf.shape[0] // changed.shape[0])  # noqa: E731
    renew = lambda start, leaf: select(replicas(leaf), start, leaf)  # noqa: E731
    nothing = jax.tree.map(jnp.zeros_like, memory.discounted_return)
    carry, running = jax.tree.map(renew, (start, nothing), (memory.carry, memory.discounted_return))
    since, replay = None if memory.since is None else jnp.where(changed, 0, memory.since), memory.replay
    pending = getattr(replay, "pending", None)
    if pending is not None:
        over = pending.over.at[:, -1].max(replicas(pending.over)[:, None])
        replay = replay.replace(pending=pending.replace(over=over))
    return memory.replace(carry=carry, discounted_return=running, replay=replay, member=selves.member, since=since)


def act(
    policy: Policy, selves: Selves, carry: Any, obs: Any, keys: jax.Array, hypers: Hypers
) -> tuple[jax.Array, dict[str, Any], Any]:
    """`Algorithm.act`, each block of replicas by its own self; the same arguments and results."""

    def play_block(state: PolicyState, carry: Any, obs: Any, key: jax.Array) -> tuple:
        return policy.algorithm.act(policy, state, carry, obs, key[None], hypers)

    chosen = jax.vmap(play_block)(selves.learned, *in_blocks((carry, obs), len(keys)), keys)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), chosen)


def in_blocks(tree: Any, num_blocks: int) -> Any:
    """Returns leaves [num_blocks, N / num_blocks, ...] of leaves [N, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(num_blocks, -1, *leaf.shape[1:]), tree)


def apart_for_rules(setup: Setup, draws: Mapping[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Returns (what policies draw their actions by, keys for the rules in the place of those that have some), from the
    [num_blocks] keys of a step by policy."""
    own, of_rules = dict(draws), {}
    for name, policy in setup.policies.items():
        if pool_of(policy.config).rules:
            pairs = jax.vmap(jax.random.split)(draws[name])
            own[name], of_rules[name] = pairs[:, 0], pairs[:, 1]
    return own, of_rules


def act_by_rule(
    env: Env, policy: Policy, member: jax.Array, obs: Any, situation: tuple, keys: jax.Array, action: jax.Array
) -> jax.Array:
    """Returns the actions of a policy's agents [N, n, ...], inside their space: where a rule plays, its own.

    Args:
        member: [num_blocks], who plays.
        obs: of the policy's agents, leaves [N, n, ...].
        situation: (states of the environment [N, ...], params).
        keys: [num_blocks].
        action: of all the others, [N, n, ...].
    """
    pool = pool_of(policy.config)
    states, params = situation
    blocks = in_blocks((obs, states), len(keys))
    for i, name in enumerate(pool.rules):
        actor = Actor(policy, "random") if name == RANDOM else Actor(policy, "script", env.scripts[name][1])

        def choose(obs: Any, states: Any, key: jax.Array, actor: Actor = actor) -> jax.Array:
            return actor.choose(env, None, None, obs, key, (states, params), greedy=False)[0]

        of_actor = jax.vmap(lambda key, i=i: jax.random.split(jax.random.fold_in(key, i)))(keys)
        ruled = jax.vmap(choose)(*blocks, of_actor).reshape(action.shape)
        rows = jnp.repeat(member == pool.learned + i, action.shape[0] // len(keys))
        action = select(rows, ruled.astype(action.dtype), action)
    return action


def learned_from(live: jax.Array, selves: Selves) -> jax.Array:
    """Returns the live rows [N, n] of the replicas in which the present self plays."""
    present = jnp.repeat(selves.member == PRESENT, live.shape[0] // selves.member.shape[0])
    return live & present[:, None]
