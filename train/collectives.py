"""What devices tell each other while they share the work of one function (train/devices.py splits it).

The code in between does not know how many there are: it sums with `total` and draws with `block_numbers`. Outside of a
`shard_map` over AXIS, and so on one device, these change nothing, not even the compiled program.

Gradients: a loss is made of means over all devices, so it is the same number on each. Differentiated in there, a sum
over devices hands to each device's part the gradients of all these equal losses: what each finds is the number of
devices times its part, and the gradient of the loss is the mean of these (`average`).
"""

from typing import Any

import jax
import jax.numpy as jnp

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
    """Returns the sums over devices, for a tree of numbers that each device has."""
    return values if num_shards() == 1 else jax.lax.psum(values, AXIS)


def average(values: Any) -> Any:
    """Returns the means over devices: of gradients, and of what are means over equally many numbers on each."""
    return values if num_shards() == 1 else jax.lax.pmean(values, AXIS)


def smallest(values: jax.Array) -> jax.Array:
    """Returns the minimum over devices."""
    return values if num_shards() == 1 else jax.lax.pmin(values, AXIS)


def largest(values: jax.Array) -> jax.Array:
    """Returns the maximum over devices."""
    return values if num_shards() == 1 else jax.lax.pmax(values, AXIS)


def any_of(flags: jax.Array) -> jax.Array:
    """Returns whether a flag is set on any device, () bool."""
    found = jnp.any(flags)
    return found if num_shards() == 1 else jax.lax.psum(found.astype(jnp.int32), AXIS) > 0


def all_rows(values: Any) -> Any:
    """Returns the rows of all devices in their order in the run, for a tree of arrays [N, ...]."""
    return values if num_shards() == 1 else jax.lax.all_gather(values, AXIS, tiled=True)


def own_rows(values: jax.Array) -> jax.Array:
    """Returns this device's share of the rows of all devices: the inverse of `all_rows`."""
    shards = num_shards()
    if shards == 1:
        return values
    size = values.shape[0] // shards
    return jax.lax.dynamic_slice_in_dim(values, jax.lax.axis_index(AXIS) * size, size)
