"""Rules of JAX primitives on blocks.

`RULES[name](blocks, eqn, out, spans)` returns the block of `out`, an output of an equation, at some
spans, from `blocks.at` of its inputs (blocks.py). Primitives without a rule are not supported.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np

from wdjax.kernels import threefry
from wdjax.kernels.elementwise import COMPUTED, HALVES, LOOKS, computed
from wdjax.kernels.spans import FIRST, Span, Spans, places, positions
from wdjax.kernels.threefry import Key


def _each(function: Callable, *blocks: Any) -> Any:
    """Apply a function to blocks, and to both words of keys."""
    if any(isinstance(block, Key) for block in blocks):
        pairs = [block if isinstance(block, Key) else (block, block) for block in blocks]
        return Key(*(_each(function, *words) for words in zip(*pairs, strict=True)))
    return function(*blocks)


def _apply(function: Callable, *blocks: Any) -> Any:
    """Apply a function of equally shaped arrays to blocks that broadcast to one shape."""

    def apply(*blocks: Any) -> Any:
        shape = np.broadcast_shapes(*map(jnp.shape, blocks))
        return function(*(jnp.broadcast_to(block, shape) for block in blocks))

    return _each(apply, *blocks)


def _shaped(block: Any, shape: Sequence[int]) -> Any:
    """Add or remove axes of size 1."""
    return _each(lambda words: words if words.shape == shape else words.reshape(shape), block)


def _input_spans(atom: Any, spans: Spans) -> Spans:
    """Return the spans of an input of an elementwise equation, which may have axes of size 1."""
    own = spans[len(spans) - len(atom.aval.shape) :]
    return tuple(FIRST if n == 1 else span for n, span in zip(atom.aval.shape, own, strict=True))


def _compute(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
    last = eqn.invars[-1]
    is_known = eqn.primitive.name in LOOKS and isinstance(last, jex.core.Literal)
    inputs = [blocks.at(atom, _input_spans(atom, spans)) for atom in eqn.invars]
    return _apply(computed(eqn, np.asarray(last.val) if is_known else None), *inputs)


def _reshape(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
    """Add or remove axes of size 1."""
    (operand,) = eqn.invars
    used = iter([span for span, n in zip(spans, eqn.outvars[0].aval.shape, strict=True) if n != 1])
    block = blocks.at(operand, tuple(FIRST if n == 1 else next(used) for n in operand.aval.shape))
    widths = iter(
        [n for n, size in zip(_shape(block), operand.aval.shape, strict=True) if size != 1]
    )
    shape = tuple(1 if n == 1 else next(widths) for n in eqn.outvars[0].aval.shape)
    return _shaped(block, shape)


def _shape(block: Any) -> tuple[int, ...]:
    return jnp.shape(block[0] if isinstance(block, Key) else block)


def _broadcast_in_dim(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
    (operand, *_), axes = eqn.invars, eqn.params["broadcast_dimensions"]
    inside = tuple(
        FIRST if n == 1 else spans[axis] for n, axis in zip(operand.aval.shape, axes, strict=True)
    )
    block, shape = blocks.at(operand, inside), [1] * len(spans)
    for axis, width in zip(axes, _shape(block), strict=True):
        shape[axis] = width
    return _shaped(block, tuple(shape))


def _slice(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
    starts = eqn.params["start_indices"]
    moved = [Span(span.start + start, span.size) for span, start in zip(spans, starts, strict=True)]
    return blocks.at(eqn.invars[0], tuple(moved))


def _concatenate(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
    axis = eqn.params["dimension"]
    start, size = spans[axis]
    position, first, joined = positions(spans, axis), 0, None
    for part in eqn.invars:
        after = first + part.aval.shape[axis]
        is_needed = first < start + size and after > start
        if is_needed or (joined is None and part is eqn.invars[-1]):
            moved = (*spans[:axis], Span(start - first, size), *spans[axis + 1 :])
            block, begin = blocks.at(part, moved), first
            joined = (
                block
                if joined is None
                else _apply(lambda a, b, begin=begin: _where(position < begin, a, b), joined, block)
            )
        first = after
    return joined


def _where(which: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    shape = np.broadcast_shapes(which.shape, a.shape)
    which, a, b = (jnp.broadcast_to(block, shape) for block in (which, a, b))
    return jnp.where(which, a, b)


def _stack(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
    axis = eqn.params["axis"]
    start, size = spans[axis]
    position, inside, stacked = positions(spans, axis), (*spans[:axis], *spans[axis + 1 :]), None
    first = min(max(start, 0), len(eqn.invars) - 1)  # the span may be outside of the array
    for i in range(first, max(first + 1, min(start + size, len(eqn.invars)))):
        block = blocks.at(eqn.invars[i], inside)
        shape = _shape(block)
        block = _shaped(block, (*shape[:axis], 1, *shape[axis:]))
        stacked = (
            block
            if stacked is None
            else _apply(lambda a, b, i=i: _where(position < i, a, b), stacked, block)
        )
    return stacked


def _split(blocks: Any, eqn: Any, out: Any, spans: Spans) -> Any:
    axis, number = eqn.params["axis"], eqn.outvars.index(out)
    first = sum(eqn.params["sizes"][:number])
    moved = Span(spans[axis].start + first, spans[axis].size)
    return blocks.at(eqn.invars[0], (*spans[:axis], moved, *spans[axis + 1 :]))


def _unstack(blocks: Any, eqn: Any, out: Any, spans: Spans) -> Any:
    axis, number = eqn.params["axis"], eqn.outvars.index(out)
    block = blocks.at(eqn.invars[0], (*spans[:axis], Span(number, 1), *spans[axis:]))
    shape = _shape(block)
    return _shaped(block, (*shape[:axis], *shape[axis + 1 :]))


def _pad(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
    (operand, value), config = eqn.invars, eqn.params["padding_config"]
    moved = [Span(s.start - low, s.size) for s, (low, *_) in zip(spans, config, strict=True)]
    padded = blocks.at(operand, tuple(moved))
    for axis, ((low, high, _), n) in enumerate(zip(config, operand.aval.shape, strict=True)):
        if low or high:
            place = positions(spans, axis)
            is_inside = (place >= low) & (place < low + n)
            padded = _apply(
                lambda a, b, is_inside=is_inside: _where(is_inside, a, b),
                padded,
                blocks.at(value, ()),
            )
    return padded


def _iota(_: Any, eqn: Any, __: Any, spans: Spans) -> Any:
    return positions(spans, eqn.params["dimension"]).astype(eqn.params["dtype"])


def _folded(blocks: Any, eqn: Any, spans: Spans, missing: Any) -> tuple[Any, tuple[int, ...]]:
    """Return (the operand of a reduction, its axes), `missing` beyond the end of these axes."""
    (operand,) = eqn.invars
    axes, kept = tuple(map(int, eqn.params["axes"])), iter(spans)
    inside = tuple(
        Span(0, n) if i in axes else next(kept) for i, n in enumerate(operand.aval.shape)
    )
    block = blocks.at(operand, inside)
    full = tuple(inside[i].width if i in axes else n for i, n in enumerate(block.shape))
    block = jnp.broadcast_to(block, full)
    for axis in axes:
        if inside[axis].width != inside[axis].size:
            is_inside = jnp.broadcast_to(positions(inside, axis) < inside[axis].size, full)
            block = jnp.where(is_inside, block, jnp.full(full, missing, block.dtype))
    return block, axes


def _sum(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
    block, axes = _folded(blocks, eqn, spans, 0)
    dtype = eqn.outvars[0].aval.dtype
    wide = jnp.float32 if dtype in HALVES else dtype
    return jnp.sum(block.astype(wide), axis=axes, dtype=wide).astype(dtype)


def _extreme(is_max: bool) -> Callable:
    """Make the rule of a maximum or minimum, NaN if there is one, and `or` or `and` for bools."""

    def rule(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
        dtype = eqn.outvars[0].aval.dtype
        fold = jnp.max if is_max else jnp.min
        block, axes = _folded(blocks, eqn, spans, _worst(dtype, is_max))
        if dtype == jnp.bool_:
            return fold(block.astype(jnp.int32), axis=axes) > 0
        if not jnp.issubdtype(dtype, jnp.floating):
            return fold(block, axis=axes)
        is_nan = block != block
        extreme = fold(
            jnp.where(is_nan, jnp.full_like(block, _worst(dtype, is_max)), block), axis=axes
        )
        has_nan = jnp.max(is_nan.astype(jnp.int32), axis=axes) > 0
        return jnp.where(has_nan, jnp.full_like(extreme, jnp.nan), extreme)

    return rule


def _worst(dtype: Any, is_max: bool) -> Any:
    if dtype == jnp.bool_:
        return not is_max
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf if is_max else jnp.inf
    info = jnp.iinfo(dtype)
    return info.min if is_max else info.max


def _arg_extreme(is_max: bool) -> Callable:
    """Make the rule of argmax or argmin: the first NaN, else the first of equal numbers."""

    def rule(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Any:
        dtype = eqn.invars[0].aval.dtype
        block, (axis,) = _folded(blocks, eqn, spans, _worst(dtype, is_max))
        place = jax.lax.broadcasted_iota(jnp.int32, block.shape, axis)
        is_nan = block != block
        block = jnp.where(is_nan, jnp.full_like(block, _worst(dtype, is_max)), block)
        best = (jnp.max if is_max else jnp.min)(block, axis=axis, keepdims=True)
        beyond = jnp.full_like(place, block.shape[axis])

        def first(flags: jax.Array) -> jax.Array:
            return jnp.min(jnp.where(flags, place, beyond), axis=axis)

        nan, best = first(is_nan), first(block == jnp.broadcast_to(best, block.shape))
        return jnp.where(nan < block.shape[axis], nan, best)

    return rule


def _random_split(blocks: Any, eqn: Any, out: Any, spans: Spans) -> Key:
    """Return the hashes of keys with the counters of the positions that an equation adds."""
    (keys,), shape = eqn.invars, eqn.params["shape"]
    num_keys = len(keys.aval.shape)
    key = blocks.at(keys, spans[:num_keys])
    if num_keys:
        key = _shaped(key, (*_shape(key), *(1 for _ in shape)))
    counter = places(spans[num_keys:], shape).astype(jnp.uint32)
    counter = jnp.reshape(counter, (*(1 for _ in range(num_keys)), *counter.shape))
    zero = jnp.uint32(0)
    return Key(*_apply(threefry.hash_2x32, key.first, key.second, zero, counter))


def _random_bits(blocks: Any, eqn: Any, out: Any, spans: Spans) -> jax.Array:
    key = _random_split(blocks, eqn, out, spans)  # two words of the same hashes
    return key.first ^ key.second


def _random_fold_in(blocks: Any, eqn: Any, _: Any, spans: Spans) -> Key:
    key, data = (blocks.at(atom, _input_spans(atom, spans)) for atom in eqn.invars)
    hashed = _apply(
        threefry.hash_2x32, key.first, key.second, jnp.uint32(0), data.astype(jnp.uint32)
    )
    return Key(*hashed)


def _same(blocks: Any, eqn: Any, out: Any, spans: Spans) -> Any:
    return blocks.at(eqn.invars[eqn.outvars.index(out)], spans)


RULES: dict[str, Callable] = {
    **dict.fromkeys(COMPUTED, _compute),
    **dict.fromkeys(("copy", "copy_p", "optimization_barrier", "stop_gradient"), _same),
    **dict.fromkeys(("random_clone", "reshard"), _same),
    **dict.fromkeys(("reshape", "squeeze"), _reshape),
    "argmax": _arg_extreme(True),
    "argmin": _arg_extreme(False),
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "iota": _iota,
    "pad": _pad,
    "random_bits": _random_bits,
    "random_fold_in": _random_fold_in,
    "random_split": _random_split,
    "reduce_and": _extreme(False),
    "reduce_max": _extreme(True),
    "reduce_min": _extreme(False),
    "reduce_or": _extreme(True),
    "reduce_sum": _sum,
    "slice": _slice,
    "split": _split,
    "stack": _stack,
    "unstack": _unstack,
}
