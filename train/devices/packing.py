"""Many small arrays in one: a kernel for each of them costs more than what it moves."""

import math
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Packed:
    """A tree with all its small parts in one array. Scanning over it, stacking and taking rows all pack as well."""

    words: jax.Array  # [*leading, W] uint32
    rest: list[jax.Array]  # leaves [*leading, ...]: observations, and what is not of 32 bits
    tree: Any = struct.field(pytree_node=False)  # the structure of what was packed
    parts: tuple[tuple[tuple[int, ...], Any] | None, ...] = struct.field(pytree_node=False)
    """of each leaf its shape without the leading axes, and its dtype; None where it was left as it was"""


def pack(tree: Any, leading: int = 0, apart: Collection[str] = ()) -> Packed:
    """Lays the leaves of a tree side by side as 32-bit words, but for fields whose rows are wide already.

    Args:
        tree: leaves [*leading, ...].
        leading: the number of axes that all leaves have in common.
        apart: names of fields, at any depth, whose leaves stay as they are.
    """
    places, structure = jax.tree_util.tree_flatten_with_path(tree)
    small = (bool, jnp.int32, jnp.uint32, jnp.float32)
    stays = lambda path: any(getattr(entry, "name", None) in apart for entry in path)  # noqa: E731
    leaves = [(leaf, leaf.dtype in small and not stays(path)) for path, leaf in places]
    bits = lambda leaf: jax.lax.bitcast_convert_type(leaf, jnp.uint32)  # noqa: E731
    as_words = lambda leaf: leaf.astype(jnp.uint32) if leaf.dtype == bool else bits(leaf)  # noqa: E731
    words = [
        as_words(leaf).reshape(*leaf.shape[:leading], -1) for leaf, is_packed in leaves if is_packed
    ]
    rest = [leaf for leaf, is_packed in leaves if not is_packed]
    parts = [
        (leaf.shape[leading:], leaf.dtype) if is_packed else None for leaf, is_packed in leaves
    ]
    return Packed(jnp.concatenate(words, axis=-1), rest, structure, tuple(parts))


def unpack(packed: Packed) -> Any:
    """Returns the tree that was packed, with the leading axes that `packed` has by now; of NumPy arrays on the host."""
    rest, start, leaves = iter(packed.rest), 0, []
    for part in packed.parts:
        if part is None:
            leaves.append(next(rest))
            continue
        shape, dtype = part
        size = math.prod(shape)
        words = packed.words[..., start : start + size].reshape(*packed.words.shape[:-1], *shape)
        leaves.append(words != 0 if dtype == jnp.bool_ else words.view(dtype))
        start += size
    return jax.tree.unflatten(packed.tree, leaves)
