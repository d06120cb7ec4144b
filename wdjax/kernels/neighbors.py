"""The nearest neighbours on NVIDIA GPUs: one Pallas (Triton) kernel in place of a matrix of distances and its sort.

A program finds the neighbours of ROWS agents, a lane each, in one pass over the others. A key is the squared distance
with the low bits of its float given up for the index, so that one integer orders both. The others come in blocks of a
power of two: the keys of a block are sorted by a network of minima and maxima, and the smaller half of them and of
those kept so far is merged into those kept next. Then the first k + SPARE are ordered by the exact float32 distance,
lower index first, which takes a few exchanges of neighbours. That is right unless it takes more than these, or somebody
who is not among them may be as near as the k-th: the distance that the next key stands for, its given-up bits cleared,
tells. Where it may be so (ties, or a crowd within the given-up bits), the program starts over with exact distances and
indices apart, at several times the cost.

That is for few neighbours: of more than MAX_SORTED the networks take a minute to compile, and exact distances are
searched at once.

Where rows of the neighbours' features are asked for, the program goes on to write them, lanes along a row.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.support import decide, why_no_kernels

ROWS = 32  # agents of a program: one a lane of one warp
SPARE = 3  # sorted beyond k: oneself, and two so that the exact pass is rare
TILE = 8, 32  # agents and columns of a row that are written at once
MAX_NEIGHBORS = 32  # all that is kept stays in registers
MAX_SORTED = 13  # of so many, with SPARE, the networks have 16 keys
# the index takes the place of this many steps of a squared distance: relative, 2^14 / 2^23
MAX_AGENTS = 2**14
NOBODY = 2**31 - 1  # larger than every key
INFINITE = 0x7F800000  # the bits of an infinite distance: keys from here on are nobody's


def is_supported(num_agents: int, k: int) -> bool:
    """Returns whether the kernel takes this size; larger ones are XLA's."""
    return 0 < k <= MAX_NEIGHBORS and num_agents <= MAX_AGENTS


def is_by_kernel(num_agents: int, k: int) -> bool:
    """Returns whether the kernel finds so many of so many, here; tells who listens."""
    limits = f"{k} of {num_agents:,} agents: a kernel finds up to {MAX_NEIGHBORS} of {MAX_AGENTS:,}"
    return decide("nearest neighbours", why_no_kernels() if is_supported(num_agents, k) else limits)


# traced once for all of its places in a step
@functools.partial(jax.jit, static_argnames=("k", "interpret"))
def nearest_neighbors_kernel(
    x: jax.Array, y: jax.Array, active: jax.Array, k: int, interpret: bool = False
) -> tuple[jax.Array, jax.Array]:
    """`wdjax.neighbors.nearest_neighbors`, as a kernel. `interpret`: step by step in XLA, on any device, for tests."""
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
    """`wdjax.neighbors.neighbor_rows`, as a kernel. `interpret` as above."""
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
    table = jnp.concatenate([features, own], axis=1)  # all that is read of an agent lies together
    scene = _scene(x, y, active, k, table.reshape(-1))
    return tuple(_call(kernel, shapes, num_agents, interpret)(x, y, scene)[1:])


def _call(kernel: Callable, shapes: Any, num_agents: int, interpret: bool) -> Callable:
    grid = (pallas.cdiv(num_agents, ROWS),)
    return pallas.call(
        kernel, "nearest_neighbors", shapes, grid, warps=1, stages=1, interpret=interpret
    )


def _scene(x: jax.Array, y: jax.Array, active: jax.Array, k: int, *more: jax.Array) -> jax.Array:
    """Returns what a program reads of others, in one array: XLA would write several with a launch each. First x, then y
    of whole blocks, infinite for who is not active, that is infinitely far from everybody; then `more`."""
    beyond = _num_places(x.shape[0], k) - x.shape[0]
    far, y = (
        jnp.pad(jnp.where(active, place, jnp.inf), (0, beyond), constant_values=jnp.inf)
        for place in (x, y)
    )
    return jnp.concatenate([far, y, *more])


def _num_places(num_agents: int, k: int) -> int:
    """Returns for how many agents there is room in whole blocks."""
    return pallas.cdiv(num_agents, _block_size(k)) * _block_size(k)


# --- the kernels ---


def _index_kernel(x_ref, y_ref, scene_ref, index_ref, *, num_agents: int, k: int) -> None:
    """Writes [ROWS, k] indices, -1 where there is nobody."""
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
    """Writes the rows of ROWS agents into the arrays of their groups, by way of the indices of their neighbours."""
    rows = _own_rows(num_agents)
    is_active = pallas.load(scene_ref.at[rows]) < jnp.inf
    for place, index in enumerate(_nearest(x_ref, y_ref, scene_ref, rows, num_agents, k)):
        pallas.store(index_ref.at[rows, place], jnp.where(is_active, index, -1))
    if not interpret:
        pallas.debug_barrier()  # lanes read what others have stored
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
            # all is read before anything is written: a read after a write would wait for it
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
    """Returns TILE columns of the rows of these agents, feature by feature and then one's own; the table of features
    begins at place `first` of the scene."""
    num_columns = width - num_features * (k - 1)
    column = first_column + jax.lax.broadcasted_iota(jnp.int32, TILE, 1)
    written = column < width
    of_other = column < num_features * k
    feature = jnp.where(of_other, jax.lax.div(column, k), column - num_features * (k - 1))
    other = pallas.load(
        index_ref.at[agent, jax.lax.rem(column, k)], mask=written & of_other, other=-1
    )
    source = jnp.where(of_other, other, agent)
    seen = written & (source >= 0)
    value = pallas.load(scene_ref.at[first + source * num_columns + feature], mask=seen, other=0.0)
    if first_column >= num_relative * k:
        return value
    place = first + agent * num_columns + feature
    own = pallas.load(scene_ref.at[place], mask=written & (feature < num_relative), other=0.0)
    return jnp.where(seen, value - own, 0.0)


def _own_rows(num_agents: int) -> jax.Array:
    """Returns the agents of this program's lanes; lanes beyond the last agent repeat it, and write the same."""
    rows = pallas.program_id() * ROWS + jax.lax.broadcasted_iota(jnp.int32, (ROWS,), 0)
    return jnp.minimum(rows, num_agents - 1)


# --- the search ---


def _nearest(
    x_ref, y_ref, scene_ref, rows: jax.Array, num_agents: int, k: int
) -> tuple[jax.Array, ...]:
    """Returns the indices of the k nearest others of these rows, each [ROWS] int32, -1 where there is nobody."""
    x, y = pallas.load(x_ref.at[rows]), pallas.load(y_ref.at[rows])
    num_places = _num_places(num_agents, k)

    def square(j: jax.Array) -> jax.Array:
        """The squared distance of every row to agent j, 0 to itself."""
        dx, dy = x - pallas.load(scene_ref.at[j]), y - pallas.load(scene_ref.at[num_places + j])
        return dx * dx + dy * dy

    def distance(j: jax.Array) -> jax.Array:
        """The distance, infinite to oneself."""
        return jnp.where(rows == j, jnp.inf, jnp.sqrt(square(j)))

    if k > MAX_SORTED:
        return _nearest_by_insertion(distance, num_agents, k)
    keys = _smallest_keys(square, num_agents, k)
    num_sorted = min(k + SPARE, len(keys))
    distances, indices, is_sorted = _sort_nearly_sorted(distance, keys[:num_sorted], num_agents)
    next_key = keys[min(num_sorted, len(keys) - 1)]
    # nobody there, as always where all are kept: nobody was left out
    sure = (next_key >= INFINITE) | (jnp.sqrt(_square_of(next_key, num_agents)) > distances[k - 1])
    return jax.lax.cond(
        jnp.min((sure & is_sorted).astype(jnp.int32)) > 0,
        lambda: tuple(indices[:k]),
        lambda: _nearest_by_insertion(distance, num_agents, k),
    )


def _block_size(k: int) -> int:
    """Returns how many keys are kept, and come at once: a power of two."""
    return 1 << (k + SPARE - 1).bit_length()


def _low_bits(num_agents: int) -> int:
    """Returns a mask of the bits of a key that hold an index."""
    return (1 << max(num_agents - 1, 1).bit_length()) - 1


def _square_of(key: jax.Array, num_agents: int) -> jax.Array:
    """Returns the smallest squared distance that a key may stand for."""
    return jax.lax.bitcast_convert_type(key & ~_low_bits(num_agents), jnp.float32)


def _smallest_keys(square, num_agents: int, k: int) -> list[jax.Array]:
    """Returns the smallest keys of every row, ascending, each [ROWS] int32; oneself is among them."""
    low, size = _low_bits(num_agents), _block_size(k)

    def merge_block(block: jax.Array, kept: tuple) -> tuple:
        first = block.astype(jnp.int32) * size  # with jax_enable_x64 loops count in int64
        bits = [jax.lax.bitcast_convert_type(square(first + i), jnp.int32) for i in range(size)]
        keys = _sort([(key & ~low) | (first + i) for i, key in enumerate(bits)])
        return tuple(
            _merge_bitonic([jax.lax.min(a, b) for a, b in zip(kept, reversed(keys), strict=True)])
        )

    nothing = (jnp.full((ROWS,), NOBODY, jnp.int32),) * size
    return list(jax.lax.fori_loop(0, pallas.cdiv(num_agents, size), merge_block, nothing))


def _sort(keys: list[jax.Array]) -> list[jax.Array]:
    """Sorts 2^n keys lane by lane, by Batcher's network of odd-even merges."""
    if len(keys) == 1:
        return keys
    half = len(keys) // 2
    return _merge_odd_even(_sort(keys[:half]) + _sort(keys[half:]))


def _merge_odd_even(keys: list[jax.Array]) -> list[jax.Array]:
    """Sorts keys of which either half is sorted."""
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
    """Sorts 2^n keys that rise and then fall, or the other way about."""
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
    """Orders sorted keys by exact distance, lower index first, by exchanges of neighbours and oneself to the end.

    Returns (distances, indices, whether they are in order [ROWS] bool); (inf, -1): nobody.
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
    for i in range(len(keys) - 1):  # oneself sinks
        _exchange(distances, indices, i)
    for i in range(len(keys) - 3, -1, -1):
        _exchange(distances, indices, i)
    in_order = jnp.ones((ROWS,), bool)
    for i in range(len(keys) - 1):
        in_order &= ~_is_behind(distances, indices, i)
    return distances, indices, in_order


def _is_behind(distances: list[jax.Array], indices: list[jax.Array], i: int) -> jax.Array:
    """Returns whether place i + 1 belongs before place i."""
    return (distances[i + 1] < distances[i]) | (
        (distances[i + 1] == distances[i])
        & (indices[i + 1] < indices[i])
        & (distances[i] < jnp.inf)
    )


def _exchange(distances: list[jax.Array], indices: list[jax.Array], i: int) -> None:
    """Puts places i and i + 1 in order."""
    behind = _is_behind(distances, indices, i)
    for values in (distances, indices):
        values[i], values[i + 1] = (
            jax.lax.select(behind, values[i + 1], values[i]),
            jax.lax.select(behind, values[i], values[i + 1]),
        )


def _nearest_by_insertion(distance, num_agents: int, k: int) -> tuple[jax.Array, ...]:
    """Returns the k indices of every row by exact distance: whoever comes first stays first among equals."""

    def insert(j: jax.Array, held: tuple) -> tuple:
        distances, indices = held
        far, j = distance(j), jnp.full((ROWS,), j, jnp.int32)
        nearer = [far < other for other in distances]  # from the place where j belongs on
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
