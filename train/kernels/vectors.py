"""The arrays of a tower in vectors.

XLA prepares, or sums, one vector in a single launch, where it needs one or two for each array.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.train.kernels.layers import Shape, Tower, padded

JoinedTower: TypeAlias = tuple[jax.Array, Tower]
"""(matrix of the first layer with its bias as a row, other layers)"""


@dataclasses.dataclass(frozen=True)
class Place:
    """Place of an array in a vector."""

    first: int
    """position of its first number"""
    shape: tuple[int, ...]
    """one or two axes"""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def index(self, row: Any = 0, rows: int | None = None) -> jax.Array:
        """Return the positions of `rows` rows from `row` on, or of all rows."""
        shape = (self.shape[0] if rows is None else rows, *self.shape[1:])
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        along = lambda axis: jax.lax.broadcasted_iota(jnp.int32, shape, axis)  # noqa: E731
        parts = [along(axis) * step for axis, step in enumerate(steps)]
        return sum(parts, start=self.first + row * steps[0])

    def of(self, vector: jax.Array) -> jax.Array:
        """Return the array."""
        return vector[self.first : self.first + self.size].reshape(self.shape)


def places_of(shapes: Sequence[tuple[int, ...]]) -> list[Place]:
    """Return the places of arrays with these shapes, one after the other."""
    sizes = [math.prod(shape) for shape in shapes]
    return [Place(sum(sizes[:i]), shape) for i, shape in enumerate(shapes)]


@dataclasses.dataclass(frozen=True)
class Held:
    """An array in a vector in the memory of a kernel."""

    ref: Any
    """the vector"""
    place: Place

    @property
    def shape(self) -> tuple[int, ...]:
        return self.place.shape

    def load(self, row: Any = 0, rows: int | None = None) -> jax.Array:
        """Return `rows` rows from `row` on, or all rows."""
        return pallas.load(self.ref.at[self.place.index(row, rows)])


def joined(tower: Tower, shape: Shape) -> JoinedTower:
    """Return (matrix of the first layer with its bias as row `num_inputs`, other layers)."""
    (kernel, bias), *others = tower
    rows = padded(shape.num_inputs + 1)
    kernel = jnp.pad(kernel, ((0, rows - kernel.shape[0]), (0, 0)))
    # added, not set: XLA would copy the row on another stream, and a CUDA graph would end there
    row = jnp.pad(bias[None], ((shape.num_inputs, rows - shape.num_inputs - 1), (0, 0)))
    return kernel + row, tuple(others)


def as_vectors(arrays: Sequence[jax.Array], dtype: str) -> list[jax.Array]:
    """Return the first matrix and the biases of a tower, then its other matrices, as a vector each.

    Args:
        arrays: leaves of a `JoinedTower`: the first matrix, then matrix and bias of each layer.
        dtype: of the other matrices; the first vector is float32.
    """
    firsts, matrices = [arrays[0], *arrays[2::2]], arrays[1::2]
    flat = lambda arrays: jnp.concatenate([array.reshape(-1) for array in arrays])  # noqa: E731
    return [flat(firsts), flat(matrices).astype(dtype)]


def held(refs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Held]:
    """Return the arrays with these shapes, in their order, in the vectors of `as_vectors`."""
    firsts = [Held(refs[0], place) for place in places_of([shapes[0], *shapes[2::2]])]
    matrices = [Held(refs[1], place) for place in places_of(shapes[1::2])]
    pairs = zip(matrices, firsts[1:], strict=True)
    return [firsts[0], *(array for pair in pairs for array in pair)]
