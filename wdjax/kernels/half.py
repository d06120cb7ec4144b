"""float16 in kernels: as many significant bits as tf32 in half of the memory, but a small range."""

import jax
import jax.numpy as jnp

HALF, MAX_HALF = "float16", 65504.0
TINY = 1e-30  # smallest divisor of gradients


def in_range(values: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Return values that are finite in `dtype`: clipped to 65504 for float16."""
    return jnp.clip(values, -MAX_HALF, MAX_HALF) if dtype == HALF else values


def in_half(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (values / scale as float16, scale), [B, n] and [B, 1]; 1 in rows up to 65504."""
    scale = jnp.maximum(1.0, jnp.max(jnp.abs(values), axis=1, keepdims=True) * (1.0 / MAX_HALF))
    return (values * (1.0 / scale)).astype(HALF), scale


def rescaled(
    sums: list[jax.Array], top: jax.Array, gradient: jax.Array
) -> tuple[list[jax.Array], jax.Array, jax.Array]:
    """Divide gradients by the largest absolute gradient, so that they fit float16.

    Args:
        sums: sums over earlier blocks, divided by `top`.
        top: largest absolute gradient of earlier blocks, at first TINY.
        gradient: gradient of the next block, not divided. Infinity becomes NaN.

    Returns:
        (sums, top, gradient), divided by the new `top`.
    """
    larger = jnp.maximum(top, jnp.max(jnp.abs(gradient)))
    return [own * (top / larger) for own in sums], larger, gradient * (1.0 / larger)


def rounded(values: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Return values in `dtype`, clipped to 65504 for float16 unless they are float16 already."""
    return values if values.dtype == dtype else in_range(values, dtype).astype(dtype)


def rounded_product(
    left: jax.Array, right: jax.Array, dtype: jax.typing.DTypeLike = HALF
) -> jax.Array:
    """Return left @ right in `dtype`, of factors rounded to `dtype`. Sums are float32."""
    left, right = rounded(left, dtype), rounded(right, dtype)
    return rounded(jnp.matmul(left, right, preferred_element_type=jnp.float32), dtype)
