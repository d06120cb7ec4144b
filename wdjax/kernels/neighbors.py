"""The nearest neighbours on NVIDIA GPUs: one Pallas (Triton) kernel in place of a matrix of distances and its sort.

A program finds the neighbours of ROWS agents, a lane each, in one pass over the others. It keeps, sorted, the k + SPARE
smallest keys seen so far; a key is the squared distance with the low bits of its float given up for the index, so that
one integer orders both and a new one is sifted in by a minimum and a maximum a place. Then the few that were kept are
sorted by the exact float32 distance, lower index first. That is right unless somebody who was not kept may be as near
as the k-th: the distance that the last key stands for, its given-up bits cleared, tells. Where it may be so (ties, or a
crowd within the given-up bits), the program starts over with exact distances and indices apart, at twice the cost.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

ROWS = 32  # agents of a program: one a lane of one warp
SPARE = 2  # kept beyond k, so that the exact pass is rare
MAX_NEIGHBORS = 32  # all that is kept stays in registers
MAX_AGENTS = 2**14  # the index takes the place of this many steps of a squared distance: relative, 2^14 / 2^23
NOBODY = 2**31 - 1  # larger than every key


def is_supported(num_agents: int, k: int) -> bool:
    """Returns whether the kernel takes this size; larger ones are XLA's."""
    return 0 < k <= MAX_NEIGHBORS and num_agents <= MAX_AGENTS


def nearest_neighbors_kernel(
    x: jax.Array, y: jax.Array, active: jax.Array, k: int, interpret: bool = False
) -> tuple[jax.Array, jax.Array]:
    """`wdjax.neighbors.nearest_neighbors`, as a kernel. `interpret`: step by step in XLA, on any device, for tests."""
    num_agents = x.shape[0]
    far = jnp.where(active, x, jnp.inf)  # who is not active is infinitely far from everybody
    shape = jax.ShapeDtypeStruct((num_agents, k), jnp.int32)
    index = pl.pallas_call(
        functools.partial(_kernel, num_agents=num_agents, k=k),
        out_shape=shape,
        grid=(pl.cdiv(num_agents, ROWS),),
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name="nearest_neighbors",
    )(x, y, far)
    return jnp.maximum(index, 0), index >= 0


def _kernel(x_ref, y_ref, far_ref, index_ref, *, num_agents: int, k: int) -> None:
    """Writes [ROWS, k] indices, -1 where there is nobody."""
    rows = pl.program_id(0) * ROWS + jax.lax.broadcasted_iota(jnp.int32, (ROWS,), 0)
    rows = jnp.minimum(rows, num_agents - 1)  # lanes beyond the last agent repeat it, and write the same
    x, y = triton.load(x_ref.at[rows]), triton.load(y_ref.at[rows])

    def square(j: jax.Array) -> jax.Array:
        """The squared distance of every row to agent j, infinite to itself."""
        dx, dy = x - triton.load(far_ref.at[j]), y - triton.load(y_ref.at[j])
        return jnp.where(rows == j, jnp.inf, dx * dx + dy * dy)

    kept = min(k + SPARE, num_agents)
    keys = _smallest_keys(square, num_agents, kept)
    distances, indices = _sort_kept(square, keys, num_agents)
    # nobody there, as always where all are kept: nobody was left out
    sure = (keys[-1] == NOBODY) | (jnp.sqrt(_square_of(keys[-1], num_agents)) > distances[k - 1])
    indices = jax.lax.cond(
        jnp.min(sure.astype(jnp.int32)) > 0, lambda: tuple(indices[:k]),
        lambda: _nearest_by_insertion(square, num_agents, k),
    )
    for place in range(k):
        triton.store(index_ref.at[rows, place], indices[place])


def _index_bits(num_agents: int) -> int:
    """Returns the bits of a key that hold an index."""
    return max(num_agents - 1, 1).bit_length()


def _square_of(key: jax.Array, num_agents: int) -> jax.Array:
    """Returns the smallest squared distance that a key may stand for."""
    low = (1 << _index_bits(num_agents)) - 1
    return jax.lax.bitcast_convert_type(key & ~low, jnp.float32)


def _smallest_keys(square, num_agents: int, kept: int) -> list[jax.Array]:
    """Returns the `kept` smallest keys of every row, ascending, each [ROWS] int32."""
    low = (1 << _index_bits(num_agents)) - 1

    def sift(j: jax.Array, keys: tuple) -> tuple:
        distance = square(j)
        key = (jax.lax.bitcast_convert_type(distance, jnp.int32) & ~low) | j
        key = jnp.where(distance < jnp.inf, key, NOBODY)
        after = []
        for held in keys:
            after.append(jnp.minimum(held, key))
            key = jnp.maximum(held, key)
        return tuple(after)

    return list(jax.lax.fori_loop(0, num_agents, sift, (jnp.full((ROWS,), NOBODY, jnp.int32),) * kept))


def _sort_kept(square, keys: list[jax.Array], num_agents: int) -> tuple[list[jax.Array], list[jax.Array]]:
    """Returns (distances, indices) of keys, by ascending exact distance and lower index first; (inf, -1): nobody."""
    low = (1 << _index_bits(num_agents)) - 1
    somebody = [key != NOBODY for key in keys]
    places = [jnp.where(some, key & low, 0) for some, key in zip(somebody, keys, strict=True)]
    distances = [
        jnp.where(some, jnp.sqrt(square(place)), jnp.inf) for some, place in zip(somebody, places, strict=True)
    ]
    indices = [jnp.where(some, place, -1) for some, place in zip(somebody, places, strict=True)]
    for end in range(len(keys) - 1, 0, -1):
        for i in range(end):
            swap = (distances[i + 1] < distances[i]) | (
                (distances[i + 1] == distances[i]) & (indices[i + 1] < indices[i])
            )
            for values in (distances, indices):
                values[i], values[i + 1] = (
                    jnp.where(swap, values[i + 1], values[i]),
                    jnp.where(swap, values[i], values[i + 1]),
                )
    return distances, indices


def _nearest_by_insertion(square, num_agents: int, k: int) -> tuple[jax.Array, ...]:
    """Returns the k indices of every row by exact distance: whoever comes first stays first among equals."""

    def insert(j: jax.Array, held: tuple) -> tuple:
        distances, indices = held
        distance = jnp.sqrt(square(j))
        nearer = [distance < other for other in distances]  # from the place where j belongs on
        new_distances, new_indices = [], []
        for i in range(k):
            moved = nearer[i - 1] if i else jnp.zeros((ROWS,), bool)
            before = (distances[i - 1], indices[i - 1]) if i else (distance, j)
            at = jnp.where(moved, before[0], distance), jnp.where(moved, before[1], j)
            new_distances.append(jnp.where(nearer[i], at[0], distances[i]))
            new_indices.append(jnp.where(nearer[i], at[1], indices[i]))
        return tuple(new_distances), tuple(new_indices)

    start = (jnp.full((ROWS,), jnp.inf),) * k, (jnp.full((ROWS,), -1, jnp.int32),) * k
    return jax.lax.fori_loop(0, num_agents, insert, start)[1]
