"""Statistics over live rows only, of all devices."""

import jax
import jax.numpy as jnp

from wdjax.train.collectives import total


def masked_mean(values: jax.Array, live: jax.Array) -> jax.Array:
    """Returns sum(values * live) / max(sum(live), 1), a scalar; 0 where nothing is live."""
    weighted, count = total(_sums(values, live))
    return weighted / jnp.maximum(count, 1.0)


def mean_where(values: jax.Array, chosen: jax.Array) -> jax.Array:
    """Returns what `masked_mean` does, for values that are the same on every device already."""
    weighted, count = _sums(values, chosen)
    return weighted / jnp.maximum(count, 1.0)


def masked_variance(values: jax.Array, live: jax.Array) -> jax.Array:
    """Returns the mean squared deviation from the mean over live rows, a scalar."""
    return masked_mean((values - masked_mean(values, live)) ** 2, live)


def normalize(values: jax.Array, live: jax.Array) -> jax.Array:
    """Returns values shifted and scaled to mean 0 and deviation 1 over live rows."""
    return (values - masked_mean(values, live)) / (jnp.sqrt(masked_variance(values, live)) + 1e-8)


def _sums(values: jax.Array, live: jax.Array) -> tuple[jax.Array, jax.Array]:
    weight = live.astype(jnp.float32)
    # `where` and not a product: a dead row may hold anything, also infinities
    return jnp.sum(jnp.where(live, values, 0.0)), jnp.sum(weight)
