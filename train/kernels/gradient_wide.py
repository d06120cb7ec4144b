"""Gradients of a loss for two wide hidden layers, as two kernels and matrix products in XLA.

The first kernel runs a block of rows through the network and the loss. It writes the hidden layers
h_1, h_2 and the gradient of the outputs, do. The second kernel computes
dh_2 = (do W_3^T) act'(h_2) and dh_1 = (dh_2 W_2^T) act'(h_1). The gradients of the matrices are
x^T dh_1, h_1^T dh_2 and h_2^T do. Intermediate arrays have CHUNK_ROWS rows and the dtype of
products (`dtype_of`). If that is float16, the first kernel writes do as float32, and the second one
divides each of its columns by the largest absolute value in the chunk, so that small gradients of
the policy do not vanish next to large ones of the value.
"""

import functools

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.activations import SLOPES
from wdjax.kernels.half import HALF, TINY, in_range
from wdjax.train.kernels.act import first_layer, load_inputs
from wdjax.train.kernels.gradient import Data, load_block
from wdjax.train.kernels.layers import (
    Ref,
    Shape,
    Tower,
    TowerRefs,
    activation_of,
    chunk_of,
    dtype_of,
    pieces,
    product,
)
from wdjax.train.kernels.task import BOTH, Task
from wdjax.train.kernels.towers import towers_of, transposed
from wdjax.train.state.aliases import Params
from wdjax.train.state.engine import BatchRows, Means

ROWS = 64  # rows of a program
WARPS = 4
CHUNK_ROWS = 2**18  # rows whose hidden layers are in memory at once
MULTIPLE = 2**10  # a chunk has a multiple of these rows: XLA pads the factors of other products

Sums = tuple[Tower, jax.Array]
"""(gradients of a tower, sums of the terms of a loss)"""


def wide_gradient(task: Task, data: Data, params: Params) -> tuple[Params, Means]:
    """Return gradients and sums as `gradient_kernel`, for two hidden layers of up to MAX_WIDTH."""
    num_rows = len(data[-1].valid)
    (tower,), back = jax.vjp(lambda params: towers_of(params, task.shape), params)
    size = min(CHUNK_ROWS, pallas.cdiv(num_rows, MULTIPLE) * MULTIPLE)

    def step(sums: Sums, start: jax.Array) -> tuple[Sums, None]:
        # as data: policies with different numbers of rows compile one kernel
        part = jnp.stack([start, jnp.int32(num_rows)])
        return jax.tree.map(jnp.add, sums, _chunk(task, part, data, tower, size)), None

    starts = jnp.arange(pallas.cdiv(num_rows, size), dtype=jnp.int32) * size
    zeros = jax.tree.map(jnp.zeros_like, tower), jnp.zeros(len(task.study.terms))
    (grads, sums), _ = jax.lax.scan(step, zeros, starts)
    return back((grads,))[0], dict(zip(task.study.terms, sums, strict=True))


def _chunk(task: Task, part: jax.Array, data: Data, tower: Tower, size: int) -> Sums:
    """Return (gradients of the tower, sums of terms) of `size` rows.

    Args:
        task: static part of the kernels.
        part: [2] int32, the first of these rows, and the number of all rows.
        data: from `prepare`.
        tower: matrix and bias of each layer.
        size: number of rows.
    """
    shape, dtype, blocks = task.shape, dtype_of(task.shape), size // ROWS
    (inputs,), *numbers, row = data
    w1, w2, w3 = (kernel for kernel, _ in tower)
    is_half = dtype == HALF
    num_inputs = sum(width for _, width in pieces(shape.num_inputs))
    written = lambda width: jax.ShapeDtypeStruct((size, width), dtype)  # noqa: E731
    partial = lambda width: jax.ShapeDtypeStruct((blocks, width), jnp.float32)  # noqa: E731
    call = functools.partial(
        pallas.call, grid=(blocks,), warps=WARPS, stages=2, interpret=task.interpret
    )
    x, h1, h2, do, found, db3, sums = call(
        functools.partial(_forward, task=task),
        out_shape=[
            written(num_inputs),
            written(w1.shape[1]),
            written(w2.shape[1]),
            jax.ShapeDtypeStruct((size, w3.shape[1]), jnp.float32 if is_half else dtype),
            partial(w3.shape[1]) if is_half else None,
            partial(w3.shape[1]),
            partial(len(task.study.terms)),
        ],
        name="wide_forward",
    )(part, inputs, *numbers, *transposed((tower,), shape), row)
    tops = jnp.ones((1, w3.shape[1]))
    if is_half:
        tops = jnp.maximum(jnp.max(found, axis=0, keepdims=True), TINY)
    top = jnp.max(tops)
    scaled, dh1, dh2, db1, db2 = call(
        functools.partial(_backward, shape=shape),
        out_shape=[
            written(w3.shape[1]) if is_half else None,
            written(w1.shape[1]),
            written(w2.shape[1]),
            partial(w1.shape[1]),
            partial(w2.shape[1]),
        ],
        name="wide_backward",
    )(tops if is_half else None, do, h1, h2, w2.astype(dtype), (w3 * tops / top).astype(dtype))

    def over_rows(left: jax.Array, right: jax.Array) -> jax.Array:
        numbers = (((0,), (0,)), ((), ()))
        return jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)

    unused = (0, w1.shape[0] - num_inputs), (0, 0)
    grads = (
        (top * jnp.pad(over_rows(x, dh1), unused), top * db1.sum(axis=0)),
        (top * over_rows(h1, dh2), top * db2.sum(axis=0)),
        (tops * over_rows(h2, scaled if is_half else do), db3.sum(axis=0)),
    )
    return grads, sums.sum(axis=0)


def _forward(
    part_ref: Ref,
    inputs_ref: Ref,
    action_ref: Ref,
    hypers_ref: Ref,
    tower: TowerRefs,
    row_refs: BatchRows,
    x_ref: Ref,
    h1_ref: Ref,
    h2_ref: Ref,
    do_ref: Ref,
    tops_ref: Ref | None,
    db3_ref: Ref,
    sums_ref: Ref,
    *,
    task: Task,
) -> None:
    shape, program = task.shape, pallas.program_id()
    first, (w2_ref, b2_ref), (w3_ref, b3_ref) = tower
    index, actions, row = load_block(
        row_refs, action_ref, part_ref[0] + program * ROWS, ROWS, part_ref[1], shape
    )
    own, dtype = pallas.span(program * ROWS, ROWS), h1_ref.dtype
    inputs, chunk = load_inputs(inputs_ref, index, shape), chunk_of(shape.dtype, shape.widths[1])
    # an infinite hidden unit of a row without weight would make the gradient NaN
    inputs = [jnp.where(row.valid[:, None], piece, 0.0) for piece in inputs]
    for piece, (start, width) in zip(inputs, pieces(shape.num_inputs), strict=True):
        x_ref[own, start : start + width] = in_range(piece, dtype).astype(dtype)

    def add(i: jax.Array, sums: jax.Array) -> jax.Array:
        units = pallas.span(i * chunk, chunk)
        features = first_layer(inputs, first, units, shape).astype(dtype)
        h1_ref[own, units] = features
        return sums + product(features, w2_ref[:, units].T, dtype)

    zeros = jnp.zeros((ROWS, h2_ref.shape[1]), jnp.float32)
    h2 = jax.lax.fori_loop(0, h1_ref.shape[1] // chunk, add, zeros) + b2_ref[...][None, :]
    h2 = activation_of(shape)(h2)
    h2_ref[own, :] = h2.astype(dtype)
    outputs = product(h2, w3_ref[...].T, dtype) + b3_ref[...][None, :]
    do, sums = task.gradient_of_outputs(outputs, actions, row, BOTH, task.options_of(hypers_ref))
    do_ref[own, :] = do.astype(do_ref.dtype)
    if tops_ref is not None:
        tops_ref[program, :] = jnp.max(jnp.abs(do), axis=0)
    db3_ref[program, :] = jnp.sum(do, axis=0)
    for i, values in enumerate(jax.tree.leaves(sums)):
        sums_ref[program, i] = jnp.sum(values)


def _backward(
    tops_ref: Ref | None,
    do_ref: Ref,
    h1_ref: Ref,
    h2_ref: Ref,
    w2_ref: Ref,
    w3_ref: Ref,
    scaled_ref: Ref | None,
    dh1_ref: Ref,
    dh2_ref: Ref,
    db1_ref: Ref,
    db2_ref: Ref,
    *,
    shape: Shape,
) -> None:
    program = pallas.program_id()
    own = pallas.span(program * ROWS, ROWS)
    slope, chunk = SLOPES[shape.activation], chunk_of(dtype_of(shape), h2_ref.shape[1])
    do, dtype = do_ref[own, :], dh1_ref.dtype
    if tops_ref is not None and scaled_ref is not None:
        do = (do / tops_ref[...]).astype(dtype)
        scaled_ref[own, :] = do

    def add(i: jax.Array, sums: jax.Array) -> jax.Array:
        units = pallas.span(i * chunk, chunk)
        dh2 = product(do, w3_ref[units, :].T, dtype) * slope(h2_ref[own, units].astype(jnp.float32))
        db2_ref[program, units] = jnp.sum(dh2, axis=0)
        dh2 = dh2.astype(dtype)
        dh2_ref[own, units] = dh2
        return sums + product(dh2, w2_ref[:, units].T, dtype)

    zeros = jnp.zeros((ROWS, h1_ref.shape[1]), jnp.float32)
    dh1 = jax.lax.fori_loop(0, h2_ref.shape[1] // chunk, add, zeros)
    dh1 = dh1 * slope(h1_ref[own, :].astype(jnp.float32))
    db1_ref[program, :] = jnp.sum(dh1, axis=0)
    dh1_ref[own, :] = dh1.astype(dtype)
