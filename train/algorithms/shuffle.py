"""Random orders of transitions, computed without a sort."""

import math

import jax
import jax.numpy as jnp

from wdjax.train.devices.blocks import block_keys

ROUNDS = 6
# up to this number of elements, more rounds: with 8, the 720 orders of six are not equally frequent
FEW, ROUNDS_OF_FEW = 64, 12


def shuffle(key: jax.Array, shape: tuple[int, ...], num_blocks: int, minibatches: int) -> jax.Array:
    """Return [minibatches, R / minibatches] int32: each index of R = T * N * n transitions once.

    Each block of N / num_blocks replicas is permuted with its own key and contributes equally to
    each minibatch, so that the random numbers do not depend on the number of devices.

    Args:
        key: () key, equal on all devices.
        shape: (T, N, n) of the transitions.
        num_blocks: blocks of replicas on this device.
        minibatches: number of minibatches.
    """
    steps, replicas, agents = shape
    width = replicas // num_blocks * agents  # transitions of a block in one step
    order = jax.vmap(lambda key: random_order(key, steps * width))(block_keys(key, num_blocks))
    time, place = order // width, order % width
    index = time * (replicas * agents) + jnp.arange(num_blocks)[:, None] * width + place
    return jnp.swapaxes(index.reshape(num_blocks, minibatches, -1), 0, 1).reshape(minibatches, -1)


def random_order(key: jax.Array, size: int) -> jax.Array:
    """Return 0 .. size - 1 in random order, [size] int32.

    A generalized Feistel network: i = columns * a + b is the place of a row and a column in a table
    of at least `size` places. Each round computes

        a <- (a + hash(b)) mod rows,   b <- (b + hash(a)) mod columns,

    which is invertible, with two random words per round. A result beyond the last place goes
    through all rounds again (cycle walking). `jax.random.permutation` sorts twice: it takes longer.

    Source: J. Black and P. Rogaway, "Ciphers with arbitrary finite domains" (2002), sections 4
    (results beyond the last place) and 5 (network).
    """
    rows, columns = _table(size)
    rounds = ROUNDS_OF_FEW if size <= FEW else ROUNDS
    words = jax.random.bits(key, (rounds, 2), jnp.uint32)

    def permute(place: jax.Array) -> jax.Array:
        a, b = place // columns, place % columns
        for word in words:
            a = _add(a, _hash(b ^ word[0]), rows)
            b = _add(b, _hash(a ^ word[1]), columns)
        return a * columns + b

    order = permute(jnp.arange(size, dtype=jnp.uint32))
    if rows * columns > size:
        again = lambda order: jnp.where(order >= size, permute(order), order)  # noqa: E731
        order = jax.lax.while_loop(lambda order: jnp.any(order >= size), again, order)
    return order.astype(jnp.int32)


def _table(size: int) -> tuple[int, int]:
    """Return (rows, columns) of a table of at least `size` places.

    It has exactly `size` places if a divisor of `size` is near its root, and is nearly square if
    not. Rows or columns are even, because all rounds of an odd table are even permutations.
    """
    root = math.isqrt(size)
    divisor = next(rows for rows in range(root, 0, -1) if size % rows == 0)
    if size % 2 == 0 and 2 * divisor > root:
        return divisor, size // divisor
    rows = root + 2 - root % 2
    return rows, -(-size // rows)


def _add(place: jax.Array, word: jax.Array, size: int) -> jax.Array:
    """Return (place + word) mod size for places less than size, without overflow."""
    total = place + word % size
    return jnp.where(total >= size, total - size, total)  # several times as fast as a remainder


def _hash(word: jax.Array) -> jax.Array:
    """Return a hash of each uint32: the finalizer of MurmurHash3."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
