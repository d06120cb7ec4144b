"""Arrays that all replicas share. Large ones stay in memory; kernels read the elements they use.

With `gather` or `dynamic_slice`, each lane can read different elements, for example its own row of
a reset pool. Before the first step, a kernel loads arrays of up to FEW elements into registers, and
possible network weights: float32 vectors and matrices of up to MAX_WEIGHTS elements.

The layout of weights in memory is [rows, width], padded with zeros to powers of two. All other
arrays are flat, [1, words].
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels import pallas
from wdjax.kernels.indexing import as_place, fill_of
from wdjax.kernels.lanes import Elements, array_of, call_each, check_size, constant, each
from wdjax.kernels.threefry import Key

MIN_WIDTH = 16  # minimum width of weights
FEW = 32  # arrays of up to this many elements are held in registers
MAX_WEIGHTS = 2**16  # elements of a weight matrix, including padding


@dataclasses.dataclass(frozen=True, eq=False)
class Shared:
    """An array in memory that all replicas share."""

    ref: Any
    shape: tuple[int, ...]  # without padding; a vector may be broadcast to several rows
    dtype: Any
    value: jax.Array | None
    """the whole array, loaded before the first step, if a network may use it; else None"""
    elements: Elements | None  # its elements in registers if there are few, else None

    @property
    def is_vector(self) -> bool:
        return self.value is not None and self.ref.shape[0] == 1

    @property
    def is_matrix(self) -> bool:
        return self.value is not None and self.ref.shape[0] > 1


def is_weights(value: Any) -> bool:
    """Return whether a network may use an array as a vector or matrix of weights."""
    fits = value.ndim == 2 or (value.ndim == 1 and value.size > 1)
    return (
        fits and value.dtype == jnp.float32 and math.prod(padded_shape(value.shape)) <= MAX_WEIGHTS
    )


def padded_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of weights in memory, (rows, width)."""

    def pad(size) -> int:
        return max(MIN_WIDTH, 1 << (size - 1).bit_length())

    return (pad(shape[0]), pad(shape[1])) if len(shape) == 2 else (1, pad(math.prod(shape)))


def padded(value: Any) -> jax.Array:
    """Convert weights to their layout in memory, [rows, width], padded with zeros."""
    matrix = jnp.asarray(value).reshape(value.shape if value.ndim == 2 else (1, -1))
    rows, width = padded_shape(value.shape)
    return jnp.pad(matrix, ((0, rows - matrix.shape[0]), (0, width - matrix.shape[1])))


def load(ref: Any, aval: Any) -> Elements | Shared:
    """Load a shared array, and its elements into registers if there are at most FEW."""
    array = Shared(ref, aval.shape, aval.dtype, ref[...] if is_weights(aval) else None, None)
    if math.prod(aval.shape) > FEW:
        return array
    elements = numbers_of(array)
    return dataclasses.replace(array, elements=elements) if aval.shape else elements


def numbers_of(x: Shared) -> Elements:
    """Return a shared array as elements."""
    check_size("a shared array that is read element by element", x.shape)
    if x.elements is not None:
        return np.broadcast_to(x.elements, x.shape)
    stored = x.shape[-1:] if x.is_vector else x.shape  # a broadcast vector is stored once
    flat = np.broadcast_to(np.arange(math.prod(stored), dtype=np.int32).reshape(stored), x.shape)
    places = np.indices(x.shape, np.int32) if x.is_matrix else (np.zeros(x.shape, np.int32), flat)
    return each(functools.partial(_number, x), x.shape, *map(constant, places))


def apply(eqn: Any, x: Shared, *indices: Elements) -> list[Elements] | None:
    """Evaluate `gather` or `dynamic_slice` of a shared array.

    Returns:
        The outputs; None for other equations and for a gather with batching dimensions.
    """
    if eqn.primitive.name == "dynamic_slice":
        window = np.indices(eqn.params["slice_sizes"], np.int32)
        return [_window(eqn, x, dict(enumerate(indices)), window)]
    if eqn.primitive.name != "gather" or eqn.params["dimension_numbers"].operand_batching_dims:
        return None
    numbers, shape = eqn.params["dimension_numbers"], eqn.outvars[0].aval.shape
    window = np.indices(eqn.params["slice_sizes"], np.int32).squeeze(
        tuple(1 + d for d in numbers.collapsed_slice_dims)
    )
    window = np.expand_dims(
        window, tuple(1 + i for i in range(len(shape)) if i not in numbers.offset_dims)
    )
    places = (
        np.expand_dims(indices[0][..., i], numbers.offset_dims)
        for i in range(len(numbers.start_index_map))
    )
    starts = dict(zip(numbers.start_index_map, places, strict=True))
    gathered = _window(eqn, x, starts, window)
    if eqn.params["mode"] != jax.lax.GatherScatterMode.FILL_OR_DROP:
        return [gathered]
    inside = constant(np.bool_(True))
    for axis, start in starts.items():
        last = x.shape[axis] - eqn.params["slice_sizes"][axis]
        here = call_each(lambda s, last=last: (s >= 0) & (s <= last), start.shape, as_place(start))
        inside = call_each(
            jnp.logical_and, np.broadcast_shapes(inside.shape, here.shape), inside, here
        )
    return [call_each(jnp.where, shape, inside, gathered, array_of([fill_of(eqn)], ()))]


def _window(eqn: Any, x: Shared, starts: Mapping[int, Elements], window: np.ndarray) -> Elements:
    """Read a window of a shared array.

    Args:
        eqn: the equation, which defines the size of the window and the shape of the result.
        x: the array.
        starts: axis -> start of the window, which is clamped so that the window fits. Start 0 for
            the other axes.
        window: [axes, ...], positions relative to the start.
    """
    shape, coordinates = eqn.outvars[0].aval.shape, [*map(constant, window)]
    for axis, start in starts.items():
        last = x.shape[axis] - eqn.params["slice_sizes"][axis]
        inside = call_each(
            lambda s, last=last: jnp.clip(s, 0, last).astype(jnp.int32),
            start.shape,
            as_place(start),
        )
        coordinates[axis] = call_each(jnp.add, shape, inside, coordinates[axis])
    return _read(x, coordinates, shape)


def _read(x: Shared, coordinates: Sequence[Elements], shape: tuple[int, ...]) -> Elements:
    """Read elements of a shared array at the given coordinates, one array per axis."""
    if x.is_matrix:
        return each(functools.partial(_number, x), shape, *coordinates)
    place, *others = coordinates[-1:] if x.is_vector else coordinates
    for size, coordinate in zip(x.shape[1:], others, strict=not x.is_vector):
        place = call_each(lambda p, c, size=size: p * size + c, shape, place, coordinate)
    return each(functools.partial(_number, x, np.int32(0)), shape, place)


def _number(x: Shared, row: Any, column: Any) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return Key(*(_word(x, row, 2 * column + i) for i in range(2)))
    return _word(x, row, column)


def _word(x: Shared, *place: Any) -> jax.Array:
    place = tuple(int(i) if isinstance(i, np.generic) else i for i in place)
    lanes = np.broadcast_shapes(*map(jnp.shape, place))
    return (
        pallas.load(x.ref.at[tuple(jnp.broadcast_to(i, lanes) for i in place)])
        if lanes
        else x.ref[place]
    )
