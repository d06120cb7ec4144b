"""Search of one program for nearest neighbors.

One program finds the k nearest neighbors of ROWS agents, one per lane, in one pass over others: all
agents (neighbors.py), or those in windows of places (cells.py). A place is a position in memory.

1. A key is an int32: the bits of the squared float32 distance, with the low bits replaced by the
   agent's place. Comparing keys orders by distance first and by place second.
2. Agents are read in blocks of 2^n. A sorting network sorts the keys of a block and merges them
   with the 2^n keys kept from earlier blocks. The smallest 2^n of both are kept.
3. The first k + SPARE keys are sorted by exact float32 distance, lower index first, by a few
   exchanges of adjacent keys.
4. The result is exact if these exchanges sorted the keys, and if the next key, with its index bits
   cleared, is farther than the k-th neighbor. If the next key is not (several agents in one corner,
   for example), the program counts the agents before the k-th neighbor by exact distances. If some
   are missing, or the exchanges were not enough, it repeats the search by insertion, at several
   times the cost. In cells, agents in one point need neither: their keys are exact.

For k > MAX_SORTED the sorting networks take about a minute to compile, so the program searches by
insertion only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas

ROWS = 32  # agents per program, one per lane of one warp
SPARE = 3  # additional sorted keys: the agent itself, and two that make insertion rarely necessary
MAX_SORTED = 13  # with SPARE, the sorting networks have 16 keys
BLOCK = 4  # agents that are counted at once, a divisor of `block_size`
NOBODY = 2**31 - 1  # a key larger than any agent's
INFINITE = 0x7F800000  # bits of an infinite distance: keys from here on belong to no agent


class Others(NamedTuple):
    """Agents that a program compares with its own, by place: the order in which they are stored."""

    square: Callable[[jax.Array], jax.Array]
    """place () -> squared distances [ROWS] to the agent there, 0 to itself"""
    distance: Callable[[jax.Array], jax.Array]
    """place () or [ROWS] -> distances [ROWS] to the agent there, infinite to itself"""
    index_of: Callable[[jax.Array], jax.Array]
    """place () or [ROWS] -> index of the agent there"""
    walk: Callable[[Callable, Any], Any]
    """(merge, held) -> held, after `merge(begin, end, held) -> (held, end)` of all windows of
    places; the second `end` is the place after those that it merged, at least the first one"""
    first: jax.Array | int  # lowest place
    bits: int  # 2^n - 1: low bits of a key, which contain the place after the first one
    fits: jax.Array | bool  # whether all places fit into these bits
    exact_zeros: jax.Array | bool = False
    """whether a key without distance bits means the same position; agents at equal positions are
    then stored by ascending index"""


def nearest(
    x_ref, y_ref, scene_ref, rows: jax.Array, num_agents: int, k: int
) -> tuple[jax.Array, ...]:
    """Return the indices of the k nearest neighbors, each [ROWS] int32, -1 for none."""
    num_places = num_places_of(num_agents, k)
    others = Others(
        *distances_to(x_ref, y_ref, scene_ref, rows, num_places),
        index_of=lambda place: place,
        walk=lambda merge, held: merge(0, num_agents, held)[0],
        first=0,
        bits=low_bits(num_agents),
        fits=True,
    )
    return search(others, k, num_agents - 1)


def distances_to(
    x_ref, y_ref, scene_ref, rows: jax.Array, num_places: int
) -> tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array], jax.Array]]:
    """Return `Others.square` and `Others.distance`.

    Args:
        x_ref: [N] float32, by place, as y_ref.
        y_ref: see x_ref.
        scene_ref: [2 num_places] float32, x of all places, infinite without an active agent,
            and then y.
        rows: [ROWS] int32, places of the agents that search.
        num_places: at least N, and at least the end of every block.
    """
    x, y = pallas.load(x_ref.at[rows]), pallas.load(y_ref.at[rows])

    def square(j: jax.Array) -> jax.Array:
        dx, dy = x - pallas.load(scene_ref.at[j]), y - pallas.load(scene_ref.at[num_places + j])
        return dx * dx + dy * dy

    def distance(j: jax.Array) -> jax.Array:
        return jnp.where(rows == j, jnp.inf, jnp.sqrt(square(j)))

    return square, distance


def search(others: Others, k: int, last: jax.Array | int) -> tuple[jax.Array, ...]:
    """Return the indices of the k nearest neighbors, each [ROWS] int32, -1 for none.

    Args:
        others: all agents that can be neighbors, and maybe further ones.
        k: number of neighbors.
        last: highest place of an agent.
    """
    if k > MAX_SORTED:
        return _nearest_by_insertion(others, k)[1]
    keys = smallest_keys(others, k)
    num_sorted = min(k + SPARE, len(keys))
    distances, indices, is_sorted = _sort_nearly_sorted(others, keys[:num_sorted], last)
    next_key = keys[min(num_sorted, len(keys) - 1)]
    # exact if no agent remains, if all others are farther than the k-th neighbor (the smallest
    # squared distance with the next key has zeros in place of the index), or if the next key has
    # distance 0, and hence also the k nearest
    is_exact = next_key >= INFINITE
    next_square = jax.lax.bitcast_convert_type(next_key & ~others.bits, jnp.float32)
    is_exact |= jnp.sqrt(next_square) > distances[k - 1]
    is_exact |= others.exact_zeros & (next_square == 0)
    is_sorted = _in_all_lanes(is_sorted & others.fits)
    has_all = jax.lax.cond(
        _in_all_lanes(is_exact) | ~is_sorted,
        lambda: is_sorted,
        lambda: _in_all_lanes(_are_nearest(others, distances[:k], indices[:k], last)),
    )
    return jax.lax.cond(
        has_all, lambda: tuple(indices[:k]), lambda: _nearest_by_insertion(others, k)[1]
    )


def distance_bound(others: Others, k: int) -> jax.Array:
    """Return an upper bound of the distance of the k-th neighbor, [ROWS], inf if there are fewer.

    It is exact, or, if keys are sorted, about the distance of the k + 1st of the `others`.
    """
    if k > MAX_SORTED:
        return _nearest_by_insertion(others, k)[0][k - 1]
    key = smallest_keys(others, k)[k]
    square = jax.lax.bitcast_convert_type(key | others.bits, jnp.float32)
    return jnp.where(key < INFINITE, jnp.sqrt(square), jnp.inf)


def num_places_of(num_agents: int, k: int) -> int:
    """Return the number of agents, padded to whole blocks."""
    return pallas.cdiv(num_agents, block_size(k)) * block_size(k)


def block_size(k: int) -> int:
    """Return 2^n, the number of agents per block and of kept keys (at least k + SPARE)."""
    return 1 << (k + SPARE - 1).bit_length()


def low_bits(num_places: int) -> int:
    """Return a mask of the bits of a key that contain the place."""
    return (1 << max(num_places - 1, 1).bit_length()) - 1


def smallest_keys(others: Others, k: int) -> list[jax.Array]:
    """Return the smallest keys of every row, ascending, each [ROWS] int32.

    They include the key of the agent itself.
    """
    size = block_size(k)

    def merge(place: jax.Array, kept: tuple) -> tuple:
        squares = [others.square(place + i) for i in range(size)]
        bits = [jax.lax.bitcast_convert_type(square, jnp.int32) for square in squares]
        number = place - others.first
        keys = _sort([(key & ~others.bits) | (number + i) for i, key in enumerate(bits)])
        return tuple(
            _merge_bitonic([jax.lax.min(a, b) for a, b in zip(kept, reversed(keys), strict=True)])
        )

    start = (jnp.full((ROWS,), NOBODY, jnp.int32),) * size
    return list(_walk_blocks(others, size, merge, start))


def _walk_blocks(others: Others, size: int, merge: Callable, held: Any) -> Any:
    """Call `merge(place, held) -> held` for the first place of each block of `size` places."""

    def merge_window(begin: jax.Array | int, end: jax.Array | int, held: Any) -> tuple:
        num_blocks = (end - begin + size - 1) // size

        def merge_block(block: jax.Array, held: Any) -> Any:
            # loops count in int64 with jax_enable_x64
            return merge(begin + block.astype(jnp.int32) * size, held)

        return jax.lax.fori_loop(0, num_blocks, merge_block, held), begin + num_blocks * size

    return others.walk(merge_window, held)


def _sort(keys: list[jax.Array]) -> list[jax.Array]:
    """Sort 2^n keys in each lane with Batcher's odd-even mergesort network."""
    if len(keys) == 1:
        return keys
    half = len(keys) // 2
    return _merge_odd_even(_sort(keys[:half]) + _sort(keys[half:]))


def _merge_odd_even(keys: list[jax.Array]) -> list[jax.Array]:
    """Merge the two halves, each sorted, of a list of 2^n keys."""
    if len(keys) == 2:
        return [jax.lax.min(*keys), jax.lax.max(*keys)]
    even, odd = _merge_odd_even(keys[::2]), _merge_odd_even(keys[1::2])
    middle = [
        extreme(a, b)
        for a, b in zip(odd, even[1:], strict=False)
        for extreme in (jax.lax.min, jax.lax.max)
    ]
    return [even[0], *middle, odd[-1]]


def _merge_bitonic(keys: list[jax.Array]) -> list[jax.Array]:
    """Sort a bitonic sequence of 2^n keys: ascending and then descending, or the reverse."""
    if len(keys) == 1:
        return keys
    half = len(keys) // 2
    low, high = keys[:half], keys[half:]
    return _merge_bitonic(list(map(jax.lax.min, low, high))) + _merge_bitonic(
        list(map(jax.lax.max, low, high))
    )


def _sort_nearly_sorted(
    others: Others, keys: list[jax.Array], last: jax.Array | int
) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    """Sort keys by exact distance, lower index first, with two passes of adjacent exchanges.

    The first pass also moves the agent itself, at an infinite distance, to the end.

    Returns:
        (distances, indices, whether they are in order [ROWS] bool). Missing neighbors have an
        infinite distance and index -1.
    """
    places = [jnp.minimum(others.first + (key & others.bits), last) for key in keys]
    distances = [
        jnp.where(key < INFINITE, others.distance(place), jnp.inf)
        for key, place in zip(keys, places, strict=True)
    ]
    indices = [
        jnp.where(far < jnp.inf, others.index_of(place), -1)
        for far, place in zip(distances, places, strict=True)
    ]
    for i in range(len(keys) - 1):  # moves the agent itself to the end
        _exchange(distances, indices, i)
    for i in range(len(keys) - 3, -1, -1):
        _exchange(distances, indices, i)
    in_order = jnp.ones((ROWS,), bool)
    for i in range(len(keys) - 1):
        in_order &= ~_is_behind(distances, indices, i)
    return distances, indices, in_order


def _is_behind(distances: list[jax.Array], indices: list[jax.Array], i: int) -> jax.Array:
    """Return whether element i + 1 belongs before element i."""
    return _is_before(distances[i + 1], indices[i + 1], distances[i], indices[i])


def _exchange(distances: list[jax.Array], indices: list[jax.Array], i: int) -> None:
    """Put elements i and i + 1 in order, in place."""
    behind = _is_behind(distances, indices, i)
    for values in (distances, indices):
        values[i], values[i + 1] = (
            jax.lax.select(behind, values[i + 1], values[i]),
            jax.lax.select(behind, values[i], values[i + 1]),
        )


def _are_nearest(
    others: Others,
    distances: list[jax.Array],
    indices: list[jax.Array],
    last: jax.Array | int,
) -> jax.Array:
    """Return whether no other agent is nearer than the last of k sorted neighbors, [ROWS] bool."""

    def count(place: jax.Array, num_before: jax.Array) -> jax.Array:
        for i in range(BLOCK):
            # places of a block after the last one are infinitely far
            far = others.distance(place + i)
            index = others.index_of(jnp.minimum(place + i, last))
            is_before = _is_before(far, index, distances[-1], indices[-1])
            num_before += is_before.astype(jnp.int32)
        return num_before

    num_before = _walk_blocks(others, BLOCK, count, jnp.zeros((ROWS,), jnp.int32))
    num_found = sum((far < jnp.inf).astype(jnp.int32) for far in distances[:-1])
    return num_before == num_found


def _in_all_lanes(flag: jax.Array) -> jax.Array:
    """Return whether a flag is true in all lanes, () bool."""
    return jnp.min(flag.astype(jnp.int32)) > 0


def _nearest_by_insertion(
    others: Others, k: int
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Return the k smallest exact distances and their indices; lower index first on ties."""

    def put(held: tuple, far: jax.Array, index: jax.Array) -> tuple:
        new_distances, new_indices = [], []
        distances, indices = held
        nearer = [_is_before(far, index, *other) for other in zip(*held, strict=True)]
        for i in range(k):  # `nearer` is true from the position of the new one on
            moved = nearer[i - 1] if i else jnp.zeros((ROWS,), bool)
            before = (distances[i - 1], indices[i - 1]) if i else (far, index)
            at = jax.lax.select(moved, before[0], far), jax.lax.select(moved, before[1], index)
            new_distances.append(jax.lax.select(nearer[i], at[0], distances[i]))
            new_indices.append(jax.lax.select(nearer[i], at[1], indices[i]))
        return tuple(new_distances), tuple(new_indices)

    def insert(j: jax.Array, held: tuple) -> tuple:
        j = j.astype(jnp.int32)
        far, index = others.distance(j), jnp.full((ROWS,), others.index_of(j), jnp.int32)
        is_near = _is_before(far, index, held[0][-1], held[1][-1])
        return jax.lax.cond(
            jnp.max(is_near.astype(jnp.int32)) > 0, put, lambda held, *_: held, held, far, index
        )

    def merge(begin: jax.Array | int, end: jax.Array | int, held: tuple) -> tuple:
        return jax.lax.fori_loop(begin, end, insert, held), end

    start = (jnp.full((ROWS,), jnp.inf, jnp.float32),) * k, (jnp.full((ROWS,), -1, jnp.int32),) * k
    return others.walk(merge, start)


def _is_before(
    distance: jax.Array, index: jax.Array, other: jax.Array, other_index: jax.Array
) -> jax.Array:
    """Return whether an agent is nearer than another one, or as near and has a lower index."""
    return (distance < other) | ((distance == other) & (index < other_index) & (distance < jnp.inf))
