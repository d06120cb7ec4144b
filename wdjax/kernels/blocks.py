"""Small networks in a kernel: rows of features as blocks [lanes, width], times matrices that all replicas share.

An array of one replica that came out of a matrix product is held as a `Block`, and stays one through biases and
activations; what the replicas share is held as `Weights`, in memory, and read where it is used. Width is a power of two
of at least 16, as Triton's products want it; what lies beyond the array's own size is never read. Arrays have one
axis longer than 1 (matrices of weights: two).
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels.elements import Elements, array_of, check_size
from wdjax.kernels.primitives import COMPUTED

MIN_WIDTH = 16
NARROW = 8  # outputs up to here are sums over a block, one by one, exact in float32
MAX_NUMBERS = 64  # columns that a block is taken apart into


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """A vector or matrix of float32, the same for all replicas, in memory padded with zeros, [rows, width]."""

    ref: Any
    shape: tuple[int, ...]
    elements: Elements | None  # its numbers, where they are few

    @property
    def width(self) -> int:
        return self.ref.shape[1]


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """A vector of every replica: value [lanes, width], of which as many columns count as `shape` has numbers."""

    value: jax.Array
    shape: tuple[int, ...]


def padded_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the shape of weights in memory."""
    pad = lambda size: max(MIN_WIDTH, 1 << (size - 1).bit_length())  # noqa: E731
    return (pad(shape[0]), pad(shape[1])) if len(shape) == 2 else (1, pad(math.prod(shape)))


def apply(eqn: Any, inputs: Sequence[Any]) -> list[Any] | None:
    """Returns the outputs of an equation of which an input is a block or weights; None: it wants its numbers."""
    name, (out, *_) = eqn.primitive.name, [v.aval for v in eqn.outvars]
    if name == "dot_general":
        return _product(eqn, *inputs)
    if name in COMPUTED and any(isinstance(x, Block) for x in inputs):
        return _computed(eqn, inputs)
    if len(inputs) == 1 and name in ("convert_element_type", "copy", "optimization_barrier", "stop_gradient"):
        return [inputs[0]] if out.dtype == jnp.float32 else None
    same = len(inputs) == 1 and [n for n in inputs[0].shape if n > 1] == [n for n in out.shape if n > 1]
    if same and name in ("broadcast_in_dim", "expand_dims", "reshape", "squeeze") and len(_long(out.shape)) < 2:
        return [dataclasses.replace(inputs[0], shape=out.shape)]
    return None


def numbers_of(x: Any) -> Elements:
    """Returns any value as elements: a block column by column, weights number by number."""
    if isinstance(x, Weights):
        if x.elements is not None:
            return x.elements.reshape(x.shape)
        check_size("weights taken apart", x.shape)
        columns = x.shape[-1] if len(x.shape) == 2 else math.prod(x.shape)
        return array_of([x.ref[divmod(i, columns)] for i in range(math.prod(x.shape))], x.shape)
    if not isinstance(x, Block):
        return x
    size = math.prod(x.shape)
    if size > MAX_NUMBERS:
        raise NotImplementedError(f"features of shape {x.shape} one by one: a kernel takes {MAX_NUMBERS} apart")
    columns = jax.lax.broadcasted_iota(jnp.int32, x.value.shape, 1)
    return array_of([jnp.sum(jnp.where(columns == i, x.value, 0.0), axis=1) for i in range(size)], x.shape)


def _long(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n > 1]


def _product(eqn: Any, rows: Any, weights: Any) -> list[Any] | None:
    """Features times a matrix of weights."""
    ((_, (right,)), batch), out = eqn.params["dimension_numbers"], eqn.outvars[0].aval
    if not isinstance(weights, Weights) or len(weights.shape) != 2 or right != 0 or any(batch):
        return None
    depth, size = weights.shape
    if isinstance(rows, Weights) or math.prod(rows.shape) != depth:
        return None
    if isinstance(rows, Block):
        if size <= NARROW:
            columns = [jnp.sum(rows.value * weights.ref[:, i][None, :], axis=1) for i in range(size)]
            return [array_of(columns, out.shape)]
        product = jnp.dot(rows.value, weights.ref[...], precision=eqn.params["precision"])
        return [Block(product, out.shape)]
    lanes = np.broadcast_shapes(*(jnp.shape(element) for element in rows.ravel()))
    if not lanes:
        return None
    terms = [
        jnp.broadcast_to(element, lanes)[:, None] * weights.ref[i, :][None, :] for i, element in enumerate(rows.ravel())
    ]
    return [Block(functools.reduce(jnp.add, terms), out.shape)]


def _computed(eqn: Any, inputs: Sequence[Any]) -> list[Any] | None:
    """An elementwise primitive on blocks, rows of weights and single numbers."""
    shape = next(x.value.shape for x in inputs if isinstance(x, Block))
    operands = []
    for x in inputs:
        if isinstance(x, Block):
            operands.append(x.value)
        elif isinstance(x, Weights) and len(_long(x.shape)) == 1:
            operands.append(jnp.broadcast_to(x.ref[0, :][None, :], shape))
        elif not isinstance(x, Weights) and len({id(element) for element in x.ravel()}) == 1:
            number = x.ravel()[0]
            operands.append(jnp.broadcast_to(number[:, None] if jnp.ndim(number) else number, shape))
        else:
            return None
    function = COMPUTED[eqn.primitive.name]
    return [Block(function(eqn)(*operands), eqn.outvars[0].aval.shape)]
