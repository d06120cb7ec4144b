"""Arithmetic that the games share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def wrap_angle(angle: jax.Array) -> jax.Array:
    """Returns an angle [...] in rad less whole turns, from -pi to pi (up to rounding); one within keeps its bits."""
    turns = jnp.floor((angle + jnp.pi) / (2 * jnp.pi))
    return angle - 2 * jnp.pi * turns


def stack_bounds(*bounds: Any) -> np.ndarray | jax.Array:
    """Returns scalars as [n] float32: bounds of a Box, of NumPy unless a parameter among them is on a device."""
    module = jnp if any(isinstance(bound, jax.Array) for bound in bounds) else np
    return module.stack([module.asarray(bound, np.float32) for bound in bounds])
