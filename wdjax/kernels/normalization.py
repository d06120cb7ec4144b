"""Kernels of layer normalization, with the bias before it and the activation after it.

See train/networks/normalization.py.

A program normalizes blocks of rows. A row is padded to a power of two in registers, so its mean and
variance need no memory. The backward kernel computes them again.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.activations import ACTIVATIONS, SLOPES

MAX_WIDTH = 1024
BLOCK = 4096  # numbers of a block, if it has between MIN_ROWS and MAX_ROWS rows
MIN_ROWS, MAX_ROWS = 8, 128
PROGRAMS = 264  # programs of the backward kernel, two for each of 132 multiprocessors of an H100
Ref = Any

Parameters = Sequence[jax.Array]
"""bias, scale and shift, float32: three arrays [1, width], or one array [3, width]"""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Static sizes of the kernels."""

    num_rows: int
    width: int
    """numbers of a row"""
    activation: str
    """after the normalization; of SLOPES"""
    epsilon: float
    """added to the variance"""

    @property
    def columns(self) -> int:
        """Columns of a block: the next power of two."""
        return 1 << (self.width - 1).bit_length()

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return min(max(BLOCK // self.columns, MIN_ROWS), MAX_ROWS)

    @property
    def warps(self) -> int:
        return 4 if self.columns <= MAX_WIDTH // 2 else 8


def why_not(width: int, rows: int, activation: str) -> str | None:
    """Return the reason why kernels cannot normalize rows [rows, width], or None."""
    if activation not in SLOPES:
        return f"activation {activation}: kernels support {', '.join(SLOPES)}"
    if width > MAX_WIDTH:
        return f"width {width}: kernels support up to {MAX_WIDTH}"
    total = rows * width
    fits = total <= pallas.MAX_NUMBERS
    return None if fits else f"{total:,} inputs: more than a kernel can index"


def forward(
    sizes: Sizes, parameters: Parameters, inputs: jax.Array, interpret: bool = False
) -> jax.Array:
    """Return activation(normalized (inputs + bias) * scale + shift), [R, width].

    Args:
        sizes: static sizes.
        parameters: bias, scale and shift.
        inputs: [R, width] float32.
        interpret: run step by step in XLA on any device, for tests.
    """
    shape = jax.ShapeDtypeStruct((inputs.size,), jnp.float32)
    grid = (pallas.cdiv(sizes.num_rows, sizes.rows),)
    body = functools.partial(_forward, sizes=sizes)
    call = pallas.call(body, "normalize", shape, grid, sizes.warps, 1, interpret)
    flat = [part.reshape(-1) for part in parameters]
    return call(flat, inputs.reshape(-1)).reshape(inputs.shape)


def backward(
    sizes: Sizes,
    parameters: Parameters,
    inputs: jax.Array,
    gradient: jax.Array,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Return the gradients of (parameters [3, width], inputs [R, width]).

    Args:
        sizes: static sizes.
        parameters: bias, scale and shift.
        inputs: [R, width] float32.
        gradient: [R, width], of the outputs.
        interpret: run step by step in XLA on any device, for tests.
    """
    blocks = pallas.cdiv(pallas.cdiv(sizes.num_rows, sizes.rows), PROGRAMS)  # per program
    programs = pallas.cdiv(sizes.num_rows, sizes.rows * blocks)
    shapes = (
        jax.ShapeDtypeStruct((programs * 3 * sizes.width,), jnp.float32),
        jax.ShapeDtypeStruct((inputs.size,), jnp.float32),
    )
    body = functools.partial(_backward, sizes=sizes, blocks=blocks)
    call = pallas.call(body, "normalize_back", shapes, (programs,), sizes.warps, 1, interpret)
    flat = [part.reshape(-1) for part in parameters]
    sums, d_inputs = call(flat, inputs.reshape(-1), gradient.reshape(-1))
    return jnp.sum(sums.reshape(programs, 3, -1), axis=0), d_inputs.reshape(inputs.shape)


# --- inside a kernel ---


class Block:
    """Rows of one program, from a first one on; the mask excludes padding and rows after the last.

    Padding is loaded as 0, so that it adds nothing to a sum.
    """

    def __init__(self, sizes: Sizes, first: jax.Array):
        self.sizes = sizes
        shape = (sizes.rows, sizes.columns)
        row, column = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        self.mask = (first + row < sizes.num_rows) & (column < sizes.width)
        self.place = _place(first + row, column, sizes, sizes.num_rows)

    def load(self, ref: Ref) -> jax.Array:
        return pallas.load(ref.at[self.place], mask=self.mask, other=0.0)

    def store(self, ref: Ref, value: jax.Array) -> None:
        pallas.store(ref.at[self.place], value, mask=self.mask)

    def mean(self, values: jax.Array) -> jax.Array:
        """Return the mean of each row, [rows, 1]."""
        return (jnp.sum(values, axis=1) / self.sizes.width)[:, None]

    def normalized(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return (inputs - their mean, variance before clipping, 1 / standard deviation)."""
        mean = self.mean(inputs)
        variance = self.mean(inputs * inputs) - mean * mean
        inverse = jax.lax.rsqrt(jnp.maximum(variance, 0.0) + self.sizes.epsilon)
        return inputs - mean, variance, inverse


def _place(row: Any, column: jax.Array, sizes: Sizes, num_rows: int) -> jax.Array:
    """Return the places of numbers in a flat array of rows; padding is outside of the array."""
    place = row * sizes.width + column
    if sizes.columns == sizes.width:
        return place
    return jnp.where(column < sizes.width, place, num_rows * sizes.width)


def _row(ref: Ref, row: int | jax.Array, sizes: Sizes) -> tuple[Ref, jax.Array]:
    """Return (reference to a row of a flat array, mask without padding), [1, columns]."""
    column = jax.lax.broadcasted_iota(jnp.int32, (1, sizes.columns), 1)
    num_rows = ref.shape[0] // sizes.width
    return ref.at[_place(row, column, sizes, num_rows)], column < sizes.width


def _load_parameters(refs: Sequence[Ref], sizes: Sizes) -> list[jax.Array]:
    """Load bias, scale and shift, [1, columns] each."""
    rows = [_row(ref, i, sizes) for ref in refs for i in range(ref.shape[0] // sizes.width)]
    return [pallas.load(row, mask=mask, other=0.0) for row, mask in rows]


def _forward(parameters: Sequence[Ref], inputs_ref: Ref, outputs_ref: Ref, *, sizes: Sizes) -> None:
    block = Block(sizes, pallas.program_id() * sizes.rows)
    bias, scale, shift = _load_parameters(parameters, sizes)
    centered, _, inverse = block.normalized(block.load(inputs_ref) + bias)
    outputs = centered * (inverse * scale) + shift
    block.store(outputs_ref, ACTIVATIONS[sizes.activation](outputs))


def _backward(
    parameters: Sequence[Ref],
    inputs_ref: Ref,
    gradient_ref: Ref,
    sums_ref: Ref,
    d_inputs_ref: Ref,
    *,
    sizes: Sizes,
    blocks: int,
) -> None:
    program = pallas.program_id()
    bias, scale, shift = _load_parameters(parameters, sizes)

    def add_block(i: jax.Array, sums: tuple) -> tuple:
        block = Block(sizes, (program * blocks + i) * sizes.rows)
        centered, variance, inverse = block.normalized(block.load(inputs_ref) + bias)
        outputs = ACTIVATIONS[sizes.activation](centered * (inverse * scale) + shift)
        d_shift = block.load(gradient_ref) * SLOPES[sizes.activation](outputs)
        normal = centered * inverse
        d_normal = d_shift * scale
        along = block.mean(d_normal * normal)
        along = jnp.where(variance > 0.0, along, 0.0)  # a clipped variance is constant
        d_inputs = inverse * (d_normal - block.mean(d_normal) - normal * along)
        block.store(d_inputs_ref, d_inputs)
        terms = d_inputs, d_shift * normal, d_shift
        return tuple(total + jnp.sum(rows, 0) for total, rows in zip(sums, terms, strict=True))

    zeros = jnp.zeros(sizes.columns, jnp.float32)
    sums = jax.lax.fori_loop(0, blocks, add_block, (zeros, zeros, zeros))
    for i, values in enumerate(sums):
        row, mask = _row(sums_ref, 3 * program + i, sizes)
        pallas.store(row, values[None], mask=mask)
