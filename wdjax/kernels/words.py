"""Leaves of a scan in memory: the words of a leaf before the replicas, which neighbouring lanes read together.

A leaf lies flat, [T, W, N] of one with time and [W, N] of one without: W words for each of N replicas, a key being two.
Of a flat array an access needs one number for each lane; of one with axes Pallas computes and adds one for each axis.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels import pallas
from wdjax.kernels.lanes import Elements, array_of, identity, join, words_of
from wdjax.kernels.threefry import Key

MAX_SIZE = 2**31 - 1  # elements of one array in memory: indices are int32


def is_key(dtype: Any) -> bool:
    """Returns whether a dtype is that of typed keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def num_words(aval: Any) -> int:
    """Returns how many words of each replica lie in memory: of an array without numbers there is one, nobody's."""
    return max(_own_words(aval), 1)


def _own_words(aval: Any) -> int:
    return math.prod(aval.shape) * (2 if is_key(aval.dtype) else 1)


def words_shape(aval: Any, num_replicas: int, steps: int = 1) -> jax.ShapeDtypeStruct:
    """Returns what holds a leaf in memory.

    Raises:
        NotImplementedError: where that has more numbers than a kernel reaches.
    """
    dtype, size = (
        jnp.uint32 if is_key(aval.dtype) else jnp.int8 if aval.dtype == bool else aval.dtype,
        num_words(aval),
    )
    if steps * size * num_replicas > MAX_SIZE:
        shape = (steps, num_replicas, *aval.shape)
        raise NotImplementedError(f"an array of {shape}: a kernel reaches {MAX_SIZE} numbers")
    return jax.ShapeDtypeStruct((steps * size * num_replicas,), dtype)


def to_words(leaf: Any, leading: int) -> jax.Array:
    """Returns a leaf [..., N, *shape] with `leading` axes before its own as it lies in memory; of none, [W]."""
    words = jax.random.key_data(leaf) if is_key(leaf.dtype) else jnp.asarray(leaf)
    words = words.astype(jnp.int8) if words.dtype == bool else words
    words = words.reshape(*words.shape[:leading], math.prod(words.shape[leading:]))
    words = words if words.shape[-1] else jnp.zeros((*words.shape[:leading], 1), words.dtype)
    return (words if leading == 0 else jnp.swapaxes(words, -1, -2)).reshape(-1)


def from_words(
    words: jax.Array, aval: Any, leading: tuple[int, ...], places: Sequence[Any]
) -> jax.Array:
    """The way back, to [*leading, *shape]. `places`: what `store` returned."""
    words = _put_together(words.reshape(*leading[:-1], num_words(aval), leading[-1]), places)
    words = jnp.swapaxes(words, -1, -2)[..., : _own_words(aval)]
    if is_key(aval.dtype):
        return jax.random.wrap_key_data(
            words.reshape(*leading, *aval.shape, 2), impl="threefry2x32"
        )
    return words.reshape(*leading, *aval.shape).astype(aval.dtype)


def _put_together(words: jax.Array, places: Sequence[Any]) -> jax.Array:
    """Returns all words of a leaf, [..., W, N], from those that were written and their places."""
    is_known = np.array([isinstance(place, np.generic) for place in places], bool)
    rows = np.array(
        [0 if known else place for known, place in zip(is_known, places, strict=True)], np.int32
    )
    if not places or (not is_known.any() and np.array_equal(rows, np.arange(len(rows)))):
        return words
    numbers = np.array(
        [place if known else 0 for known, place in zip(is_known, places, strict=True)], words.dtype
    )

    def along(values) -> jax.Array:
        return values.reshape(*[1] * (words.ndim - 2), -1, 1)

    found = words[..., rows, :]
    return jnp.where(along(is_known), along(numbers), found) if is_known.any() else found


# In a kernel.


def load(ref: Any, aval: Any, rows: jax.Array, num_replicas: int, step: Any = 0) -> Elements:
    """Reads a leaf of every replica of the block, word by word."""
    first = step * (num_words(aval) * num_replicas) + rows
    words = [pallas.load(ref.at[first + i * num_replicas]) for i in range(_own_words(aval))]
    words = [word != 0 for word in words] if aval.dtype == bool else words
    if is_key(aval.dtype):
        words = [Key(*words[i : i + 2]) for i in range(0, len(words), 2)]
    return array_of(words, aval.shape)


def store(
    ref: Any, array: Elements, rows: jax.Array, num_replicas: int, step: Any = 0
) -> list[Any]:
    """Writes the words of a leaf that are not known, each once and all together: Triton's compiler looks at the whole
    kernel for each access. Returns for every word its row, or the number that it is."""
    words, written = words_of([array]), {}
    for word in words:
        if not isinstance(word, np.generic) and identity(word) not in written:
            written[identity(word)] = (
                len(written),
                jnp.broadcast_to(word, rows.shape).astype(ref.dtype),
            )
    if written:
        together = join([word for _, word in written.values()], 1)
        place = jnp.broadcast_to(step * (len(words) * num_replicas) + rows, together.shape)
        row = jax.lax.broadcasted_iota(jnp.int32, together.shape, 0) if len(written) > 1 else 0
        # of a power of two there are no more
        mask = row < len(written) if len(written) & (len(written) - 1) else None
        pallas.store(ref.at[place + row * num_replicas], together, mask=mask)
    return [word if isinstance(word, np.generic) else written[identity(word)][0] for word in words]
