"""Memory layout of the leaves of a scan.

A leaf is a flat array in the order [T, W, N] with a time axis and [W, N] without: W words for each
of N replicas. A word is one element, or one half of a typed key. Replicas are last, so that
neighboring lanes access neighboring addresses. `store` can instead use the order [T, N, W] of the
leaf itself for an output of a few words, which XLA then does not transpose.

Arrays are flat because an access then needs one index per lane. For an array with several axes,
Pallas computes and adds one index per axis.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels import pallas
from wdjax.kernels.lanes import Elements, array_of, identity, join, of_steps, words_of
from wdjax.kernels.threefry import Key

AT_ONCE = 16  # words that an access before the loop loads
STORED_AT_ONCE = 64  # words that an access stores
MAX_IN_ORDER = 8  # words of a leaf that is stored in its own order
SIDE_BY_SIDE = 4  # words of a lane that an access stores in this order, up to 16 bytes


def is_key(dtype: Any) -> bool:
    """Return whether a dtype is a typed key."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def num_words(aval: Any) -> int:
    """Return the number of words per replica in memory: one unused word for an empty array."""
    return max(_own_words(aval), 1)


def _own_words(aval: Any) -> int:
    return math.prod(aval.shape) * (2 if is_key(aval.dtype) else 1)


def memory_dtype(aval: Any) -> Any:
    """Return the dtype of a word of a leaf."""
    if is_key(aval.dtype):
        return jnp.dtype(jnp.uint32)
    return jnp.dtype(aval.dtype)


def words_shape(aval: Any, leading: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Return the flat shape and the dtype of a leaf in memory.

    Args:
        aval: shape and dtype of the leaf of one replica.
        leading: (T, N).

    Raises:
        NotImplementedError: for more than MAX_NUMBERS elements.
    """
    size = math.prod(leading) * num_words(aval)
    _require_indexable((*leading, *aval.shape), size)
    return jax.ShapeDtypeStruct((size,), memory_dtype(aval))


def _require_indexable(shape: tuple[int, ...], size: int) -> None:
    if size > pallas.MAX_NUMBERS:
        raise NotImplementedError(
            f"an array has shape {shape}: kernels support up to {pallas.MAX_NUMBERS} elements"
        )


def to_words(leaf: Any, leading: int) -> jax.Array:
    """Convert a leaf to its layout in memory.

    Args:
        leaf: [T, N, *shape], [N, *shape], or [*shape] for an array that all replicas share.
        leading: number of axes before `shape`: 2, 1 or 0.

    Raises:
        NotImplementedError: for more than MAX_NUMBERS elements.
    """
    words = jax.random.key_data(leaf) if is_key(leaf.dtype) else jnp.asarray(leaf)
    _require_indexable(leaf.shape, words.size)
    words = words.reshape(*words.shape[:leading], math.prod(words.shape[leading:]))
    words = words if words.shape[-1] else jnp.zeros((*words.shape[:leading], 1), words.dtype)
    return (words if leading == 0 else jnp.swapaxes(words, -1, -2)).reshape(-1)


def from_words(
    words: jax.Array, avals: Sequence[Any], leading: tuple[int, ...], places: Sequence[Any] | None
) -> list[jax.Array]:
    """Convert words in memory to leaves [*leading, *shape], the inverse of `to_words`.

    Args:
        words: flat words of all leaves, one leaf after the other.
        avals: shape and dtype of each leaf of one replica.
        leading: (T, N) or (N,).
        places: the value that `store` returned.
    """
    if places is None:
        return [as_leaf(words, avals[0], leading)]
    counts = [_own_words(aval) for aval in avals]
    words = _put_together(words.reshape(*leading[:-1], -1, leading[-1]), places)
    words = jnp.swapaxes(words, -1, -2)
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    parts = [words[..., end - count : end] for end, count in zip(ends, counts, strict=True)]
    return [as_leaf(part, aval, leading) for part, aval in zip(parts, avals, strict=True)]


def as_leaf(words: jax.Array, aval: Any, leading: tuple[int, ...]) -> jax.Array:
    """Convert words [*leading, W] to a leaf."""
    if is_key(aval.dtype):
        data = words.reshape(*leading, *aval.shape, 2)
        return jax.random.wrap_key_data(data, impl="threefry2x32")
    return words.reshape(*leading, *aval.shape)


def by_dtype(avals: Sequence[Any]) -> list[list[int]]:
    """Return the positions of leaves with the same dtype in memory, by dtype.

    Each access takes Triton's compiler long, see `store`. Leaves in one array need few.
    """
    groups: dict[Any, list[int]] = {}
    for i, aval in enumerate(avals):
        groups.setdefault(memory_dtype(aval), []).append(i)
    return list(groups.values())


def group_shape(avals: Sequence[Any], num_replicas: int) -> jax.ShapeDtypeStruct:
    """Return the shape in memory of leaves of one dtype without a time axis."""
    size = num_replicas * max(sum(map(_own_words, avals)), 1)
    _require_indexable((num_replicas, size // num_replicas), size)
    return jax.ShapeDtypeStruct((size,), memory_dtype(avals[0]))


def to_group(leaves: Sequence[Any]) -> jax.Array:
    """Convert leaves [N, *shape] of one dtype to their layout in memory, one after the other."""
    words = [to_words(leaf, 1) for leaf in leaves if math.prod(leaf.shape[1:])]
    words = words or [to_words(leaves[0], 1)]
    num_replicas, size = len(leaves[0]), sum(word.size for word in words)
    _require_indexable((num_replicas, size // num_replicas), size)
    return words[0] if len(words) == 1 else jnp.concatenate(words)


def _put_together(words: jax.Array, places: Sequence[Any]) -> jax.Array:
    """Return all words of a leaf, [..., W, N], from the stored words and their places."""
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

    stored = words[..., rows, :]
    return jnp.where(along(is_known), along(numbers), stored) if is_known.any() else stored


# --- inside a kernel ---


def load(ref: Any, aval: Any, rows: jax.Array, num_replicas: int, step: jax.Array) -> Elements:
    """Load a leaf of the replicas `rows`, [lanes], at a step, word by word."""
    first = step * (num_words(aval) * num_replicas) + rows
    words = [pallas.load(ref.at[first + i * num_replicas]) for i in range(_own_words(aval))]
    return _elements_of(words, aval)


def _elements_of(words: list[Any], aval: Any) -> Elements:
    if is_key(aval.dtype):
        keys = [Key(*words[i : i + 2]) for i in range(0, len(words), 2)]
        return array_of(keys, aval.shape)
    return array_of(words, aval.shape)


def load_group(
    ref: Any, avals: Sequence[Any], rows: jax.Array, num_replicas: int
) -> list[Elements]:
    """Load leaves of one dtype of the replicas `rows`, [lanes]."""
    count = sum(map(_own_words, avals))
    words = [
        word
        for first in range(0, count, AT_ONCE)
        for word in _load_at_once(ref, first, min(AT_ONCE, count - first), rows, num_replicas)
    ]
    return [_elements_of([words.pop(0) for _ in range(_own_words(aval))], aval) for aval in avals]


def _load_at_once(
    ref: Any, first: int, count: int, rows: jax.Array, num_replicas: int
) -> list[jax.Array]:
    """Load `count` words from `first` on by a single access."""
    if count == 1:
        return [pallas.load(ref.at[first * num_replicas + rows])]
    size = 1 << (count - 1).bit_length()
    word = jax.lax.broadcasted_iota(jnp.int32, (size, 1), 0)
    word = first + jnp.minimum(word, count - 1)  # `size` is a power of two: repeat the last word
    loaded = pallas.load(ref.at[word * num_replicas + rows[None]])
    return list(of_steps(array_of([loaded], ()), 1, count))


def store(
    ref: Any,
    arrays: Sequence[Elements],
    rows: jax.Array,
    num_replicas: int,
    step: Any = 0,
    in_order: bool = False,
) -> list[Any] | None:
    """Store the words of leaves that are not known at trace time.

    Equal words are stored once, and all words in a single access, because Triton's compiler
    analyzes the whole kernel for each access.

    Args:
        ref: flat words in memory.
        arrays: leaves of one dtype.
        rows: [lanes], replicas.
        num_replicas: N.
        step: index along the time axis.
        in_order: whether a single leaf may be stored in the order [T, N, W]: if it has 2 to
            MAX_IN_ORDER words, none of them equal or known.

    Returns:
        For each word, its row in memory, or its value if that is known. None: the leaf is stored
        in the order [T, N, W].
    """
    words = words_of(arrays)
    written: dict[Any, tuple[int, jax.Array]] = {}
    for word in words:
        if not isinstance(word, np.generic) and identity(word) not in written:
            written[identity(word)] = (
                len(written),
                jnp.broadcast_to(word, rows.shape).astype(ref.dtype),
            )
    if in_order and 1 < len(words) == len(written) <= MAX_IN_ORDER:
        _store_in_order(ref, [word for _, word in written.values()], rows + step * num_replicas)
        return None
    for first in range(0, len(written), STORED_AT_ONCE):
        part = list(written.values())[first : first + STORED_AT_ONCE]
        together = join([word for _, word in part], 1)
        place = jnp.broadcast_to(step * (len(words) * num_replicas) + rows, together.shape)
        row = jax.lax.broadcasted_iota(jnp.int32, together.shape, 0) if len(part) > 1 else 0
        # `join` pads to a power of two: mask the padding rows
        mask: Any = row < len(part) if len(part) & (len(part) - 1) else None
        pallas.store(ref.at[place + (first + row) * num_replicas], together, mask=mask)
    return [word if isinstance(word, np.generic) else written[identity(word)][0] for word in words]


def _store_in_order(ref: Any, words: list[jax.Array], rows: jax.Array) -> None:
    """Store the words, [lanes] each, of a leaf [rows, W] by accesses aligned to their size."""
    size = math.gcd(len(words), SIDE_BY_SIDE)
    column = jax.lax.broadcasted_iota(jnp.int32, (*rows.shape, size), 1)
    place = (rows * len(words))[:, None] + column
    for first in range(0, len(words), size):
        together = jnp.broadcast_to(words[first][:, None], column.shape)
        for i in range(1, size):
            together = jnp.where(column == i, words[first + i][:, None], together)
        pallas.store(ref.at[place + first], together)
