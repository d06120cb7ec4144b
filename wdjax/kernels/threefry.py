"""JAX's random numbers inside a kernel: threefry2x32, counter by counter, the same bits as `jax.random` draws.

A key is a pair of uint32. What a key gives is a function of the key and a counter of 64 bits, `hash_2x32`:

    split(key, shape)[i] = hash(key, i),  fold_in(key, data) = hash(key, data),  bits(key)[i] = xor(hash(key, i)),

where i counts the places of `shape` in row-major order (jax_threefry_partitionable, JAX's default since 0.5).

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC (2011).
"""

from typing import Any, NamedTuple

import jax
import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


class Key(NamedTuple):
    """The data of a typed key: each half a uint32, of NumPy or traced, () or [lanes]."""

    first: Any
    second: Any


def check_key(dtype: Any) -> None:
    """Raises NotImplementedError for keys from which, in the present configuration, this module does not draw."""
    if str(dtype) != "key<fry>" or not jax.config.jax_threefry_partitionable:
        raise NotImplementedError(
            f"random numbers from {dtype}: a kernel draws from threefry2x32, partitionable, only"
        )


@jax.jit
def hash_2x32(
    first: jax.Array, second: jax.Array, high: jax.Array, low: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the two words that a key (first, second) gives for a counter (high, low): uint32, all of one shape."""
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
