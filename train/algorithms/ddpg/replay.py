"""The replay buffer: n-step transitions of all agents of a policy, in one ring for every block of replicas.

Our own ring and not a library's. flashbax 0.1.3, the newest (of March 2025; 0.1.2 has the same interface), runs with
jax 0.10.2 and is as fast. But `add` of its buffers writes every row that it is given: how many rows of a rollout are
live is known on the device only, so rows of agents that have left the game would go in, push others out and be drawn;
and its flat buffer pairs neighbouring steps, so n-step targets that span rollouts are ours to make anyway.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.vector import select


@struct.dataclass
class Steps:
    """Steps as they were played: leaves [T, N, n, ...], T steps of N replicas with n agents of one policy."""

    obs: Any  # what the action was chosen on
    action: jax.Array  # [T, N, n, A] float32
    reward: jax.Array  # float32, for the action
    next_obs: Any  # what the agent saw after the step, before any reset
    terminated: jax.Array  # bool, the agent's game ended in this step or before
    over: jax.Array  # bool, the agent's episode ended in this step or before
    live: jax.Array  # bool, it had not ended before this step


@struct.dataclass
class Transition:
    """What one learns from, leaves [rows, ...]: target = reward + discount * Q(next_obs, ...)."""

    obs: Any
    action: jax.Array  # [rows, A] float32
    reward: jax.Array  # float32, the discounted sum of up to n rewards
    next_obs: Any  # after the last of these
    discount: jax.Array  # float32, gamma to the power of their number; 0 where the agent terminated


@struct.dataclass
class Ring:
    """The newest `capacity` rows of every block, and room for what one rollout writes.

    What is written takes the places of rows that do not count any more: with `place`, `position` and `size` of before
    and any later rows, as far as one rollout, a ring is what it was (learner/bad_numbers.py), and nobody keeps a copy.
    """

    rows: Any  # leaves [num_blocks, capacity + room, ...]
    place: jax.Array  # [num_blocks] int32, where the next row goes
    position: (
        jax.Array
    )  # [num_blocks] int32, its number: row i of all that were ever written has i % capacity
    size: jax.Array  # [num_blocks] int32, rows that count, numbered 0 .. size - 1
    capacity: int = struct.field(pytree_node=False)


@struct.dataclass
class Replay:
    """What a policy keeps of the past: the ring, and the steps that still wait for what follows them."""

    ring: Ring
    pending: Steps | None  # leaves [N, n_step - 1, n, ...]; None for n_step 1


def empty_replay(
    step: Steps,
    num_envs: int,
    num_agents: int,
    num_blocks: int,
    capacity: int,
    n_step: int,
    rollout_length: int,
) -> Replay:
    """Returns a replay without a row.

    Args:
        step: shapes and dtypes of one step of one agent, leaves [...].
        num_envs, num_agents: N and n.
        capacity: rows of each of the num_blocks rings.
        n_step: rewards that a target sums.
        rollout_length: steps that are handed over at once.
    """
    zeros = lambda leaf, axes: jnp.zeros((*axes, *leaf.shape), leaf.dtype)  # noqa: E731
    row = Transition(step.obs, step.action, step.reward, step.next_obs, discount=step.reward)
    room = min(rollout_length * (num_envs // num_blocks) * num_agents, capacity)
    rows = jax.tree.map(lambda leaf: zeros(leaf, (num_blocks, capacity + room)), row)
    ring = Ring(rows, *jnp.zeros((3, num_blocks), jnp.int32), capacity=capacity)
    if n_step == 1:
        return Replay(ring, None)
    # before the first step nothing was live, so no transition begins there
    return Replay(
        ring, jax.tree.map(lambda leaf: zeros(leaf, (num_envs, n_step - 1, num_agents)), step)
    )


def remember(replay: Replay, steps: Steps, gamma: jax.Array, n_step: int) -> Replay:
    """Returns a replay that holds the live steps of a rollout too, but for those that wait for the next rollout."""
    if replay.pending is not None:
        before = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), replay.pending)
        steps = jax.tree.map(
            lambda old, new: jnp.concatenate([old, new.astype(old.dtype)]), before, steps
        )
        last = jax.tree.map(lambda leaf: jnp.swapaxes(leaf[1 - n_step :], 0, 1), steps)
        replay = replay.replace(pending=last)
    transitions, live = n_step_transitions(steps, gamma, n_step)
    num_blocks = replay.ring.size.shape[0]
    rows, live = jax.tree.map(lambda leaf: by_block(leaf, num_blocks), (transitions, live))
    return replay.replace(ring=append(replay.ring, rows, live))


def n_step_transitions(steps: Steps, gamma: jax.Array, n_step: int) -> tuple[Transition, jax.Array]:
    """Sums the rewards of n steps, or of fewer where the agent's game or the episode ends before. For a step t,

        reward = sum_{k < m} gamma^k r_{t+k},  discount = gamma^m (1 - terminated_{t+m-1}),  next_obs = next_obs_{t+m-1}

    m the smaller of n and of the number of steps until the end: a time limit ends the sum, but bootstraps.

    Args:
        steps: leaves [T + n - 1, N, n, ...], in order.
        gamma: () discount.
        n_step: n.

    Returns:
        (transitions that begin with the first T steps, leaves [T, N, n, ...]; live [T, N, n] bool).
    """
    length = steps.reward.shape[0] - n_step + 1
    at = lambda k: jax.tree.map(lambda leaf: leaf[k : k + length], steps)  # noqa: E731
    last = at(n_step - 1)
    reward, next_obs, discount = last.reward, last.next_obs, jnp.where(last.terminated, 0.0, gamma)
    for k in reversed(range(n_step - 1)):
        step = at(k)
        ends = step.terminated | step.over
        reward = step.reward + jnp.where(ends, 0.0, gamma * reward)
        discount = jnp.where(ends, jnp.where(step.terminated, 0.0, gamma), gamma * discount)
        next_obs = select(ends, step.next_obs, next_obs)
    first = at(0)
    return Transition(first.obs, first.action, reward, next_obs, discount), first.live


def by_block(leaf: jax.Array, num_blocks: int) -> jax.Array:
    """Lays rows [T, N, n, ...] in one axis for each block of neighbouring replicas, [B, T * N / B * n, ...]."""
    steps, replicas, agents, *part = leaf.shape
    blocks = leaf.reshape(steps, num_blocks, replicas // num_blocks * agents, *part)
    return jnp.swapaxes(blocks, 0, 1).reshape(num_blocks, -1, *part)


def append(ring: Ring, rows: Any, live: jax.Array) -> Ring:
    """Writes the live rows, after which the oldest count no more; of more than the ring holds, the last.

    Args:
        rows: leaves [num_blocks, M, ...], in the order in which they are written.
        live: [num_blocks, M] bool.
    """
    places = jax.tree.leaves(ring.rows)[0].shape[1]
    rank = jnp.cumsum(live, axis=1, dtype=jnp.int32)  # of a live row: 1, 2, 3 ...
    total = rank[:, -1:]
    rank -= jnp.maximum(total - ring.capacity, 0)
    place = (ring.place[:, None] + rank - 1) % places
    # what is not written goes to a place that does not exist, and is dropped there
    place = jnp.where(live & (rank > 0), place, places)
    write = jax.vmap(lambda old, place, new: old.at[place].set(new.astype(old.dtype), mode="drop"))
    return ring.replace(
        rows=jax.tree.map(lambda old, new: write(old, place, new), ring.rows, rows),
        place=(ring.place + jnp.minimum(total[:, 0], ring.capacity)) % places,
        position=(ring.position + total[:, 0]) % ring.capacity,
        size=jnp.minimum(ring.size + total[:, 0], ring.capacity),
    )


def take(ring: Ring, index: jax.Array) -> Any:
    """Returns rows of every block, leaves [num_blocks * S, ...], for the numbers of rows, [num_blocks, S]."""
    places = jax.tree.leaves(ring.rows)[0].shape[1]
    back = (ring.position[:, None] - 1 - index) % ring.capacity + 1
    place = (ring.place[:, None] - back) % places
    pick = jax.vmap(lambda leaf, place: leaf[place])
    return jax.tree.map(lambda leaf: pick(leaf, place).reshape(-1, *leaf.shape[2:]), ring.rows)
