"""A gradient of A2C's or PPO's loss as one kernel: observations in, sums of gradients and of metrics out.

Every program takes blocks of rows, one after another, through a whole tower and back. No activation is ever written;
what is, once, are each program's gradients of all matrices, which stay in registers until then, and are then summed.
Wide towers are in train/kernels/gradient_wide.py.

Two towers, one for the policy and one for the value, are two launches: no term of the loss knows both.

Products of float32 round to tf32, which has 11 significant bits, and so has float16, which tensor cores take twice as
fast. Where activations are bounded (tanh), all products but the first layer's are therefore float16's. What it lacks is
range: gradients are divided by the largest one of the outputs that a program has seen until then, and what is rounded
off a gradient is at most 2^-12 of it, or 2^-25 of the largest; off an activation h 2^-11, and so 2^-10 off its slope
1 - h^2, by which saturated units, whose slopes are less, learn inexactly. Observations beyond 65504 count as that for
the gradient of their matrix. Other activations have float32 throughout.

A column of ones beside the inputs makes the first bias a row of its matrix.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.train.kernels.layers import (
    ACTIVATIONS,
    MIN_SIZE,
    SLOPES,
    Shape,
    Tower,
    column,
    load_rows,
    log_prob_and_entropy,
    padded,
    product,
    towers_of,
)
from wdjax.train.kernels.loss import study
from wdjax.train.state.engine import BatchRows
from wdjax.train.state.rows import Evaluation

ROWS = 64  # of a block
PROGRAMS = 264  # at most: two for each of an H200's 132 multiprocessors, as many as registers let it run at once
WARPS = 4
HALF, MAX_HALF = "float16", 65504.0
TINY = 1e-30  # the least that a gradient is divided by: rows may all be dead
BOTH, POLICY, VALUE = "both", "policy", "value"  # what a tower's outputs are


@dataclasses.dataclass(frozen=True)
class Task:
    """What fixes the kernels of a gradient."""

    shape: Shape
    loss: Callable
    """of a batch, which kernels trace: `PPO.loss`"""
    options: Any
    """of the algorithm, by which the loss gets what is not traced"""
    row_names: list[str]
    hyper_names: list[str]
    term_names: list[str]
    """of what `loss_sums` sums, sorted, as the leaves of a dict are"""
    of_value: frozenset[str]
    """those that the tower of the value computes, where it has its own"""
    interpret: bool

    def loss_sums(
        self, outputs: jax.Array, actions: list[jax.Array], row: Mapping[str, jax.Array], part: str,
        hypers: Mapping[str, jax.Array],
    ) -> tuple[jax.Array, dict[str, jax.Array]]:  # fmt: skip
        """Returns (the sum of the loss over the live rows of a block, its terms where live, 0 elsewhere, [B] each).

        Of a tower that is only policy or only value, the other's terms are constants, and mean nothing.
        """
        value = (
            row["value"]
            if part == POLICY
            else column(outputs, self.shape.num_outputs if part == BOTH else 0)
        )
        if part == VALUE:
            log_prob, entropy = row.get("log_prob", jnp.zeros_like(value)), jnp.zeros_like(value)
        else:
            log_prob, entropy = log_prob_and_entropy(outputs, actions, self.shape)

        def of_rows(terms: dict) -> dict:
            return {name: jnp.where(row["valid"], values, 0.0) for name, values in terms.items()}

        options = dataclasses.replace(self.options, **hypers)
        loss, found = self.loss(
            Evaluation(log_prob, entropy, value), BatchRows(**row), options, of_rows
        )
        return jnp.sum(loss), found


def prepare(
    shape: Shape, inputs: jax.Array, action: jax.Array, row: Mapping[str, jax.Array], loss: Callable, options: Any,
    interpret: bool,
) -> tuple[Task, tuple, dict[str, jax.Array]]:  # fmt: skip
    """Returns (task; inputs and actions flat, hypers in one array; the rest of the rows), as kernels read them."""
    read, terms, of_value, *_ = study(loss, options, row)
    numbers = jnp.stack(
        [jnp.float32(getattr(options, name)) for name in read] or [jnp.float32(0.0)]
    )
    data, row = (
        (inputs.reshape(-1), action.reshape(-1), numbers),
        {**row, "valid": row["valid"].astype(jnp.int8)},
    )
    static = dataclasses.replace(options, **dict.fromkeys(read, 0.0))
    return Task(shape, loss, static, list(row), read, terms, of_value, interpret), data, row


def load_block(
    row_refs: Mapping[str, Any],
    action_ref: Any,
    start: jax.Array,
    rows: int,
    num_rows: int,
    shape: Shape,
) -> tuple[jax.Array, list[jax.Array], dict[str, jax.Array]]:
    """Returns (places, actions by component, row) of a block; what is beyond the last row is not live."""
    place = start + jax.lax.broadcasted_iota(jnp.int32, (rows,), 0)
    index = jnp.minimum(place, num_rows - 1)
    components = len(shape.sizes)
    actions = [pallas.load(action_ref.at[index * components + i]) for i in range(components)]
    row = {name: pallas.load(ref.at[index]) for name, ref in row_refs.items()}
    return index, actions, {**row, "valid": (row["valid"] > 0) & (place < num_rows)}


def gradient_kernel(
    shape: Shape, params: Any, inputs: jax.Array, action: jax.Array, row: Mapping[str, jax.Array], loss: Callable,
    options: Any, interpret: bool = False,
) -> tuple[Any, dict[str, jax.Array]]:  # fmt: skip
    """Returns (gradients of the loss summed over live rows, like params; the sums of its terms over them).

    Args:
        params: of an actor-critic.
        inputs: [R, num_inputs] float32, observations in a row.
        action: [R, components] int32.
        row: {name: [R] float32}, "value" among them, and "valid", bool.
        loss: as `PPO.loss`.
        options: of the algorithm, traced fields as scalars.
        interpret: step by step in XLA, on any device, for tests.
    """
    towers, back = jax.vjp(
        lambda params: [joined(tower, shape) for tower in towers_of(params, shape)], params
    )
    task, *arguments = prepare(shape, inputs, action, row, loss, options, interpret)
    run = functools.partial(_tower_gradient, task, *arguments)
    if shape.shared:
        grad, sums = run(towers[0], BOTH)
        return back([grad])[0], sums
    policy_grad, sums = run(towers[0], POLICY)
    value_grad, own = run(towers[1], VALUE)
    return back([policy_grad, value_grad])[0], {
        **sums,
        **{name: own[name] for name in task.of_value},
    }


def joined(tower: Tower, shape: Shape) -> tuple[jax.Array, Tower]:
    """Returns (the first layer's matrix with its bias as row `num_inputs`, the other layers)."""
    (kernel, bias), *others = tower
    kernel = jnp.pad(kernel, ((0, padded(shape.num_inputs + 1) - kernel.shape[0]), (0, 0)))
    return kernel.at[shape.num_inputs].set(bias), tuple(others)


def _tower_gradient(
    task: Task, data: tuple, row: Mapping[str, jax.Array], tower: Tower, part: str
) -> tuple[Tower, dict[str, jax.Array]]:
    num_rows = row["valid"].shape[0]
    rows = min(ROWS, padded(num_rows))
    blocks = pallas.cdiv(pallas.cdiv(num_rows, rows), PROGRAMS)  # of a program
    programs = pallas.cdiv(num_rows, rows * blocks)
    dtype, (first, others) = dtype_of(task.shape), tower
    weights, tree = jax.tree.flatten(
        (first, tuple((kernel.astype(dtype), bias) for kernel, bias in others))
    )
    sizes = [jax.ShapeDtypeStruct((programs, *weight.shape), jnp.float32) for weight in weights]
    kernel = functools.partial(
        _kernel, task=task, part=part, num_rows=num_rows, rows=rows, blocks=blocks
    )
    written = [*sizes, jax.ShapeDtypeStruct((programs, padded(len(task.term_names))), jnp.float32)]
    run = pallas.call(
        kernel, "gradient", written, (programs,), WARPS, stages=1, interpret=task.interpret
    )
    *grads, sums = run(*data, *row.values(), *weights)
    total = jax.tree.unflatten(tree, [jnp.sum(grad, axis=0) for grad in grads])
    return total, dict(zip(task.term_names, jnp.sum(sums, axis=0), strict=False))


# In a kernel.


def _kernel(
    inputs_ref: Any, action_ref: Any, hypers_ref: Any, *refs: Any, task: Task, part: str, num_rows: int, rows: int,
    blocks: int,
) -> None:  # fmt: skip
    shape, row_refs, refs = (
        task.shape,
        dict(zip(task.row_names, refs, strict=False)),
        refs[len(task.row_names) :],
    )
    weight_refs, grad_refs, sums_ref = refs[: len(refs) // 2], refs[len(refs) // 2 : -1], refs[-1]
    hypers = {name: hypers_ref[i] for i, name in enumerate(task.hyper_names)}
    program, scaled = pallas.program_id(), dtype_of(shape) == HALF

    def add(i: jax.Array, carry: tuple) -> tuple:
        index, actions, row = load_block(
            row_refs, action_ref, (program * blocks + i) * rows, rows, num_rows, shape
        )
        inputs = load_rows(inputs_ref, index, 0, weight_refs[0].shape[0], shape.num_inputs)
        columns = jax.lax.broadcasted_iota(jnp.int32, inputs.shape, 1)
        inputs = jnp.where(columns == shape.num_inputs, 1.0, inputs)
        outputs, features, backs = forward(weight_refs, inputs, task)

        def loss(outputs: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            return task.loss_sums(outputs, actions, row, part, hypers)

        gradient, found = jax.grad(loss, has_aux=True)(outputs)
        grads, sums, top = carry
        if scaled:  # by the largest until now; a NaN stays one, whether or not max sees it, and infinity becomes one
            larger = jnp.maximum(top, jnp.max(jnp.abs(gradient)))
            grads = [grad * (top / larger) for grad in grads]
            gradient, top = gradient * (1.0 / larger), larger
        grads = jax.tree.map(jnp.add, grads, backward(weight_refs, features, backs, gradient))
        return grads, sums + as_columns(jax.tree.leaves(found), sums.shape[1]), top

    zeros = [
        jnp.zeros(sorted(ref.shape, reverse=True) if ref.ndim == 2 else (*ref.shape, MIN_SIZE))
        for ref in weight_refs
    ]
    carry = (zeros, jnp.zeros((rows, sums_ref.shape[1])), jnp.float32(TINY if scaled else 1.0))
    grads, sums, top = jax.lax.fori_loop(0, blocks, add, carry)
    for ref, grad in zip(grad_refs, grads, strict=True):
        if ref.ndim == 2:  # of a bias, for all programs
            grad = column(grad, 0)
        elif ref.shape[1] <= ref.shape[2]:
            grad = grad.T
        ref[program] = top * grad
    sums_ref[program] = jnp.sum(sums, axis=0)


def dtype_of(shape: Shape) -> str:
    """Returns what products take, but the first layer's to its outputs, which always takes float32."""
    return HALF if shape.activation == "tanh" else "float32"


def forward(
    refs: Sequence[Any], inputs: jax.Array, task: Task
) -> tuple[jax.Array, list[jax.Array], list[Callable[[jax.Array], jax.Array]]]:
    """Runs a block of rows through a tower whose matrices lie in memory; sums are float32.

    Returns:
        (outputs [B, columns], what went into every layer, the ways back through the activations).
    """
    dtype = dtype_of(task.shape)
    outputs = product(inputs, refs[0][...], "float32")
    # Observations are not bounded, but float32 for the gradient of the first matrix is 17 % more instructions: clipped.
    features, backs = (
        [jnp.clip(inputs, -MAX_HALF, MAX_HALF).astype(HALF) if dtype == HALF else inputs],
        [],
    )
    for kernel, bias in zip(refs[1::2], refs[2::2], strict=True):
        hidden, back = activate(outputs, task)
        outputs = product(hidden, kernel[...], dtype) + bias[...][None, :]
        features.append(hidden)
        backs.append(back)
    return outputs, features, backs


def backward(
    refs: Sequence[Any],
    features: list[jax.Array],
    backs: list[Callable[[jax.Array], jax.Array]],
    gradient: jax.Array,
) -> list[jax.Array]:
    """Returns a block's gradients of a tower's matrices and biases, from the gradient of its outputs [B, columns].

    Of a matrix that is not upright, the transposed one: tensor cores want the longer side first. Of a bias, every
    column of [outputs, MIN_SIZE]: a product with ones is cheaper than a sum over rows.
    """
    grads, dtype = [], features[0].dtype
    ones = jnp.ones((gradient.shape[0], MIN_SIZE), dtype)
    for i in reversed(range(len(features))):
        gradient = gradient.astype(dtype)
        upright = features[i].shape[1] > gradient.shape[1]
        long, short = (features[i], gradient) if upright else (gradient, features[i])
        if i:
            grads.append(product(gradient.T, ones, dtype))
        grads.append(product(long.T, short, dtype))
        if i:
            gradient = backs[i - 1](product(gradient, refs[2 * i - 1][...].T, dtype))
    return grads[::-1]


def activate(values: jax.Array, task: Task) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns (act(values), gradient of these -> gradient of the values), from what was returned where that is enough:
    that is in registers anyway."""
    name, dtype = task.shape.activation, dtype_of(task.shape)
    act = ACTIVATIONS[name]
    if name == "tanh" and not task.interpret:
        act = (
            pallas.approx_tanh
        )  # one instruction; its error, 2^-11, is what rounding to float16 loses anyway
    if name in SLOPES:
        after = act(values).astype(dtype)
        return after, lambda gradient: gradient.astype(dtype) * SLOPES[name](after)
    after, back = jax.vjp(act, values)
    return after, lambda gradient: back(gradient)[0]


def as_columns(rows: Sequence[jax.Array], width: int) -> jax.Array:
    """Returns numbers of rows, [B] each, as the first columns of [B, width]."""
    together = jnp.zeros((rows[0].shape[0], width))
    columns = jax.lax.broadcasted_iota(jnp.int32, together.shape, 1)
    for i, values in enumerate(rows):
        together = jnp.where(columns == i, values[:, None], together)
    return together
