"""Gradients of a loss (A2C, PPO) as one kernel: from inputs to sums of gradients and metrics.

Each program runs blocks of rows, one after the other, forward and backward through a tower. No
activation is written to memory. The gradients of all matrices stay in registers; each program
writes them once, and they are summed afterwards. Wide towers: train/kernels/gradient_wide.py.

Two towers, for policy and value, are two launches: no term of the loss depends on both.

With bounded activations (tanh), all layers except the first use float16 (`dtype_of`). Its range is
small, so gradients are divided by the largest gradient of the outputs that the program has seen.
Rounding errors are at most

* 2^-12 of a gradient, or 2^-25 of the largest gradient,
* 2^-11 of an activation h, hence 2^-10 of its slope 1 - h^2. Saturated units have smaller slopes,
  so their gradients are inexact.

For the gradient of the first matrix, inputs are clipped to 65504. Other activations use
float32 throughout.

The inputs have an additional column of ones, which makes the first bias a row of its matrix. If
inputs are streamed, this is the only column, and the products of a loop over inputs are added.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.half import HALF
from wdjax.train.kernels.layers import (
    MIN_SIZE,
    OBSERVATIONS,
    STREAMED,
    STREAMED_STAGES,
    Ref,
    Shape,
    column,
    dtype_of,
    log_prob_and_entropy,
    padded,
    pieces,
)
from wdjax.train.kernels.loss import Options, Study, study
from wdjax.train.kernels.passes import (
    as_columns,
    backward,
    forward,
    load_with_ones,
    store_of_inputs,
)
from wdjax.train.kernels.vectors import Held, Matrix, alone, large_matrices, matrices_of, merged
from wdjax.train.state.engine import BatchRows, Loss, Means
from wdjax.train.state.flat import ALIGNED, Flat
from wdjax.train.state.rows import Evaluation

ROWS = 64  # rows of a block
PROGRAMS = 264  # at most two for each of 132 multiprocessors of an H200, limited by registers
WARPS = 4
TINY = 1e-30  # smallest divisor of gradients, if no row is valid
BOTH, POLICY, VALUE = "both", "policy", "value"  # outputs of a tower

Data: TypeAlias = tuple[list[jax.Array], jax.Array, jax.Array, BatchRows]
"""(flat inputs of each tower, or of all towers; flat actions, hyperparameters, other fields of the
rows) in memory"""


@dataclasses.dataclass(frozen=True)
class Task:
    """Static part of the kernels of a gradient."""

    shape: Shape
    loss: Loss
    """loss of a batch, such as `PPO.loss`, which the kernels trace"""
    options: Options
    """options of the algorithm; traced fields that the loss reads are replaced"""
    study: Study
    interpret: bool

    def options_of(self, hypers_ref: Ref) -> Options:
        """Load the traced options that the loss reads."""
        read = {name: hypers_ref[i] for i, name in enumerate(self.study.read)}
        return dataclasses.replace(self.options, **read)

    def loss_sums(
        self,
        outputs: jax.Array,
        actions: list[jax.Array],
        row: BatchRows,
        part: str,
        options: Options,
    ) -> tuple[jax.Array, Means]:
        """Return (sum of the loss over the valid rows of a block, its terms, [B] each).

        Terms are 0 in other rows. For a tower of the policy or of the value only, the terms of the
        other one are constants without meaning.
        """
        value = (
            row.value
            if part == POLICY
            else column(outputs, self.shape.num_outputs if part == BOTH else 0)
        )
        if part == VALUE:
            entropy = jnp.zeros_like(value)
            log_prob = entropy if row.log_prob is None else row.log_prob
        else:
            log_prob, entropy = log_prob_and_entropy(outputs, actions, self.shape)

        def of_rows(terms: Means) -> Means:
            return {name: jnp.where(row.valid, values, 0.0) for name, values in terms.items()}

        loss, found = self.loss(Evaluation(log_prob, entropy, value), row, options, of_rows)
        return jnp.sum(loss), found


def prepare(
    shape: Shape,
    inputs: Sequence[jax.Array],
    action: jax.Array,
    row: BatchRows,
    loss: Loss,
    options: Options,
    interpret: bool = False,
) -> tuple[Task, Data]:
    """Return the static part of the kernels of a gradient and the data that they read.

    Args:
        shape: static sizes of the policy.
        inputs: [R, num_inputs] float32 of each tower, or of all towers.
        action: [R, ...] int32, the components of each action.
        row: [R] float32 each, `valid` bool.
        loss: loss of a batch, such as `PPO.loss`.
        options: options of the algorithm, with traced fields as scalars.
        interpret: run step by step in XLA on any device, for tests.
    """
    found = study(loss, options, row)
    numbers = [jnp.float32(getattr(options, name)) for name in found.read]
    static = dataclasses.replace(options, **dict.fromkeys(found.read, 0.0))
    row = row.replace(valid=row.valid.astype(jnp.int8))
    flat = [rows.reshape(-1) for rows in inputs]
    data = flat, action.reshape(-1), jnp.stack(numbers or [jnp.float32(0.0)]), row
    return Task(shape, loss, static, found, interpret), data


def load_block(
    row_refs: BatchRows,
    action_ref: Ref,
    start: jax.Array,
    rows: int,
    num_rows: int,
    shape: Shape,
) -> tuple[jax.Array, list[jax.Array], BatchRows]:
    """Return (indices, actions by component, row) of a block; surplus lanes are invalid."""
    place = start + jax.lax.broadcasted_iota(jnp.int32, (rows,), 0)
    index = jnp.minimum(place, num_rows - 1)
    components = len(shape.sizes)
    actions = [pallas.load(action_ref.at[index * components + i]) for i in range(components)]
    row = jax.tree.map(lambda ref: pallas.load(ref.at[index]), row_refs)
    return index, actions, row.replace(valid=(row.valid > 0) & (place < num_rows))


def gradient_kernel(task: Task, data: Data, params: Flat) -> tuple[Flat, Means, list[jax.Array]]:
    """Return gradients of the loss summed over valid rows, and sums of its terms.

    Args:
        task: from `prepare`.
        data: from `prepare`.
        params: parameters of an actor-critic network.

    Returns:
        (gradients of the parameters in the kernels, 0 for others; sums; gradients of the inputs of
        each tower if these depend on parameters, or of the products of streamed inputs).
    """
    inputs, *rest = data
    layout = params.layout
    towers, large = matrices_of(layout, task.shape), large_matrices(layout, task.shape)
    parts = [BOTH] if task.shape.shared else [POLICY, VALUE]
    own_inputs = [inputs[:1], inputs[-1:]]
    sums: Means = {}
    grads, of_inputs = [], []
    for part, tower, first, own in zip(parts, towers, large, own_inputs, strict=False):
        operands = (own, *rest), params.vector
        grad, found, *more = _tower_gradient(task, *operands, tower, first, part)  # type: ignore[arg-type]
        grads.append(grad)
        terms = found if part != VALUE else task.study.of_value
        sums |= {name: found[name] for name in terms}
        of_inputs += more
    return params.replace(vector=merged(layout, grads)), sums, of_inputs


def _tower_gradient(
    task: Task,
    data: Data,
    vector: jax.Array,
    tower: tuple[Matrix, ...],
    large: Matrix | None,
    part: str,
) -> tuple[Any, ...]:
    """Return (gradient of the tower, sums of terms), and the gradient of its inputs.

    The gradient is a pair as for `merged`. The members of a population share the programs of the
    kernel.
    """
    shape, num_rows = task.shape, len(data[-1].valid)
    rows = min(ROWS, padded(num_rows))
    outputs, arrays = alone(tower)
    size = sum(piece.size for piece in arrays)
    first_term = size + -size % ALIGNED
    total = first_term + padded(len(task.study.terms))
    is_streamed = shape.inputs == STREAMED
    num_columns = shape.hidden[0] if is_streamed else shape.num_inputs
    columns = shape.widths[1] if is_streamed else sum(width for _, width in pieces(num_columns))
    of_inputs = jax.ShapeDtypeStruct((num_rows, columns), jnp.float32)
    # without a loop over inputs, the loop over blocks would have the stages
    stages = STREAMED_STAGES if is_streamed and shape.num_inputs > shape.at_once else 1

    def run(members: int, *operands: Any) -> tuple[jax.Array, jax.Array | None]:
        blocks = pallas.cdiv(pallas.cdiv(num_rows, rows), max(1, PROGRAMS // members))
        programs = pallas.cdiv(num_rows, rows * blocks)
        kernel = functools.partial(
            _kernel,
            task=task,
            part=part,
            num_rows=num_rows,
            rows=rows,
            blocks=blocks,  # of rows, one after the other in each program
            matrices=(tower, outputs),
            large=large,
            first_term=first_term,
        )
        grads = jax.ShapeDtypeStruct((programs * total,), jnp.float32)
        out_shape = grads, None if shape.inputs == OBSERVATIONS else of_inputs
        found, more = pallas.call(
            kernel, "gradient", out_shape, (programs,), WARPS, stages, interpret=task.interpret
        )(*operands)
        return jnp.sum(found.reshape(programs, total), axis=0), more

    run_one = jax.custom_batching.custom_vmap(functools.partial(run, 1))

    @run_one.def_vmap
    def run_members(members: int, batched: list, *operands: Any) -> tuple:
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, tuple(batched))
        found = jax.vmap(functools.partial(run, members), in_axes=axes)(*operands)
        return found, jax.tree.map(lambda _: True, found)

    (inputs,), *numbers = data
    found, more = run_one(inputs, *numbers, vector)
    sums = dict(zip(task.study.terms, found[first_term:], strict=False))
    result = (arrays, found[:size]), sums
    return result if more is None else (*result, more[:, :num_columns])


# Inside a kernel


def _kernel(
    inputs_ref: Ref,
    action_ref: Ref,
    hypers_ref: Ref,
    row_refs: BatchRows,
    vector_ref: Ref,
    grads_ref: Ref,
    of_inputs_ref: Ref | None,
    *,
    task: Task,
    part: str,
    num_rows: int,
    rows: int,
    blocks: int,
    matrices: tuple[tuple[Matrix, ...], tuple[Matrix, ...]],
    large: Matrix | None,
    first_term: int,
) -> None:
    weights, outputs_of = [Held(vector_ref, own) for own in matrices[0]], matrices[1]
    first = None if large is None else Held(vector_ref, large)
    num_terms = padded(len(task.study.terms))
    shape, options = task.shape, task.options_of(hypers_ref)
    program, scaled = pallas.program_id(), dtype_of(shape) == HALF

    def add(i: jax.Array, carry: tuple) -> tuple:
        index, actions, row = load_block(
            row_refs, action_ref, (program * blocks + i) * rows, rows, num_rows, shape
        )
        inputs, products = load_with_ones(inputs_ref, index, weights[0], first, shape)
        outputs, features, backs = forward(weights, inputs, products, shape)
        gradient_of = jax.grad(task.loss_sums, has_aux=True)
        gradient, found = gradient_of(outputs, actions, row, part, options)
        grads, sums, top = carry
        if scaled:  # divided by the running maximum; infinity becomes NaN
            larger = jnp.maximum(top, jnp.max(jnp.abs(gradient)))
            grads = [grad * (top / larger) for grad in grads]
            gradient, top = gradient * (1.0 / larger), larger
        found_grads, gradient = backward(weights, features, backs, gradient)
        grads = jax.tree.map(jnp.add, grads, found_grads)
        if of_inputs_ref is not None:
            start = (program * blocks + i) * rows
            store_of_inputs(of_inputs_ref, gradient, top, weights[0], start, shape)
        return grads, sums + as_columns(jax.tree.leaves(found), sums.shape[1]), top

    sizes = [(MIN_SIZE, own.shape[1]) if own.shape[0] == 1 else own.shape for own in weights]
    zeros = [jnp.zeros(sorted(size, reverse=True)) for size in sizes]
    carry = (zeros, jnp.zeros((rows, num_terms)), jnp.float32(TINY if scaled else 1.0))
    grads, sums, top = jax.lax.fori_loop(0, blocks, add, carry)
    start = program * (first_term + num_terms)
    for matrix, grad in zip(outputs_of, grads, strict=True):
        if matrix.shape[0] == 1:  # gradient of a bias
            grad = column(grad, 0)[None, :]
        elif matrix.shape[0] <= matrix.shape[1]:
            grad = grad.T
        matrix.store(grads_ref, start, top * grad)
    terms = start + first_term + jax.lax.broadcasted_iota(jnp.int32, (num_terms,), 0)
    pallas.store(grads_ref.at[terms], jnp.sum(sums, axis=0))
