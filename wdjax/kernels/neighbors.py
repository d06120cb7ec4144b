"""Nearest neighbors on NVIDIA GPUs: one kernel instead of a distance matrix and `lax.top_k`.

nearest.py describes the search. `neighbor_rows_kernel` also writes rows with the features of the
neighbors, in which consecutive lanes write consecutive columns.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.nearest import ROWS, nearest, num_places_of
from wdjax.kernels.support import decide, why_no_kernels

TILE = 8, 32  # agents and columns of rows that are written at once
FEW_TILE = 16, 32  # the same in few programs, which have more registers and wait less often
FEW = 512  # programs of all replicas, if one `vmap` runs over them
MAX_NEIGHBORS = 32  # limited by registers, which hold all keys


def is_by_kernel(num_agents: int, k: int) -> bool:
    """Return whether a kernel searches the k nearest neighbors on this machine.

    The decision is recorded for `support.listening`.
    """
    limits = f"{k} of {num_agents:,} agents: kernels find up to {MAX_NEIGHBORS}"
    why_not = why_no_kernels() if 0 < k <= MAX_NEIGHBORS else limits
    return decide("nearest neighbours", why_not)


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
    table, shapes = table_and_shapes(features, own, k, sizes)

    def launch(num_replicas: int, *arrays: jax.Array) -> Any:
        num_programs = num_replicas * pallas.cdiv(num_agents, ROWS)
        kernel = functools.partial(
            _rows_kernel,
            num_agents=num_agents,
            k=k,
            num_features=num_features,
            num_relative=num_relative,
            sizes=sizes,
            tile=FEW_TILE if num_programs <= FEW else TILE,
            interpret=interpret,
        )
        return _call(kernel, shapes, num_agents, interpret)(*arrays)

    return pallas.over_members(launch)(x, y, _scene(x, y, active, k, table))[1]


def table_and_shapes(
    features: jax.Array, own: jax.Array, k: int, sizes: tuple[int, ...]
) -> tuple[jax.Array, tuple]:
    """Return the feature table [N (F + C)] and the outputs of a kernel that writes rows.

    Arguments as for `neighbor_rows_kernel`. The outputs are the indices of the neighbors, [N, k],
    and the rows of each group.
    """
    num_agents, num_features = features.shape
    width = num_features * k + own.shape[1]
    rows = tuple(jax.ShapeDtypeStruct((size, width), jnp.float32) for size in sizes)
    table = jnp.concatenate([features, own], axis=1)  # features of an agent are contiguous
    return table.reshape(-1), (jax.ShapeDtypeStruct((num_agents, k), jnp.int32), rows)


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
    beyond = num_places_of(x.shape[0], k) - x.shape[0]
    far, y = (
        jnp.pad(jnp.where(active, place, jnp.inf), (0, beyond), constant_values=jnp.inf)
        for place in (x, y)
    )
    return jnp.concatenate([far, y, *more])


# --- the kernels ---


def _index_kernel(x_ref, y_ref, scene_ref, index_ref, *, num_agents: int, k: int) -> None:
    """Write the indices of the neighbors of ROWS agents, [ROWS, k], -1 for none."""
    rows = _own_rows(num_agents)
    for place, index in enumerate(nearest(x_ref, y_ref, scene_ref, rows, num_agents, k)):
        pallas.store(index_ref.at[rows, place], index)


def _rows_kernel(
    x_ref,
    y_ref,
    scene_ref,
    index_ref,
    rows_refs,
    *,
    num_agents: int,
    k: int,
    num_features: int,
    num_relative: int,
    sizes: tuple[int, ...],
    tile: tuple[int, int],
    interpret: bool,
) -> None:
    """Write the neighbor indices of ROWS agents, and then their feature rows.

    `rows_refs` contains the feature rows of each group, [size, width], and `tile` the numbers of
    agents and columns that are written at once.
    """
    rows = _own_rows(num_agents)
    is_active = pallas.load(scene_ref.at[rows]) < jnp.inf
    for place, index in enumerate(nearest(x_ref, y_ref, scene_ref, rows, num_agents, k)):
        pallas.store(index_ref.at[rows, place], jnp.where(is_active, index, -1))
    if not interpret:
        pallas.debug_barrier()  # the next loads read indices stored by other lanes
    width = rows_refs[0].shape[1]
    read = functools.partial(
        read_tile,
        scene_ref,
        index_ref,
        first=2 * num_places_of(num_agents, k),
        width=width,
        k=k,
        num_features=num_features,
        num_relative=num_relative,
    )
    first, start = pallas.program_id() * ROWS, 0
    for rows_ref, size in zip(rows_refs, sizes, strict=True):
        begin, end = jnp.maximum(first, start), jnp.minimum(first + ROWS, start + size)

        def write(
            number: jax.Array, _: None, rows_ref=rows_ref, start=start, begin=begin, end=end
        ) -> None:
            agent = begin + number * tile[0] + jax.lax.broadcasted_iota(jnp.int32, tile, 0)
            first_columns = range(0, width, tile[1])
            # load everything first, because a load would wait for an earlier store
            values = [
                read(jnp.minimum(agent, end - 1), first_column) for first_column in first_columns
            ]
            for first_column, value in zip(first_columns, values, strict=True):
                column = first_column + jax.lax.broadcasted_iota(jnp.int32, tile, 1)
                pallas.store(
                    rows_ref.at[agent - start, column], value, mask=(agent < end) & (column < width)
                )

        num_tiles = jnp.maximum(end - begin + tile[0] - 1, 0) // tile[0]
        jax.lax.fori_loop(0, num_tiles, write, None)
        start += size


def read_tile(
    table_ref,
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
    """Return some columns of rows: neighbors feature by feature, then the agent's own features.

    Args:
        table_ref: the feature table from `first` on: all features of an agent, [N (F + C)].
        index_ref: [N, k] int32, indices of the neighbors, -1 for none.
        agent: [*tile] int32, the agents.
        first_column: first column of the tile.
        first: start of the feature table.
        width: columns of a row.
        k: number of neighbors.
        num_features: features of a neighbor.
        num_relative: leading features that are differences to the agent's own.
    """
    tile, num_columns = agent.shape, width - num_features * (k - 1)
    column = first_column + jax.lax.broadcasted_iota(jnp.int32, tile, 1)
    written = column < width
    is_neighbor = column < num_features * k
    feature = jnp.where(is_neighbor, jax.lax.div(column, k), column - num_features * (k - 1))
    other = pallas.load(
        index_ref.at[agent, jax.lax.rem(column, k)], mask=written & is_neighbor, other=-1
    )
    source = jnp.where(is_neighbor, other, agent)
    seen = written & (source >= 0)
    value = pallas.load(table_ref.at[first + source * num_columns + feature], mask=seen, other=0.0)
    if first_column >= num_relative * k:
        return value
    place = first + agent * num_columns + feature
    own = pallas.load(table_ref.at[place], mask=written & (feature < num_relative), other=0.0)
    return jnp.where(seen, value - own, 0.0)


def _own_rows(num_agents: int) -> jax.Array:
    """Return the agent of each lane; lanes beyond the last agent repeat it and write the same."""
    rows = pallas.program_id() * ROWS + jax.lax.broadcasted_iota(jnp.int32, (ROWS,), 0)
    return jnp.minimum(rows, num_agents - 1)
