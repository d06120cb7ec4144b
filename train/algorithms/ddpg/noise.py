"""Exploration noise for deterministic policies, in half widths of the action's box."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.train.devices.blocks import draw_blocks


def ornstein_uhlenbeck(before: jax.Array, normal: jax.Array, options: Any) -> jax.Array:
    """Returns the next state of the process s' = (1 - damping) s + stddev N(0, 1), of any shape.

    Its deviation in the long run is stddev / sqrt(1 - (1 - damping)^2); two states k steps apart are correlated by
    (1 - damping)^k. Source: Uhlenbeck, Ornstein, "On the Theory of the Brownian Motion" (1930), in steps of one.
    """
    return (1.0 - options.noise_damping) * before + options.noise_stddev * normal


def explore(
    kind: str, state: jax.Array | None, keys: jax.Array, shape: tuple[int, ...], options: Any
) -> tuple[jax.Array, jax.Array | None]:
    """Draws the noise of one step.

    Args:
        kind: "ornstein_uhlenbeck", "gaussian" or "none".
        state: [N, n, A] of the process, or None.
        keys: [num_blocks], one for each block of replicas.
        shape: (N, n, A).
        options: of DDPG, traced fields as scalars.

    Returns:
        (noise [N, n, A], state).
    """
    if kind == "none":
        return jnp.zeros(shape, jnp.float32), None
    normal = draw_blocks(functools.partial(jax.random.normal, dtype=jnp.float32), keys, shape)
    if kind == "gaussian":
        return options.noise_scale * options.noise_stddev * normal, None
    state = ornstein_uhlenbeck(state, normal, options)
    return options.noise_scale * state, state


def uniform_actions(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws numbers uniformly in [-1, 1), (N, n, A), each block of replicas with its own of the keys [num_blocks]."""
    draw = lambda key, shape: jax.random.uniform(key, shape, jnp.float32, minval=-1.0)  # noqa: E731
    return draw_blocks(draw, keys, shape)
