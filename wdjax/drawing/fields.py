"""Checks and conversions of the fields of marks, plots and scenes."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from wdjax.checks import require, require_known

COLORS = {  # name -> (on light ground, on dark ground)
    "blue": ("#245EB6", "#6EA4F4"),
    "magenta": ("#C843C3", "#E583E0"),
    "green": ("#2E8B57", "#54C389"),
    "orange": ("#E07B00", "#F5A54A"),
    "red": ("#B3261E", "#F07A72"),
    "ink": ("#444444", "#C9CED6"),
    "text": ("#1F2933", "#E8EBEF"),
    "grey": ("#7A7F87", "#949BA6"),
    "faint": ("#E4E4E4", "#30363D"),
    "paper": ("#FFFFFF", "#15181C"),
}


def floats(value: Any, ndim: int, field: str) -> np.ndarray:
    """Convert a value to float64, and prepend axes of length 1 until it has `ndim` axes."""
    value = np.asarray(value, np.float64)
    require(value.ndim <= ndim, f"{field}.shape", value.shape, f"at most {ndim}-dimensional")
    return value.reshape((1,) * (ndim - value.ndim) + value.shape)


def shade(opacity: Any, ndim: int) -> np.ndarray:
    """Return opacities with `ndim` axes, clipped to [0, 1]; NaN becomes 0."""
    return np.clip(np.nan_to_num(floats(opacity, ndim, "opacity")), 0, 1)


def corners(extent: Any) -> tuple[float, ...]:
    """Return an extent as four floats; raise ValueError if it is not a rectangle."""
    ends = np.asarray(extent, np.float64)
    is_rectangle = ends.shape == (4,) and np.isfinite(ends).all() and np.all(ends[:2] < ends[2:])
    allowed = "four finite numbers (x0, y0, x1, y1) with x0 < x1 and y0 < y1"
    require(is_rectangle, "extent", extent, allowed)
    return tuple(ends.tolist())


def common_shape(mark: Any, **arrays: np.ndarray) -> tuple[int, int]:
    """Return the common (T, N) of a mark's arrays; raise ValueError if they do not broadcast."""
    try:
        return np.broadcast_shapes(*(array.shape[:2] for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {list(array.shape[:2])}" for name, array in arrays.items())
        raise ValueError(
            f"{type(mark).__name__}: {shapes}: must have equal [T, N], except for axes of length 1"
        ) from None


def plain_fields(mark: Any) -> dict[str, Any]:
    """Return the fields that are declared as a float, a bool or a string, by name."""
    return {
        field.name: getattr(mark, field.name)
        for field in dataclasses.fields(mark)
        if field.type in (float, bool, str)
    }


def finish(mark: Any, **converted: Any) -> None:
    """Set converted fields of a frozen dataclass, after a check of its color and plain fields.

    Floats, bools and strings become Python types, because NumPy scalars are not valid JSON.
    """
    if hasattr(mark, "color"):
        require_known("color", mark.color, COLORS)
    kinds = {field.name: field.type for field in dataclasses.fields(mark)}
    for name, value in plain_fields(mark).items():
        kind: Any = kinds[name]
        try:
            plain = "" if kind is str and value is None else kind(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} = {value!r}: must be a {kind.__name__}") from error
        require(kind is not float or np.isfinite(plain), name, value, "finite")
        converted.setdefault(name, plain)
    for name, value in converted.items():
        object.__setattr__(mark, name, value)


def covered(curves: Sequence[Any]) -> list[int]:
    """Return the number of later curves that cover a part of each curve, at most 3.

    A curve covers another one where they coincide at two successive points.

    Args:
        curves: [T] each, over the same points; NaN where there is none.
    """
    counts = [0] * len(curves)
    for i, j in itertools.combinations(range(len(curves)), 2):
        one, other = np.asarray(curves[i], float), np.asarray(curves[j], float)
        if one.shape == other.shape:
            span = np.ptp(one[np.isfinite(one)]) if np.isfinite(one).any() else 0.0
            near = np.isclose(one, other, rtol=1e-3, atol=5e-3 * span)
            counts[i] += bool(near.all() or (near[1:] & near[:-1]).any())
    return [min(count, 3) for count in counts]
