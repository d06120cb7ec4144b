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
    x, y = high + first, low + second
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x = x + y
            y = (y << np.uint32(distance)) | (y >> np.uint32(32 - distance))
            y = x ^ y
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y
