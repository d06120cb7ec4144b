"""A block of rows forward and backward through a tower, inside a gradient kernel."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.activations import SLOPES
from wdjax.kernels.half import in_range
from wdjax.train.kernels.layers import (
    MIN_SIZE,
    STREAMED,
    Ref,
    Shape,
    activation_of,
    dtype_of,
    load_rows,
    pieces,
    product,
    streamed,
)
from wdjax.train.kernels.vectors import Held


def load_with_ones(
    ref: Ref, rows: jax.Array, first: Held, large: Held | None, shape: Shape
) -> tuple[jax.Array, Any]:
    """Load the inputs of a block.

    Args:
        ref: flat inputs of all rows.
        rows: [B] int32, rows of the block.
        first: matrix of the first layer, with its bias.
        large: the matrix that multiplies streamed inputs; `first` then contains only the bias.
        shape: static sizes of the policy.

    Returns:
        (inputs that `first` multiplies, with a column of ones, [B, rows of the matrix]; products of
        streamed inputs, [B, width], or 0).
    """
    size = rows.shape[0], first.shape[0]
    products: Any = 0.0
    if large is None:
        inputs = load_rows(ref, rows, 0, first.shape[0], shape)
    else:
        inputs = jnp.zeros(size)
        products = streamed(ref, rows, large.load, shape)
    columns = jax.lax.broadcasted_iota(jnp.int32, size, 1)
    return jnp.where(columns == shape.num_held, 1.0, inputs), products


def forward(
    weights: Sequence[Held], inputs: jax.Array, products: Any, shape: Shape
) -> tuple[jax.Array, list[jax.Array], list[Callable[[jax.Array], jax.Array]]]:
    """Run a block of rows through a tower with its matrices in memory. Sums are float32.

    Args:
        weights: matrix of the first layer, then matrix and bias of each other layer.
        inputs: from `load_with_ones`.
        products: from `load_with_ones`.
        shape: static sizes of the policy.

    Returns:
        (outputs [B, columns], inputs of each layer, backward function of each activation).
    """
    dtype = dtype_of(shape)
    outputs = product(inputs, weights[0].load(), "float32") + products
    # clipped for the gradient of the first matrix, which in float32 takes 17 % more instructions
    features = [in_range(inputs, dtype).astype(dtype)]
    backs: list[Callable[[jax.Array], jax.Array]] = []
    for kernel, bias in zip(weights[1::2], weights[2::2], strict=True):
        hidden, back = activate(outputs, shape)
        outputs = product(hidden, kernel.load(), dtype) + bias.load()
        features.append(hidden)
        backs.append(back)
    return outputs, features, backs


def backward(
    weights: Sequence[Held],
    features: list[jax.Array],
    backs: list[Callable[[jax.Array], jax.Array]],
    gradient: jax.Array,
) -> tuple[list[jax.Array], jax.Array]:
    """Propagate gradients through a tower for a block of rows.

    Gradients of matrices with more columns than rows are transposed: tensor cores expect the longer
    side first. Gradients of biases are [outputs, MIN_SIZE] with equal columns: a product with ones
    is cheaper than a sum over rows.

    Args:
        weights: matrix of the first layer, then matrix and bias of each other layer.
        features: from `forward`.
        backs: from `forward`.
        gradient: [B, columns] of the outputs.

    Returns:
        (gradients of the matrices and biases, gradient of the products of the first layer).
    """
    grads: list[jax.Array] = []
    dtype = features[0].dtype
    ones = jnp.ones((gradient.shape[0], MIN_SIZE), dtype)
    for i in reversed(range(len(features))):
        gradient = gradient.astype(dtype)
        upright = features[i].shape[1] > gradient.shape[1]
        long, short = (features[i], gradient) if upright else (gradient, features[i])
        if i:
            grads.append(product(gradient.T, ones, dtype))
        grads.append(product(long.T, short, dtype))
        if i:
            gradient = backs[i - 1](product(gradient, weights[2 * i - 1].load().T, dtype))
    return grads[::-1], gradient


def store_of_inputs(
    ref: Ref, gradient: jax.Array, scale: jax.Array, first: Held, start: jax.Array, shape: Shape
) -> None:
    """Store the gradient of the inputs of a block.

    Args:
        ref: [R, columns], gradients of all rows.
        gradient: [B, width] of the products of the first layer, divided by `scale`.
        scale: ().
        first: matrix of the first layer, [inputs, width].
        start: first row of the block.
        shape: static sizes of the policy.
    """
    row = start + jax.lax.broadcasted_iota(jnp.int32, (gradient.shape[0], 1), 0)
    for column, width in pieces(ref.shape[1]):
        values = gradient
        if shape.inputs != STREAMED:
            values = product(gradient, first.load(column, width).T, "float32")
        own = ref.at[pallas.span(start, len(row)), column : column + width]
        pallas.store(own, scale * values, mask=jnp.broadcast_to(row < ref.shape[0], values.shape))


def activate(values: jax.Array, shape: Shape) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Return (act(values), its backward function).

    The backward function reads act(values), which stays in registers, if that suffices.
    """
    name, dtype = shape.activation, dtype_of(shape)
    act = activation_of(shape)
    if name in SLOPES:
        after = act(values).astype(dtype)
        return after, lambda gradient: gradient.astype(dtype) * SLOPES[name](after)
    after, back = jax.vjp(act, values)
    return after, lambda gradient: back(gradient)[0]


def as_columns(rows: Sequence[jax.Array], width: int) -> jax.Array:
    """Return numbers of rows, [B] each, as the first columns of [B, width]."""
    together = jnp.zeros((rows[0].shape[0], width))
    columns = jax.lax.broadcasted_iota(jnp.int32, together.shape, 1)
    for i, values in enumerate(rows):
        together = jnp.where(columns == i, values[:, None], together)
    return together
