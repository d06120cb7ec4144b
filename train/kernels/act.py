"""Acting as one kernel: from observations to drawn actions, their log-probabilities and values, in one launch.

A program takes a block of rows through the whole network; what is between its layers stays in registers.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.train.kernels.layers import (
    ACTIVATIONS,
    Shape,
    Tower,
    chunk_of,
    column,
    component_columns,
    load_rows,
    log_prob_and_entropy,
    padded,
    product,
)

ROWS = 64  # of a program
FEW_ROWS = 32  # of a program where there are so few that it counts how long each takes
FEW = 2**12
WARPS = 4


def act_kernel(
    shape: Shape, towers: tuple[Tower, ...], inputs: jax.Array, uniform: jax.Array, with_log_prob: bool,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:  # fmt: skip
    """Draws actions of a policy: `Categorical.choose` of the network's outputs, its value, and where asked log pi(a).

    Args:
        towers: `transposed` ones of an actor-critic.
        inputs: [R, num_inputs] float32, observations in a row.
        uniform: [R, components] float32 in [0, 1).
        interpret: step by step in XLA, on any device, for tests.

    Returns:
        (action [R, components] int32, value [R] float32, log_prob [R] float32 or None).
    """
    num_rows, components = uniform.shape
    rows = min(ROWS if num_rows > FEW else FEW_ROWS, padded(num_rows))
    outputs = [jax.ShapeDtypeStruct((num_rows * components,), jnp.int32)]
    outputs += [jax.ShapeDtypeStruct((num_rows,), jnp.float32)] * (1 + with_log_prob)
    kernel = functools.partial(_kernel, shape=shape, num_rows=num_rows, rows=rows)
    grid = (pallas.cdiv(num_rows, rows),)
    action, value, *log_prob = pallas.call(
        kernel, "act", outputs, grid, WARPS, stages=2, interpret=interpret
    )(inputs.reshape(-1), uniform.reshape(-1), *jax.tree.leaves(towers))
    return action.reshape(num_rows, components), value, log_prob[0] if log_prob else None


def _kernel(
    inputs_ref: Any, uniform_ref: Any, *refs: Any, shape: Shape, num_rows: int, rows: int
) -> None:
    layers = len(shape.widths) - 1
    num_weights = 2 * layers * (1 if shape.shared else 2)
    weights, (action_ref, value_ref, *log_prob_ref) = refs[:num_weights], refs[num_weights:]
    row = pallas.program_id() * rows + jax.lax.broadcasted_iota(jnp.int32, (rows,), 0)
    row = jnp.minimum(
        row, num_rows - 1
    )  # what is beyond the last row repeats it, and writes the same
    outputs = run_tower(inputs_ref, row, weights[: 2 * layers], shape)
    value = column(outputs, shape.num_outputs)
    if not shape.shared:
        value = column(run_tower(inputs_ref, row, weights[2 * layers :], shape), 0)
    actions = []
    for i, (first, size) in enumerate(shape.components):
        draw = pallas.load(uniform_ref.at[row * len(shape.sizes) + i])
        action = choose(outputs, draw, first, size)
        pallas.store(action_ref.at[row * len(shape.sizes) + i], action)
        actions.append(action)
    pallas.store(value_ref.at[row], value)
    if log_prob_ref:
        pallas.store(log_prob_ref[0].at[row], log_prob_and_entropy(outputs, actions, shape)[0])


def choose(outputs: jax.Array, uniform: jax.Array, first: int, size: int) -> jax.Array:
    """Returns the action of one component that a number in [0, 1) stands for, [B] int32: `Categorical.choose`."""
    inside, top = component_columns(outputs, first, size)
    weight = jnp.where(inside, jnp.exp(outputs - top), 0.0)
    # sums of parts may fall by rounding, or rise where nothing is added: only what has a weight can be chosen
    cumulated = jnp.where(weight > 0.0, jnp.cumsum(weight, axis=1), 0.0)
    above = cumulated > (uniform * jnp.max(cumulated, axis=1))[:, None]
    columns = jax.lax.broadcasted_iota(jnp.int32, outputs.shape, 1)
    return jnp.min(jnp.where(above, columns - first, size - 1), axis=1)


def run_tower(inputs_ref: Any, row: jax.Array, refs: Any, shape: Shape) -> jax.Array:
    """Returns the outputs [B, columns] of a tower for the rows of a program; the first two layers chunk by chunk."""
    inputs = load_inputs(inputs_ref, row, shape)
    chunk = chunk_of(shape)

    def add(i: jax.Array, sums: jax.Array) -> jax.Array:
        units = pallas.span(i * chunk, chunk)
        return sums + product(
            first_layer(inputs, refs, units, shape), refs[2][:, units].T, shape.dtype
        )

    zeros = jnp.zeros((row.shape[0], refs[2].shape[0]), jnp.float32)
    outputs = jax.lax.fori_loop(0, shape.widths[1] // chunk, add, zeros) + refs[3][...][None, :]
    for kernel_ref, bias_ref in zip(refs[4::2], refs[5::2], strict=True):
        outputs = ACTIVATIONS[shape.activation](outputs)
        outputs = product(outputs, kernel_ref[...].T, shape.dtype) + bias_ref[...][None, :]
    return outputs


def load_inputs(inputs_ref: Any, row: jax.Array, shape: Shape) -> list[jax.Array]:
    """Reads the inputs of a block of rows in pieces, each as wide as a power of two: 71 are 64 and 16, not 128."""
    return [
        load_rows(inputs_ref, row, first, width, shape.num_inputs).astype(shape.dtype)
        for first, width in pieces(shape.num_inputs)
    ]


def first_layer(inputs: list[jax.Array], refs: Any, units: Any, shape: Shape) -> jax.Array:
    """Returns some units of the first hidden layer, [B, chunk]."""
    sums = refs[1][units][None, :]
    for piece, (first, width) in zip(inputs, pieces(shape.num_inputs), strict=True):
        sums = sums + product(piece, refs[0][units, first : first + width].T, shape.dtype)
    return ACTIVATIONS[shape.activation](sums)


def pieces(size: int) -> list[tuple[int, int]]:
    """Returns (first, width) of pieces that cover a size: widths are powers of two, at least 16."""
    found, first = [], 0
    while first < size:
        width = max(16, 1 << ((size - first).bit_length() - 1))
        found.append((first, width))
        first += width
    return found
