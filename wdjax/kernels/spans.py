"""Spans of positions on the axes of an array, and their places in memory (see blocks.py)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Span(NamedTuple):
    """Consecutive positions on an axis; some may be outside of the array."""

    start: int
    size: int

    @property
    def width(self) -> int:
        """Size of a block, a power of two."""
        return 1 << (self.size - 1).bit_length()


Spans = tuple[Span, ...]
FIRST = Span(0, 1)


def whole(shape: Sequence[int]) -> Spans:
    """Return the spans of a whole array."""
    return tuple(Span(0, size) for size in shape)


def inside(span: Span, size: int) -> Span:
    """Return the part of a span before the end of an axis, if its block has the same size.

    Equal blocks for spans of different sizes are then computed once.
    """
    start = int(span.start)
    inside = Span(start, max(1, min(span.size, size - start)))
    return inside if inside.width == span.width else Span(start, span.size)


def positions(spans: Spans, axis: int) -> jax.Array:
    """Return the positions along an axis, int32, with size 1 along all others."""
    shape = tuple(span.width if i == axis else 1 for i, span in enumerate(spans))
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis) + spans[axis].start


def places(spans: Spans, shape: Sequence[int]) -> jax.Array:
    """Return row-major places in an array, int32, the nearest ones for positions outside."""
    place: Any = jnp.int32(0)
    for axis, size in enumerate(shape):
        place = place * size + jnp.clip(positions(spans, axis), 0, size - 1)
    return place
