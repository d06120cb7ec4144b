"""Evaluation rules of gathers, scatters, pads and dynamic slices on arrays of elements.

Elements at known indices are moved at trace time, which costs nothing in the kernel. An unknown
index selects among the results for all of its possible values.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels.elementwise import maximum, minimum
from wdjax.kernels.lanes import (
    Elements,
    array_of,
    call,
    call_each,
    check_size,
    constant,
    is_known,
    known,
    now,
)

MOVED_OPERANDS = {"gather": (0,), "pad": (0, 1), "scatter": (0, 2)}
# scatter primitive -> function of (old, update)
UPDATES: dict[str, Callable] = {
    "scatter": lambda old, new: new,
    "scatter-add": jnp.add,
    "scatter-mul": jnp.multiply,
    "scatter-min": minimum,
    "scatter-max": maximum,
}


def _move_by_known_indices(eqn: Any, *inputs: Elements) -> list[Elements]:
    """Evaluate a gather, pad or scatter with known indices at trace time, on element positions."""
    name, params, aval = eqn.primitive.name, dict(eqn.params), eqn.outvars[0].aval
    elements: list[Any] = []
    operands = []
    for i, (array, atom) in enumerate(zip(inputs, eqn.invars, strict=True)):
        if i in MOVED_OPERANDS[name]:
            operands.append(_positions(array, len(elements)))
            elements.extend(array.ravel())
        else:
            operands.append(known(array, atom.aval.dtype))
    # the operands are positions: append the fill value as one more element
    if params.get("fill_value") is not None:
        elements.append(fill_of(eqn))
        params["fill_value"] = len(elements) - 1
    with now():
        moved = np.asarray(eqn.primitive.bind(*operands, **params))
    return [array_of([elements[i] for i in moved.ravel()], aval.shape)]


def _positions(array: Elements, first: int) -> np.ndarray:
    """Return the number of each element of an array, counted from `first`."""
    return np.arange(first, first + array.size, dtype=np.int32).reshape(array.shape)


def fill_of(eqn: Any) -> Any:
    """Return the value of a gather out of bounds."""
    aval = eqn.outvars[0].aval
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        raise NotImplementedError("gather of keys out of bounds is not supported in kernels")
    return np.asarray(eqn.params["fill_value"]).astype(aval.dtype)[()]


def as_place(index: Elements) -> Elements:
    """Widen indices to 32 bits, because 8 bits cannot represent all positions."""
    return call_each(
        lambda s: s.astype(jnp.int32) if s.dtype.itemsize < 4 else s, index.shape, index
    )


def _components(indices: Elements, last: list[int]) -> list[list[int] | None]:
    """Return the possible values of each component of an index; None if known everywhere.

    Args:
        indices: [..., K].
        last: the largest value in bounds of each component.
    """
    return [
        None if is_known(indices[..., k]) else list(range(end + 1)) for k, end in enumerate(last)
    ]


def _cases(possible: list[list[int] | None]) -> Iterator[tuple[int | None, ...]]:
    """Return the combinations of possible values, in lexicographic order."""
    return itertools.product(*([None] if values is None else values for values in possible))


def _gather(eqn: Any, x: Elements, indices: Elements) -> list[Elements]:
    """Evaluate a gather; unknown indices select among all possible results."""
    numbers, shape = eqn.params["dimension_numbers"], eqn.outvars[0].aval.shape
    sizes = [x.shape[d] - eqn.params["slice_sizes"][d] for d in numbers.start_index_map]
    possible = _components(indices, sizes)
    if all(values is None for values in possible):
        return _move_by_known_indices(eqn, x, indices)
    cases = list(_cases(possible))
    check_size("selection by an index", (len(cases), *shape))
    places = as_place(indices)
    fills = eqn.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP
    result: Any = np.broadcast_to(array_of([fill_of(eqn)], ()), shape) if fills else None
    for case in cases:
        at = indices.copy()
        is_here = constant(np.bool_(True))
        for k, value in enumerate(case):
            if value is None:
                continue
            at[..., k] = constant(np.full(indices.shape[:-1], value, np.int32))
            # without fill values, cases are in order and a later one replaces an earlier one
            compare = _equals(value) if fills else _reaches(value)
            here = np.expand_dims(places[..., k], numbers.offset_dims)
            is_here = _both(is_here, call_each(compare, here.shape, here))
        (moved,) = _move_by_known_indices(eqn, x, at)
        result = moved if result is None else call_each(jnp.where, shape, is_here, moved, result)
    return [result]


def _equals(value: int) -> Callable:
    return lambda index: index == value


def _reaches(value: int) -> Callable:
    """Return a function of an index: whether it is at least `value`, with 0 for negative ones."""
    return lambda index: index >= value if value else jnp.ones_like(index, bool)


def _both(a: Elements, b: Elements) -> Elements:
    return call_each(jnp.logical_and, np.broadcast_shapes(a.shape, b.shape), a, b)


def _scatter(eqn: Any, x: Elements, indices: Elements, updates: Elements) -> list[Elements]:
    """Evaluate a scatter, index by index; an unknown index may be any place in bounds."""
    name, numbers = eqn.primitive.name, eqn.params["dimension_numbers"]
    if name == "scatter" and is_known(indices):
        return _move_by_known_indices(eqn, x, indices, updates)
    if not indices.shape[-1] and np.prod(indices.shape[:-1]) > 1:
        raise NotImplementedError(f"{name} without indices is not supported in kernels")
    last = _last_places(numbers, x.shape, updates.shape)
    places = as_place(indices)
    if eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP:
        ends = constant(np.asarray(last, np.int32))
        clip = lambda place, end: jnp.clip(place, 0, end.astype(place.dtype))  # noqa: E731
        places = call_each(clip, places.shape, places, ends)
    rows = list(np.ndindex(indices.shape[:-1]))
    possible = {row: _components(places[row][None], last) for row in rows}
    sizes = [np.prod([len(v) for v in possible[row] if v is not None]) for row in rows]
    check_size("updates of a scatter", (int(sum(sizes)) * updates.size // max(len(rows), 1),))
    old, new = _positions(x, 0), _positions(updates, x.size)
    result, flat = list(x.ravel()), list(updates.ravel())
    for row in rows:
        for case in _cases(possible[row]):
            at = np.full(indices.shape, -1, np.int32)  # all other rows are out of bounds
            is_here: Any = np.bool_(True)
            for k, (value, place) in enumerate(zip(case, places[row], strict=True)):
                at[(*row, k)] = place if value is None else value
                if value is not None:
                    is_here = call(jnp.logical_and, is_here, call(_equals(value), place))
            with now():
                mode = jax.lax.GatherScatterMode.FILL_OR_DROP
                moved = np.asarray(jax.lax.scatter(old, at, new, numbers, mode=mode)).ravel()
            for i in np.flatnonzero(moved >= x.size):
                update = call(UPDATES[name], result[i], flat[moved[i] - x.size])
                result[i] = _where(is_here, update, result[i])
    return [array_of(result, x.shape)]


def _last_places(numbers: Any, shape: tuple, update_shape: tuple) -> list[int]:
    """Return the largest place in bounds of each component of an index of a scatter."""
    single = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = [d for d in range(len(shape)) if d not in single]
    sizes = {d: update_shape[u] for d, u in zip(windows, numbers.update_window_dims, strict=True)}
    return [shape[d] - sizes.get(d, 1) for d in numbers.scatter_dims_to_operand_dims]


def _where(condition: Any, new: Any, old: Any) -> Any:
    if isinstance(condition, np.generic):
        return new if condition else old
    return call(jnp.where, condition, new, old)


def _dynamic_update_slice(
    eqn: Any, x: Elements, update: Elements, *starts: Elements
) -> list[Elements]:
    def updated(window: tuple[slice, ...]) -> Elements:
        copy = x.copy()
        copy[window] = update
        return copy

    return [_at_start(x, starts, update.shape, updated)]


def _at_start(x: Elements, starts: tuple, sizes: tuple, result_at: Callable) -> Elements:
    """Return `result_at(window)` for the window at `starts`; unknown starts select among all.

    Starts are clamped so that the window fits, as in XLA.
    """
    chosen: Any = None
    possible, starts = [], tuple(map(as_place, starts))
    for start, length, size in zip(starts, x.shape, sizes, strict=True):
        last = length - size
        first = start[()]
        possible.append(
            [min(max(int(first), 0), last)] if isinstance(first, np.generic) else range(last + 1)
        )
    check_size("selection of a slice", tuple(len(places) for places in possible))
    for place in itertools.product(*possible):
        result = result_at(tuple(slice(i, i + size) for i, size in zip(place, sizes, strict=True)))
        if chosen is None:
            chosen = result
            continue
        condition = np.bool_(True)
        for i, start, places in zip(place, starts, possible, strict=True):
            if len(places) > 1 and i > 0:  # starts are clamped to the first and the last
                condition = call(jnp.logical_and, condition, call(_reaches(i), start[()]))
        chosen = call_each(jnp.where, result.shape, array_of([condition], ()), result, chosen)
    return chosen


RULES: dict[str, Callable] = {
    "gather": _gather,
    "pad": _move_by_known_indices,
    **dict.fromkeys(UPDATES, _scatter),
    "dynamic_slice": lambda eqn, x, *starts: [
        _at_start(x, starts, eqn.params["slice_sizes"], lambda window: x[window])
    ],
    "dynamic_update_slice": _dynamic_update_slice,
}
