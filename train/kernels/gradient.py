"""A gradient of A2C's or PPO's loss as one kernel: observations in, sums of gradients and of metrics out.

Every program takes several blocks of rows through the whole network and back, by JAX's own differentiation of the
forward pass and the loss, and holds the gradients of all matrices in registers. No activation is ever written. What is
too wide for that is in train/kernels/wide.py.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from wdjax.train.kernels.towers import Shape, column, forward, load_rows, log_prob_and_entropy, towers_of

ROWS = 64  # of a block
WARPS = 4
PROGRAMS = 528  # at most: a few on each multiprocessor, each with gradients of its own to be summed

Terms = Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
"""terms(log_prob, entropy, value, row, hypers) -> (loss, metrics), all [B]: of each row, to be averaged over live ones.
`row` holds what the loss knows of each row beside, {name: [B]}, `hypers` numbers by name."""


def loss_sums(
    outputs: jax.Array, value: jax.Array, actions: list[jax.Array], row: Mapping[str, jax.Array], live: jax.Array,
    shape: Shape, terms: Terms, hypers: Mapping[str, jax.Array],
) -> tuple[jax.Array, dict[str, jax.Array]]:  # fmt: skip
    """Returns (the sum of the loss over the live rows of a block, its metrics where live, 0 elsewhere, [B] each)."""
    log_prob, entropy = log_prob_and_entropy(outputs, actions, shape)
    loss, metrics = terms(log_prob, entropy, value, row, hypers)
    only_live = lambda values: jnp.where(live, values.astype(jnp.float32), 0.0)  # noqa: E731
    return jnp.sum(only_live(loss)), {name: only_live(values) for name, values in {**metrics, "loss": loss}.items()}


def metric_names(terms: Terms, row: Mapping[str, jax.Array], hypers: Mapping[str, jax.Array]) -> list[str]:
    """Returns the names of what `loss_sums` sums, sorted, as the leaves of a dict are."""
    number = jax.ShapeDtypeStruct((1,), jnp.float32)
    one_row = {name: jax.ShapeDtypeStruct((1,), values.dtype) for name, values in row.items()}
    one = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in hypers}
    return sorted([*jax.eval_shape(terms, number, number, number, one_row, one)[1], "loss"])


def load_block(
    row_refs: Mapping[str, Any], action_ref: Any, live_ref: Any, start: jax.Array, rows: int, num_rows: int,
    shape: Shape,
) -> tuple[jax.Array, list[jax.Array], dict[str, jax.Array], jax.Array]:  # fmt: skip
    """Reads what a block of rows knows. Returns (its places, actions by component, row, live); beyond the last row: not live."""
    place = start + jax.lax.broadcasted_iota(jnp.int32, (rows,), 0)
    index = jnp.minimum(place, num_rows - 1)
    components = len(shape.sizes)
    actions = [triton.load(action_ref.at[index * components + i]) for i in range(components)]
    row = {name: triton.load(ref.at[index]) for name, ref in row_refs.items()}
    return index, actions, row, (triton.load(live_ref.at[index]) > 0) & (place < num_rows)


def gradient_kernel(
    shape: Shape, params: Any, inputs: jax.Array, action: jax.Array, row: Mapping[str, jax.Array], live: jax.Array,
    terms: Terms, hypers: Mapping[str, jax.Array], interpret: bool = False,
) -> tuple[Any, dict[str, jax.Array]]:  # fmt: skip
    """Returns (gradients of the loss summed over live rows, like params; sums of the loss and its metrics over them).

    Args:
        params: of an actor-critic.
        inputs: [R, num_inputs] float32, observations in a row.
        action: [R, components] int32.
        row: {name: [R] float32}; live: [R] bool.
        terms: the loss of a row.
        hypers: {name: ()}.
        interpret: step by step in XLA, on any device, for tests.
    """
    num_rows = live.shape[0]
    towers, back = jax.vjp(lambda params: towers_of(params, shape), params)
    weights, tree = jax.tree.flatten(towers)
    rows = min(ROWS, max(16, pl.next_power_of_2(num_rows)))
    blocks = pl.cdiv(num_rows, rows)
    programs = min(PROGRAMS, blocks)
    names = metric_names(terms, row, hypers)
    sizes = [jax.ShapeDtypeStruct((programs, *weight.shape), jnp.float32) for weight in weights]
    *grads, sums = pl.pallas_call(
        functools.partial(
            _kernel, shape=shape, tree=tree, terms=terms, row_names=list(row), hyper_names=list(hypers),
            num_rows=num_rows, rows=rows, rounds=pl.cdiv(blocks, programs), programs=programs,
        ),
        out_shape=[*sizes, jax.ShapeDtypeStruct((programs, len(names)), jnp.float32)],
        grid=(programs,),
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="gradient",
    )(
        inputs.reshape(-1), action.reshape(-1), live.astype(jnp.int8),
        jnp.stack([jnp.float32(value) for value in hypers.values()]), *row.values(), *weights,
    )  # fmt: skip
    total = jax.tree.unflatten(tree, [jnp.sum(grad, axis=0) for grad in grads])
    return back(total)[0], dict(zip(names, jnp.sum(sums, axis=0), strict=True))


def _kernel(
    inputs_ref: Any, action_ref: Any, live_ref: Any, hypers_ref: Any, *refs: Any, shape: Shape, tree: Any,
    terms: Terms, row_names: list[str], hyper_names: list[str], num_rows: int, rows: int, rounds: int, programs: int,
) -> None:  # fmt: skip
    num_weights = tree.num_leaves
    row_refs = dict(zip(row_names, refs, strict=False))
    weight_refs, grad_refs = refs[len(row_names) :][:num_weights], refs[len(row_names) + num_weights : -1]
    hypers = {name: hypers_ref[i] for i, name in enumerate(hyper_names)}
    program = pl.program_id(0)

    def block(i: jax.Array, carry: tuple) -> tuple:
        start = (program + i * programs) * rows
        index, actions, row, live = load_block(row_refs, action_ref, live_ref, start, rows, num_rows, shape)
        inputs = load_rows(inputs_ref, index, 0, shape.widths[0], shape.num_inputs)

        def loss(weights: list[jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
            towers = jax.tree.unflatten(tree, weights)
            outputs = forward(towers[0], inputs, shape)
            value = column(outputs, shape.num_outputs) if shape.shared else column(forward(towers[1], inputs, shape), 0)
            return loss_sums(outputs, value, actions, row, live, shape, terms, hypers)

        (_, sums), grads = jax.value_and_grad(loss, has_aux=True)([ref[...] for ref in weight_refs])
        return jax.tree.map(jnp.add, carry, (grads, jax.tree.leaves(sums)))

    nothing = [jnp.zeros(ref.shape, jnp.float32) for ref in weight_refs]
    none = [jnp.zeros((rows,), jnp.float32)] * refs[-1].shape[1]
    grads, sums = jax.lax.fori_loop(0, rounds, block, (nothing, none))
    for ref, grad in zip(grad_refs, grads, strict=True):
        ref[program] = grad
    for i, values in enumerate(sums):
        refs[-1][program, i] = jnp.sum(values)
