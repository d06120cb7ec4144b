"""Who is near whom."""

import jax
import jax.numpy as jnp


def nearest_neighbors(x: jax.Array, y: jax.Array, active: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Finds the k nearest active others of every agent, by float32 distance sqrt(dx^2 + dy^2).

    The lower index comes first on ties.

    Args:
        x, y: [N] float32, places.
        active: [N] bool; who is not active is nobody's neighbour.
        k: how many, at most N.

    Returns:
        (index [N, k] int32, found [N, k] bool): neighbours by ascending distance; where fewer than k are active,
        `found` is false at the end of the row and the index means nothing.
    """
    distance = jnp.sqrt((x[:, None] - x[None, :]) ** 2 + (y[:, None] - y[None, :]) ** 2)
    allowed = active[None, :] & ~jnp.eye(x.shape[0], dtype=bool)
    nearness, index = jax.lax.top_k(jnp.where(allowed, -distance, -jnp.inf), k)  # top_k: lower index first on ties
    return index, nearness > -jnp.inf
