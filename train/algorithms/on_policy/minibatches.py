"""Minibatches: the rows of a rollout in random order, each once an epoch."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.train.devices.blocks import block_keys
from wdjax.train.devices.moments import normalize
from wdjax.train.devices.packing import Packed, unpack


@struct.dataclass
class Batch:
    """Rows to learn from, leaves [R, ...]; of a recurrent policy [T, M, ...], M sequences of T steps.

    Everything but the parameters is a constant of the loss.
    """

    obs: Any
    action: jax.Array
    log_prob: jax.Array | None  # under the policy that acted; PPO only
    value: jax.Array  # under the parameters that acted
    advantage: jax.Array  # of the loss: normalised already, where a policy wants that
    target: jax.Array  # the return that the value should predict
    live: jax.Array  # bool, the rows that count
    restart: jax.Array | None = None  # bool, an episode begins with this row; recurrent policies only, like the next
    carry: Any = None  # [M, ...] each: (the carry into the first step, that at the start of an episode; None: zeros)


def merge_axes(batch: Batch) -> Batch:
    """Lays rows [T, N, n, ...] in one axis, [T * N * n, ...]; those of a recurrent policy in two, [T, N * n, ...]."""
    if batch.carry is None:
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), batch)
    carry = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch.carry)
    rows = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:]), batch.replace(carry=None))
    return rows.replace(carry=carry)


def take_rows(rows: Packed, carry: Any, index: jax.Array) -> Batch:
    """Returns the rows, or of a recurrent policy the sequences, with these indices.

    Args:
        rows: a Batch without its carry, packed; leaves [R, ...] or [T, M, ...].
        carry: the batch's.
        index: [r] int32.
    """
    axis = rows.words.ndim - 2
    batch = unpack(jax.tree.map(lambda leaf: jnp.take(leaf, index, axis, mode="clip"), rows))
    return batch.replace(carry=jax.tree.map(lambda leaf: leaf[index], carry))


def normalized_advantages(batch: Batch, index: jax.Array) -> jax.Array:
    """Returns the advantages in every minibatch, normalised over its live rows: [minibatches, r], or [., T, r].

    All at once, before the gradient steps: in each, sums that wait for each other would be some kernels more.

    Args:
        index: [minibatches, r] int32, the rows, or of a recurrent policy the sequences, in each.
    """
    take = lambda leaf, index: jnp.take(leaf, index, axis=-1, mode="clip")  # noqa: E731
    return jax.vmap(lambda index: normalize(take(batch.advantage, index), take(batch.live, index)))(index)


def shuffle(key: jax.Array, shape: tuple[int, int, int], num_blocks: int, minibatches: int) -> jax.Array:
    """Returns [minibatches, R / minibatches] indices into the R = T * N * n rows of a rollout, each row once.

    Every block of N / num_blocks replicas is permuted on its own, with a key of its own, and every minibatch takes
    equally from each, so that the numbers drawn do not depend on how blocks are spread over devices.
    """
    steps, replicas, agents = shape
    width = replicas // num_blocks * agents  # rows of a block in one step
    keys = block_keys(key, num_blocks)
    order = jax.vmap(lambda key: random_order(key, steps * width))(keys)  # [B, T * width], within the block
    time, place = order // width, order % width
    index = time * (replicas * agents) + jnp.arange(num_blocks)[:, None] * width + place
    return jnp.swapaxes(index.reshape(num_blocks, minibatches, -1), 0, 1).reshape(minibatches, -1)


def random_order(key: jax.Array, size: int) -> jax.Array:
    """Returns the numbers 0 .. size - 1 in random order, [size] int32: sorted by one random word each.

    `jax.random.permutation` sorts again, so that no two equal words leave their numbers in order; of 160,000 rows that
    are about three pairs.
    """
    words = jax.random.bits(key, (size,))
    if jax.default_backend() != "cpu":
        return jax.lax.sort_key_val(words, jnp.arange(size, dtype=jnp.int32))[1]
    with jax.enable_x64(True):  # the same order: XLA sorts one array on a CPU six times faster than a pair of them
        pairs = words.astype(jnp.uint64) << 32 | jax.lax.iota(jnp.uint64, size)
        return jax.lax.sort(pairs).astype(jnp.uint32).astype(jnp.int32)
