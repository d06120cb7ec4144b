"""Nearest neighbors among thousands of agents in the plane, in plain XLA, without all distances.

1. `_sort` cuts the plane into strips of equal width, and sorts agents by strip, and along it. The
   strips are oblique: agents on a wall or a grid spread over strips, and along them.
2. `_search_runs` compares an agent with a run of agents in its own strip and in the next ones: a
   fixed number, nearest along the strip. All others are beyond the ends of these runs or in other
   strips: at least `reach` away. The result is exact if the k-th neighbor is nearer than that.
3. `repair` searches again where the result is not exact: in more and longer runs, then everywhere.

All replicas are in one array, so that gathers need one index, and `repair` fills its blocks."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require
from wdjax.searching import count_below, pieces, repair, smallest_pairs, take

COS, SIN = np.float32(0.2017402), np.float32(0.1476514)  # of 36.2 degrees, divided by 4
SEARCHES = (3, 3), (7, 9)  # number of strips, and length of runs in multiples of k
MIN_ROWS, MAX_PAIRS = 64, 2**24  # agents of a block of repairs, and distances of one
# upper bounds of relative errors: of rotated coordinates, and of distances
COORDINATE_ERROR, DISTANCE_ERROR = 2.0**-18, 2.0**-19
SMALLEST_REACH = 1e-15  # squares of smaller distances underflow


class _Agents(NamedTuple):
    """Agents by strip and along it, inactive ones last in their replica. Each [Q]."""

    number: jax.Array  # int32, index in the replica
    replica: jax.Array  # int32
    strip: jax.Array  # int32
    x: jax.Array
    y: jax.Array
    across: jax.Array  # a quarter of the rotated coordinates, which therefore do not overflow
    along: jax.Array


class _Strips(NamedTuple):
    """Strips of B replicas."""

    start: jax.Array  # [B, T + 1] int32, place of the first agent, and of the first inactive one
    low: jax.Array  # [B] coordinate `across` of the first strip
    width: jax.Array  # [B]
    largest: jax.Array  # [B] largest absolute coordinate of an active agent


# jit: traced once, even if called several times in a step
@functools.partial(jax.jit, static_argnames=("k",))
def nearest_neighbors_cells(
    x: jax.Array, y: jax.Array, active: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
    """Find the k nearest active neighbors of every agent, like `wdjax.neighbors.nearest_neighbors`.

    The time grows with N if agents are spread evenly, and with N^2 if most are in small crowds.
    Arguments and results as there.

    Raises:
        ValueError: if k is not in 1 to N.
    """
    require(1 <= k <= x.shape[0], "k", k, f"from 1 to the number of agents ({x.shape[0]})")

    @jax.custom_batching.custom_vmap
    def find(x: jax.Array, y: jax.Array, active: jax.Array) -> jax.Array:
        return _find(x, y, active, k)

    @find.def_vmap
    def find_in_replicas(size: int, batched: list[bool], *args: jax.Array) -> tuple:
        wide = [
            arg if is_batched else jnp.broadcast_to(arg, (size, *arg.shape))
            for arg, is_batched in zip(args, batched, strict=True)
        ]
        index = find(*(arg.reshape(-1, arg.shape[-1]) for arg in wide))
        return index.reshape(*wide[0].shape, k), True

    index = find(*(arg[None] for arg in (*jax.lax.stop_gradient((x, y)), active)))[0]
    return jnp.maximum(index, 0), index >= 0


def _find(x: jax.Array, y: jax.Array, active: jax.Array, k: int) -> jax.Array:
    """Return the neighbors in B replicas, [B, N, k] int32, -1 for none."""
    strips, agents = _sort(x, y, active, k)
    search = functools.partial(_search_runs, strips, agents, k=k)
    first, second = (functools.partial(search, num_strips=n, length=r * k) for n, r in SEARCHES)
    result = repair(second, agents, *first(agents), max(MIN_ROWS, x.size // 32))
    search_all = functools.partial(_search_all, x, y, active, k=k)
    index, _ = repair(
        search_all, agents, *result, max(MIN_ROWS, min(x.size // 32, MAX_PAIRS // x.shape[1]))
    )
    row = agents.replica * x.shape[1] + agents.number
    index = jnp.zeros((x.size, k), jnp.int32).at[row].set(index, unique_indices=True)
    return index.reshape(*x.shape, k)


def _sort(x: jax.Array, y: jax.Array, active: jax.Array, k: int) -> tuple[_Strips, _Agents]:
    """Return the strips and the sorted agents.

    Where agents are spread evenly, about 1 in 300 k-th neighbors is farther than a strip is wide.
    """
    num_agents = x.shape[1]
    max_strips = max(1, int(3 * (num_agents / k) ** 0.5))  # T
    across, along = COS * x + SIN * y, COS * y - SIN * x

    def extremes(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (
            jnp.min(values, axis=1, keepdims=True, where=active, initial=jnp.inf),
            jnp.max(values, axis=1, keepdims=True, where=active, initial=-jnp.inf),
        )

    (low, high), *sides = map(extremes, (across, x, y))
    area = (sides[0][1] - sides[0][0]) * (sides[1][1] - sides[1][0]) / 16
    num_active = jnp.sum(active, axis=1, keepdims=True, dtype=jnp.int32)
    per_width = jnp.minimum(jnp.sqrt(num_active / (0.65 * k * area)), max_strips / (high - low))
    is_wide = (high - low > SMALLEST_REACH) & (per_width > 0) & (per_width < jnp.inf)
    per_width = jnp.where(is_wide, per_width, 0.0)
    strip = (across - low) * per_width
    strip = jnp.where(strip > 0, jnp.minimum(strip, max_strips - 1), 0.0).astype(jnp.int32)
    number = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    by_strip = jnp.where(active, strip, strip + max_strips)
    keys, along, index = jax.lax.sort((by_strip, along, number), num_keys=2)
    replica = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    first = replica[:, :1] * num_agents
    target = jax.lax.broadcasted_iota(jnp.int32, (len(x), max_strips + 1), 1)
    begin = jnp.broadcast_to(first, target.shape)
    start = begin + count_below(keys.reshape(-1), begin, num_agents, num_agents, target)
    x, y = (take(a.reshape(-1), first + index) for a in (x, y))
    largest = jnp.maximum(*(jnp.maximum(abs(a), abs(b)) for a, b in sides))
    strips = _Strips(start, *(a.reshape(-1) for a in (low, 1 / per_width, largest)))
    agents = index, replica, keys % max_strips, x, y, COS * x + SIN * y, along
    return strips, _Agents(*(a.reshape(-1) for a in agents))


def _search_runs(
    strips: _Strips, agents: _Agents, rows: _Agents, k: int, num_strips: int, length: int
) -> tuple[jax.Array, jax.Array]:
    """Search runs of `length` agents in `num_strips` strips around the Q agents of `rows`.

    Returns (index [Q, k] int32, -1 for none; whether the neighbors are exact [Q] bool).
    """
    max_strips, num_agents = strips.start.shape[1] - 1, agents.x.size // len(strips.low)
    num_strips = min(num_strips, max_strips)
    run = pieces(length)  # of `length` or a bit more
    first = jnp.clip(rows.strip - num_strips // 2, 0, max_strips - num_strips)
    place = rows.replica * (max_strips + 1) + first
    number = jnp.arange(num_strips + 1, dtype=jnp.int32)[:, None]
    starts = take(strips.start.reshape(-1), place[None] + number)
    begin, end = starts[:-1], starts[1:]
    along = rows.along[None]
    position = begin + count_below(agents.along, begin, end - begin, num_agents, along)
    start = jnp.maximum(jnp.minimum(position - run.size // 2, end - run.size), begin)
    stop = jnp.minimum(start + run.size, end)
    before = along - take(agents.along, start - 1)
    behind = take(agents.along, stop) - along
    ends = jnp.minimum(
        jnp.where(start > begin, before, jnp.inf), jnp.where(stop < end, behind, jnp.inf)
    )
    low, width, largest = (take(a, rows.replica) for a in strips[1:])
    left = rows.across - (low + first * width)
    right = low + (first + num_strips) * width - rows.across
    left_out = starts[0] > rows.replica * num_agents
    right_out = starts[-1] < take(strips.start[:, -1], rows.replica)
    gap = jnp.minimum(jnp.where(left_out, left, jnp.inf), jnp.where(right_out, right, jnp.inf))
    largest = jnp.maximum(largest, jnp.maximum(abs(rows.x), abs(rows.y)))
    reach = 4 * jnp.minimum(gap, ends.min(axis=0)) - COORDINATE_ERROR * largest
    reach *= 1 - DISTANCE_ERROR
    places = start[:, None, :, None] + run[None, :, None]
    index, x, y = (take(values, places) for values in (agents.number, agents.x, agents.y))
    dx, dy = rows.x[None, None, :, None] - x, rows.y[None, None, :, None] - y
    allowed = (places < stop[:, None, :, None]) & (index != rows.number[None, None, :, None])
    distance = jnp.where(allowed, jnp.sqrt(dx**2 + dy**2), jnp.inf)
    distance, index = (a.reshape(-1, *a.shape[2:]) for a in (distance, index))
    distances, indices = smallest_pairs(distance, index, k, (0, 2))
    exact = ((distances[-1] < reach) & (reach > SMALLEST_REACH)) | (reach == jnp.inf)
    found = jnp.stack(distances, -1) < jnp.inf
    return jnp.where(found, jnp.stack(indices, -1), -1), exact


def _search_all(
    x: jax.Array, y: jax.Array, active: jax.Array, rows: _Agents, k: int
) -> tuple[jax.Array, jax.Array]:
    """Search all agents [B, N], as `nearest_neighbors_simple`; returns as `_search_runs`."""
    other_x, other_y, allowed = (values[rows.replica] for values in (x, y, active))
    distance = jnp.sqrt((rows.x[:, None] - other_x) ** 2 + (rows.y[:, None] - other_y) ** 2)
    number = jax.lax.broadcasted_iota(jnp.int32, distance.shape, 1)
    allowed &= number != rows.number[:, None]
    # top_k prefers the lower index on ties
    nearness, index = jax.lax.top_k(jnp.where(allowed, -distance, -jnp.inf), k)
    return jnp.where(nearness > -jnp.inf, index, -1), jnp.ones(rows.x.shape, bool)
