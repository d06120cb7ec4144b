"""Acting as one kernel: actions, log-probabilities and values of observations in one launch.

A program computes all layers after the encoder for a block of rows. Hidden layers stay in
registers.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.activations import ACTIVATIONS
from wdjax.kernels.half import in_range
from wdjax.train.kernels.layers import (
    Ref,
    Shape,
    Span,
    Tower,
    TowerRefs,
    chunk_of,
    column,
    component_columns,
    dtype_of,
    load_rows,
    log_prob_and_entropy,
    padded,
    pieces,
    product,
)

ROWS = 64  # rows of a program
FEW_ROWS = 32  # rows of a program if there are at most FEW, where the latency of a program matters
FEW = 2**12
WARPS = 4


def act_kernel(
    shape: Shape,
    towers: tuple[Tower, ...],
    inputs: Sequence[jax.Array],
    uniform: jax.Array,
    with_log_prob: bool,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Sample actions of a policy by `Categorical.choose`.

    Args:
        shape: static sizes of the policy.
        towers: towers of its network, `transposed`.
        inputs: [R, num_inputs] float32 of each tower, or of all towers.
        uniform: [R, components] float32 in [0, 1).
        with_log_prob: whether to compute log pi(a).
        interpret: run step by step in XLA on any device, for tests.

    Returns:
        (action [R, components] int32, value [R] float32, log_prob [R] float32 or None).
    """
    num_rows, components = uniform.shape
    rows = min(ROWS if num_rows > FEW else FEW_ROWS, padded(num_rows))
    number = jax.ShapeDtypeStruct((num_rows,), jnp.float32)
    outputs = (
        jax.ShapeDtypeStruct((num_rows * components,), jnp.int32),
        number,
        number if with_log_prob else None,
    )
    kernel = functools.partial(_kernel, shape=shape, num_rows=num_rows, rows=rows)
    grid = (pallas.cdiv(num_rows, rows),)
    call = pallas.call(kernel, "act", outputs, grid, WARPS, stages=2, interpret=interpret)
    action, value, log_prob = call(
        [rows.reshape(-1) for rows in inputs], uniform.reshape(-1), towers
    )
    return action.reshape(num_rows, components), value, log_prob


def _kernel(
    inputs_refs: list[Ref],
    uniform_ref: Ref,
    towers: tuple[TowerRefs, ...],
    action_ref: Ref,
    value_ref: Ref,
    log_prob_ref: Ref | None,
    *,
    shape: Shape,
    num_rows: int,
    rows: int,
) -> None:
    row = pallas.program_id() * rows + jax.lax.broadcasted_iota(jnp.int32, (rows,), 0)
    row = jnp.minimum(row, num_rows - 1)  # surplus lanes repeat the last row and its writes
    outputs, *values = (
        run_tower(inputs_refs[min(i, len(inputs_refs) - 1)], row, tower, shape)
        for i, tower in enumerate(towers)
    )
    value = column(values[0], 0) if values else column(outputs, shape.num_outputs)
    actions = []
    for i, (first, size) in enumerate(shape.components):
        draw = pallas.load(uniform_ref.at[row * len(shape.sizes) + i])
        action = choose(outputs, draw, first, size)
        pallas.store(action_ref.at[row * len(shape.sizes) + i], action)
        actions.append(action)
    pallas.store(value_ref.at[row], value)
    if log_prob_ref is not None:
        pallas.store(log_prob_ref.at[row], log_prob_and_entropy(outputs, actions, shape)[0])


def choose(outputs: jax.Array, uniform: jax.Array, first: int, size: int) -> jax.Array:
    """Return the action of one component, [B] int32, see `Categorical.choose`.

    Args:
        outputs: [B, columns].
        uniform: [B] in [0, 1).
        first: first column of the component.
        size: number of its columns.
    """
    inside, top = component_columns(outputs, first, size)
    weight = jnp.where(inside, jnp.exp(outputs - top), 0.0)
    # rounding may decrease partial sums, or increase them at weight 0: choose only weights above 0
    cumulated = jnp.where(weight > 0.0, jnp.cumsum(weight, axis=1), 0.0)
    above = cumulated > (uniform * jnp.max(cumulated, axis=1))[:, None]
    columns = jax.lax.broadcasted_iota(jnp.int32, outputs.shape, 1)
    return jnp.min(jnp.where(above, columns - first, size - 1), axis=1)


def run_tower(inputs_ref: Ref, row: jax.Array, tower: TowerRefs, shape: Shape) -> jax.Array:
    """Return the outputs [B, columns] of a tower; the first two layers are computed in chunks.

    Args:
        inputs_ref: flat inputs of all rows.
        row: [B] int32, the rows of the program.
        tower: `transposed`.
        shape: static sizes of the policy.
    """
    first, (second_ref, second_bias_ref), *others = tower
    inputs, dtype = load_inputs(inputs_ref, row, shape), dtype_of(shape)
    chunk = chunk_of(dtype, shape.widths[1])

    def add(i: jax.Array, sums: jax.Array) -> jax.Array:
        units = pallas.span(i * chunk, chunk)
        features = in_range(first_layer(inputs, first, units, shape), dtype)
        return sums + product(features, second_ref[:, units].T, dtype)

    zeros = jnp.zeros((row.shape[0], second_ref.shape[0]), jnp.float32)
    outputs = jax.lax.fori_loop(0, shape.widths[1] // chunk, add, zeros)
    outputs += second_bias_ref[...][None, :]
    for kernel_ref, bias_ref in others:
        outputs = in_range(ACTIVATIONS[shape.activation](outputs), dtype)
        outputs = product(outputs, kernel_ref[...].T, dtype) + bias_ref[...][None, :]
    return outputs


def load_inputs(inputs_ref: Ref, row: jax.Array, shape: Shape) -> list[jax.Array]:
    """Load the inputs of a block in pieces with powers of two as widths: 71 as 64 and 16."""
    return [
        load_rows(inputs_ref, row, first, width, shape.num_inputs).astype(shape.dtype)
        for first, width in pieces(shape.num_inputs)
    ]


def first_layer(
    inputs: list[jax.Array], layer: tuple[Ref, Ref], units: Span, shape: Shape
) -> jax.Array:
    """Return some units of the first hidden layer, [B, chunk]."""
    kernel_ref, bias_ref = layer
    sums = bias_ref[units][None, :]
    for piece, (first, width) in zip(inputs, pieces(shape.num_inputs), strict=True):
        sums += product(piece, kernel_ref[units, first : first + width].T, shape.dtype)
    return ACTIVATIONS[shape.activation](sums)
