"""Evaluation rules of JAX primitives on arrays of elements: moves, folds, products, random bits.

`RULES[name](eqn, *inputs)` returns the outputs of an equation. Primitives that a Pallas (Triton)
kernel cannot implement have no rule.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels import indexing, threefry
from wdjax.kernels.elementwise import COMPUTED, HALVES, LOOKS, computed, maximum, minimum, select
from wdjax.kernels.lanes import (
    Elements,
    along_steps,
    array_of,
    call,
    call_each,
    check_size,
    constant,
    each,
    identity,
    is_known,
    known,
    now,
    of_steps,
    words_of,
)
from wdjax.kernels.threefry import Key


def _compute(eqn: Any, *inputs: Elements) -> list[Elements]:
    last = inputs[-1]
    by = (
        known(last, eqn.invars[-1].aval.dtype)
        if eqn.primitive.name in LOOKS and is_known(last)
        else None
    )
    return [call_each(computed(eqn, by), eqn.outvars[0].aval.shape, *inputs)]


def _select_n(eqn: Any, which: Elements, *cases: Elements) -> list[Elements]:
    """Select element by element, at trace time if the index is known or all cases are the same."""

    def choose(which: Any, *cases: Any) -> Any:
        if isinstance(which, np.generic):
            return cases[min(max(int(which), 0), len(cases) - 1)]
        return cases[0] if len(set(map(identity, cases))) == 1 else call(select, which, *cases)

    return [each(choose, eqn.outvars[0].aval.shape, which, *cases)]


def _and(eqn: Any, left: Elements, right: Elements) -> list[Elements]:
    """Compute a conjunction; a known flag decides at trace time."""
    function = computed(eqn)

    def both(a: Any, b: Any) -> Any:
        for flag, other in ((a, b), (b, a)):
            if isinstance(flag, np.bool_):
                return other if flag else flag
        return call(function, a, b)

    return [each(both, eqn.outvars[0].aval.shape, left, right)]


# --- primitives that only move elements, or create them ---


def _broadcast_in_dim(
    x: Elements, *, shape: tuple, broadcast_dimensions: tuple, **_: Any
) -> Elements:
    sizes = np.ones(len(shape), int)
    sizes[list(broadcast_dimensions)] = x.shape
    return np.broadcast_to(x.reshape(sizes), shape)


def _slice(
    x: Elements, *, start_indices: tuple, limit_indices: tuple, strides: tuple | None
) -> Elements:
    return x[tuple(map(slice, start_indices, limit_indices, strides or (1,) * x.ndim))]


def _unstack(x: Elements, *, axis: int) -> list[Elements]:
    parts = np.moveaxis(x, axis, 0)
    # the ... keeps arrays of one element
    return [parts[i, ...] for i in range(len(parts))]


MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *arrays, dimension: np.concatenate(arrays, dimension),
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "expand_dims": lambda x, *, dimensions: np.expand_dims(x, dimensions),
    "iota": lambda *, dtype, shape, dimension, **_: constant(np.indices(shape, dtype)[dimension]),
    "optimization_barrier": lambda *arrays: arrays,
    "reshape": lambda x, *, new_sizes, dimensions, **_: (
        x if dimensions is None else np.transpose(x, dimensions)
    ).reshape(new_sizes),
    "reshard": lambda x, **_: x,  # of jnp.broadcast_to in jax 0.11
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "slice": _slice,
    "split": lambda x, *, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
    "squeeze": lambda x, *, dimensions: np.squeeze(x, dimensions),
    "stack": lambda *arrays, axis: np.stack(arrays, axis),
    "stop_gradient": lambda x: x,
    "tile": lambda x, *, reps, **_: np.tile(x, reps),
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
    "unstack": _unstack,
}


def _move(eqn: Any, *inputs: Elements) -> list[Elements]:
    moved = MOVES[eqn.primitive.name](*inputs, **eqn.params)
    return list(moved) if eqn.primitive.multiple_results else [moved]


# --- reductions ---


def _parts(x: Elements, axes: tuple[int, ...]) -> list[Elements]:
    """Split an array along some axes, in row-major order, into arrays over the other axes."""
    rest = tuple(np.delete(x.shape, axes))
    flat = np.moveaxis(x, axes, range(len(axes))).reshape(-1, *rest)
    return [flat[i : i + 1].reshape(rest) for i in range(len(flat))]


def _fold(function: Callable) -> Callable:
    """Make the rule of a reduction over axes, from first to last; the identity for empty inputs."""

    def rule(eqn: Any, x: Elements) -> list[Elements]:
        if not x.size:
            return [_of_nothing(eqn)]
        return [_sum_up(function, _parts(x, eqn.params["axes"]), eqn.outvars[0].aval.dtype)]

    return rule


def _sum_up(function: Callable, parts: Sequence[Elements], dtype: Any) -> Elements:
    """Reduce arrays of the same shape with a function; 16-bit floats are reduced in float32."""
    if dtype in HALVES:
        wide = [_cast(part, jnp.float32) for part in parts]
        return _cast(_sum_up(function, wide, jnp.float32), dtype)
    return functools.reduce(lambda a, b: call_each(function, a.shape, a, b), parts)


def _cast(x: Elements, dtype: Any) -> Elements:
    return call_each(lambda number: number.astype(dtype), x.shape, x)


def _of_nothing(eqn: Any) -> Elements:
    """Return the output of a reduction or product with an empty operand, computed by XLA."""
    with now():
        empty = [np.zeros(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
        output = np.asarray(eqn.primitive.bind(*empty, **eqn.params))
    return constant(output.astype(eqn.outvars[0].aval.dtype))


def _cumulate(function: Callable) -> Callable:
    """Make the rule of a cumulative reduction along an axis."""

    def rule(eqn: Any, x: Elements) -> list[Elements]:
        if not x.size:
            return [x]
        axis, order = eqn.params["axis"], slice(None, None, -1 if eqn.params["reverse"] else 1)
        sums = itertools.accumulate(
            _parts(x, (axis,))[order], lambda a, b: call_each(function, a.shape, a, b)
        )
        return [np.stack(list(sums)[order], axis)]

    return rule


def _arg_fold(is_better: Callable) -> Callable:
    """Make the rule of argmax or argmin: the first NaN, else the first of equal elements."""

    def beats(a, b) -> jax.Array:
        return (is_better(a, b) | (a != a)) & (b == b)

    def rule(eqn: Any, x: Elements) -> list[Elements]:
        best, *others = _parts(x, eqn.params["axes"])
        dtype = eqn.params["index_dtype"]
        index = constant(np.zeros(best.shape, dtype))
        for i, part in enumerate(others, 1):
            better = call_each(beats, part.shape, part, best)
            best = call_each(jnp.where, part.shape, better, part, best)
            index = call_each(
                jnp.where, part.shape, better, constant(np.full(part.shape, i, dtype)), index
            )
        return [index]

    return rule


def _dot_general(eqn: Any, left: Elements, right: Elements) -> list[Elements]:
    """Evaluate a small matrix product element by element."""
    (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    (aval,) = (v.aval for v in eqn.outvars)
    if not (left.size and right.size):
        return [_of_nothing(eqn)]
    batch = tuple(left.shape[i] for i in left_batch)
    depth = tuple(left.shape[i] for i in left_sum)

    def arrange(x: Elements, batch_axes: tuple, sum_axes: tuple) -> Elements:
        free = [i for i in range(x.ndim) if i not in (*batch_axes, *sum_axes)]
        return np.transpose(x, (*batch_axes, *free, *sum_axes)).reshape(
            int(np.prod(batch)), -1, int(np.prod(depth))
        )

    a, b = arrange(left, left_batch, left_sum), arrange(right, right_batch, right_sum)
    check_size("a matrix product", (*a.shape, b.shape[1]))

    def widen(x) -> jax.Array:
        return x.astype(jnp.float32 if aval.dtype in HALVES else aval.dtype)

    products = call_each(
        lambda x, y: widen(x) * widen(y), (*a.shape[:2], *b.shape[1:]), a[:, :, None], b[:, None]
    )
    return [_sum_up(jnp.add, _parts(products, (3,)), aval.dtype).reshape(aval.shape)]


# --- random numbers ---

AT_ONCE = 32  # most hashes in parallel lanes; taking one out of them costs as many operations
MANY_HASHES = 6  # from this number on, hashes are computed in parallel lanes


def _hash_counts(keys: Elements, shape: tuple[int, ...], result: Callable) -> Elements:
    """Hash every key with the counter of each position of `shape`.

    Args:
        keys: keys.
        shape: number of counters.
        result: function of the two words of a hash.

    Returns:
        Results, [*keys.shape, *shape].
    """
    check_size("an array of random numbers", keys.shape + shape)
    counts = [np.uint32(i) for i in range(int(np.prod(shape)))]
    if keys.size * len(counts) >= MANY_HASHES and not all(
        isinstance(w, np.generic) for w in words_of([keys])
    ):
        return _hash_at_once(keys, len(counts), result).reshape(keys.shape + shape)
    hashes = [
        result(*call(threefry.hash_2x32, *key, np.uint32(0), count))
        for key in keys.ravel()
        for count in counts
    ]
    return array_of(hashes, keys.shape + shape)


def _hash_at_once(keys: Elements, count: int, result: Callable) -> Elements:
    """Hash keys with the counters 0 to `count` - 1 in parallel lanes: fewer operations."""
    inner = max(jnp.ndim(word) for word in words_of([keys]))
    repeated, hashes = np.repeat(keys.ravel(), count), []
    for first in range(0, len(repeated), AT_ONCE):
        part = repeated[first : first + AT_ONCE]
        key, width = along_steps(part, inner)[()], 1 << (len(part) - 1).bit_length()
        steps = jax.lax.broadcasted_iota(jnp.uint32, (width, *[1] * inner), 0)
        counter = (steps + np.uint32(first)) % np.uint32(count)
        hashed = result(*call(threefry.hash_2x32, *key, np.uint32(0), counter))
        hashes.append(of_steps(array_of([hashed], ()), inner, len(part)))
    return np.concatenate(hashes)


def _random_bits(eqn: Any, keys: Elements) -> list[Elements]:
    (aval,) = (v.aval for v in eqn.outvars)
    if aval.dtype.itemsize > 4:
        raise NotImplementedError("random_bits of 64 bits is not supported in kernels")

    def bits(first: Any, second: Any) -> Any:
        return call(lambda first, second: (first ^ second).astype(aval.dtype), first, second)

    return [_hash_counts(keys, eqn.params["shape"], bits)]


def _random_fold_in(eqn: Any, keys: Elements, data: Elements) -> list[Elements]:
    keys, data = np.broadcast_arrays(keys, _cast(data, jnp.uint32))
    pairs = [
        Key(*call(threefry.hash_2x32, *key, np.uint32(0), word))
        for key, word in zip(keys.ravel(), data.ravel(), strict=True)
    ]
    return [array_of(pairs, keys.shape)]


def _platform_index(eqn: Any) -> list[Elements]:
    """Select the default branch of `platform_dependent`; the others may contain kernels."""
    platforms = eqn.params["platforms"]
    if None not in platforms:
        raise NotImplementedError(
            "platform_dependent without a default: kernels use the default branch"
        )
    return [constant(np.asarray(platforms.index(None), np.int32))]


RULES: dict[str, Callable] = {
    **dict.fromkeys(COMPUTED, _compute),
    "and": _and,
    **dict.fromkeys(MOVES, _move),
    **indexing.RULES,
    "select_n": _select_n,
    "platform_index": _platform_index,
    "reduce_sum": _fold(jnp.add),
    "reduce_prod": _fold(jnp.multiply),
    "reduce_max": _fold(maximum),
    "reduce_min": _fold(minimum),
    "reduce_and": _fold(jnp.bitwise_and),
    "reduce_or": _fold(jnp.bitwise_or),
    "reduce_xor": _fold(jnp.bitwise_xor),
    "argmax": _arg_fold(jnp.greater),
    "argmin": _arg_fold(jnp.less),
    "cumsum": _cumulate(jnp.add),
    "cumprod": _cumulate(jnp.multiply),
    "cummax": _cumulate(maximum),
    "cummin": _cumulate(minimum),
    "dot_general": _dot_general,
    "random_split": lambda eqn, keys: [_hash_counts(keys, eqn.params["shape"], Key)],
    "random_bits": _random_bits,
    "random_fold_in": _random_fold_in,
    "random_wrap": lambda eqn, data: [
        array_of([Key(*pair) for pair in data.reshape(-1, 2)], data.shape[:-1])
    ],
    "random_unwrap": lambda eqn, keys: [
        array_of([word for key in keys.ravel() for word in key], (*keys.shape, 2))
    ],
    "random_clone": lambda eqn, keys: [keys],
}
