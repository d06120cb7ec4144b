"""Who is near whom."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels.neighbors import is_by_kernel, nearest_neighbors_kernel, neighbor_rows_kernel


def nearest_neighbors(
    x: jax.Array, y: jax.Array, active: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
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
    if not is_by_kernel(x.shape[0], k):
        return simple(x, y, active)
    x, y = jax.lax.stop_gradient((x, y))  # a kernel has no derivative, and need not have one
    kernel = functools.partial(nearest_neighbors_kernel, k=k)
    return jax.lax.platform_dependent(x, y, active, cuda=kernel, default=simple)


def nearest_neighbors_simple(
    x: jax.Array, y: jax.Array, active: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
    """The same in plain XLA, for every platform and size: a matrix of distances, and `lax.top_k` of its rows."""
    distance = jnp.sqrt((x[:, None] - x[None, :]) ** 2 + (y[:, None] - y[None, :]) ** 2)
    allowed = active[None, :] & ~jnp.eye(x.shape[0], dtype=bool)
    # top_k: lower index first on ties
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
    """Returns what every agent sees of its `nearest_neighbors`, and of itself, in rows that are written once.

    A row holds the first feature of the k nearest active others, nearest first, then the second feature, and so on,
    with zeros where there are fewer; all are zero for who is not active. Its last columns are `own`.

    Args:
        x, y, active: [N], as for `nearest_neighbors`.
        features: [N, F] float32, what others see of an agent.
        own: [N, C] float32, what it sees of itself.
        k: how many others, at most N.
        num_relative: of the first so many features it sees the difference to its own.
        sizes: of the groups into which the rows are split, N in all.

    Returns:
        rows of each group, [size, F k + C] float32.
    """
    simple = functools.partial(neighbor_rows_simple, k=k, num_relative=num_relative, sizes=sizes)
    if not is_by_kernel(x.shape[0], k):
        return simple(x, y, active, features, own)
    kernel = functools.partial(neighbor_rows_kernel, k=k, num_relative=num_relative, sizes=sizes)
    return jax.lax.platform_dependent(x, y, active, features, own, cuda=kernel, default=simple)


@neighbor_rows.defjvp
def _neighbor_rows_jvp(
    k: int, num_relative: int, sizes: tuple[int, ...], primals: tuple, tangents: tuple
) -> tuple:
    """The derivative is the simple way's: a kernel has none."""
    simple = functools.partial(neighbor_rows_simple, k=k, num_relative=num_relative, sizes=sizes)
    return jax.jvp(simple, primals, tangents)


# traced once for all places in a step
@functools.partial(jax.jit, static_argnames=("k", "num_relative", "sizes"))
def neighbor_rows_simple(
    x: jax.Array,
    y: jax.Array,
    active: jax.Array,
    features: jax.Array,
    own: jax.Array,
    k: int,
    num_relative: int,
    sizes: tuple[int, ...],
) -> tuple[jax.Array, ...]:
    """The same in plain XLA, for every platform and size."""
    index, found = nearest_neighbors_simple(*jax.lax.stop_gradient((x, y)), active, k)
    other = features[index]  # [N, k, F]
    relative = other[..., :num_relative] - features[:, None, :num_relative]
    seen = jnp.concatenate([relative, other[..., num_relative:]], axis=-1)
    seen = jnp.where((found & active[:, None])[..., None], seen, 0.0)
    by_feature = jnp.swapaxes(seen, 1, 2).reshape(x.shape[0], -1)
    rows = jnp.concatenate([by_feature, own], axis=1)
    return tuple(jnp.split(rows, np.cumsum(sizes)[:-1]))
