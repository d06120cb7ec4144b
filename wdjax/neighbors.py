"""Who is near whom."""

import functools

import jax
import jax.numpy as jnp

from wdjax.kernels.neighbors import is_supported, nearest_neighbors_kernel


def nearest_neighbors(x: jax.Array, y: jax.Array, active: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Finds the k nearest active others of every agent, by float32 distance sqrt(dx^2 + dy^2).

    The lower index comes first on ties. On NVIDIA GPUs a kernel does the work, elsewhere `nearest_neighbors_simple`.
    No gradient flows through it: the neighbours are indices.

    Args:
        x, y: [N] float32, places.
        active: [N] bool; who is not active is nobody's neighbour.
        k: how many, at most N.

    Returns:
        (index [N, k] int32, found [N, k] bool): neighbours by ascending distance; where fewer than k are active,
        `found` is false at the end of the row and the index means nothing.
    """
    simple = functools.partial(nearest_neighbors_simple, k=k)
    if not is_supported(x.shape[0], k):
        return simple(x, y, active)
    x, y = jax.lax.stop_gradient((x, y))  # a kernel has no derivative, and need not have one
    kernel = functools.partial(nearest_neighbors_kernel, k=k)
    return jax.lax.platform_dependent(x, y, active, cuda=kernel, default=simple)


def nearest_neighbors_simple(x: jax.Array, y: jax.Array, active: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The same in plain XLA, for every platform and size: a matrix of distances, and `lax.top_k` of its rows."""
    distance = jnp.sqrt((x[:, None] - x[None, :]) ** 2 + (y[:, None] - y[None, :]) ** 2)
    allowed = active[None, :] & ~jnp.eye(x.shape[0], dtype=bool)
    nearness, index = jax.lax.top_k(jnp.where(allowed, -distance, -jnp.inf), k)  # top_k: lower index first on ties
    return index, nearness > -jnp.inf
