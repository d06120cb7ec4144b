"""Exploration noise of deterministic policies, in half-widths of the action's box."""

import functools
from typing import cast

import jax
import jax.numpy as jnp

from wdjax.train.devices.blocks import draw_blocks


def ornstein_uhlenbeck(
    before: jax.Array, normal: jax.Array, stddev: jax.Array, damping: jax.Array
) -> jax.Array:
    """Return the next state of the process s' = (1 - damping) s + stddev N(0, 1), of any shape.

    Its stationary standard deviation is stddev / sqrt(1 - (1 - damping)^2). The correlation of two
    states k steps apart is (1 - damping)^k.

    Source: Uhlenbeck, Ornstein, "On the Theory of the Brownian Motion" (1930), in discrete time.
    """
    return (1.0 - damping) * before + stddev * normal


def explore(
    kind: str,
    state: jax.Array | None,
    keys: jax.Array,
    shape: tuple[int, ...],
    scale: jax.Array,
    stddev: jax.Array,
    damping: jax.Array,
) -> tuple[jax.Array, jax.Array | None]:
    """Draw the noise of one step.

    Args:
        kind: "ornstein_uhlenbeck", "gaussian" or "none".
        state: [N, n, A] state of the Ornstein-Uhlenbeck process, or None.
        keys: [num_blocks], one per block of replicas.
        shape: (N, n, A).
        scale: () factor of the noise.
        stddev: () standard deviation.
        damping: () damping of the Ornstein-Uhlenbeck process.

    Returns:
        (noise [N, n, A], state).
    """
    if kind == "none":
        return jnp.zeros(shape, jnp.float32), None
    normal = draw_blocks(functools.partial(jax.random.normal, dtype=jnp.float32), keys, shape)
    if kind == "gaussian":
        return scale * stddev * normal, None
    state = ornstein_uhlenbeck(cast(jax.Array, state), normal, stddev, damping)
    return scale * state, state


def uniform_actions(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw numbers uniformly in [-1, 1), (N, n, A), with one key per block, [num_blocks]."""
    draw = lambda key, shape: jax.random.uniform(key, shape, jnp.float32, minval=-1.0)  # noqa: E731
    return draw_blocks(draw, keys, shape)
