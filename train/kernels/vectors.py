"""The matrices of a tower in a flat vector of parameters (`Flat`), read and written in place.

A kernel pads its matrices. The places of their numbers in the vector are static, so XLA neither
pads, joins nor copies a parameter.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.train.kernels.layers import TRUNKS, Ref, Shape, padded
from wdjax.train.state.flat import Layout


@dataclasses.dataclass(frozen=True)
class Piece:
    """An array in a vector, and its place in a matrix."""

    first: int
    """position of its first number in the vector"""
    shape: tuple[int, int]
    """its rows and columns; a bias is a row"""
    row: int = 0
    """its first row in the matrix"""
    column: int = 0
    """its first column in the matrix"""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def places(self, size: tuple[int, int], row: int = 0) -> tuple[jax.Array, jax.Array | None]:
        """Return positions in the vector for a block of the matrix, and which of them are valid.

        The mask is None if the array covers the block.

        Args:
            size: rows and columns of the block.
            row: its first row.
        """
        rows, columns = (jax.lax.broadcasted_iota(jnp.int32, size, axis) for axis in (0, 1))
        rows, columns = row + rows - self.row, columns - self.column
        position = self.first + rows * self.shape[1] + columns
        is_whole = self.row == self.column == 0 and self.shape[1] == size[1]
        if is_whole and row + size[0] <= self.shape[0]:
            return position, None
        inside = (rows >= 0) & (rows < self.shape[0])
        return position, inside & (columns >= 0) & (columns < self.shape[1])


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A padded matrix: its pieces, and 0 elsewhere."""

    shape: tuple[int, int]
    pieces: tuple[Piece, ...]

    def store(self, ref: Ref, start: jax.Array, values: jax.Array) -> None:
        """Store a matrix.

        Args:
            ref: memory that contains the vector.
            start: position of the vector in it.
            values: the whole matrix, padded.
        """
        for piece in self.pieces:
            place, inside = piece.places(self.shape)
            place += start
            if inside is not None:  # interpreted, masked numbers are written too: out of bounds
                place = jnp.where(inside, place, ref.shape[0])
            pallas.store(ref.at[place], values, mask=inside)


@dataclasses.dataclass(frozen=True)
class Held:
    """A matrix in the memory of a kernel, or in its registers."""

    ref: Ref
    """the vector"""
    matrix: Matrix
    values: jax.Array | None = None
    """the matrix in registers"""

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def load(self, row: int = 0, rows: int | None = None) -> jax.Array:
        """Return `rows` rows from `row` on, or all rows."""
        if self.values is not None and rows is None:
            return self.values
        size = self.shape[0] if rows is None else rows, self.shape[1]
        found = [piece.places(size, row) for piece in self.matrix.pieces]
        parts = [
            pallas.load(self.ref.at[place], mask=inside, other=None if inside is None else 0.0)
            for place, inside in found
        ]
        return functools.reduce(jnp.add, parts)


def matrices_of(layout: Layout, shape: Shape) -> tuple[tuple[Matrix, ...], ...]:
    """Return the matrices of each tower.

    They are the first matrix with its bias as the last row (only the bias if inputs are streamed),
    then matrix and bias of each other layer.

    Args:
        layout: of the parameters of an actor-critic.
        shape: static sizes of the policy.
    """
    arrays = _pieces(layout)
    heads = [[arrays["policy_head"]], [arrays["value_head"]]]
    heads = [[*heads[0], *heads[1]]] if shape.shared else heads
    towers = zip(TRUNKS, heads, strict=False)
    return tuple(_tower(arrays[trunk]["mlp"], head, shape) for trunk, head in towers)


def first_pieces(layout: Layout, shape: Shape) -> list[Piece]:
    """Return the matrix, without its bias, of the first layer of each tower."""
    arrays = _pieces(layout)
    return [arrays[trunk]["mlp"]["layer_0"]["kernel"] for trunk in TRUNKS[: shape.num_towers]]


def _pieces(layout: Layout) -> Any:
    """Return the tree of parameters with the place of each array."""
    return jax.tree.unflatten(
        layout.tree,
        [
            Piece(first, shape if len(shape) > 1 else (1, *shape))  # type: ignore[arg-type]
            for first, shape in zip(layout.firsts, layout.shapes, strict=True)
        ],
    )


def _tower(mlp: dict[str, Any], head: list[dict[str, Piece]], shape: Shape) -> tuple[Matrix, ...]:
    """Return the matrices of a tower from the arrays of its hidden layers and of its heads."""
    layers = [[mlp[f"layer_{i}"]] for i in range(len(shape.hidden))] + [head]
    first, bias = layers[0][0]["kernel"], layers[0][0]["bias"]
    bias = dataclasses.replace(bias, row=shape.num_held)
    size = padded(shape.num_held + 1), shape.widths[1]
    found = [Matrix(size, (first, bias) if shape.num_held else (bias,))]
    for parts, size in zip(layers[1:], itertools.pairwise(shape.widths[1:]), strict=True):
        columns = itertools.accumulate([part["kernel"].shape[1] for part in parts], initial=0)
        moved = [
            {name: dataclasses.replace(piece, column=column) for name, piece in part.items()}
            for part, column in zip(parts, columns, strict=False)
        ]
        found.append(Matrix(size, tuple(part["kernel"] for part in moved)))
        found.append(Matrix((1, size[1]), tuple(part["bias"] for part in moved)))
    return tuple(found)


def computed(
    towers: Sequence[tuple[Matrix, ...]],
) -> tuple[list[tuple[Matrix, ...]], tuple[Piece, ...]]:
    """Return the matrices of towers in a vector of these matrices only.

    Arrays keep their order. If the towers contain all parameters, nothing needs to be moved.

    Args:
        towers: their matrices in the vector of all parameters.

    Returns:
        (matrices in that vector, arrays in the vector of all parameters).
    """
    arrays = [piece for tower in towers for matrix in tower for piece in matrix.pieces]
    arrays.sort(key=lambda piece: piece.first)
    firsts = itertools.accumulate([piece.size for piece in arrays], initial=0)
    moved = {
        piece: dataclasses.replace(piece, first=first)
        for piece, first in zip(arrays, firsts, strict=False)
    }
    matrices = [
        tuple(Matrix(own.shape, tuple(moved[piece] for piece in own.pieces)) for own in tower)
        for tower in towers
    ]
    return matrices, tuple(arrays)


def merged(layout: Layout, vectors: Sequence[tuple[Sequence[Piece], jax.Array]]) -> jax.Array:
    """Return the vector of all parameters from vectors with some of them; 0 for other parameters.

    Args:
        layout: of the parameters.
        vectors: (arrays in the vector of all parameters, a vector with these arrays) each.
    """
    parts: list[tuple[int, jax.Array]] = []
    for arrays, vector in vectors:
        own = jnp.split(vector, list(itertools.accumulate(piece.size for piece in arrays))[:-1])
        parts += [(piece.first, part) for piece, part in zip(arrays, own, strict=True)]
    found, end = [], 0
    for first, part in [
        *sorted(parts, key=lambda part: part[0]),
        (layout.size, jnp.zeros(0, jnp.float32)),
    ]:
        found += [jnp.zeros(first - end, jnp.float32), part]
        end = first + len(part)
    return jnp.concatenate(found)
