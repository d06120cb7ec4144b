"""Nearest neighbors on NVIDIA GPUs: one kernel instead of a distance matrix and `lax.top_k`.

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

`neighbor_rows_kernel` also writes rows with the features of the neighbors, in which consecutive
lanes write consecutive columns.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.support import decide, why_no_kernels

ROWS = 32  # agents per program, one per lane of one warp
SPARE = 3  # additional sorted keys: the agent itself, and two that make insertion rarely necessary
TILE = 8, 32  # agents and columns of rows that are written at once
MAX_NEIGHBORS = 32  # limited by registers, which hold all keys
MAX_SORTED = 13  # with SPARE, the sorting networks have 16 keys
# limits the relative error of a squared distance due to the index bits, to 2^14 / 2^23
MAX_AGENTS = 2**14
NOBODY = 2**31 - 1  # a key larger than any agent's
INFINITE = 0x7F800000  # bits of an infinite distance: keys from here on belong to no agent


def is_supported(num_agents: int, k: int) -> bool:
    """Return whether the kernel supports this size."""
    return 0 < k <= MAX_NEIGHBORS and num_agents <= MAX_AGENTS


def is_by_kernel(num_agents: int, k: int) -> bool:
    """Return whether the kernel searches the k nearest neighbors on this machine.

    The decision is recorded for `support.listening`.
    """
    limits = f"{k} of {num_agents:,} agents: kernels find up to {MAX_NEIGHBORS} of {MAX_AGENTS:,}"
    return decide("nearest neighbours", why_no_kernels() if is_supported(num_agents, k) else limits)


# jit: traced once, even if called several times in a step
@functools.partial(jax.jit, static_argnames=("k", "interpret"))
def nearest_neighbors_kernel(
    x: jax.Array, y: jax.Array, active: jax.Array, k: int, interpret: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Find the k nearest active neighbors of every agent, like `wdjax.neighbors.nearest_neighbors`.

    Args:
        x: [N] float32, positions.
        y: [N] float32, positions.
        active: [N] bool, agents that can be neighbors.
        k: number of neighbors.
        interpret: run step by step in XLA, on any device, for tests.

    Returns:
        (index [N, k] int32, found [N, k] bool).
    """
    num_agents = x.shape[0]
    index = _call(
        functools.partial(_index_kernel, num_agents=num_agents, k=k),
        jax.ShapeDtypeStruct((num_agents, k), jnp.int32),
        num_agents,
        interpret,
    )(x, y, _scene(x, y, active, k))
    return jnp.maximum(index, 0), index >= 0


@functools.partial(jax.jit, static_argnames=("k", "num_relative", "sizes", "interpret"))
def neighbor_rows_kernel(
    x: jax.Array,
    y: jax.Array,
    active: jax.Array,
    features: jax.Array,
    own: jax.Array,
    k: int,
    num_relative: int,
    sizes: tuple[int, ...],
    interpret: bool = False,
) -> tuple[jax.Array, ...]:
    """Write rows with the features of neighbors, like `wdjax.neighbors.neighbor_rows`.

    Args:
        x: [N] float32, positions.
        y: [N] float32, positions.
        active: [N] bool.
        features: [N, F] float32, features that other agents observe.
        own: [N, C] float32, features that only the agent itself observes.
        k: number of neighbors.
        num_relative: number of leading features that are differences to the agent's own.
        sizes: number of agents of each group, N in all.
        interpret: run step by step in XLA, on any device, for tests.

    Returns:
        Rows of each group, [size, F k + C] float32.
    """
    num_agents, num_features = features.shape
    width = num_features * k + own.shape[1]
    kernel = functools.partial(
        _rows_kernel,
        num_agents=num_agents,
        k=k,
        num_features=num_features,
        num_relative=num_relative,
        sizes=sizes,
        interpret=interpret,
    )
    shapes = (
        jax.ShapeDtypeStruct((num_agents, k), jnp.int32),
        *(jax.ShapeDtypeStruct((size, width), jnp.float32) for size in sizes),
    )
    table = jnp.concatenate([features, own], axis=1)  # features of an agent are contiguous
    scene = _scene(x, y, active, k, table.reshape(-1))
    return tuple(_call(kernel, shapes, num_agents, interpret)(x, y, scene)[1:])


def _call(kernel: Callable, shapes: Any, num_agents: int, interpret: bool) -> Callable:
    grid = (pallas.cdiv(num_agents, ROWS),)
    return pallas.call(
        kernel, "nearest_neighbors", shapes, grid, warps=1, stages=1, interpret=interpret
    )


def _scene(x: jax.Array, y: jax.Array, active: jax.Array, k: int, *more: jax.Array) -> jax.Array:
    """Return one flat array with everything that programs read about other agents.

    It contains x and y, each padded to whole blocks, and then `more`. x is infinite for inactive
    agents and padding. The data is in one array because XLA would launch a kernel to write each of
    several arrays.
    """
    beyond = _num_places(x.shape[0], k) - x.shape[0]
    far, y = (
        jnp.pad(jnp.where(active, place, jnp.inf), (0, beyond), constant_values=jnp.inf)
        for place in (x, y)
    )
    return jnp.concatenate([far, y, *more])


def _num_places(num_agents: int, k: int) -> int:
    """Return the number of agents, padded to whole blocks."""
    return pallas.cdiv(num_agents, _block_size(k)) * _block_size(k)


# --- the kernels ---


def _index_kernel(x_ref, y_ref, scene_ref, index_ref, *, num_agents: int, k: int) -> None:
    """Write the indices of the neighbors of ROWS agents, [ROWS, k], -1 for none."""
    rows = _own_rows(num_agents)
    for place, index in enumerate(_nearest(x_ref, y_ref, scene_ref, rows, num_agents, k)):
        pallas.store(index_ref.at[rows, place], index)


def _rows_kernel(
    x_ref,
    y_ref,
    scene_ref,
    index_ref,
    *rows_refs,
    num_agents: int,
    k: int,
    num_features: int,
    num_relative: int,
    sizes: tuple[int, ...],
    interpret: bool,
) -> None:
    """Write the neighbor indices of ROWS agents, and then their feature rows.

    `rows_refs` contains the feature rows of each group, [size, width].
    """
    rows = _own_rows(num_agents)
    is_active = pallas.load(scene_ref.at[rows]) < jnp.inf
    for place, index in enumerate(_nearest(x_ref, y_ref, scene_ref, rows, num_agents, k)):
        pallas.store(index_ref.at[rows, place], jnp.where(is_active, index, -1))
    if not interpret:
        pallas.debug_barrier()  # the next loads read indices stored by other lanes
    width = rows_refs[0].shape[1]
    read = functools.partial(
        _read_tile,
        scene_ref,
        index_ref,
        first=2 * _num_places(num_agents, k),
        width=width,
        k=k,
        num_features=num_features,
        num_relative=num_relative,
    )
    first, start = pallas.program_id() * ROWS, 0
    for rows_ref, size in zip(rows_refs, sizes, strict=True):
        begin, end = jnp.maximum(first, start), jnp.minimum(first + ROWS, start + size)

        def write(
            tile: jax.Array, _: None, rows_ref=rows_ref, start=start, begin=begin, end=end
        ) -> None:
            agent = begin + tile * TILE[0] + jax.lax.broadcasted_iota(jnp.int32, TILE, 0)
            first_columns = range(0, width, TILE[1])
            # load everything first, because a load would wait for an earlier store
            values = [
                read(jnp.minimum(agent, end - 1), first_column) for first_column in first_columns
            ]
            for first_column, value in zip(first_columns, values, strict=True):
                column = first_column + jax.lax.broadcasted_iota(jnp.int32, TILE, 1)
                pallas.store(
                    rows_ref.at[agent - start, column], value, mask=(agent < end) & (column < width)
                )

        num_tiles = jnp.maximum(end - begin + TILE[0] - 1, 0) // TILE[0]
        jax.lax.fori_loop(0, num_tiles, write, None)
        start += size


def _read_tile(
    scene_ref,
    index_ref,
    agent: jax.Array,
    first_column: int,
    *,
    first: int,
    width: int,
    k: int,
    num_features: int,
    num_relative: int,
) -> jax.Array:
    """Return TILE columns of rows: neighbors feature by feature, then the agent's own features.

    Args:
        scene_ref: see `_scene`.
        index_ref: [N, k] int32, indices of the neighbors, -1 for none.
        agent: TILE int32, the agents.
        first_column: first column of the tile.
        first: start of the feature table in the scene.
        width: columns of a row.
        k: number of neighbors.
        num_features: features of a neighbor.
        num_relative: leading features that are differences to the agent's own.
    """
    num_columns = width - num_features * (k - 1)
    column = first_column + jax.lax.broadcasted_iota(jnp.int32, TILE, 1)
    written = column < width
    is_neighbor = column < num_features * k
    feature = jnp.where(is_neighbor, jax.lax.div(column, k), column - num_features * (k - 1))
    other = pallas.load(
        index_ref.at[agent, jax.lax.rem(column, k)], mask=written & is_neighbor, other=-1
    )
    source = jnp.where(is_neighbor, other, agent)
    seen = written & (source >= 0)
    value = pallas.load(scene_ref.at[first + source * num_columns + feature], mask=seen, other=0.0)
    if first_column >= num_relative * k:
        return value
    place = first + agent * num_columns + feature
    own = pallas.load(scene_ref.at[place], mask=written & (feature < num_relative), other=0.0)
    return jnp.where(seen, value - own, 0.0)


def _own_rows(num_agents: int) -> jax.Array:
    """Return the agent of each lane; lanes beyond the last agent repeat it and write the same."""
    rows = pallas.program_id() * ROWS + jax.lax.broadcasted_iota(jnp.int32, (ROWS,), 0)
    return jnp.minimum(rows, num_agents - 1)


# --- the search ---


def _nearest(
    x_ref, y_ref, scene_ref, rows: jax.Array, num_agents: int, k: int
) -> tuple[jax.Array, ...]:
    """Return the indices of the k nearest neighbors, each [ROWS] int32, -1 for none."""
    x, y = pallas.load(x_ref.at[rows]), pallas.load(y_ref.at[rows])
    num_places = _num_places(num_agents, k)

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
    # exact if no agent remains, or if all others are farther than the k-th neighbor
    is_exact = (next_key >= INFINITE) | (
        jnp.sqrt(_square_of(next_key, num_agents)) > distances[k - 1]
    )
    return jax.lax.cond(
        jnp.min((is_exact & is_sorted).astype(jnp.int32)) > 0,
        lambda: tuple(indices[:k]),
        lambda: _nearest_by_insertion(distance, num_agents, k),
    )


def _block_size(k: int) -> int:
    """Return 2^n, the number of agents per block and of kept keys (at least k + SPARE)."""
    return 1 << (k + SPARE - 1).bit_length()


def _low_bits(num_agents: int) -> int:
    """Return a mask of the bits of a key that contain the index."""
    return (1 << max(num_agents - 1, 1).bit_length()) - 1


def _square_of(key: jax.Array, num_agents: int) -> jax.Array:
    """Return the smallest squared distance that has this key."""
    return jax.lax.bitcast_convert_type(key & ~_low_bits(num_agents), jnp.float32)


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
