"""Nearest neighbors among thousands of agents on NVIDIA GPUs, by square cells.

1. XLA divides the bounding box of the active agents into cells of about `PER_CELL` k agents each,
   and sorts agents by cell: row by row, odd rows backwards, so that agents with consecutive places
   are near each other. Agents that are far from most others belong to cells at the edge.
2. A program searches for ROWS consecutive agents. Those in places around them give an upper bound
   of the distance of every k-th neighbor.
3. Within the largest of these bounds around its agents, the program searches all cells. The result
   is exact. If all agents are in one cell, this is a search of all agents.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.nearest import (
    ROWS,
    Others,
    block_size,
    distance_bound,
    distances_to,
    low_bits,
    search,
)
from wdjax.kernels.neighbors import TILE, read_tile, table_and_shapes

PER_CELL = 1.0  # agents of a cell in multiples of k
# the box of cells extends to at most SPREAD mean distances from the center, computed TRIMS times
SPREAD, TRIMS = 4.0, 2
AROUND = 16, 64  # places before and after the first agent's cell, for the bound
MAX_WINDOW = 2**14  # places that keys can number
SLACK = 64  # places that a program may search after a window
# relative and absolute errors of distances; squares of smaller distances underflow
RELATIVE_ERROR, COORDINATE_ERROR, SMALLEST = 2.0**-18, 2.0**-21, 1e-18
# differences of coordinates that are 0 or at least this large are 0 or at least 2^-24 of it
NO_UNDERFLOW = 2.0**-32


class _Grid(NamedTuple):
    """Cells of one replica, as arrays of shape () or as numbers of one program."""

    low_x: jax.Array
    per_x: jax.Array  # columns per length
    low_y: jax.Array
    per_y: jax.Array  # rows per length
    error: jax.Array  # of differences of coordinates
    exact_zeros: jax.Array  # 1 if squares of differences are 0 or far from underflow


# jit: traced once, even if called several times in a step
@functools.partial(jax.jit, static_argnames=("k", "interpret"))
def nearest_neighbors_cells_kernel(
    x: jax.Array, y: jax.Array, active: jax.Array, k: int, interpret: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Find the k nearest active neighbors of every agent, like `wdjax.neighbors.nearest_neighbors`.

    Arguments and results as for `neighbors.nearest_neighbors_kernel`.
    """
    cells = _cells(x, y, active, k)
    shape = jax.ShapeDtypeStruct((x.shape[0], k), jnp.int32)
    kernel = functools.partial(_index_kernel, k=k)
    index = _call(kernel, shape, x.shape[0], interpret)(*cells)
    return jnp.maximum(index, 0), index >= 0


@functools.partial(jax.jit, static_argnames=("k", "num_relative", "sizes", "interpret"))
def neighbor_rows_cells_kernel(
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

    Arguments and results as for `neighbors.neighbor_rows_kernel`.
    """
    table, shapes = table_and_shapes(features, own, k, sizes)
    kernel = functools.partial(
        _rows_kernel,
        k=k,
        num_features=features.shape[1],
        num_relative=num_relative,
        sizes=sizes,
        interpret=interpret,
    )
    return _call(kernel, shapes, x.shape[0], interpret)(*_cells(x, y, active, k), table)[1]


def _call(kernel: Callable, shapes: Any, num_agents: int, interpret: bool) -> Callable:
    grid = (pallas.cdiv(num_agents, ROWS),)
    return pallas.call(
        kernel, "nearest_cells", shapes, grid, warps=1, stages=1, interpret=interpret
    )


def _cells(x: jax.Array, y: jax.Array, active: jax.Array, k: int) -> tuple[jax.Array, ...]:
    """Sort agents by cell.

    Returns:
        x: [N], by place, as y.
        y: see x.
        scene: see `nearest.distances_to`.
        order: [N] int32, index of the agent at each place.
        start: [side^2 + 1] int32, first place of each cell, and of inactive agents.
        grid: [6], a `_Grid`.
    """
    num_agents = x.shape[0]
    # an empty slot may have any position
    x, y = (jnp.where(active | jnp.isfinite(values), values, 0.0) for values in (x, y))
    side = max(1, int((num_agents / (PER_CELL * k)) ** 0.5))  # columns and rows of cells
    grid = _grid_of(x, y, active, side)
    cell = jnp.where(active, 0, side**2) + _cell_of(grid, x, y, side)
    cell, order = jax.lax.sort((cell, jnp.arange(num_agents, dtype=jnp.int32)), num_keys=1)
    numbers = jnp.arange(side**2 + 1, dtype=jnp.int32)
    start = jnp.searchsorted(cell, numbers, method="scan_unrolled").astype(jnp.int32)
    x, y = x[order], y[order]
    beyond = _num_places(num_agents, k) - num_agents
    is_active = jnp.arange(num_agents) < start[-1]
    scene = [
        jnp.pad(jnp.where(is_active, place, jnp.inf), (0, beyond), constant_values=jnp.inf)
        for place in (x, y)
    ]
    return x, y, jnp.concatenate(scene), order, start, jnp.stack(grid)


def _num_places(num_agents: int, k: int) -> int:
    """Return the number of agents, padded by a block: a block may begin at any place."""
    return num_agents + block_size(k)


def _grid_of(x: jax.Array, y: jax.Array, active: jax.Array, side: int) -> _Grid:
    """Return the grid of side x side cells on the active agents, without those far away."""
    count = jnp.maximum(jnp.sum(active), 1)

    def axis(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        low = jnp.min(values, where=active, initial=jnp.inf)
        high = jnp.max(values, where=active, initial=-jnp.inf)
        for _ in range(TRIMS):  # few agents far away would leave all others in one cell
            inside = jnp.clip(values, low, high)
            center = jnp.sum(inside, where=active) / count
            reach = SPREAD * jnp.sum(jnp.abs(inside - center), where=active) / count
            low, high = jnp.maximum(low, center - reach), jnp.minimum(high, center + reach)
        size = high - low
        per_length = side / size
        is_wide = (size > SMALLEST) & (per_length > 0) & (per_length < jnp.inf)
        return low, jnp.where(is_wide, per_length, 0.0)

    (low_x, per_x), (low_y, per_y) = axis(x), axis(y)
    sizes = jnp.abs(jnp.stack([x, y]))
    error = COORDINATE_ERROR * jnp.max(sizes) + SMALLEST
    exact_zeros = jnp.all(~active[None] | (sizes == 0) | (sizes >= NO_UNDERFLOW)).astype(
        jnp.float32
    )
    return _Grid(low_x, per_x, low_y, per_y, error, exact_zeros)


def _number(value: jax.Array, low: jax.Array, per_length: jax.Array, side: int) -> jax.Array:
    """Return the column or row of a coordinate, which never decreases with the coordinate."""
    place = (value - low) * per_length  # NaN only where all agents are in column or row 0
    return jnp.where(place > 0, jnp.minimum(place, side - 1), 0.0).astype(jnp.int32)


def _cell_of(grid: _Grid, x: jax.Array, y: jax.Array, side: int) -> jax.Array:
    """Return the number of the cell of a place."""
    column = _number(x, grid.low_x, grid.per_x, side)
    row = _number(y, grid.low_y, grid.per_y, side)
    return row * side + jnp.where(row % 2 == 1, side - 1 - column, column)


def _index_kernel(*refs, k: int) -> None:
    """Write the indices of the neighbors of ROWS agents, [N, k] int32 by agent, -1 for none.

    Args:
        refs: arrays from `_cells`, and the indices.
        k: number of neighbors.
    """
    *cells, index_ref = refs
    rows = _own_places(cells[3].shape[0])
    agent = pallas.load(cells[3].at[rows])
    for place, neighbor in enumerate(_search_windows(rows, *cells, k=k)):
        pallas.store(index_ref.at[agent, place], neighbor)


def _rows_kernel(
    *refs,
    k: int,
    num_features: int,
    num_relative: int,
    sizes: tuple[int, ...],
    interpret: bool,
) -> None:
    """Write the indices of the neighbors of ROWS agents, and then their feature rows.

    Args:
        refs: arrays from `_cells`, the feature table, the indices, and the rows of each group.
        k: number of neighbors.
        num_features: features of a neighbor.
        num_relative: leading features that are differences to the agent's own.
        sizes: agents of each group.
        interpret: whether it runs step by step in XLA.
    """
    *cells, table_ref, index_ref, rows_refs = refs
    order_ref, start_ref = cells[3:5]
    places = _own_places(order_ref.shape[0])
    agent = pallas.load(order_ref.at[places])
    num_active = pallas.load(start_ref.at[jnp.int32(start_ref.shape[0] - 1)])
    is_active = places < num_active
    # inactive agents observe nothing, and 32 of them may span the whole world
    rows = jnp.minimum(places, jnp.maximum(num_active - 1, 0))
    for place, neighbor in enumerate(_search_windows(rows, *cells, k=k)):
        pallas.store(index_ref.at[agent, place], jnp.where(is_active, neighbor, -1))
    if not interpret:
        pallas.debug_barrier()  # the next loads read indices stored by other lanes
    width, first = rows_refs[0].shape[1], pallas.program_id() * ROWS

    def write(tile: jax.Array, _: None) -> None:
        line = jax.lax.broadcasted_iota(jnp.int32, TILE, 0)
        place = jnp.minimum(first + tile.astype(jnp.int32) * TILE[0] + line, order_ref.shape[0] - 1)
        agent = pallas.load(order_ref.at[place])
        read = functools.partial(
            read_tile, table_ref, index_ref, agent, first=0, width=width, k=k,
            num_features=num_features, num_relative=num_relative,
        )  # fmt: skip
        # load everything first, because a load would wait for an earlier store
        values = [(start, read(start)) for start in range(0, width, TILE[1])]
        begin = 0
        for rows_ref, size in zip(rows_refs, sizes, strict=True):
            is_in = (agent >= begin) & (agent < begin + size)
            row = jnp.where(is_in, agent - begin, size)  # interpreted, -1 would be the last row
            for start, value in values:
                column = start + jax.lax.broadcasted_iota(jnp.int32, TILE, 1)
                written = is_in & (column < width)
                pallas.store(rows_ref.at[row, column], value, mask=written)
            begin += size

    jax.lax.fori_loop(0, ROWS // TILE[0], write, None)


def _own_places(num_agents: int) -> jax.Array:
    """Return the place of each lane; lanes beyond the last place repeat it and write the same."""
    places = pallas.program_id() * ROWS + jax.lax.broadcasted_iota(jnp.int32, (ROWS,), 0)
    return jnp.minimum(places, num_agents - 1)


def _search_windows(
    rows: jax.Array, x_ref, y_ref, scene_ref, order_ref, start_ref, grid_ref, *, k: int
) -> tuple[jax.Array, ...]:
    """Return the indices of the neighbors of the agents at places `rows`, -1 for none.

    The other arguments are references to the arrays of `_cells`.
    """
    num_agents = order_ref.shape[0]
    grid = _Grid(*(pallas.load(grid_ref.at[jnp.int32(i)]) for i in range(len(_Grid._fields))))
    side = math.isqrt(start_ref.shape[0] - 1)
    num_active = pallas.load(start_ref.at[jnp.int32(side**2)])
    first = jnp.min(rows)
    others = functools.partial(
        Others,
        *distances_to(x_ref, y_ref, scene_ref, rows, _num_places(num_agents, k)),
        index_of=lambda place: pallas.load(order_ref.at[place]),
        bits=low_bits(min(num_agents, MAX_WINDOW)),
    )
    x, y = pallas.load(x_ref.at[rows]), pallas.load(y_ref.at[rows])
    cell = _cell_of(grid, pallas.load(x_ref.at[first]), pallas.load(y_ref.at[first]), side)
    anchor = pallas.load(start_ref.at[cell])
    begin, end = jnp.maximum(anchor - AROUND[0], 0), jnp.minimum(anchor + AROUND[1], num_active)
    near = others(walk=lambda merge, held: merge(begin, end, held)[0], first=begin, fits=True)
    bound = jnp.max(distance_bound(near, k)) * (1 + RELATIVE_ERROR) + grid.error
    left, right = _span(x, bound, grid.low_x, grid.per_x, side)
    bottom, top = _span(y, bound, grid.low_y, grid.per_y, side)

    def window(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the first place of the cells in a row, and the place after the last one."""
        low = row * side + jnp.where(row % 2 == 1, side - 1 - right, left)
        return pallas.load(start_ref.at[low]), pallas.load(start_ref.at[low + right - left + 1])

    def walk(merge: Callable, held: Any) -> Any:
        def visit(row: jax.Array, carry: tuple) -> tuple:
            held, searched = carry
            begin, end = window(row.astype(jnp.int32))
            return merge(jnp.maximum(begin, searched), jnp.maximum(end, searched), held)

        return jax.lax.fori_loop(bottom, top + 1, visit, (held, jnp.int32(0)))[0]

    first_place, fits = window(bottom)[0], window(top)[1] - window(bottom)[0] < MAX_WINDOW - SLACK
    around = others(walk=walk, first=first_place, fits=fits, exact_zeros=grid.exact_zeros > 0)
    return search(around, k, jnp.maximum(num_active - 1, 0))


def _span(
    values: jax.Array, bound: jax.Array, low: jax.Array, per_length: jax.Array, side: int
) -> tuple[jax.Array, jax.Array]:
    """Return the first and the last column or row within `bound` of any of the values."""
    first, last = jnp.min(values) - bound, jnp.max(values) + bound
    return _number(first, low, per_length, side), _number(last, low, per_length, side)
