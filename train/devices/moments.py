"""Means and variances of valid values, over all devices."""

from typing import cast

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.train.devices.collectives import num_shards, side_by_side, total


@struct.dataclass
class Moments:
    """Count, mean and sum of squared deviations; 0 without values. Summed axes have size 1."""

    count: jax.Array
    mean: jax.Array
    squares: jax.Array

    @property
    def variance(self) -> jax.Array:
        """Mean squared deviation from the mean."""
        return self.squares / jnp.maximum(self.count, 1.0)


def moments(
    values: jax.Array, live: jax.Array, axis: int | tuple[int, ...] | None = None
) -> Moments:
    """Return the moments of the valid values of this device.

    Args:
        values: float32.
        live: bool, whether a value is valid; with the axes of `values`, or of size 1.
        axis: axes to sum over; None: all.
    """
    count = jnp.sum(live, axis, keepdims=True, dtype=jnp.float32)
    # `where` instead of a product: invalid values may be infinite or NaN
    mean = jnp.sum(jnp.where(live, values, 0.0), axis, keepdims=True) / jnp.maximum(count, 1.0)
    squares = jnp.sum(jnp.where(live, (values - mean) ** 2, 0.0), axis, keepdims=True)
    return Moments(count, mean, squares)


def of_devices(parts: Moments) -> Moments:
    """Combine the moments of each device d.

        count   = sum_d count_d
        mean    = sum_d count_d mean_d / count
        squares = sum_d (squares_d + count_d (mean_d - mean)^2)

    Source: Chan, Golub, LeVeque (1979), "Updating Formulae and a Pairwise Algorithm for Computing
    Sample Variances".
    """
    if num_shards() == 1:
        return parts
    devices = side_by_side(parts)
    count = sum(own.count for own in devices)
    mean = sum(own.count * own.mean for own in devices) / jnp.maximum(count, 1.0)
    squares = sum(own.squares + own.count * (own.mean - mean) ** 2 for own in devices)
    return Moments(cast(jax.Array, count), mean, cast(jax.Array, squares))


def masked_mean(values: jax.Array, live: jax.Array) -> jax.Array:
    """Return the mean of `values` where `live` is true, over all devices, (); 0 without any."""
    weighted, count = total(_sums(values, live))
    return weighted / jnp.maximum(count, 1.0)


def mean_where(values: jax.Array, chosen: jax.Array) -> jax.Array:
    """Return the mean as `masked_mean`, of values that are equal on all devices."""
    weighted, count = _sums(values, chosen)
    return weighted / jnp.maximum(count, 1.0)


def masked_variance(values: jax.Array, live: jax.Array) -> jax.Array:
    """Return the variance of `values` where `live` is true, over all devices, ()."""
    return jnp.squeeze(of_devices(moments(values, live)).variance)


def normalize(values: jax.Array, live: jax.Array) -> jax.Array:
    """Scale `values` to mean 0 and standard deviation 1, over all devices where `live` is true."""
    own = of_devices(moments(values, live))
    return (values - own.mean) / (jnp.sqrt(own.variance) + 1e-8)


def _sums(values: jax.Array, live: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.sum(jnp.where(live, values, 0.0)), jnp.sum(live.astype(jnp.float32))
