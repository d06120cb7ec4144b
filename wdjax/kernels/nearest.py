"""The search of the kernels for nearest neighbors (neighbors.py), by one program.

One program finds the k nearest neighbors of ROWS agents, one per lane, in one pass over all agents:

1. A key is an int32: the bits of the squared float32 distance, with the low bits replaced by the
   agent's index. Comparing keys orders by distance first and by index second.
2. Agents are read in blocks of 2^n. A sorting network sorts the keys of a block and merges them
   with the 2^n keys kept from earlier blocks. The smallest 2^n of both are kept.
3. The first k + SPARE keys are sorted by exact float32 distance, lower index first, by a few
   exchanges of adjacent keys.
4. The result is exact if these exchanges sorted the keys, and if the next key, with its index bits
   cleared, is farther than the k-th neighbor. If not (ties, or distances that differ only in the
   replaced bits), the program repeats the search by insertion with exact distances, at several
   times the cost.

For k > MAX_SORTED the sorting networks take about a minute to compile, so the program searches by
insertion only.
"""

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas

ROWS = 32  # agents per program, one per lane of one warp
SPARE = 3  # additional sorted keys: the agent itself, and two that make insertion rarely necessary
MAX_SORTED = 13  # with SPARE, the sorting networks have 16 keys
NOBODY = 2**31 - 1  # a key larger than any agent's
INFINITE = 0x7F800000  # bits of an infinite distance: keys from here on belong to no agent


def nearest(
    x_ref, y_ref, scene_ref, rows: jax.Array, num_agents: int, k: int
) -> tuple[jax.Array, ...]:
    """Return the indices of the k nearest neighbors, each [ROWS] int32, -1 for none."""
    x, y = pallas.load(x_ref.at[rows]), pallas.load(y_ref.at[rows])
    num_places = num_places_of(num_agents, k)

    def square(j: jax.Array) -> jax.Array:
        """Return the squared distance of every row to agent j, 0 to itself."""
        dx, dy = x - pallas.load(scene_ref.at[j]), y - pallas.load(scene_ref.at[num_places + j])
        return dx * dx + dy * dy

    def distance(j: jax.Array) -> jax.Array:
        """Return the distance of every row to agent j, infinite to itself."""
        return jnp.where(rows == j, jnp.inf, jnp.sqrt(square(j)))

    if k > MAX_SORTED:
        return _nearest_by_insertion(distance, num_agents, k)
    keys = _smallest_keys(square, num_agents, k)
    num_sorted = min(k + SPARE, len(keys))
    distances, indices, is_sorted = _sort_nearly_sorted(distance, keys[:num_sorted], num_agents)
    next_key = keys[min(num_sorted, len(keys) - 1)]
    # exact if no agent remains, or if all others are farther than the k-th neighbor: the smallest
    # squared distance with the next key has zeros in place of the index
    is_exact = next_key >= INFINITE
    next_square = jax.lax.bitcast_convert_type(next_key & ~_low_bits(num_agents), jnp.float32)
    is_exact |= jnp.sqrt(next_square) > distances[k - 1]
    return jax.lax.cond(
        jnp.min((is_exact & is_sorted).astype(jnp.int32)) > 0,
        lambda: tuple(indices[:k]),
        lambda: _nearest_by_insertion(distance, num_agents, k),
    )


def num_places_of(num_agents: int, k: int) -> int:
    """Return the number of agents, padded to whole blocks."""
    return pallas.cdiv(num_agents, _block_size(k)) * _block_size(k)


def _block_size(k: int) -> int:
    """Return 2^n, the number of agents per block and of kept keys (at least k + SPARE)."""
    return 1 << (k + SPARE - 1).bit_length()


def _low_bits(num_agents: int) -> int:
    """Return a mask of the bits of a key that contain the index."""
    return (1 << max(num_agents - 1, 1).bit_length()) - 1


def _smallest_keys(square, num_agents: int, k: int) -> list[jax.Array]:
    """Return the smallest keys of every row, ascending, each [ROWS] int32.

    They include the key of the agent itself.
    """
    low, size = _low_bits(num_agents), _block_size(k)

    def merge_block(block: jax.Array, kept: tuple) -> tuple:
        first = block.astype(jnp.int32) * size  # loops count in int64 with jax_enable_x64
        bits = [jax.lax.bitcast_convert_type(square(first + i), jnp.int32) for i in range(size)]
        keys = _sort([(key & ~low) | (first + i) for i, key in enumerate(bits)])
        return tuple(
            _merge_bitonic([jax.lax.min(a, b) for a, b in zip(kept, reversed(keys), strict=True)])
        )

    start = (jnp.full((ROWS,), NOBODY, jnp.int32),) * size
    return list(jax.lax.fori_loop(0, pallas.cdiv(num_agents, size), merge_block, start))


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
    distance, keys: list[jax.Array], num_agents: int
) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    """Sort keys by exact distance, lower index first, with two passes of adjacent exchanges.

    The first pass also moves the agent itself, at an infinite distance, to the end.

    Returns:
        (distances, indices, whether they are in order [ROWS] bool). Missing neighbors have an
        infinite distance and index -1.
    """
    low = _low_bits(num_agents)
    places = [jnp.minimum(key & low, num_agents - 1) for key in keys]
    distances = [
        jnp.where(key < INFINITE, distance(place), jnp.inf)
        for key, place in zip(keys, places, strict=True)
    ]
    indices = [
        jnp.where(far < jnp.inf, place, -1) for far, place in zip(distances, places, strict=True)
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
    return (distances[i + 1] < distances[i]) | (
        (distances[i + 1] == distances[i])
        & (indices[i + 1] < indices[i])
        & (distances[i] < jnp.inf)
    )


def _exchange(distances: list[jax.Array], indices: list[jax.Array], i: int) -> None:
    """Put elements i and i + 1 in order, in place."""
    behind = _is_behind(distances, indices, i)
    for values in (distances, indices):
        values[i], values[i + 1] = (
            jax.lax.select(behind, values[i + 1], values[i]),
            jax.lax.select(behind, values[i], values[i + 1]),
        )


def _nearest_by_insertion(distance, num_agents: int, k: int) -> tuple[jax.Array, ...]:
    """Return the k nearest indices by exact distance, by insertion; lower index first on ties."""

    def insert(j: jax.Array, held: tuple) -> tuple:
        distances, indices = held
        far, j = distance(j), jnp.full((ROWS,), j, jnp.int32)
        nearer = [far < other for other in distances]  # True from the position of j on
        new_distances, new_indices = [], []
        for i in range(k):
            moved = nearer[i - 1] if i else jnp.zeros((ROWS,), bool)
            before = (distances[i - 1], indices[i - 1]) if i else (far, j)
            at = jax.lax.select(moved, before[0], far), jax.lax.select(moved, before[1], j)
            new_distances.append(jax.lax.select(nearer[i], at[0], distances[i]))
            new_indices.append(jax.lax.select(nearer[i], at[1], indices[i]))
        return tuple(new_distances), tuple(new_indices)

    start = (jnp.full((ROWS,), jnp.inf, jnp.float32),) * k, (jnp.full((ROWS,), -1, jnp.int32),) * k
    return jax.lax.fori_loop(0, num_agents, insert, start)[1]
