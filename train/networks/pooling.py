"""Pooling of sets: layers on each element, then the maximum, mean or sum over the elements.

On NVIDIA GPUs a kernel computes all of it (wdjax/kernels/pooling.py). In plain XLA the features of
all elements are written to memory, which takes most of the time.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pooling
from wdjax.kernels.activations import ACTIVATIONS
from wdjax.kernels.backend import cuda_or_default
from wdjax.kernels.pooling import Layers

# Name -> function of (features [..., k, width] of at least 0, present [..., k, 1]) -> [..., width].
POOLS = {
    "max": lambda rows, present: jnp.max(rows, -2, where=present, initial=0.0),
    "mean": lambda rows, present: (
        jnp.sum(rows, -2, where=present) / jnp.maximum(jnp.sum(present, -2), 1)
    ),
    "sum": lambda rows, present: jnp.sum(rows, -2, where=present),
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def pool_sets(
    pool: str, activation: str, layers: Layers, others: jax.Array, present: jax.Array | None
) -> jax.Array:
    """Return the pooled features of sets, [R, width], by a kernel on NVIDIA GPUs.

    Args:
        pool: name of POOLS; "max" requires relu.
        activation: name of an activation, after each layer.
        layers: (kernel, bias) of each layer.
        others: [R, K, features] float32.
        present: [R, K] bool, or None for all.
    """
    return _run(pool, activation, layers, others, present, with_largest=False)[0]


def run_layers(activation: str, layers: Layers, inputs: jax.Array) -> jax.Array:
    """Return the features of inputs [..., features] after the layers, by a kernel on NVIDIA GPUs.

    It has no kernel for the gradient with respect to the inputs.
    """
    rows = inputs.reshape(-1, 1, inputs.shape[-1])
    pooled = pool_sets("sum", activation, layers, rows, None)
    return pooled.reshape(*inputs.shape[:-1], -1)


def _plain(
    pool: str, activation: str, layers: Layers, others: jax.Array, present: jax.Array | None
) -> jax.Array:
    for kernel, bias in layers:
        others = ACTIVATIONS[activation](others @ kernel + bias[None, None])
    present = jnp.ones(others.shape[:2], bool) if present is None else present
    return POOLS[pool](others, present[..., None])


def _run(
    pool: str,
    activation: str,
    layers: Layers,
    others: jax.Array,
    present: jax.Array | None,
    with_largest: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Return (pooled features, `largest` of `pooling.forward`)."""
    sizes = pooling.sizes_of(pool, activation, layers, others, present)
    fused = functools.partial(pooling.forward, sizes, with_largest=with_largest)

    def plain(*operands: Any) -> tuple[jax.Array, jax.Array | None]:
        pooled = _plain(pool, activation, *operands)
        return pooled, jnp.zeros(pooled.shape, jnp.int32) if with_largest else None

    return cuda_or_default(fused, plain, layers, others, present)


def _forward(
    pool: str, activation: str, layers: Layers, others: jax.Array, present: jax.Array | None
) -> tuple[jax.Array, tuple]:
    pooled, largest = _run(pool, activation, layers, others, present, with_largest=pool == "max")
    return pooled, (layers, others, present, pooled, largest)


def _backward(pool: str, activation: str, saved: tuple, gradient: jax.Array) -> tuple:
    """Return the gradients with respect to (layers, others, present)."""
    layers, others, present, *_ = saved
    sizes = pooling.sizes_of(pool, activation, layers, others, present)

    fused = functools.partial(pooling.backward, sizes)

    def pull(layers: Layers, others: jax.Array, gradient: jax.Array) -> tuple:
        own = lambda layers, others: _plain(pool, activation, layers, others, present)  # noqa: E731
        return jax.vjp(own, layers, others)[1](gradient)

    def plain(layers: Layers, others: jax.Array, *rest: Any) -> Layers:
        return pull(layers, others, rest[-1])[0]

    d_layers = cuda_or_default(fused, plain, *saved, gradient)
    # XLA removes this computation if the gradient of the observations is not used
    return d_layers, pull(layers, others, gradient)[1], None


pool_sets.defvjp(_forward, _backward)
