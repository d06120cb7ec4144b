"""Exploration noise for deterministic policies, in half widths of the action's box."""

import functools

import jax
import jax.numpy as jnp

from wdjax.train.devices.blocks import draw_blocks
from wdjax.train.state.hypers import DDPGHypers


def ornstein_uhlenbeck(before: jax.Array, normal: jax.Array, hypers: DDPGHypers) -> jax.Array:
    """Returns the next state of the process s' = (1 - damping) s + stddev N(0, 1), of any shape.

    Its deviation in the long run is stddev / sqrt(1 - (1 - damping)^2); two states k steps apart are correlated by
    (1 - damping)^k. Source: Uhlenbeck, Ornstein, "On the Theory of the Brownian Motion" (1930), in steps of one.
    """
    return (1.0 - hypers.noise_damping) * before + hypers.noise_stddev * normal


def explore(
    kind: str, state: jax.Array | None, keys: jax.Array, shape: tuple[int, ...], hypers: DDPGHypers
) -> tuple[jax.Array, jax.Array | None]:
    """Draws the noise of one step.

    Args:
        kind: "ornstein_uhlenbeck", "gaussian" or "none".
        state: [N, n, A] of the process, or None.
        keys: [num_blocks], one for each block of replicas.
        shape: (N, n, A).
        hypers: schedules read off.

    Returns:
        (noise [N, n, A], state).
    """
    if kind == "none":
        return jnp.zeros(shape, jnp.float32), None
    normal = draw_blocks(functools.partial(jax.random.normal, dtype=jnp.float32), keys, shape)
    if kind == "gaussian":
        return hypers.noise_scale * hypers.noise_stddev * normal, None
    state = ornstein_uhlenbeck(state, normal, hypers)
    return hypers.noise_scale * state, state


def uniform_actions(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws numbers uniformly in [-1, 1), (N, n, A), each block of replicas with its own of the keys [num_blocks]."""
    draw = lambda key, shape: jax.random.uniform(key, shape, jnp.float32, minval=-1.0)  # noqa: E731
    return draw_blocks(draw, keys, shape)
