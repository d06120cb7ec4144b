"""Small networks in a kernel: blocks of features [*lanes, width] times shared weight matrices.

The result of a matrix product is a `Block`, and remains one through biases and activations. Weights
are `Shared`: they stay in memory and are read where they are used. The last axis of an array holds
the features; the other axes count rows, for example agents. The width of a block is a power of two
and at least 16, as Triton's matrix products require. Columns beyond the number of features are
never read.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels import shared
from wdjax.kernels.elementwise import COMPUTED, computed
from wdjax.kernels.lanes import Elements, array_of, identity
from wdjax.kernels.primitives import MOVES
from wdjax.kernels.shared import Shared

FEW_TERMS = 8  # up to this many inputs are multiplied one by one, more are joined in a block
NARROW = 8  # up to this many outputs are computed as float32 sums over a block
MAX_NUMBERS = 64  # maximum number of elements that a block is split into


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """An array of every replica, as rows of features."""

    rows: np.ndarray  # objects, of the shape of the leading axes; each a row [*lanes, width]
    size: int  # number of features, the columns of a row that are used

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.rows.shape, self.size)


def apply(eqn: Any, inputs: Sequence[Any]) -> list[Any] | None:
    """Evaluate an equation with a block or shared array among its inputs.

    Returns:
        The outputs, or None if the equation must be evaluated on elements.
    """
    name, (out, *_) = eqn.primitive.name, [v.aval for v in eqn.outvars]
    if name in ("gather", "dynamic_slice"):
        return (
            shared.apply(eqn, inputs[0], *map(numbers_of, inputs[1:]))
            if isinstance(inputs[0], Shared)
            else None
        )
    if name == "dot_general":
        return _product(eqn, *inputs)
    if name in COMPUTED and any(isinstance(x, Block) for x in inputs):
        return _computed(eqn, inputs)
    if len(inputs) == 1 and name in (
        "convert_element_type",
        "copy",
        "optimization_barrier",
        "reshard",
        "stop_gradient",
    ):
        return [inputs[0]] if out.dtype == jnp.float32 else None
    if len(inputs) == 1 and name in ("broadcast_in_dim", "expand_dims", "reshape", "squeeze"):
        return _moved(eqn, inputs[0])
    return None


def numbers_of(x: Any) -> Elements:
    """Convert a block or a shared array to elements; return elements unchanged."""
    if isinstance(x, Shared):
        return shared.numbers_of(x)
    if not isinstance(x, Block):
        return x
    if math.prod(x.shape) > MAX_NUMBERS:
        raise NotImplementedError(
            f"an operation on the elements of features of shape {x.shape}: kernels support up to "
            f"{MAX_NUMBERS} elements"
        )
    return array_of([_column(row, i) for row in x.rows.ravel() for i in range(x.size)], x.shape)


def _column(row: jax.Array, i: int) -> jax.Array:
    numbers = row.astype(jnp.int32) if row.dtype == bool else row
    columns = jax.lax.broadcasted_iota(jnp.int32, row.shape, row.ndim - 1)
    return jnp.sum(jnp.where(columns == i, numbers, jnp.zeros_like(numbers)), axis=-1).astype(
        row.dtype
    )


def _moved(eqn: Any, x: Block | Shared) -> list[Any] | None:
    """Evaluate a reshape or broadcast that keeps rows intact; return None for others."""
    shape, axes = eqn.outvars[0].aval.shape, eqn.params.get("broadcast_dimensions")
    is_broadcast = axes is not None
    keeps_rows = shape[-1:] == x.shape[-1:] and (
        axes[-1] == len(shape) - 1 if is_broadcast else math.prod(shape) == math.prod(x.shape)
    )
    if not keeps_rows or (isinstance(x, Shared) and not x.is_vector):
        return None
    if isinstance(x, Shared):
        return [dataclasses.replace(x, shape=shape)]
    rows = (
        MOVES["broadcast_in_dim"](x.rows, shape=shape[:-1], broadcast_dimensions=axes[:-1])
        if is_broadcast
        else x.rows.reshape(shape[:-1])
    )
    return [Block(rows, x.size)]


def _product(eqn: Any, rows: Any, weights: Any) -> list[Any] | None:
    """Multiply features by a weight matrix; return None for other products."""
    (((left,), (right,)), batch), out = eqn.params["dimension_numbers"], eqn.outvars[0].aval
    if not (isinstance(weights, Shared) and weights.is_matrix) or right != 0 or any(batch):
        return None
    size = weights.shape[1]
    if isinstance(rows, Shared) or left != len(rows.shape) - 1:
        return None
    if not isinstance(rows, Block):
        lanes = np.broadcast_shapes(*(jnp.shape(element) for element in rows.ravel()))
        if not lanes:
            return None
        if rows.shape[-1] <= FEW_TERMS:
            return [_product_of_numbers(rows, weights, lanes)]
        rows = _block_of(rows, weights.ref.shape[0], lanes)
    rows = _for_each(lambda row: _zero_beyond(row, rows.size), rows.rows)
    if size <= NARROW:
        heads = [weights.ref[:, i] for i in range(size)]  # loaded once for all rows
        columns = [
            jnp.sum(row * jnp.broadcast_to(head, row.shape), axis=-1)
            for row in rows.ravel()
            for head in heads
        ]
        return [array_of(columns, out.shape)]

    def multiply(row: jax.Array) -> jax.Array:
        flat = jnp.dot(
            row.reshape(-1, row.shape[-1]),
            cast(jax.Array, weights.value),
            precision=eqn.params["precision"],
        )
        return flat.reshape(*row.shape[:-1], flat.shape[-1])

    return [Block(_for_each(multiply, rows), size)]


def _zero_beyond(row: jax.Array, size: int) -> jax.Array:
    """Set the columns beyond the features to 0.

    An activation may map padding zeros to infinity, which times a zero weight is NaN.
    """
    if row.shape[-1] == size:
        return row
    return jnp.where(jax.lax.broadcasted_iota(jnp.int32, row.shape, row.ndim - 1) < size, row, 0.0)


def _product_of_numbers(numbers: Elements, weights: Shared, lanes: tuple[int, ...]) -> Block:
    """Multiply a few numbers by a matrix, as a float32 sum of its rows."""
    read = functools.cache(lambda i: weights.ref[i, :])
    width = weights.ref.shape[1]

    def product(row: Elements) -> jax.Array:
        total = jnp.zeros((*lanes, width))
        for i, element in enumerate(row):
            if not (isinstance(element, np.generic) and element == 0):
                total = total + _along_row(element, total.shape) * jnp.broadcast_to(
                    read(i), total.shape
                )
        return total

    flat = numbers.reshape(-1, numbers.shape[-1])
    return Block(array_of([product(row) for row in flat], numbers.shape[:-1]), weights.shape[1])


def _block_of(numbers: Elements, width: int, lanes: tuple[int, ...]) -> Block:
    """Join elements into a block, elements of the same lanes first."""

    def joined(row: Elements) -> jax.Array:
        parts: dict[tuple, jax.Array] = {}
        for i, element in enumerate(row):
            shape = (*jnp.shape(element), width)
            here = jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1) == i
            parts[shape] = jnp.where(
                here, _along_row(element, shape), parts.get(shape, jnp.zeros(shape))
            )
        return functools.reduce(
            jnp.add, (jnp.broadcast_to(part, (*lanes, width)) for part in parts.values())
        )

    flat = numbers.reshape(-1, numbers.shape[-1])
    return Block(array_of([joined(row) for row in flat], numbers.shape[:-1]), numbers.shape[-1])


def _along_row(element: Any, shape: tuple[int, ...]) -> jax.Array:
    """Broadcast an element along rows [*lanes, width]."""
    return jnp.broadcast_to(element[..., None] if jnp.ndim(element) else element, shape)


def _for_each(function: Any, rows: np.ndarray) -> np.ndarray:
    return array_of([function(row) for row in rows.ravel()], rows.shape)


def _computed(eqn: Any, inputs: Sequence[Any]) -> list[Any] | None:
    """Evaluate an elementwise primitive on blocks, weight vectors and numbers."""
    block = next(x for x in inputs if isinstance(x, Block))
    operands: list[Any] = [_rows_of(x, block) for x in inputs]
    if any(rows is None for rows in operands):
        return None
    shape = np.broadcast_shapes(*(jnp.shape(row) for rows in operands for row in rows))
    function, spread = computed(eqn), lambda row: jnp.broadcast_to(row, shape)
    rows = [function(*map(spread, each)) for each in zip(*operands, strict=True)]
    return [Block(array_of(rows, block.rows.shape), block.size)]


def _rows_of(x: Any, block: Block) -> list[jax.Array] | None:
    """Return an operand as rows that broadcast to a block, or None if elements of a row differ."""
    if isinstance(x, Block):
        return list(x.rows.ravel())
    if isinstance(x, Shared) and x.is_vector and x.shape[-1] == block.size:
        return [cast(jax.Array, x.value)] * block.rows.size
    if isinstance(x, Shared) and x.elements is None:
        return None
    rows = np.broadcast_to(numbers_of(x), block.shape).reshape(-1, block.size)
    if any(len(set(map(identity, row))) > 1 for row in rows):
        return None
    return [row[0][..., None] if jnp.ndim(row[0]) else row[0] for row in rows]
