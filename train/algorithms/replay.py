"""A replay buffer of n-step transitions: one ring per block of replicas.

This is not a buffer of flashbax 0.1.3 (March 2025): its `add` writes every transition, while the
number of valid transitions of a rollout is an array on the device; and its flat buffer pairs
neighbouring steps, while n-step targets span rollouts.
"""

from typing import Literal, cast, get_args

import chex
import jax
import jax.numpy as jnp
from flax import struct

from wdjax.checks import require
from wdjax.spaces import Space, sample_shapes
from wdjax.train.state.aliases import Observation
from wdjax.train.state.rows import Rows
from wdjax.vector import select

Unit = Literal["agent", "team", "sequence"]


class Steps(struct.PyTreeNode):
    """Consecutive steps, leaves [T, N, n, ...]; in a replay with unit "team" [T, N, ...].

    Attributes:
        obs: observation that the action was chosen on, in any structure, such as a dict by policy.
        action: as the critic receives it, in any structure.
        reward: float32, for the action.
        next_obs: after the step, before any reset.
        terminated: bool, the agent terminated in this step or before.
        over: bool, the agent's episode ended in this step or before, or another agent joined.
        live: bool, valid: the agent was active before this step.
        order: int32, index in a sequence, from `Replay.add`; otherwise None.
    """

    obs: Observation
    action: chex.ArrayTree
    reward: jax.Array
    next_obs: Observation
    terminated: jax.Array
    over: jax.Array
    live: jax.Array
    order: jax.Array | None = None

    @classmethod
    def of(cls, rows: Rows, over: jax.Array) -> "Steps":
        """Return the steps of a rollout.

        Args:
            rows: transitions of a policy with `next_obs`, leaves [T, N, n, ...].
            over: [T, N] bool, `Rollout.over`.
        """
        ends = rows.ends(over) if rows.joined is None else rows.ends(over) | rows.joined
        ends = jnp.broadcast_to(ends, rows.live.shape)
        return cls(
            rows.obs, rows.action, rows.reward, rows.next_obs, rows.terminated, ends, rows.live
        )

    @classmethod
    def shapes(cls, observation_space: Space, action_space: Space) -> "Steps":
        """Return the shapes and dtypes of one step without leading axes.

        Args:
            observation_space: space of `obs` and `next_obs`, any `Dict` of all that is stored.
            action_space: space of `action`.
        """
        obs, action = sample_shapes(observation_space), sample_shapes(action_space)
        number, flag = (
            cast(jax.Array, jax.ShapeDtypeStruct((), dtype)) for dtype in (jnp.float32, bool)
        )
        return cls(obs, action, number, obs, terminated=flag, over=flag, live=flag)


class ReplayBatch(struct.PyTreeNode):
    """N-step transitions, leaves [B, ...]; sequences [B, length, ...].

    The target of Q(obs, action) is reward + discount * Q(next_obs, ...).

    Attributes:
        obs: observation that the action was chosen on.
        action: as stored.
        reward: float32, the discounted sum of up to n rewards.
        next_obs: observation after the last of these rewards.
        discount: float32, gamma to the power of their number; 0 if the agent terminated.
        valid: bool, belongs to the sequence; None for single transitions, which are all valid.
    """

    obs: Observation
    action: chex.ArrayTree
    reward: jax.Array
    next_obs: Observation
    discount: jax.Array
    valid: jax.Array | None = None


class Ring(struct.PyTreeNode):
    """The newest `capacity` rows of every block, and space for the rows of one rollout.

    New rows overwrite only rows that no longer count. The former `place`, `position` and `size`
    with the present rows are therefore the former ring (`Replay.undo`).
    """

    rows: chex.ArrayTree  # leaves [num_blocks, capacity + space, ...]
    place: jax.Array  # [num_blocks] int32, index of the next row
    # [num_blocks] int32, number of the next row: the i-th row ever written has number i % capacity
    position: jax.Array
    size: jax.Array  # [num_blocks] int32, rows that count, with the numbers 0 ... size - 1
    capacity: int = struct.field(pytree_node=False)


class Replay(struct.PyTreeNode):
    """A replay buffer: its ring, and the latest steps, whose n-step sums are not complete yet."""

    ring: Ring  # the stored transitions
    # leaves [N, length + n_step - 2, n, ...]; None if that is 0
    pending: Steps | None
    n_step: int = struct.field(pytree_node=False, default=1)  # rewards per sum
    unit: Unit = struct.field(pytree_node=False, default="agent")  # see `new_replay`
    length: int = struct.field(pytree_node=False, default=1)  # steps of a sequence

    @property
    def size(self) -> jax.Array:
        """[num_blocks] int32, the stored transitions or sequences of each block."""
        return self.ring.size

    def add(self, steps: Steps, gamma: jax.Array) -> "Replay":
        """Return a replay with the valid steps of a rollout; the oldest transitions make room.

        The last length + n_step - 2 steps wait for the next rollout.

        Args:
            steps: leaves [T, N, n, ...]; unit "team": [T, N, ...].
            gamma: () discount.
        """
        pending = self.pending
        if self.unit == "team":
            steps = jax.tree.map(lambda leaf: leaf[:, :, None], steps)
        if self.unit == "sequence" and pending is not None:
            steps = steps.replace(order=continued_order(pending, steps.over, self.length))
        if pending is not None:
            before = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), pending)
            join = lambda old, new: jnp.concatenate([old, new.astype(old.dtype)])  # noqa: E731
            steps, num = jax.tree.map(join, before, steps), pending.over.shape[1]
            pending = jax.tree.map(lambda leaf: jnp.swapaxes(leaf[-num:], 0, 1), steps)
        rows, live = n_step_transitions(steps, gamma, self.n_step)
        if self.unit == "sequence":
            rows, live = sequences(rows, steps, self.length)
        num_blocks = self.ring.size.shape[0]
        rows, live = jax.tree.map(lambda leaf: by_block(leaf, num_blocks), (rows, live))
        return self.replace(ring=append(self.ring, rows, live), pending=pending)

    def draw(self, keys: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draw the numbers of stored rows, uniformly with replacement and equally from each block.

        Args:
            keys: [num_blocks], from `block_keys`.
            shape: (steps, S): S rows of each block for each of `steps` gradient steps.

        Returns:
            [steps, num_blocks, S] int32. Without a row in a block, its numbers are invalid.
        """
        number = lambda key, size: jax.random.randint(key, shape, 0, size, jnp.int32)  # noqa: E731
        return jax.vmap(number, out_axes=1)(keys, self.ring.size)

    def take(self, index: jax.Array) -> ReplayBatch:
        """Return stored rows, leaves [num_blocks * S, ...].

        Args:
            index: [num_blocks, S] int32, numbers of rows, from `draw`.
        """
        ring, places = self.ring, jax.tree.leaves(self.ring.rows)[0].shape[1]
        back = (ring.position[:, None] - 1 - index) % ring.capacity + 1
        place = (ring.place[:, None] - back) % places
        pick = jax.vmap(lambda leaf, place: leaf[place])
        return jax.tree.map(lambda leaf: pick(leaf, place).reshape(-1, *leaf.shape[2:]), ring.rows)

    def undo(self, before: "Replay", bad: jax.Array) -> "Replay":
        """Return the replay before a rollout was added if the update was bad, else this one.

        The rows of `before` are not read, so that no copy of them is needed.

        Args:
            before: this replay at the start of the update. Since then at most one rollout was
                added.
            bad: () bool.
        """
        old, new = (
            replay.replace(ring=replay.ring.replace(rows=None)) for replay in (before, self)
        )
        kept = jax.tree.map(lambda old, new: jnp.where(bad, old, new), old, new)
        return kept.replace(ring=kept.ring.replace(rows=self.ring.rows))

    def cut(self, blocks: jax.Array) -> "Replay":
        """Return a replay in which the last pending step ends an episode, as at a time limit.

        Args:
            blocks: [num_blocks] bool, the blocks of replicas in which it does; for example because
                another opponent acts from now on.
        """
        if self.pending is None:
            return self
        over = self.pending.over
        over = over.at[:, -1].max(jnp.repeat(blocks, over.shape[0] // blocks.shape[0])[:, None])
        return self.replace(pending=self.pending.replace(over=over))


def new_replay(
    transition: Steps, capacity: int, n_step: int = 1, unit: Unit = "agent", length: int = 1,
    *, shape: tuple[int, int, int], num_blocks: int = 1,
) -> Replay:  # fmt: skip
    """Return an empty replay buffer for `Memory.replay` or `Memory.own`.

    Unit "agent" stores the steps of agents. "team" stores steps of replicas, with all their agents
    and one reward. "sequence" stores `length` consecutive steps of an agent. A sequence starts with
    every `length`-th step of an episode; steps after the end of the episode are not `valid`.

    Args:
        transition: shapes and dtypes of one step without leading axes (`Steps.shapes`).
        capacity: rows in all blocks together: transitions, or sequences.
        n_step: number of rewards that a target sums.
        unit: "agent", "team" or "sequence".
        length: steps of a sequence, at least 2; 1 for other units.
        shape: (T, N, n) of a rollout: `rollout_length` steps, replicas, and agents of the policy.
        num_blocks: blocks of replicas, each with its own ring (`TrainConfig.blocks`).

    Raises:
        ValueError: if one of the numbers is out of range, or capacity is not a multiple of
            num_blocks.
    """
    steps, num_envs, num_agents = shape if unit != "team" else (*shape[:2], 1)
    units = get_args(Unit)
    require(unit in units, "unit", unit, f"one of {', '.join(units)}")
    require(n_step >= 1, "n_step", n_step, "at least 1")
    allowed = "at least 2 for sequences" if unit == "sequence" else f"1 for unit {unit!r}"
    require((length >= 2) if unit == "sequence" else length == 1, "length", length, allowed)
    allowed = f"a positive multiple of num_blocks = {num_blocks}"
    require(capacity > 0 and capacity % num_blocks == 0, "capacity", capacity, allowed)
    inner, valid = ((length,), transition.live) if unit == "sequence" else ((), None)
    zeros = lambda axes, leaf: jnp.zeros((*axes, *leaf.shape), leaf.dtype)  # noqa: E731
    obs, action, number = transition.obs, transition.action, transition.reward
    row = ReplayBatch(obs, action, number, transition.next_obs, discount=number, valid=valid)
    capacity //= num_blocks
    space = min(steps * (num_envs // num_blocks) * num_agents, capacity)
    rows = jax.tree.map(lambda leaf: zeros((num_blocks, capacity + space, *inner), leaf), row)
    place, position, size = jnp.zeros((3, num_blocks), jnp.int32)
    ring = Ring(rows, place, position, size, capacity)
    axes = (num_envs, length + n_step - 2, num_agents)
    # no valid step is pending before the first rollout, so that no transition begins there
    pending = jax.tree.map(lambda leaf: zeros(axes, leaf), transition) if axes[1] else None
    if pending is not None and unit == "sequence":
        pending = pending.replace(order=jnp.full(axes, -1, jnp.int32))
    return Replay(ring, pending, n_step, unit, length)


def n_step_transitions(
    steps: Steps, gamma: jax.Array, n_step: int
) -> tuple[ReplayBatch, jax.Array]:
    """Sum the rewards of n steps, or of fewer if the agent's episode ends before.

        reward   = sum_{k < m} gamma^k r_{t+k}
        discount = gamma^m (1 - terminated_{t+m-1})
        next_obs = next_obs_{t+m-1}

    for a step t, where m is the smaller of n and the number of steps until the end of the episode.
    After a time limit the target bootstraps.

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
    return ReplayBatch(first.obs, first.action, reward, next_obs, discount), first.live


def continued_order(pending: Steps, over: jax.Array, length: int) -> jax.Array:
    """Return the index of each step in its sequence, [T, N, n] int32: 0 at the start of an episode.

    Args:
        pending: the steps before, leaves [N, steps, n, ...], with their `order`.
        over: [T, N, n] bool, an episode ended in this step.
        length: steps of a sequence, after which the index is 0 again.
    """
    time = jnp.arange(over.shape[0], dtype=jnp.int32)[:, None, None]
    begins = jnp.concatenate([pending.over[:, -1][None], over[:-1]])
    last = cast(jax.Array, pending.order)[:, -1]
    start = jax.lax.cummax(jnp.where(begins, time, -1 - last), axis=0)
    return (time - start) % length


def sequences(transitions: ReplayBatch, steps: Steps, length: int) -> tuple[ReplayBatch, jax.Array]:
    """Return the `length` transitions from each step on, leaves [T, N, n, length, ...].

    Args:
        transitions: leaves [T + length - 1, N, n, ...].
        steps: leaves [at least T + length - 1, N, n, ...], with their `order`.
        length: steps of a sequence.

    Returns:
        (sequences, starts [T, N, n] bool): steps of a sequence are `valid` until the episode of its
        first step ends; `starts` selects the sequences to store.
    """
    num = transitions.reward.shape[0] - length + 1
    window = lambda leaf: jnp.stack([leaf[k : k + num] for k in range(length)], axis=3)  # noqa: E731
    over = window(steps.over)
    ended = jnp.cumsum(over, axis=3) > over  # before the step
    rows = jax.tree.map(window, transitions).replace(valid=window(steps.live) & ~ended)
    return rows, steps.live[:num] & (cast(jax.Array, steps.order)[:num] == 0)


def by_block(leaf: jax.Array, num_blocks: int) -> jax.Array:
    """Return rows [T, N, n, ...] by block of replicas in order of time, [B, T * N / B * n, ...]."""
    steps, replicas, agents, *part = leaf.shape
    blocks = leaf.reshape(steps, num_blocks, replicas // num_blocks * agents, *part)
    return jnp.swapaxes(blocks, 0, 1).reshape(num_blocks, -1, *part)


def append(ring: Ring, rows: chex.ArrayTree, live: jax.Array) -> Ring:
    """Write the live rows over the oldest ones; if there are more than `capacity`, the last ones.

    Args:
        ring: the ring.
        rows: leaves [num_blocks, M, ...], in the order in which they are written.
        live: [num_blocks, M] bool.
    """
    places = jax.tree.leaves(ring.rows)[0].shape[1]
    rank = jnp.cumsum(live, axis=1, dtype=jnp.int32)  # 1, 2, 3 ... among live rows
    total = rank[:, -1:]
    rank -= jnp.maximum(total - ring.capacity, 0)
    place = (ring.place[:, None] + rank - 1) % places
    # all other rows get an index out of bounds, where they are dropped
    place = jnp.where(live & (rank > 0), place, places)
    write = jax.vmap(lambda old, place, new: old.at[place].set(new.astype(old.dtype), mode="drop"))
    return ring.replace(
        rows=jax.tree.map(lambda old, new: write(old, place, new), ring.rows, rows),
        place=(ring.place + jnp.minimum(total[:, 0], ring.capacity)) % places,
        position=(ring.position + total[:, 0]) % ring.capacity,
        size=jnp.minimum(ring.size + total[:, 0], ring.capacity),
    )
