"""What devices tell each other while they share the work of one function (train/state/sharding.py splits it).

The code in between does not know how many there are: it sums with `total` and draws with `block_numbers`. Outside of a
`shard_map` over AXIS, and so on one device, these change nothing, not even the compiled program.

Gradients: each device differentiates the sum of the loss over its own rows, in which nothing is said between devices;
the gradient of the mean is the `total` of what they find, by the `total` of their rows.

Every message costs the time of a small kernel, however short it is, and XLA makes one sum over devices of all those of
float32 that do not wait for each other. So all that is told is told as such sums, also extremes and flags, and what
would take two turns, as a mean and then the deviations from it, is merged from parts in one (`masked.of_devices`).
What `total` and `side_by_side` tell goes as one vector, and what comes back is taken apart by slices, without sums
along an axis: XLA makes these part of the kernels that use them, where each leaf of a sum of many would be copied by a
kernel of its own.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

AXIS = "wdjax_devices"


def num_shards() -> int:
    """Returns how many devices share the work of the function that is being traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[AXIS] if AXIS in mesh.manual_axes else 1


def block_numbers(num_blocks: int) -> jax.Array:
    """Returns [num_blocks] int32, the numbers in the run of the blocks of replicas that this device holds."""
    held = jnp.arange(num_blocks)
    return held if num_shards() == 1 else held + jax.lax.axis_index(AXIS) * num_blocks


def total(values: Any) -> Any:
    """Return the sum over devices of each leaf of `values`, computed in float32 (integers are exact up to 2**24)."""
    if num_shards() == 1:
        return values
    numbers, apart = ravel_pytree(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), values))
    return jax.tree.map(
        lambda leaf, own: leaf.astype(own.dtype), apart(jax.lax.psum(numbers, AXIS)), values
    )


def average(values: Any) -> Any:
    """Return the mean over devices of each leaf of `values`.

    This is the mean over all transitions only where every device averages over equally many of them. Where the number
    of valid transitions differs, divide the `total` of the sums by the `total` of the counts (`masked_mean`).
    """
    return values if num_shards() == 1 else jax.lax.pmean(values, AXIS)


def side_by_side(values: Any) -> list[Any]:
    """Returns what each device has, in their order, for a tree of float32 arrays.

    As a sum of rows, all 0 but the device's own: an `all_gather` would be another message.
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


def all_rows(values: Any) -> Any:
    """Return the rows of all devices, in the order of the replicas: a tree like `values`, with leaves [N, ...]."""
    return values if num_shards() == 1 else jax.lax.all_gather(values, AXIS, tiled=True)


def own_rows(values: jax.Array) -> jax.Array:
    """Return this device's share of `values` [N, ...], the rows of all devices: the inverse of `all_rows`."""
    shards = num_shards()
    if shards == 1:
        return values
    size = values.shape[0] // shards
    return jax.lax.dynamic_slice_in_dim(values, jax.lax.axis_index(AXIS) * size, size)
