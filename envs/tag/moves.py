"""Decoding of Tag actions, shared by environments and scripts: levels, angles, grid steps."""

import math

import jax
import jax.numpy as jnp
import numpy as np

# Grid actions: 0 stay, 1 x+1, 2 x-1, 3 y+1, 4 y-1.
X_STEPS = np.array([0, 1, -1, 0, 0], np.int32)
Y_STEPS = np.array([0, 0, 0, 1, -1], np.int32)


def wrap(angle: jax.Array) -> jax.Array:
    """Return `angle` [rad] modulo 2 pi."""
    return jnp.mod(angle, jnp.float32(2 * math.pi))


def level(
    index: jax.Array, low: float | jax.Array, high: float | jax.Array, num_levels: int
) -> jax.Array:
    """Return the value of an action index, using evenly spaced levels from `low` to `high`.

    Index 0 is the no-op with value 0; index i is level i - 1 of `num_levels`. If low = -high, the
    levels are exact negatives of each other, so opposite turns cancel exactly.
    """
    steps = max(num_levels - 1, 1)
    part = (2 * (index - 1) - steps) / steps  # from -1 to 1
    return jnp.where(index == 0, 0.0, 0.5 * (high + low) + 0.5 * (high - low) * part)
