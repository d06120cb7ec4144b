"""Kernels that apply layers to each element of a set and pool them: see train/networks/pooling.py.

Rows without sets are sets of one element. A program computes a block of sets. It loops over their
elements, so that an iteration multiplies one element of each set. Features of elements stay in
registers: memory contains only the inputs and the pooled features. The backward kernel computes the
features again.

Products round to tf32 in the first layer and to float16, which has as many significant bits, in all
others and in gradients. Gradients are divided by the largest gradient of pooled features that the
program has seen. Features above 65504 before the last layer are clipped in the forward kernel and
infinite in the backward kernel, so that the update is reported as bad. Elements are clipped for the
gradient of the first matrix.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.activations import ACTIVATIONS, SLOPES
from wdjax.kernels.half import HALF, TINY, rescaled, rounded

WIDTHS = (16, 32, 64, 128)  # supported widths of a layer
MIN_SIZE = 16  # smallest matrix of tensor cores
ROWS = 32  # sets of a program
PROGRAMS = 264  # programs of the backward kernel, two for each of 132 multiprocessors of an H100
COUNT = 1 << 24  # bits from here on: number of largest elements; below: one bit each
MAX_ELEMENTS = 24  # elements of a set: one bit each
MAX_WEIGHTS = 20_000  # numbers of all matrices, whose gradients stay in registers
Ref = Any

Layers = Sequence[tuple[jax.Array, jax.Array]]
"""(kernel [inputs, width], bias [width]) of each layer"""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Static sizes of the kernels."""

    num_sets: int
    num_elements: int
    num_inputs: int
    """features of an element"""
    width: int
    """outputs of each layer"""
    depth: int
    """number of layers"""
    pool: str
    """max, mean or sum"""
    activation: str = "relu"
    """after each layer; of SLOPES"""
    marked: bool = True
    """whether memory contains the presence of each element after its features"""

    @property
    def columns(self) -> int:
        """Columns of the inputs: features, the factor of the bias, and zeros."""
        return max(MIN_SIZE, 1 << self.num_inputs.bit_length())

    @property
    def stride(self) -> int:
        """Numbers of an element in memory."""
        return self.num_inputs + self.marked

    @property
    def parts(self) -> list[tuple[int, ...]]:
        """Shapes of the gradients: first matrix with its bias, then each matrix and each bias."""
        return [(self.width, self.columns)] + [(self.width, self.width), (self.width,)] * (
            self.depth - 1
        )


def sizes_of(
    pool: str, activation: str, layers: Layers, others: jax.Array, present: jax.Array | None
) -> Sizes:
    """Return the static sizes for elements [R, K, features] and their presence, None for all."""
    num_sets, num_elements, num_inputs = others.shape
    width, depth, marked = layers[0][0].shape[1], len(layers), present is not None
    return Sizes(num_sets, num_elements, num_inputs, width, depth, pool, activation, marked)


def why_not(sizes: Sizes) -> str | None:
    """Return the reason why kernels cannot pool these sets, or None."""
    if not sizes.num_elements:
        return "sets have no elements"
    if sizes.activation not in SLOPES:
        return f"activation {sizes.activation}: kernels support {', '.join(SLOPES)}"
    if sizes.width not in WIDTHS:
        return f"width {sizes.width}: kernels support {', '.join(map(str, WIDTHS))}"
    if sizes.columns > max(WIDTHS):
        return f"{sizes.num_inputs} features of an element: kernels support up to {max(WIDTHS) - 1}"
    if sizes.num_elements > MAX_ELEMENTS:
        return f"{sizes.num_elements} elements: kernels support up to {MAX_ELEMENTS}"
    if sum(math.prod(shape) for shape in sizes.parts if len(shape) == 2) > MAX_WEIGHTS:
        return f"{sizes.depth} layers of width {sizes.width}: too many for registers"
    total = sizes.num_sets * max(sizes.num_elements * sizes.stride, sizes.width)
    return (
        None if total <= pallas.MAX_NUMBERS else f"{total:,} inputs: more than a kernel can index"
    )


def forward(
    sizes: Sizes,
    layers: Layers,
    others: jax.Array,
    present: jax.Array | None,
    with_largest: bool,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Pool sets of elements.

    Args:
        sizes: static sizes.
        layers: parameters, float32.
        others: [R, K, features] float32.
        present: [R, K] bool, or None for all; other elements are not pooled.
        with_largest: whether to return which elements are the largest.
        interpret: run step by step in XLA on any device, for tests.

    Returns:
        (pooled features [R, width]; which elements are equal to the maximum, [R, width] int32, or
        None: bit k for element k, and their number times COUNT).
    """
    pooled = jax.ShapeDtypeStruct((sizes.num_sets, sizes.width), jnp.float32)
    largest = jax.ShapeDtypeStruct(pooled.shape, jnp.int32) if with_largest else None
    grid = (pallas.cdiv(sizes.num_sets, ROWS),)
    body = functools.partial(_forward, sizes=sizes)
    call = pallas.call(body, "pool_sets", (pooled, largest), grid, _warps(sizes), 1, interpret)
    return call(layers, _elements(others, present))


def backward(
    sizes: Sizes,
    layers: Layers,
    others: jax.Array,
    present: jax.Array | None,
    pooled: jax.Array,
    largest: jax.Array | None,
    gradient: jax.Array,
    interpret: bool = False,
) -> list[tuple[jax.Array, jax.Array]]:
    """Return the gradients of the layers.

    Args:
        sizes: static sizes.
        layers: parameters, float32.
        others: [R, K, features] float32.
        present: [R, K] bool, or None for all.
        pooled: [R, width], from `forward`.
        largest: from `forward`; None unless the pool is "max".
        gradient: [R, width], of the pooled features.
        interpret: run step by step in XLA on any device, for tests.
    """
    blocks = pallas.cdiv(pallas.cdiv(sizes.num_sets, ROWS), PROGRAMS)  # per program
    programs = pallas.cdiv(sizes.num_sets, ROWS * blocks)
    counts = [math.prod(shape) for shape in sizes.parts]
    shape = jax.ShapeDtypeStruct((programs * sum(counts),), jnp.float32)
    body = functools.partial(_backward, sizes=sizes, blocks=blocks)
    call = pallas.call(body, "pool_sets_back", shape, (programs,), _warps(sizes), 1, interpret)
    grads = call(layers, _elements(others, present), pooled, largest, gradient)
    grads = jnp.sum(grads.reshape(programs, -1), axis=0)
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    first, *rest = [
        grads[end - count : end].reshape(shape)
        for end, count, shape in zip(ends, counts, sizes.parts, strict=True)
    ]
    inputs = sizes.num_inputs
    kernel, bias = first.T[:inputs], first.T[inputs]
    return [(kernel, bias), *zip(rest[::2], rest[1::2], strict=True)]


def _warps(sizes: Sizes) -> int:
    return 4 if sizes.width <= 64 else 8


def _elements(others: jax.Array, present: jax.Array | None) -> jax.Array:
    """Return the features of each element, then 1 if it is present, else 0; flat.

    Kernels also multiply the bias by the last number. If all elements are present, it is left out,
    so that XLA need not copy the features.
    """
    if present is None:
        return others.reshape(-1)
    ones = present[..., None].astype(jnp.float32)
    return jnp.concatenate([others, ones], axis=-1).reshape(-1)


# --- inside a kernel ---


class Block:
    """Sets of one program, from a first one on; sets beyond the last one are masked."""

    def __init__(self, sizes: Sizes, first: jax.Array):
        self.sizes, self.first = sizes, first
        places = first + jax.lax.broadcasted_iota(jnp.int32, (ROWS,), 0)
        self.rows = jnp.minimum(places, sizes.num_sets - 1)
        mask = first + jax.lax.broadcasted_iota(jnp.int32, (ROWS, sizes.width), 0)
        self.mask = mask < sizes.num_sets

    def at(self, ref: Ref) -> Ref:
        """Return the reference to the features of the sets, [ROWS, width]."""
        return ref.at[pallas.span(self.first, ROWS), pallas.span(0, self.sizes.width)]

    def load(self, ref: Ref) -> jax.Array:
        return pallas.load(self.at(ref), mask=self.mask, other=0)

    def store(self, ref: Ref, value: jax.Array) -> None:
        pallas.store(self.at(ref), value, mask=self.mask)

    def element(self, ref: Ref, k: jax.Array) -> jax.Array:
        """Load one element of each set, [ROWS, columns]: features, 1 if present, and zeros."""
        column = jax.lax.broadcasted_iota(jnp.int32, (ROWS, self.sizes.columns), 1)
        place = self._first(k)[:, None] + column
        values = pallas.load(ref.at[place], mask=column < self.sizes.stride, other=0.0)
        if self.sizes.marked:
            return values
        return jnp.where(column == self.sizes.num_inputs, 1.0, values)

    def present(self, ref: Ref, k: jax.Array) -> jax.Array:
        """Return whether one element of each set is present, [ROWS, 1]."""
        if not self.sizes.marked:
            return jnp.ones((ROWS, 1), bool)
        return (pallas.load(ref.at[self._first(k) + self.sizes.num_inputs]) != 0)[:, None]

    def _first(self, k: jax.Array) -> jax.Array:
        """Return the first place of one element of each set."""
        return (self.rows * self.sizes.num_elements + k) * self.sizes.stride


def _weights(layers: Sequence[tuple[Ref, Ref]], sizes: Sizes) -> list[jax.Array]:
    """Load the first matrix, with its bias as row `num_inputs`, and the parameters of others.

    Matrices are float16, except for the first one.
    """
    (kernel, bias), *others = layers
    shape = sizes.columns, sizes.width
    row, column = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    first = pallas.load(kernel.at[row, column], mask=row < sizes.num_inputs, other=0.0)
    weights = [jnp.where(row == sizes.num_inputs, bias[...][None], first)]
    for kernel, bias in others:
        weights += [rounded(kernel[...], HALF), bias[...]]
    return weights


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.dot(left, right, preferred_element_type=jnp.float32)


def _features(
    weights: Sequence[jax.Array], element: jax.Array, sizes: Sizes, clip: bool
) -> list[jax.Array]:
    """Return the features of an element after each layer; all but the last ones are float16.

    Args:
        weights: from `_weights`.
        element: [ROWS, columns].
        sizes: static sizes.
        clip: whether features above 65504 become 65504, otherwise infinite.
    """
    activation = ACTIVATIONS[sizes.activation]
    features = [activation(_dot(element, weights[0]))]
    for kernel, bias in zip(weights[1::2], weights[2::2], strict=True):
        features[-1] = rounded(features[-1], HALF) if clip else features[-1].astype(HALF)
        features.append(activation(_dot(features[-1], kernel) + bias[None]))
    return features


def _forward(
    layers: Sequence[tuple[Ref, Ref]],
    elements_ref: Ref,
    pooled_ref: Ref,
    largest_ref: Ref | None,
    *,
    sizes: Sizes,
) -> None:
    block, weights = Block(sizes, pallas.program_id() * ROWS), _weights(layers, sizes)

    def add(k: jax.Array, state: tuple) -> tuple:
        pooled, largest, number = state
        present = block.present(elements_ref, k)
        features = _features(weights, block.element(elements_ref, k), sizes, clip=True)[-1]
        features = jnp.where(present, features, 0.0)
        number += present.astype(jnp.float32)
        if sizes.pool != "max":
            return pooled + features, largest, number
        if largest is not None:
            bit = COUNT | (jnp.int32(1) << k)
            with_this = jnp.where(present & (features == pooled), largest + bit, largest)
            largest = jnp.where(features > pooled, bit, with_this)
        return jnp.maximum(pooled, features), largest, number

    zeros = jnp.zeros((ROWS, sizes.width), jnp.float32)
    start = None if largest_ref is None else zeros.astype(jnp.int32)
    state = zeros, start, jnp.zeros((ROWS, 1), jnp.float32)
    pooled, largest, number = jax.lax.fori_loop(0, sizes.num_elements, add, state)
    block.store(pooled_ref, pooled / jnp.maximum(number, 1.0) if sizes.pool == "mean" else pooled)
    if largest_ref is not None:
        block.store(largest_ref, largest)


def _backward(
    layers: Sequence[tuple[Ref, Ref]],
    elements_ref: Ref,
    pooled_ref: Ref,
    largest_ref: Ref | None,
    gradient_ref: Ref,
    grads_ref: Ref,
    *,
    sizes: Sizes,
    blocks: int,
) -> None:
    program, weights = pallas.program_id(), _weights(layers, sizes)

    def add_block(i: jax.Array, carry: tuple) -> tuple:
        grads, top = carry
        block = Block(sizes, (program * blocks + i) * ROWS)
        gradient, largest = block.load(gradient_ref), None
        if largest_ref is not None:
            largest = block.load(largest_ref)
            share = gradient / jnp.maximum(largest // COUNT, 1).astype(jnp.float32)
            gradient = jnp.where(block.load(pooled_ref) > 0.0, share, 0.0)
        elif sizes.pool == "mean":
            count = lambda k, n: n + block.present(elements_ref, k).astype(jnp.float32)  # noqa: E731
            number = jax.lax.fori_loop(0, sizes.num_elements, count, jnp.zeros((ROWS, 1)))
            gradient /= jnp.maximum(number, 1.0)
        grads, top, gradient = rescaled(grads, top, gradient)

        def add(k: jax.Array, grads: list[jax.Array]) -> list[jax.Array]:
            element = block.element(elements_ref, k)
            features = _features(weights, element, sizes, clip=False)
            if largest is not None:  # relu: its slope is 1 where the maximum is above 0
                own = jnp.where(((largest >> k) & 1) != 0, gradient, 0.0)
            else:
                own = gradient * SLOPES[sizes.activation](features[-1])
                own = jnp.where(block.present(elements_ref, k), own, 0.0)
            return _add_gradients(weights, [rounded(element, HALF), *features], own, grads, sizes)

        return jax.lax.fori_loop(0, sizes.num_elements, add, grads), top

    shapes = [shape if len(shape) == 2 else (ROWS, *shape) for shape in sizes.parts]
    carry = [jnp.zeros(shape, jnp.float32) for shape in shapes], jnp.float32(TINY)
    grads, top = jax.lax.fori_loop(0, blocks, add_block, carry)
    first = program * sum(map(math.prod, sizes.parts))
    for grad, shape in zip(grads, sizes.parts, strict=True):
        grad *= top
        if len(shape) == 1:
            grad = jnp.sum(grad, axis=0)
            place = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        else:
            row, column = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
            place = row * shape[1] + column
        pallas.store(grads_ref.at[first + place], grad)
        first += math.prod(shape)


def _add_gradients(
    weights: Sequence[jax.Array],
    features: Sequence[jax.Array],
    gradient: jax.Array,
    grads: Sequence[jax.Array],
    sizes: Sizes,
) -> list[jax.Array]:
    """Add the gradients for one element of each set.

    Args:
        weights: from `_weights`.
        features: the elements and the results of `_features`, float16 except for the last ones.
        gradient: [ROWS, width], of the outputs of the last layer.
        grads: previous sums; biases as [ROWS, width]. The first one is transposed, because tensor
            cores expect the longer side first.
        sizes: static sizes.
    """
    grads = list(grads)
    for i in reversed(range(1, len(features) - 1)):
        half = gradient.astype(HALF)
        grads[2 * i - 1] += _dot(features[i].T, half)
        grads[2 * i] += gradient
        gradient = _dot(half, weights[2 * i - 1].T)
        gradient *= SLOPES[sizes.activation](features[i].astype(jnp.float32))
    grads[0] += _dot(gradient.astype(HALF).T, features[0])
    return grads
