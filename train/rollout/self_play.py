"""Self-play: in some blocks of replicas a policy is played by one of its earlier selves, in each rollout another one.

The pool is a ring of `past_selves` snapshots of what acting reads, all of the first self at the start; every
`past_selves_every` updates of the run the present self is written over the oldest. For each rollout and each block of
replicas a coin falls: with probability `past_selves_fraction` an earlier self, each as likely as the others, plays all
agents of the policy there. From these rows the policy does not learn (they are not live), the other policies do. Where
several policies keep earlier selves their coins fall apart from each other: two of them may meet, and nobody learns.
Earlier selves explore as the present one does (they sample, or add noise). An n-step target of DDPG may reach from the
last rows of a rollout into what an earlier self plays in the next, as it reaches into what older actors did.

A rollout begins in the middle of episodes. Where who plays changes there, what acting carries (a recurrent state) is
emptied: every self knows how to begin from nothing, none how to read what another has remembered.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.train.devices.blocks import block_keys
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy
from wdjax.train.state.state import Memory, PolicyState
from wdjax.vector import select

PRESENT, NOBODY = -1, -2


@struct.dataclass
class Selves:
    """Who plays a policy in one rollout."""

    member: jax.Array  # [num_blocks] int32: a place in the pool, or PRESENT
    learned: PolicyState  # what acting reads, leaves [num_blocks, ...]


def new_pool(state: PolicyState, size: int) -> PolicyState:
    """Returns a pool of `size` selves that are all like this one, leaves [size, ...]."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), what_acting_reads(state))


def what_acting_reads(state: PolicyState) -> PolicyState:
    """Returns a state without what only learning needs."""
    return PolicyState(state.params, None, state.normalizer, gradient_steps=state.gradient_steps)


def remember(state: PolicyState, memory: Memory, num_updates: jax.Array, every: int) -> tuple[PolicyState, Memory]:
    """Puts the present self in the pool, over its oldest member, where this update is due for it.

    Args:
        num_updates: () int32, updates done.
        every: updates between two snapshots.

    Returns:
        (state, memory): whoever played last in the place that is taken is nobody any more.
    """
    size = jax.tree.leaves(state.past.params)[0].shape[0]
    due = num_updates % every == 0
    place = jnp.where(due, (num_updates // every - 1) % size, size)  # there is no place `size`: what goes there is lost
    write = lambda pool, own: pool.at[place].set(own, mode="drop")  # noqa: E731
    state = state.replace(past=jax.tree.map(write, state.past, what_acting_reads(state)))
    return state, memory.replace(member=jnp.where(memory.member == place, NOBODY, memory.member))


def draw_selves(state: PolicyState, fraction: jax.Array, key: jax.Array, num_blocks: int) -> Selves:
    """Draws who plays in each block of replicas, with fold_in(key, block) alone.

    Args:
        fraction: () float32, probability of an earlier self.
    """
    size = jax.tree.leaves(state.past.params)[0].shape[0]

    def draw(key: jax.Array) -> jax.Array:
        coin_key, place_key = jax.random.split(key)
        earlier = jax.random.bernoulli(coin_key, fraction)
        return jnp.where(earlier, jax.random.randint(place_key, (), 0, size), PRESENT)

    member = jax.vmap(draw)(block_keys(key, num_blocks))
    earlier = jax.tree.map(lambda pool: pool[member], state.past)
    present = jax.tree.map(lambda own: own[None], what_acting_reads(state))
    return Selves(member, select(member != PRESENT, earlier, present))


def take_over(memory: Memory, selves: Selves) -> Memory:
    """Returns the memory of a policy at the start of a rollout: nothing is carried where another self takes over."""
    changed = selves.member != memory.member

    def empty(leaf: jax.Array) -> jax.Array:
        rows = jnp.repeat(changed, leaf.shape[0] // changed.shape[0])
        return select(rows, jnp.zeros_like(leaf), leaf)

    return memory.replace(carry=jax.tree.map(empty, memory.carry), member=selves.member)


def act(
    policy: Policy, selves: Selves, carry: Any, obs: Any, keys: jax.Array, hypers: Hypers
) -> tuple[jax.Array, dict[str, Any], Any]:
    """`Algorithm.act`, each block of replicas by its own self; the same arguments and results."""
    num_blocks = keys.shape[0]

    def play_block(state: PolicyState, carry: Any, obs: Any, key: jax.Array) -> tuple:
        return policy.algorithm.act(policy, state, carry, obs, key[None], hypers)

    blocks = jax.tree.map(lambda leaf: leaf.reshape(num_blocks, -1, *leaf.shape[1:]), (carry, obs))
    chosen = jax.vmap(play_block)(selves.learned, *blocks, keys)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), chosen)


def learned_from(live: jax.Array, selves: Selves) -> jax.Array:
    """Returns the live rows [N, n] of the replicas in which the present self plays."""
    present = jnp.repeat(selves.member == PRESENT, live.shape[0] // selves.member.shape[0])
    return live & present[:, None]
