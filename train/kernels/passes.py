"""A block of rows forward and backward through a tower, inside a gradient kernel."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.activations import SLOPES
from wdjax.kernels.half import in_half, in_range
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

Factor: TypeAlias = tuple[jax.Array, jax.Array | None]
"""(factor of products in `dtype_of`, [B, columns]; scale by which its rows were divided, [B, 1],
or None)"""


def load_with_ones(
    ref: Ref, rows: jax.Array, first: Held, large: Ref | None, shape: Shape
) -> tuple[jax.Array, Any]:
    """Load the inputs of a block.

    Args:
        ref: flat inputs of all rows.
        rows: [B] int32, rows of the block.
        first: matrix of the first layer, with its bias.
        large: `transposed` matrix that multiplies streamed inputs; `first` then contains only the
            bias.
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
        products = streamed(ref, rows, large, shape)
    columns = jax.lax.broadcasted_iota(jnp.int32, size, 1)
    return jnp.where(columns == shape.num_held, 1.0, inputs), products


def forward(
    weights: Sequence[Held], inputs: jax.Array, products: Any, shape: Shape
) -> tuple[jax.Array, list[Factor], list[Callable[[jax.Array], jax.Array]]]:
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
    first: Factor = (in_range(inputs, dtype).astype(dtype), None)
    if shape.rescales and shape.inputs != STREAMED:  # streamed: `inputs` is a column of ones
        first = in_half(inputs)
    features = [first]
    backs: list[Callable[[jax.Array], jax.Array]] = []
    for kernel, bias in zip(weights[1::2], weights[2::2], strict=True):
        (hidden, scale), back = activate(outputs, shape)
        outputs = product(hidden, kernel.load(), dtype)
        outputs = (outputs if scale is None else scale * outputs) + bias.load()
        features.append((hidden, scale))
        backs.append(back)
    return outputs, features, backs


def backward(
    weights: Sequence[Held],
    features: list[Factor],
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
    dtype = features[0][0].dtype
    ones = jnp.ones((gradient.shape[0], MIN_SIZE), dtype)
    for i, (hidden, scale) in reversed(list(enumerate(features))):
        scaled = (gradient if scale is None else scale * gradient).astype(dtype)
        gradient = gradient.astype(dtype)
        upright = hidden.shape[1] > gradient.shape[1]
        long, short = (hidden, scaled) if upright else (scaled, hidden)
        if i:
            grads.append(product(gradient.T, ones, dtype))
        grads.append(product(long.T, short, dtype))
        if i:
            gradient = backs[i - 1](product(gradient, weights[2 * i - 1].load().T, dtype))
    return grads[::-1], gradient


def store_of_inputs(
    ref: Ref,
    first_column: int,
    columns: int,
    gradient: jax.Array,
    scale: jax.Array,
    first: Held,
    start: jax.Array,
    shape: Shape,
) -> None:
    """Store the gradient of the inputs of a block.

    Args:
        ref: gradients of all rows of all towers, [R, towers * columns].
        first_column: first column of the tower.
        columns: number of its columns.
        gradient: [B, width] of the products of the first layer, divided by `scale`.
        scale: ().
        first: matrix of the first layer, [inputs, width].
        start: first row of the block.
        shape: static sizes of the policy.
    """
    row = start + jax.lax.broadcasted_iota(jnp.int32, (gradient.shape[0], 1), 0)
    for column, width in pieces(columns):
        values = gradient
        if shape.inputs != STREAMED:
            values = product(gradient, first.load(column, width).T, "float32")
        left = first_column + column
        own = ref.at[pallas.span(start, len(row)), left : left + width]
        pallas.store(own, scale * values, mask=jnp.broadcast_to(row < ref.shape[0], values.shape))


def factor_of(values: jax.Array, shape: Shape) -> Factor:
    """Return values as a factor of products."""
    return in_half(values) if shape.rescales else (values.astype(dtype_of(shape)), None)


def activate(values: jax.Array, shape: Shape) -> tuple[Factor, Callable[[jax.Array], jax.Array]]:
    """Return (act(values), its backward function).

    The backward function reads act(values), which stays in registers, if that suffices. Dividing
    act(values) does not change the slope of relu, and tanh is not divided.
    """
    name, dtype = shape.activation, dtype_of(shape)
    act = activation_of(shape)
    if name in SLOPES:
        after, scale = factor_of(act(values), shape)
        return (after, scale), lambda gradient: gradient.astype(dtype) * SLOPES[name](after)
    hidden, back = jax.vjp(act, values)
    return factor_of(hidden, shape), lambda gradient: back(gradient)[0]


def as_columns(rows: Sequence[jax.Array], width: int) -> jax.Array:
    """Return numbers of rows, [B] each, as the first columns of [B, width]."""
    together = jnp.zeros((rows[0].shape[0], width))
    columns = jax.lax.broadcasted_iota(jnp.int32, together.shape, 1)
    for i, values in enumerate(rows):
        together = jnp.where(columns == i, values[:, None], together)
    return together
