"""Packing of many small arrays into one, which costs a GPU fewer kernels."""

import math
from collections.abc import Collection

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


@struct.dataclass
class Packed:
    """A packed tree. Scanning, stacking and indexing the leading axes apply to all leaves."""

    words: jax.Array  # [*leading, W] uint32
    rest: list[jax.Array]  # separate leaves [*leading, ...], and those without 32 bits
    tree: jax.tree_util.PyTreeDef = struct.field(pytree_node=False)  # structure of the tree
    parts: tuple[tuple[tuple[int, ...], np.dtype] | None, ...] = struct.field(pytree_node=False)
    """shape without leading axes and dtype of each leaf; None for separate leaves"""


def is_packable(dtype: np.dtype) -> bool:
    """Return whether `pack` stores numbers of a dtype as 32-bit words."""
    return dtype in (bool, jnp.int32, jnp.uint32, jnp.float32)


def pack(
    tree: chex.ArrayTree, leading: int = 0, apart: Collection[str] = (), most: int | None = None
) -> Packed:
    """Concatenate the leaves of a tree as 32-bit words.

    Args:
        tree: leaves [*leading, ...].
        leading: number of leading axes that all leaves share.
        apart: names of fields, at any depth, whose leaves stay separate.
        most: leaves with more numbers stay separate; None: no limit.
    """
    places, structure = jax.tree_util.tree_flatten_with_path(tree)
    stays = lambda path: any(getattr(entry, "name", None) in apart for entry in path)  # noqa: E731
    fits = lambda leaf: is_packable(leaf.dtype) and (most is None or leaf.size <= most)  # noqa: E731
    leaves = [(leaf, fits(leaf) and not stays(path)) for path, leaf in places]
    bits = lambda leaf: jax.lax.bitcast_convert_type(leaf, jnp.uint32)  # noqa: E731
    as_words = lambda leaf: leaf.astype(jnp.uint32) if leaf.dtype == bool else bits(leaf)  # noqa: E731
    words = [
        as_words(leaf).reshape(*leaf.shape[:leading], -1) for leaf, is_packed in leaves if is_packed
    ]
    rest = [leaf for leaf, is_packed in leaves if not is_packed]
    parts = [
        (leaf.shape[leading:], leaf.dtype) if is_packed else None for leaf, is_packed in leaves
    ]
    words = words or [jnp.zeros((*leaves[0][0].shape[:leading], 0), jnp.uint32)]
    return Packed(jnp.concatenate(words, axis=-1), rest, structure, tuple(parts))


def unpack(packed: Packed) -> chex.ArrayTree:
    """Return the tree, with the leading axes of `packed`; NumPy arrays stay NumPy arrays."""
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
