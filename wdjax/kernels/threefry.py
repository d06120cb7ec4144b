"""threefry2x32 random numbers inside a kernel, with the same bits as `jax.random`.

A key is a pair of uint32. All values derive from a hash of the key and a 64-bit counter,
`hash_2x32`:

    split(key, shape)[i] = hash(key, i)
    fold_in(key, data) = hash(key, data)
    bits(key)[i] = xor(hash(key, i))

where i is the row-major index (jax_threefry_partitionable, the default since JAX 0.5).

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC (2011).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


class Key(NamedTuple):
    """The data of a typed key: two uint32, each a NumPy scalar or traced, () or [lanes]."""

    first: Any
    second: Any


def check_key(dtype: Any) -> None:
    """Raise NotImplementedError unless keys of this dtype are partitionable threefry2x32."""
    # not in the stubs of jax
    is_partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if str(dtype) != "key<fry>" or not is_partitionable:
        raise NotImplementedError(
            f"random numbers from {dtype}: kernels support partitionable threefry2x32 keys only"
        )


@jax.jit
def hash_2x32(
    first: jax.Array, second: jax.Array, high: jax.Array, low: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Hash a key (first, second) and a counter (high, low), uint32 arrays of the same shape.

    Returns:
        Two uint32 arrays of that shape.
    """
    keys = (first, second, first ^ second ^ np.uint32(PARITY))

    def four_rounds(group: jax.Array, carry: tuple) -> tuple:
        x, y, here, after, last = carry
        group = group.astype(jnp.uint32)
        for even, odd in zip(*ROTATIONS, strict=True):
            distance = np.uint32(even) + (group & 1) * np.uint32((odd - even) % 2**32)
            x = x + y
            y = (y << distance) | (y >> (np.uint32(32) - distance))
            y = x ^ y
        x = x + after
        y = y + last + (group + np.uint32(1))
        return x, y, after, last, here

    x, y, *_ = jax.lax.fori_loop(0, 5, four_rounds, (high + first, low + second, *keys))
    return x, y
