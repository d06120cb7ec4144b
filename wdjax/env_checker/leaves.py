"""Names and types of the leaves that an environment's functions return."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from wdjax.env import is_key


def structure_of(tree: Any) -> object:
    """Return the tree structure, whose type jax does not export."""
    return jax.tree.structure(tree)


def named_leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, leaf), named as in Python (state.x, obs['runner']), beginning with the state."""
    for name in sorted(values, key=lambda name: name != "state"):
        for path, leaf in jax.tree_util.tree_leaves_with_path(values[name]):
            yield name + jax.tree_util.keystr(path), leaf


def different_types(one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (name, type in one, type in other) for leaves of different types, as in `words`."""
    for (name, a), (_, b) in zip(named_leaves(one), named_leaves(other), strict=True):
        if words(a) != words(b):
            yield name, words(a), words(b)


def is_number(leaf: Any) -> bool:
    """Return whether jax accepts a leaf as an array of numbers, bools or typed keys."""
    if isinstance(leaf, (jax.Array, bool, int, float)):
        return True
    return isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "biuf"


def as_numpy(leaf: Any) -> np.ndarray:
    """Return a leaf as a NumPy array; typed keys as their key data."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def find(wrong: np.ndarray) -> tuple[int, ...] | None:
    """Return the index of the first true element, or None."""
    return next((tuple(map(int, index)) for index in np.argwhere(wrong)), None)


def element(index: tuple[int, ...]) -> str:
    """Return the suffix of a leaf's name for the index of an element."""
    return f"[{', '.join(map(str, index))}]" if index else ""


def words(leaf: Any) -> str:
    """Return "float32 of shape (3,)" for an array, the name of the type for anything else."""
    return f"{leaf.dtype} of shape {leaf.shape}" if hasattr(leaf, "shape") else type(leaf).__name__
