"""Gradients of a loss (A2C, PPO) as one kernel: from inputs to sums of gradients and metrics.

Each program runs blocks of rows, one after the other, forward and backward through a tower. No
activation is written to memory. The gradients of all matrices stay in registers; each program
writes them once, and they are summed afterwards. Wide towers: train/kernels/gradient_wide.py.

Two towers, for policy and value, have separate programs: no term of the loss depends on both.

All layers except the first use float16 (`dtype_of`). Its range is small, so gradients are divided
by the largest gradient of the outputs that the program has seen. If the activation is unbounded,
rows of hidden units and inputs that exceed 65504 are divided, too (`in_half`). Above about 4e9,
gradients may become infinite. Rounding errors are at most

* 2^-12 of a gradient, or 2^-25 of the largest gradient,
* 2^-11 of an activation h, hence 2^-10 of the slope of tanh, 1 - h^2. Saturated units have smaller
  slopes, so their gradients are inexact.

With tanh, inputs are clipped to 65504 for the gradient of the first matrix.

The inputs have an additional column of ones, which makes the first bias a row of its matrix. If
inputs are streamed, this is the only column, and the products of a loop over inputs are added.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.half import HALF, TINY, rescaled
from wdjax.train.kernels.layers import (
    MIN_SIZE,
    OBSERVATIONS,
    STREAMED,
    STREAMED_STAGES,
    Ref,
    Shape,
    column,
    dtype_of,
    padded,
    pieces,
)
from wdjax.train.kernels.loss import Options, study
from wdjax.train.kernels.passes import (
    as_columns,
    backward,
    forward,
    load_with_ones,
    store_of_inputs,
)
from wdjax.train.kernels.task import BOTH, POLICY, VALUE, Task
from wdjax.train.kernels.towers import first_gradients, towers_of, transposed
from wdjax.train.kernels.vectors import (
    Held,
    Matrix,
    Piece,
    computed,
    first_pieces,
    matrices_of,
    merged,
)
from wdjax.train.state.engine import BatchRows, Loss, Means
from wdjax.train.state.flat import ALIGNED, Flat, Layout

LOADED = 2**13  # numbers in the padded matrices of a tower up to which they stay in registers

Data: TypeAlias = tuple[list[jax.Array], jax.Array, jax.Array, BatchRows]
"""(flat inputs of each tower, or of all towers; flat actions, hyperparameters, other fields of the
rows) in memory"""


class Launch(NamedTuple):
    """How the kernel is launched."""

    rows: int  # in each block
    warps: int  # in each program
    programs: int  # as many as the registers of 132 multiprocessors (of an H200) hold at once


LAUNCH, SMALL_LAUNCH = Launch(64, 4, 2 * 132), Launch(32, 2, 6 * 132)
SMALL_WIDTH = 32  # largest width of a layer for SMALL_LAUNCH


def launch_of(shape: Shape) -> Launch:
    """Return how to launch the kernel: networks with few inputs and units by smaller programs.

    The registers of a multiprocessor hold six of these, or fewer with more inputs or units.
    """
    is_small = shape.num_inputs <= MIN_SIZE and max(shape.widths) <= SMALL_WIDTH
    return SMALL_LAUNCH if is_small else LAUNCH


@dataclasses.dataclass(frozen=True)
class Part:
    """Matrices and results of the programs for one tower."""

    outputs: str
    """BOTH, POLICY or VALUE"""
    weights: tuple[Matrix, ...]
    """matrices in the vector of all parameters"""
    grads: tuple[Matrix, ...]
    """their gradients in the vector of results"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The vector of results: gradients of all towers, then terms of the loss of each tower."""

    parts: tuple[Part, ...]
    """a part for each tower"""
    arrays: tuple[Piece, ...]
    """parameters with gradients, placed in the vector of all parameters"""
    num_terms: int
    """number of terms of the loss, padded"""

    @property
    def size(self) -> int:
        """Number of gradients."""
        return sum(piece.size for piece in self.arrays)

    @property
    def total(self) -> int:
        """Number of all results."""
        return self.first_term(len(self.parts))

    def first_term(self, part: int) -> int:
        """Return the position of the first term of the loss of a part."""
        return self.size + -self.size % ALIGNED + part * self.num_terms


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

    The members of a population share the programs of the kernel.

    Args:
        task: from `prepare`.
        data: from `prepare`.
        params: parameters of an actor-critic network.

    Returns:
        (gradients of the parameters of the towers, 0 for others; sums; gradients of the inputs of
        each tower if these depend on parameters).
    """
    shape, layout, tree, large = task.shape, params.layout, params.split(), None
    if shape.inputs == STREAMED:
        large = [first for (first, _), *_ in transposed(towers_of(tree, shape), shape)]
    plan = plan_of(task, layout)
    run = pallas.over_members(functools.partial(_call, task, plan))
    results, of_inputs = run(*data, params.vector, large)
    sums: Means = {}
    for i, part in enumerate(plan.parts):
        terms = dict(zip(task.study.terms, results[plan.first_term(i) :], strict=False))
        read = terms if part.outputs != VALUE else task.study.of_value
        sums |= {name: terms[name] for name in read}
    grads: list[tuple[Sequence[Piece], jax.Array]] = [(plan.arrays, results[: plan.size])]
    if shape.inputs == STREAMED:
        rows = [inputs.reshape(-1, shape.num_inputs) for inputs in data[0]]
        matrices, of_inputs = first_gradients(rows, of_inputs, tree, shape)
        pairs = zip(first_pieces(layout, shape), matrices, strict=True)
        grads += [([piece], matrix.reshape(-1)) for piece, matrix in pairs]
    vector = merged(layout, grads)
    if shape.inputs == STREAMED:
        # XLA joins these large arrays once, and not again in each of their uses
        vector = jax.lax.optimization_barrier(vector)
    return params.replace(vector=vector), sums, of_inputs


def plan_of(task: Task, layout: Layout) -> Plan:
    """Return the place of all results."""
    names = [BOTH] if task.shape.shared else [POLICY, VALUE]
    towers, num_terms = matrices_of(layout, task.shape), padded(len(task.study.terms))
    grads, arrays = computed(towers)
    parts = tuple(Part(*part) for part in zip(names, towers, grads, strict=True))
    return Plan(parts, arrays, num_terms)


def _call(
    task: Task, plan: Plan, members: int, *operands: Any
) -> tuple[jax.Array, list[jax.Array]]:
    """Launch the kernel and return the vector of results, and gradients of the inputs of each part.

    Args:
        task: from `prepare`.
        plan: from `plan_of`; each part has separate programs.
        members: members of a population that share the multiprocessors.
        operands: data from `prepare`, vector of parameters, streamed matrices.
    """
    shape, num_rows = task.shape, len(operands[3].valid)
    rows, warps, most = launch_of(shape)
    rows, num_parts = min(rows, padded(num_rows)), len(plan.parts)
    is_streamed = shape.inputs == STREAMED
    num_columns = shape.hidden[0] if is_streamed else shape.num_inputs
    columns = shape.widths[1] if is_streamed else sum(width for _, width in pieces(num_columns))
    of_inputs = jax.ShapeDtypeStruct((num_rows, num_parts * columns), jnp.float32)
    # without a loop over inputs, the loop over blocks would have the stages
    stages = STREAMED_STAGES if is_streamed and shape.num_inputs > shape.at_once else 1
    blocks = pallas.cdiv(pallas.cdiv(num_rows, rows), max(1, most // members))
    programs = pallas.cdiv(num_rows, rows * blocks)
    kernel = functools.partial(
        _kernel,
        task=task,
        plan=plan,
        num_rows=num_rows,
        rows=rows,
        blocks=blocks,  # of rows, one after the other in each program
    )
    grads = jax.ShapeDtypeStruct((programs * plan.total,), jnp.float32)
    out_shape = grads, None if shape.inputs == OBSERVATIONS else of_inputs
    grid = programs, num_parts
    found, more = pallas.call(
        kernel, "gradient", out_shape, grid, warps, stages, interpret=task.interpret
    )(*operands)
    firsts = [] if more is None else [i * columns for i in range(num_parts)]
    return jnp.sum(found.reshape(programs, plan.total), axis=0), [
        more[:, first : first + num_columns] for first in firsts
    ]


# Inside a kernel


def _kernel(
    inputs_refs: list[Ref],
    action_ref: Ref,
    hypers_ref: Ref,
    row_refs: BatchRows,
    vector_ref: Ref,
    large_refs: list[Ref] | None,
    grads_ref: Ref,
    of_inputs_ref: Ref | None,
    *,
    task: Task,
    plan: Plan,
    num_rows: int,
    rows: int,
    blocks: int,
) -> None:
    # read here, because the interpreter does not support it inside `when`
    program, tower = pallas.program_id(), pallas.program_id(1)
    num_parts = len(plan.parts)

    def run(i: int) -> None:
        inputs_ref = inputs_refs[min(i, len(inputs_refs) - 1)]
        large_ref = None if large_refs is None else large_refs[i]
        of_inputs = None
        if of_inputs_ref is not None:
            columns = of_inputs_ref.shape[1] // num_parts
            of_inputs = of_inputs_ref, i * columns, columns
        data = inputs_ref, action_ref, hypers_ref, row_refs
        refs = *data, vector_ref, large_ref, grads_ref, of_inputs
        _part(*refs, program, task, plan, i, num_rows, rows, blocks)

    if num_parts == 1:
        run(0)
    else:
        for i in range(num_parts):
            pallas.when(tower == i, functools.partial(run, i))


def _part(
    inputs_ref: Ref,
    action_ref: Ref,
    hypers_ref: Ref,
    row_refs: BatchRows,
    vector_ref: Ref,
    large_ref: Ref | None,
    grads_ref: Ref,
    of_inputs: tuple[Ref, int, int] | None,
    program: jax.Array,
    task: Task,
    plan: Plan,
    i: int,
    num_rows: int,
    rows: int,
    blocks: int,
) -> None:
    """Run the blocks of a program for the part `i` of the plan."""
    part = plan.parts[i]
    weights = [Held(vector_ref, own) for own in part.weights]
    if sum(math.prod(own.shape) for own in weights) <= LOADED:
        weights = [dataclasses.replace(own, values=own.load()) for own in weights]
    shape, options = task.shape, task.options_of(hypers_ref)
    scaled = dtype_of(shape) == HALF

    def add(block: jax.Array, carry: tuple) -> tuple:
        start = (program * blocks + block) * rows
        index, actions, row = load_block(row_refs, action_ref, start, rows, num_rows, shape)
        inputs, products = load_with_ones(inputs_ref, index, weights[0], large_ref, shape)
        outputs, features, backs = forward(weights, inputs, products, shape)
        gradient, found = task.gradient_of_outputs(outputs, actions, row, part.outputs, options)
        grads, sums, top = carry
        if scaled:
            grads, top, gradient = rescaled(grads, top, gradient)
        found_grads, gradient = backward(weights, features, backs, gradient)
        grads = jax.tree.map(jnp.add, grads, found_grads)
        if of_inputs is not None:
            store_of_inputs(*of_inputs, gradient, top, weights[0], start, shape)
        return grads, sums + as_columns(jax.tree.leaves(found), plan.num_terms), top

    sizes = [(MIN_SIZE, own.shape[1]) if own.shape[0] == 1 else own.shape for own in weights]
    zeros = [jnp.zeros(sorted(size, reverse=True)) for size in sizes]
    carry = (zeros, jnp.zeros((rows, plan.num_terms)), jnp.float32(TINY if scaled else 1.0))
    grads, sums, top = jax.lax.fori_loop(0, blocks, add, carry)
    place = program * plan.total
    for matrix, grad in zip(part.grads, grads, strict=True):
        if matrix.shape[0] == 1:  # gradient of a bias
            grad = column(grad, 0)[None, :]
        elif matrix.shape[0] <= matrix.shape[1]:
            grad = grad.T
        matrix.store(grads_ref, place, top * grad)
    terms = place + plan.first_term(i) + jax.lax.broadcasted_iota(jnp.int32, (plan.num_terms,), 0)
    pallas.store(grads_ref.at[terms], jnp.sum(sums, axis=0))
