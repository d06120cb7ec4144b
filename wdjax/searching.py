"""Searches in arrays that XLA compiles to few kernels."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

NOTHING = jnp.inf, 2**31 - 1  # behind all other pairs


def smallest_pairs(
    distance: jax.Array, index: jax.Array, k: int, axes: tuple[int, ...]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Reduce to the k smallest pairs (distance, index), by distance and then by index.

    The reduction merges ascending lists of k pairs. Its operands are lists of one pair and of
    constants, for which the compiler reduces a merge to one insertion. For two axes that are not
    adjacent, XLA writes one loop per thread, with the list in registers, if the last axis is
    shorter than 32 and no divisor of 32.

    Args:
        distance: float32.
        index: int32, of the same shape.
        k: number of pairs.
        axes: axes to reduce.

    Returns:
        k distances and k indices, ascending, without the axes; NOTHING for missing pairs.
    """

    def merge(one: tuple, other: tuple) -> tuple:
        held = list(zip(*one, strict=True))
        for i, new in enumerate(zip(*other, strict=True)):  # belongs at i or later
            rest = held[i:]
            first = [(new[0] < far) | ((new[0] == far) & (new[1] < j)) for far, j in rest]
            shifted = [_select(*args, new) for args in zip(first, rest, strict=True)]
            held[i:] = map(_select, first, [new, *shifted[:-1]], rest)
        return tuple(map(list, zip(*held, strict=True)))

    fillers = jnp.float32(NOTHING[0]), jnp.int32(NOTHING[1])
    operands = tuple(
        [values, *[jnp.full_like(values, filler)] * (k - 1)]
        for values, filler in zip((distance, index), fillers, strict=True)
    )
    return jax.lax.reduce(operands, tuple([filler] * k for filler in fillers), merge, axes)


def count_below(
    values: jax.Array, begin: jax.Array, size: jax.Array | int, most: int, target: jax.Array
) -> jax.Array:
    """Return how many of the ascending values[begin : begin + size] are less than the target.

    Args:
        values: [V].
        begin: int32.
        size: number of values, at most `most`.
        most: number that determines the steps of the binary search.
        target: of a shape that broadcasts to that of `begin`.
    """
    count = jnp.zeros_like(begin)
    for bit in reversed(range(most.bit_length())):
        more = count + (1 << bit)
        is_below = take(values, begin + more - 1) < target
        count = jnp.where((more <= size) & is_below, more, count)
    return count


def pieces(length: int) -> jax.Array:
    """Return the numbers to `length` or a bit more, in rows of a length that XLA reduces fast.

    These are less than 32, and no divisor of 32: XLA would use a warp for each row.
    """
    num_pieces = -(-length // 30)
    piece = 3 * -(-length // (3 * num_pieces))
    return jnp.arange(num_pieces * piece, dtype=jnp.int32).reshape(num_pieces, piece)


def take(values: jax.Array, place: jax.Array) -> jax.Array:
    """Return values[place], with places beyond an end moved there."""
    return values.at[place].get(mode="clip", wrap_negative_indices=False)


def repair(
    search: Callable[[Any], tuple[jax.Array, jax.Array]],
    rows: Any,
    result: jax.Array,
    exact: jax.Array,
    num_rows: int,
) -> tuple[jax.Array, jax.Array]:
    """Replace the results that are not exact, `num_rows` at once.

    Args:
        search: returns (result, exact) of some rows.
        rows: pytree of arrays [Q, ...], the arguments of `search`.
        result: [Q, ...], results so far.
        exact: [Q] bool.
        num_rows: rows of a call of `search`.

    Returns:
        (result [Q, ...], exact [Q] bool).
    """
    num_results = exact.size
    num_rows = min(num_results, num_rows)
    order = jnp.cumsum(~exact, dtype=jnp.int32)

    def repair_block(carry: tuple) -> tuple:
        start, *old = carry
        number = start + jnp.arange(1, num_rows + 1, dtype=jnp.int32)
        first = jnp.zeros_like(number)
        place = count_below(order, first, num_results, num_results, number)  # num_results: none
        new = search(jax.tree.map(lambda values: take(values, place), rows))
        pairs = zip(old, new, strict=True)
        return start + num_rows, *(a.at[place].set(b, mode="drop") for a, b in pairs)

    start = jnp.int32(0), result, exact
    return jax.lax.while_loop(lambda carry: carry[0] < order[-1], repair_block, start)[1:]


def _select(condition: jax.Array, ones: tuple, others: tuple) -> tuple:
    return tuple(map(functools.partial(jax.lax.select, condition), ones, others))
