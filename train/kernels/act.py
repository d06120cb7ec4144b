"""Acting as one kernel: actions, log-probabilities and values of observations in one launch.

`note_kernel` computes log-probabilities and values of actions that were sampled before.

A program computes all layers after the encoder for a block of rows. Hidden layers stay in
registers. If there are few rows, each tower has its own programs.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.train.kernels.categorical import component_columns, log_prob_and_entropy
from wdjax.train.kernels.layers import (
    STREAMED,
    STREAMED_STAGES,
    Ref,
    Shape,
    Span,
    Tower,
    TowerRefs,
    activation_of,
    chunk_of,
    column,
    dtype_of,
    hidden_product,
    load_rows,
    padded,
    pieces,
    product,
    streamed,
)

ROWS = 64  # rows of a program
FEW_ROWS = 16  # rows of a program if there are at most FEW, where the latency of a program matters
FEW = 2**12  # rows of all members of a population
WARPS = 4
STAGES = 2  # pipeline stages of the loads in loops, if inputs are not streamed


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
    actions = jax.ShapeDtypeStruct((uniform.size,), jnp.int32)
    action, value, log_prob = _call(
        shape, towers, inputs, uniform, actions, with_log_prob, interpret
    )
    return action.reshape(uniform.shape), value, log_prob


def note_kernel(
    shape: Shape,
    towers: tuple[Tower, ...],
    inputs: Sequence[jax.Array],
    action: jax.Array | None,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Return (V(obs) [R] float32, log pi(action) [R] float32, or None without actions).

    Args:
        shape: static sizes of the policy.
        towers: towers of its network, `transposed`.
        inputs: [R, num_inputs] float32 of each tower, or of all towers.
        action: [R, components] int32; None for the values alone.
        interpret: run step by step in XLA on any device, for tests.
    """
    with_log_prob = action is not None
    if action is None and not shape.shared:  # only the tower of the value
        towers, inputs = towers[-1:], inputs[-1:]
    return _call(shape, towers, inputs, action, None, with_log_prob, interpret)[1:]


def _call(
    shape: Shape,
    towers: tuple[Tower, ...],
    inputs: Sequence[jax.Array],
    draws: jax.Array | None,
    actions: jax.ShapeDtypeStruct | None,
    with_log_prob: bool,
    interpret: bool,
) -> Any:
    """Return (actions, values, log-probabilities); None for outputs that are not computed.

    Args:
        shape: static sizes of the policy.
        towers: the towers to run, the one with the value last.
        inputs: [R, num_inputs] of each tower, or of all towers.
        draws: [R, components], uniform numbers if `actions` are an output, otherwise actions.
        actions: the output, or None.
        with_log_prob: whether log-probabilities are an output.
        interpret: run step by step in XLA on any device, for tests.
    """
    num_rows = len(inputs[0])
    number = jax.ShapeDtypeStruct((num_rows,), jnp.float32)
    outputs = (actions, number, number if with_log_prob else None)
    stages = STREAMED_STAGES if shape.inputs == STREAMED else STAGES
    name = "note" if actions is None else "act"

    def launch(members: int, *operands: Any) -> Any:
        are_few = members * num_rows <= FEW
        rows = min(FEW_ROWS if are_few else ROWS, padded(num_rows))
        are_apart = len(towers) > 1 and are_few  # each tower has its own programs
        kernel = functools.partial(
            _kernel, shape=shape, num_rows=num_rows, rows=rows, are_apart=are_apart
        )
        grid = (pallas.cdiv(num_rows, rows), 2 if are_apart else 1)
        call = pallas.call(kernel, name, outputs, grid, WARPS, stages=stages, interpret=interpret)
        return call(*operands)

    flat = None if draws is None else draws.reshape(-1)
    run = pallas.over_members(launch)
    return run([rows.reshape(-1) for rows in inputs], flat, towers)


def _kernel(
    inputs_refs: list[Ref],
    draws_ref: Ref | None,
    towers: tuple[TowerRefs, ...],
    action_ref: Ref | None,
    value_ref: Ref,
    log_prob_ref: Ref | None,
    *,
    shape: Shape,
    num_rows: int,
    rows: int,
    are_apart: bool,
) -> None:
    row = pallas.program_id() * rows + jax.lax.broadcasted_iota(jnp.int32, (rows,), 0)
    row = jnp.minimum(row, num_rows - 1)  # surplus lanes repeat the last row and its writes

    def run(i: int) -> jax.Array:
        return run_tower(inputs_refs[min(i, len(inputs_refs) - 1)], row, towers[i], shape)

    def act(outputs: jax.Array) -> None:
        places = [row * len(shape.sizes) + i for i in range(len(shape.sizes))]
        draws = [] if draws_ref is None else [pallas.load(draws_ref.at[place]) for place in places]
        actions = draws  # already sampled, or none
        if action_ref is not None:
            columns = zip(draws, shape.components, strict=True)
            actions = [choose(outputs, draw, first, size) for draw, (first, size) in columns]
            for place, action in zip(places, actions, strict=True):
                pallas.store(action_ref.at[place], action)
        if log_prob_ref is not None:
            log_prob = log_prob_and_entropy(outputs, actions, shape)[0]
            pallas.store(log_prob_ref.at[row], log_prob)

    def evaluate(outputs: jax.Array) -> None:
        value = column(outputs, shape.num_outputs if shape.shared else 0)
        pallas.store(value_ref.at[row], value)

    if are_apart:
        pallas.when(pallas.program_id(1) == 0, lambda: act(run(0)))
        pallas.when(pallas.program_id(1) == 1, lambda: evaluate(run(1)))
    else:
        outputs = [run(i) for i in range(len(towers))]
        act(outputs[0])
        evaluate(outputs[-1])


def choose(outputs: jax.Array, uniform: jax.Array, first: int, size: int) -> jax.Array:
    """Return the action of one component, [B] int32, see `Categorical.choose`.

    Args:
        outputs: [B, columns].
        uniform: [B] in [0, 1).
        first: first column of the component.
        size: number of its columns.
    """
    inside, top = component_columns(outputs, first, size)
    weight = jnp.where(inside, jnp.exp(outputs - top[:, None]), 0.0)
    # rounding may decrease partial sums, or increase them at weight 0: choose only weights above 0
    cumulated = jnp.where(weight > 0.0, jnp.cumsum(weight, axis=1), 0.0)
    above = cumulated > (uniform * jnp.max(cumulated, axis=1))[:, None]
    columns = jax.lax.broadcasted_iota(jnp.int32, outputs.shape, 1)
    return jnp.min(jnp.where(above, columns - first, size - 1), axis=1)


def run_tower(inputs_ref: Ref, row: jax.Array, tower: TowerRefs, shape: Shape) -> jax.Array:
    """Return the outputs [B, columns] of a tower.

    The first two layers are computed in chunks of units, unless inputs are streamed.

    Args:
        inputs_ref: flat inputs of all rows.
        row: [B] int32, the rows of the program.
        tower: `transposed`.
        shape: static sizes of the policy.
    """
    first, (second_ref, second_bias_ref), *others = tower
    inputs = load_inputs(inputs_ref, row, shape)
    chunk = chunk_of(dtype_of(shape), shape.widths[1])

    def add(i: jax.Array, sums: jax.Array) -> jax.Array:
        units = pallas.span(i * chunk, chunk)
        features = first_layer(inputs, first, units, shape)
        return sums + hidden_product(features, second_ref[:, units].T, shape)

    if shape.inputs == STREAMED:
        before = streamed(inputs_ref, row, first[0], shape) + first[1][...][None, :]
        outputs = hidden_product(activation_of(shape)(before), second_ref[...].T, shape)
    else:
        zeros = jnp.zeros((row.shape[0], second_ref.shape[0]), jnp.float32)
        outputs = jax.lax.fori_loop(0, shape.widths[1] // chunk, add, zeros)
    outputs += second_bias_ref[...][None, :]
    for kernel_ref, bias_ref in others:
        hidden = activation_of(shape)(outputs)
        outputs = hidden_product(hidden, kernel_ref[...].T, shape) + bias_ref[...][None, :]
    return outputs


def load_inputs(inputs_ref: Ref, row: jax.Array, shape: Shape) -> list[jax.Array]:
    """Load the inputs of a block in pieces with powers of two as widths: 71 as 64 and 16."""
    return [
        load_rows(inputs_ref, row, first, width, shape).astype(shape.dtype)
        for first, width in pieces(shape.num_held)
    ]


def first_layer(
    inputs: list[jax.Array], layer: tuple[Ref, Ref], units: Span, shape: Shape
) -> jax.Array:
    """Return some units of the first hidden layer, [B, chunk]."""
    kernel_ref, bias_ref = layer
    sums = bias_ref[units][None, :]
    for piece, (first, width) in zip(inputs, pieces(shape.num_inputs), strict=True):
        sums += product(piece, kernel_ref[units, first : first + width].T, shape.dtype)
    return activation_of(shape)(sums)
