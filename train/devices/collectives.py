"""Communication between the devices that share the work of a function (state/sharding.py).

A function that sums with `total` and draws with `block_numbers` does not depend on the number of
devices. On one device, outside a `shard_map` over AXIS, these functions return their arguments, and
the compiled program is the same.

Gradients: each device differentiates the sum of the loss over its own transitions, without
communication. The gradient of the mean is the `total` of these gradients, divided by the `total` of
the numbers of transitions.

Each message costs a small kernel, however short it is. XLA merges independent sums of float32 into
one message. Therefore everything is sent as such a sum, also extremes and flags, and statistics
that would need two messages, such as a mean and the deviations from it, are merged in one from the
parts of all devices (`moments.of_devices`). `total` and `side_by_side` send one vector and slice
the result: XLA fuses slices with the kernels that use them, whereas it copies each leaf of a sum of
many leaves with a separate kernel.
"""

import functools
from typing import TypeVar

import chex
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

AXIS = "wdjax_devices"

Tree = TypeVar("Tree", bound=chex.ArrayTree)


def num_shards() -> int:
    """Return the number of devices that share the work of the function that is traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[AXIS] if AXIS in mesh.manual_axes else 1


def block_numbers(num_blocks: int) -> jax.Array:
    """Return the numbers of the blocks of replicas on this device, [num_blocks] int32."""
    held = jnp.arange(num_blocks)
    return held if num_shards() == 1 else held + jax.lax.axis_index(AXIS) * num_blocks


def total(values: Tree) -> Tree:
    """Return the sum over devices of each leaf of `values`.

    Sums are computed in float32; integers are exact up to 2**24.
    """
    if num_shards() == 1:
        return values
    numbers, apart = ravel_pytree(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), values))
    return jax.tree.map(
        lambda leaf, own: leaf.astype(own.dtype), apart(jax.lax.psum(numbers, AXIS)), values
    )


def average(values: Tree) -> Tree:
    """Return the mean over devices of each leaf of `values`.

    This is the mean over all transitions only if each device averages over the same number of them.
    Otherwise divide the `total` of the sums by the `total` of the counts (`masked_mean`).
    """
    return values if num_shards() == 1 else jax.lax.pmean(values, AXIS)


def side_by_side(values: Tree) -> list[Tree]:
    """Return a tree of float32 arrays from each device, in order.

    The message is a sum of rows, each 0 except on one device: an `all_gather` would be another
    message.
    """
    shards = num_shards()
    if shards == 1:
        return [values]
    numbers, apart = ravel_pytree(values)
    own = jnp.arange(shards) == jax.lax.axis_index(AXIS)
    rows = jax.lax.psum(jnp.where(own[:, None], numbers[None], 0.0), AXIS)
    return [apart(rows[device]) for device in range(shards)]


def smallest(values: jax.Array) -> jax.Array:
    """Return the elementwise minimum of `values` over devices."""
    return functools.reduce(jnp.minimum, side_by_side(values))


def largest(values: jax.Array) -> jax.Array:
    """Return the elementwise maximum of `values` over devices."""
    return functools.reduce(jnp.maximum, side_by_side(values))


def any_of(flags: jax.Array) -> jax.Array:
    """Return whether any of `flags` is true on any device, () bool."""
    found = jnp.any(flags)
    return found if num_shards() == 1 else total(found.astype(jnp.float32)) > 0


def all_rows(values: Tree) -> Tree:
    """Return the rows of `values` of all devices, in the order of the replicas, leaves [N, ...]."""
    return values if num_shards() == 1 else jax.lax.all_gather(values, AXIS, tiled=True)


def own_rows(values: jax.Array) -> jax.Array:
    """Return the rows of this device from `values` [N, ...] of all devices: inverts `all_rows`."""
    shards = num_shards()
    if shards == 1:
        return values
    size = values.shape[0] // shards
    return jax.lax.dynamic_slice_in_dim(values, jax.lax.axis_index(AXIS) * size, size)
