"""Sums along time with a factor for each step, for advantages and returns."""

import jax
import jax.numpy as jnp


def decayed_sums(term_t: jax.Array, decay_t: jax.Array, unroll: int = 1) -> jax.Array:
    """Return x_t = term_t + decay_t x_{t+1}, as `Engine.decayed_sums`.

    Args:
        term_t: [T, ...] float32.
        decay_t: [T, ...] float32.
        unroll: steps in one iteration of the loop.
    """

    def add(after: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        term, decay = row
        total = term + decay * after
        return total, total

    rows = term_t, decay_t
    return jax.lax.scan(add, jnp.zeros_like(term_t[0]), rows, reverse=True, unroll=unroll)[1]
