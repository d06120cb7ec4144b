"""Nearest neighbors of agents in the plane.

All searches return the same neighbors, except where distances differ by rounding. Small worlds
compare all agents with each other, and large ones only those in nearby cells or strips:

| agents | on NVIDIA GPUs | elsewhere |
|---|---|---|
| few | kernels/neighbors.py | `nearest_neighbors_simple` |
| from KERNEL_CELLS, CELLS | kernels/cells.py | cells.py |
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.cells import nearest_neighbors_cells
from wdjax.kernels.backend import cuda_or_default
from wdjax.kernels.cells import nearest_neighbors_cells_kernel, neighbor_rows_cells_kernel
from wdjax.kernels.neighbors import is_by_kernel, nearest_neighbors_kernel, neighbor_rows_kernel

# Numbers of agents from which cells are faster. On an H100 both searches take 0.63 and 0.67 ms for
# 2,000 replicas of 500 agents, and 1.25 and 2.28 ms for 1,000. On a CPU cells are 4 times faster
# from 3,000 agents on, but in crowds slower than all distances up to 8,000.
KERNEL_CELLS, CELLS = 700, 8_192


def nearest_neighbors(
    x: jax.Array, y: jax.Array, active: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
    """Find the k nearest other active agents of every agent, by distance sqrt(dx^2 + dy^2).

    Distances are float32, and ties go to the lower index. Runs as a kernel on NVIDIA GPUs. No
    gradient flows through the indices.

    Args:
        x: [N] float32, x coordinates.
        y: [N] float32, y coordinates.
        active: [N] bool; inactive agents are never neighbors.
        k: number of neighbors, at most N.

    Returns:
        (index [N, k] int32, found [N, k] bool): neighbors by ascending distance. If fewer than k
        others are active, `found` is false at the end of the row and these indices are undefined.
    """
    plain = functools.partial(_plain(x.shape[0]), k=k)
    if not is_by_kernel(x.shape[0], k):
        return plain(x, y, active)
    x, y = jax.lax.stop_gradient((x, y))  # the kernel is not differentiable
    by_cells = x.shape[0] >= KERNEL_CELLS
    kernel = nearest_neighbors_cells_kernel if by_cells else nearest_neighbors_kernel
    return cuda_or_default(functools.partial(kernel, k=k), plain, x, y, active)


def _plain(num_agents: int) -> Callable:
    """Return the search in plain XLA, for every platform."""
    return nearest_neighbors_cells if num_agents >= CELLS else nearest_neighbors_simple


def nearest_neighbors_simple(
    x: jax.Array, y: jax.Array, active: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
    """Find neighbors in plain XLA: a distance matrix, and `lax.top_k` of its rows."""
    distance = jnp.sqrt((x[:, None] - x[None, :]) ** 2 + (y[:, None] - y[None, :]) ** 2)
    allowed = active[None, :] & ~jnp.eye(x.shape[0], dtype=bool)
    # top_k prefers the lower index on ties
    nearness, index = jax.lax.top_k(jnp.where(allowed, -distance, -jnp.inf), k)
    return index, nearness > -jnp.inf


@functools.partial(jax.custom_jvp, nondiff_argnums=(5, 6, 7))
def neighbor_rows(
    x: jax.Array,
    y: jax.Array,
    active: jax.Array,
    features: jax.Array,
    own: jax.Array,
    k: int,
    num_relative: int,
    sizes: tuple[int, ...],
) -> tuple[jax.Array, ...]:
    """Return each agent's observation row: features of its nearest neighbors, then its own.

    A row contains the first feature of the k nearest active others, nearest first, then the second
    feature, and so on, followed by the columns of `own`. The features are zero
    for missing neighbors, and for all neighbors of an inactive agent.

    Args:
        x: [N] float32, x coordinates.
        y: [N] float32, y coordinates.
        active: [N] bool, as for `nearest_neighbors`.
        features: [N, F] float32, features of each agent that others observe.
        own: [N, C] float32, features of each agent that it observes itself.
        k: number of neighbors, at most N.
        num_relative: the first `num_relative` features are observed relative to the agent's own.
        sizes: sizes of the groups into which the rows are split, summing to N.

    Returns:
        Rows of each group, [size, F k + C] float32.
    """
    sizes_of: dict[str, Any] = {"k": k, "num_relative": num_relative, "sizes": sizes}
    plain = functools.partial(rows_of, _plain(x.shape[0]), **sizes_of)
    if not is_by_kernel(x.shape[0], k):
        return plain(x, y, active, features, own)
    by_cells = x.shape[0] >= KERNEL_CELLS
    kernel = neighbor_rows_cells_kernel if by_cells else neighbor_rows_kernel
    by_kernel = functools.partial(kernel, **sizes_of)
    return cuda_or_default(by_kernel, plain, x, y, active, features, own)


@neighbor_rows.defjvp
def _neighbor_rows_jvp(
    k: int, num_relative: int, sizes: tuple[int, ...], primals: tuple, tangents: tuple
) -> tuple:
    """Differentiate the rows in plain XLA, since kernels have no derivative."""
    plain = functools.partial(
        rows_of, _plain(len(primals[0])), k=k, num_relative=num_relative, sizes=sizes
    )
    return jax.jvp(plain, primals, tangents)


# jit: traced once for all uses in a step
@functools.partial(jax.jit, static_argnames=("search", "k", "num_relative", "sizes"))
def rows_of(
    search: Callable,
    x: jax.Array,
    y: jax.Array,
    active: jax.Array,
    features: jax.Array,
    own: jax.Array,
    k: int,
    num_relative: int,
    sizes: tuple[int, ...],
) -> tuple[jax.Array, ...]:
    """Return `neighbor_rows`, with neighbors by `search(x, y, active, k)`, in plain XLA."""
    index, found = search(*jax.lax.stop_gradient((x, y)), active, k=k)
    other = features[index]  # [N, k, F]
    relative = other[..., :num_relative] - features[:, None, :num_relative]
    observed = jnp.concatenate([relative, other[..., num_relative:]], axis=-1)
    observed = jnp.where((found & active[:, None])[..., None], observed, 0.0)
    by_feature = jnp.swapaxes(observed, 1, 2).reshape(x.shape[0], -1)
    rows = jnp.concatenate([by_feature, own], axis=1)
    return tuple(jnp.split(rows, np.cumsum(sizes)[:-1]))


neighbor_rows_simple = functools.partial(rows_of, nearest_neighbors_simple)
