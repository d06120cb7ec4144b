"""Statistics over live rows only, of all devices."""

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.train.devices.collectives import num_shards, side_by_side, total


@struct.dataclass
class Moments:
    """Count, mean and sum of squared deviations of some rows; 0 where there are none. Axes that were summed are 1."""

    count: jax.Array
    mean: jax.Array
    squares: jax.Array

    @property
    def variance(self) -> jax.Array:
        """The mean squared deviation from the mean."""
        return self.squares / jnp.maximum(self.count, 1.0)


def moments(
    values: jax.Array, live: jax.Array, axis: int | tuple[int, ...] | None = None
) -> Moments:
    """Returns the moments of this device's live rows along some axes, None for all.

    Args:
        values: float32.
        live: bool, as many axes as `values`, broadcast over those that are 1.
    """
    count = jnp.sum(live, axis, keepdims=True, dtype=jnp.float32)
    # `where` and not a product: a dead row may hold anything, also infinities
    mean = jnp.sum(jnp.where(live, values, 0.0), axis, keepdims=True) / jnp.maximum(count, 1.0)
    squares = jnp.sum(jnp.where(live, (values - mean) ** 2, 0.0), axis, keepdims=True)
    return Moments(count, mean, squares)


def of_devices(parts: Moments) -> Moments:
    """Returns the moments of the rows of all devices from those of each, d,

        count = sum_d n_d,  mean = sum_d n_d mean_d / count,  squares = sum_d (squares_d + n_d (mean_d - mean)^2).

    Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
    """
    if num_shards() == 1:
        return parts
    devices = side_by_side(parts)
    count = sum(own.count for own in devices)
    mean = sum(own.count * own.mean for own in devices) / jnp.maximum(count, 1.0)
    squares = sum(own.squares + own.count * (own.mean - mean) ** 2 for own in devices)
    return Moments(count, mean, squares)


def masked_mean(values: jax.Array, live: jax.Array) -> jax.Array:
    """Return the mean of `values` where `live` is true, over all devices: a scalar, 0 if none is."""
    weighted, count = total(_sums(values, live))
    return weighted / jnp.maximum(count, 1.0)


def mean_where(values: jax.Array, chosen: jax.Array) -> jax.Array:
    """Returns what `masked_mean` does, for values that are the same on every device already."""
    weighted, count = _sums(values, chosen)
    return weighted / jnp.maximum(count, 1.0)


def masked_variance(values: jax.Array, live: jax.Array) -> jax.Array:
    """Return the variance of `values` where `live` is true, over all devices: a scalar."""
    return jnp.squeeze(of_devices(moments(values, live)).variance)


def normalize(values: jax.Array, live: jax.Array) -> jax.Array:
    """Return `values` shifted and scaled to mean 0 and standard deviation 1, over all devices where `live` is true."""
    own = of_devices(moments(values, live))
    return (values - own.mean) / (jnp.sqrt(own.variance) + 1e-8)


def _sums(values: jax.Array, live: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.sum(jnp.where(live, values, 0.0)), jnp.sum(live.astype(jnp.float32))
