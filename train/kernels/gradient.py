"""A gradient of A2C's or PPO's loss as one kernel: observations in, sums of gradients and of metrics out.

Every program takes a block of rows through a whole tower and back. No activation is ever written; what is, are each
program's gradients of all matrices, which are then summed. Wide towers are in train/kernels/wide.py.

Two towers, one for the policy and one for the value, are two launches: no term of the loss knows both.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from wdjax.train.kernels.towers import (
    Shape,
    Tower,
    backward,
    column,
    forward,
    load_rows,
    log_prob_and_entropy,
    towers_of,
)

ROWS = 64  # of a program
WARPS = 4
BOTH, POLICY, VALUE = "both", "policy", "value"  # what a tower's outputs are

Terms = Callable[..., dict[str, jax.Array]]
"""terms(log_prob, entropy, value, row, hypers) -> {name: [B]}: the terms of each row's loss, "policy_loss",
"value_loss" and "entropy", and metrics. `row` is what the loss knows of each row beside, {name: [B]}, `hypers` numbers.
"""


def total_loss(terms: Mapping[str, jax.Array], hypers: Mapping[str, jax.Array]) -> jax.Array:
    """Returns policy_loss + c_v value_loss - c_e entropy."""
    value_loss = hypers["value_coefficient"] * terms["value_loss"]
    return terms["policy_loss"] + value_loss - hypers["entropy_coefficient"] * terms["entropy"]


def loss_sums(
    outputs: jax.Array, actions: list[jax.Array], row: Mapping[str, jax.Array], part: str, shape: Shape, terms: Terms,
    hypers: Mapping[str, jax.Array],
) -> tuple[jax.Array, dict[str, jax.Array]]:  # fmt: skip
    """Returns (the sum of the loss over the live rows of a block, its terms where live, 0 elsewhere, [B] each).

    Of a tower that is only policy or only value, the other's terms are constants, and mean nothing.
    """
    value = row["value"] if part == POLICY else column(outputs, shape.num_outputs if part == BOTH else 0)
    if part == VALUE:
        log_prob, entropy = row.get("log_prob", jnp.zeros_like(value)), jnp.zeros_like(value)
    else:
        log_prob, entropy = log_prob_and_entropy(outputs, actions, shape)
    found = terms(log_prob, entropy, value, row, hypers)
    found = {name: jnp.where(row["live"], values, 0.0) for name, values in found.items()}
    return jnp.sum(total_loss(found, hypers)), found


def term_names(terms: Terms, row: Mapping[str, jax.Array], hypers: Mapping[str, jax.Array]) -> list[str]:
    """Returns the names of what `loss_sums` sums, sorted, as the leaves of a dict are."""
    number = jax.ShapeDtypeStruct((1,), jnp.float32)
    one_row = {name: jax.ShapeDtypeStruct((1,), values.dtype) for name, values in row.items()}
    one = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in hypers}
    return sorted(jax.eval_shape(terms, number, number, number, one_row, one))


def load_block(
    row_refs: Mapping[str, Any], action_ref: Any, start: jax.Array, rows: int, num_rows: int, shape: Shape
) -> tuple[jax.Array, list[jax.Array], dict[str, jax.Array]]:
    """Returns (places, actions by component, row) of a block; what is beyond the last row is not live."""
    place = start + jax.lax.broadcasted_iota(jnp.int32, (rows,), 0)
    index = jnp.minimum(place, num_rows - 1)
    components = len(shape.sizes)
    actions = [triton.load(action_ref.at[index * components + i]) for i in range(components)]
    row = {name: triton.load(ref.at[index]) for name, ref in row_refs.items()}
    return index, actions, {**row, "live": (row["live"] > 0) & (place < num_rows)}


def gradient_kernel(
    shape: Shape, params: Any, inputs: jax.Array, action: jax.Array, row: Mapping[str, jax.Array], terms: Terms,
    hypers: Mapping[str, jax.Array], interpret: bool = False,
) -> tuple[Any, dict[str, jax.Array]]:  # fmt: skip
    """Returns (gradients of the loss summed over live rows, like params; the sums of its terms over them).

    Args:
        params: of an actor-critic.
        inputs: [R, num_inputs] float32, observations in a row.
        action: [R, components] int32.
        row: {name: [R] float32}, "value" among them, and "live", bool.
        terms: of a row's loss.
        hypers: {name: ()}, "value_coefficient" and "entropy_coefficient" among them.
        interpret: step by step in XLA, on any device, for tests.
    """
    towers, back = jax.vjp(lambda params: towers_of(params, shape), params)
    data, row = rows_in_memory(inputs, action, row, hypers)
    run = functools.partial(
        _tower_gradient, shape=shape, data=data, row=row, terms=terms, hyper_names=list(hypers), interpret=interpret,
        names=term_names(terms, row, hypers),
    )  # fmt: skip
    if shape.shared:
        grad, sums = run(towers[0], BOTH)
        return back((grad,))[0], sums
    policy_grad, sums = run(towers[0], POLICY)
    value_grad, own = run(towers[1], VALUE)
    return back((policy_grad, value_grad))[0], {**sums, "value_loss": own["value_loss"]}


def rows_in_memory(
    inputs: jax.Array, action: jax.Array, row: Mapping[str, jax.Array], hypers: Mapping[str, jax.Array]
) -> tuple[tuple, dict[str, jax.Array]]:
    """Returns (inputs and actions flat, hypers in one array; the rest of the rows) as kernels read them."""
    numbers = jnp.stack([jnp.float32(value) for value in hypers.values()])
    return (inputs.reshape(-1), action.reshape(-1), numbers), {**row, "live": row["live"].astype(jnp.int8)}


def _tower_gradient(
    tower: Tower, part: str, *, shape: Shape, data: tuple, row: Mapping[str, jax.Array], terms: Terms,
    hyper_names: list[str], names: list[str], interpret: bool,
) -> tuple[Tower, dict[str, jax.Array]]:  # fmt: skip
    num_rows = row["live"].shape[0]
    rows = min(ROWS, max(16, pl.next_power_of_2(num_rows)))
    programs = pl.cdiv(num_rows, rows)
    weights, tree = jax.tree.flatten(tower)
    sizes = [jax.ShapeDtypeStruct((programs, *weight.shape), jnp.float32) for weight in weights]
    *grads, sums = pl.pallas_call(
        functools.partial(
            _kernel, part=part, shape=shape, terms=terms, row_names=list(row), hyper_names=hyper_names,
            num_rows=num_rows, rows=rows,
        ),
        out_shape=[*sizes, jax.ShapeDtypeStruct((programs, len(names)), jnp.float32)],
        grid=(programs,),
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="gradient",
    )(*data, *row.values(), *weights)  # fmt: skip
    total = jax.tree.unflatten(tree, [jnp.sum(grad, axis=0) for grad in grads])
    return total, dict(zip(names, jnp.sum(sums, axis=0), strict=True))


def _kernel(
    inputs_ref: Any, action_ref: Any, hypers_ref: Any, *refs: Any, part: str, shape: Shape,
    terms: Terms, row_names: list[str], hyper_names: list[str], num_rows: int, rows: int,
) -> None:  # fmt: skip
    row_refs = dict(zip(row_names, refs, strict=False))
    refs = refs[len(row_names) :]
    weight_refs, grad_refs, sums_ref = refs[: len(refs) // 2], refs[len(refs) // 2 : -1], refs[-1]
    hypers = {name: hypers_ref[i] for i, name in enumerate(hyper_names)}
    program = pl.program_id(0)
    index, actions, row = load_block(row_refs, action_ref, program * rows, rows, num_rows, shape)
    inputs = load_rows(inputs_ref, index, 0, shape.widths[0], shape.num_inputs)
    outputs, layers = forward(weight_refs, inputs, shape)

    def loss(outputs: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return loss_sums(outputs, actions, row, part, shape, terms, hypers)

    gradient, sums = jax.grad(loss, has_aux=True)(outputs)
    for i, values in enumerate(jax.tree.leaves(sums)):
        sums_ref[program, i] = jnp.sum(values)
    backward(weight_refs, layers, gradient, grad_refs, program)
