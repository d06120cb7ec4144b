"""Gated memories unrolled over time, with few operations per step also in the gradient.

A gated memory computes its next carry elementwise from the old carry and two products, of the input
and of the hidden state h (the last leaf of the carry):

    carry' = advance(carry, x W_x + b, h W_h)

The second product may be missing. The products with W_x are computed for all steps at once before
the loop, and the gradient of W_h after the loop of the backward pass. Each loop contains one
product per step. On NVIDIA GPUs, each loop can be one kernel (wdjax/kernels/recurrence.py).
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from wdjax.kernels import recurrence
from wdjax.kernels.backend import cuda_or_default
from wdjax.train.networks.linear import over_rows

UNROLL = 8
"""steps per iteration of a loop on a GPU: 1.5 times as fast as one; 16 take longer to compile"""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def unroll(
    advance: Callable[..., chex.ArrayTree],
    by_kernel: bool,
    kernel: jax.Array | None,
    bias: jax.Array,
    carry: chex.ArrayTree,
    inputs: jax.Array,
    restarts: jax.Array,
    start: chex.ArrayTree,
) -> jax.Array:
    """Return the hidden states of a gated memory, [T, M, size].

    Args:
        advance: advance(carry, gates of the input, gates of h @ kernel) -> next carry. Gates are
            lists of [M, size].
        by_kernel: whether kernels unroll the memory on NVIDIA GPUs; `start` must then be zeros.
        kernel: [size, gates * size]; None: there are no gates of h.
        bias: [gates * size], added to the inputs.
        carry: before the first step, leaves [M, size].
        inputs: [T, M, gates * size], see `input_products`.
        restarts: [T, M] bool, an episode starts with this step, from the carry `start`.
        start: leaves [M, size] or (), constant: it has no gradient.
    """
    return _forward(advance, by_kernel, kernel, bias, carry, inputs, restarts, start)[0]


def _forward(
    advance: Callable[..., chex.ArrayTree],
    by_kernel: bool,
    kernel: jax.Array | None,
    bias: jax.Array,
    carry: chex.ArrayTree,
    inputs: jax.Array,
    restarts: jax.Array,
    start: chex.ArrayTree,
) -> tuple[jax.Array, tuple]:
    """Return (hidden states, what `_backward` needs)."""

    def plain(
        kernel: jax.Array | None,
        bias: jax.Array,
        carry: chex.ArrayTree,
        inputs: jax.Array,
        restarts: jax.Array,
    ) -> chex.ArrayTree:
        def step(
            carry: chex.ArrayTree, row: tuple[jax.Array, jax.Array]
        ) -> tuple[chex.ArrayTree, chex.ArrayTree]:
            given, restart = row
            before = _where(restart, start, carry)
            product = _product(_hidden(before), kernel)
            carry = advance(before, _gates(given, before), _gates(product, before))
            return carry, carry

        return jax.lax.scan(
            step, carry, (inputs + jnp.broadcast_to(bias, inputs.shape), restarts), unroll=UNROLL
        )[1]

    def fused(
        kernel: jax.Array | None,
        bias: jax.Array,
        carry: chex.ArrayTree,
        inputs: jax.Array,
        restarts: jax.Array,
    ) -> chex.ArrayTree:
        leaves, structure = jax.tree.flatten(carry)
        by_leaves = _of_leaves(advance, structure)
        carries = recurrence.forward(by_leaves, kernel, bias, leaves, inputs, restarts)
        return jax.tree.unflatten(structure, carries)

    operands = kernel, bias, carry, inputs, restarts
    carries = cuda_or_default(fused, plain, *operands) if by_kernel else plain(*operands)
    return _hidden(carries), (kernel, bias, carry, carries, inputs, restarts, start)


def _backward(
    advance: Callable[..., chex.ArrayTree], by_kernel: bool, saved: tuple, d_hidden: jax.Array
) -> tuple:
    """Return the gradients with respect to (kernel, bias, carry, inputs, restarts, start)."""
    kernel, bias, carry, carries, inputs, restarts, start = saved

    def plain(
        kernel: jax.Array | None,
        bias: jax.Array,
        carry: chex.ArrayTree,
        carries: chex.ArrayTree,
        inputs: jax.Array,
        restarts: jax.Array,
        d_hidden: jax.Array,
    ) -> tuple:
        before = _before(carry, carries, restarts, start)

        def step(
            d_carry: chex.ArrayTree, row: tuple
        ) -> tuple[chex.ArrayTree, tuple[jax.Array, jax.Array]]:
            before, product, given, restart, d_hidden = row

            def advanced(before: chex.ArrayTree, *parts: jax.Array | None) -> chex.ArrayTree:
                return advance(before, *(_gates(part, before) for part in parts))

            pull = jax.vjp(advanced, before, given, product)[1]
            d_before, d_input, d_product = pull(_add_to_hidden(d_carry, d_hidden))
            if kernel is not None:
                d_before = _add_to_hidden(d_before, d_product @ kernel.T)
            zeros = jax.tree.map(lambda _: 0.0, d_before)
            return _where(restart, zeros, d_before), (d_input, d_product)

        last = jax.tree.map(jnp.zeros_like, carry)
        products = _product(_hidden(before), kernel)
        inputs += jnp.broadcast_to(bias, inputs.shape)
        steps = before, products, inputs, restarts, d_hidden
        d_carry, rows = jax.lax.scan(step, last, steps, reverse=True, unroll=UNROLL)
        return d_carry, jnp.sum(rows[0], (0, 1)), *rows

    def fused(
        kernel: jax.Array | None,
        bias: jax.Array,
        carry: chex.ArrayTree,
        carries: chex.ArrayTree,
        *rows: Any,
    ) -> tuple:
        leaves, structure = jax.tree.flatten(carry)
        by_leaves, after = _of_leaves(advance, structure), jax.tree.leaves(carries)
        d_carry, *rest = recurrence.backward(by_leaves, kernel, bias, leaves, after, hidden, *rows)
        return jax.tree.unflatten(structure, d_carry), *rest

    hidden = None
    if kernel is not None:  # other gradients read the carries in place
        hidden = _hidden(_before(carry, carries, restarts, start))
    operands = kernel, bias, carry, carries, inputs, restarts, d_hidden
    d_carry, d_bias, d_inputs, d_products = (
        cuda_or_default(fused, plain, *operands) if by_kernel else plain(*operands)
    )
    d_kernel = None if hidden is None else over_rows(hidden, d_products)
    return d_kernel, d_bias, d_carry, d_inputs, None, None


unroll.defvjp(_forward, _backward)


def _before(
    carry: chex.ArrayTree, carries: chex.ArrayTree, restarts: jax.Array, start: chex.ArrayTree
) -> chex.ArrayTree:
    """Return the carry before each step, leaves [T, M, size]."""
    before = jax.tree.map(lambda one, rows: jnp.concatenate([one[None], rows[:-1]]), carry, carries)
    return jax.vmap(_where, (0, None, 0))(restarts, start, before)


def _product(hidden: jax.Array, kernel: jax.Array | None) -> jax.Array | None:
    return None if kernel is None else hidden @ kernel


def _gates(values: jax.Array | None, carry: chex.ArrayTree) -> list[jax.Array]:
    """Split values of all gates, [..., gates * size], if there are any."""
    if values is None:
        return []
    return jnp.split(values, values.shape[-1] // _hidden(carry).shape[-1], axis=-1)


def _of_leaves(
    advance: Callable[..., chex.ArrayTree], structure: jax.tree_util.PyTreeDef
) -> recurrence.Advance:
    """Return `advance` for the leaves of a carry."""

    def advance_leaves(
        leaves: list[jax.Array], inputs: list[jax.Array], products: list[jax.Array]
    ) -> list[jax.Array]:
        return jax.tree.leaves(advance(jax.tree.unflatten(structure, leaves), inputs, products))

    return advance_leaves


def _hidden(carry: chex.ArrayTree) -> jax.Array:
    """Return h, the last leaf of a carry."""
    return jax.tree.leaves(carry)[-1]


def _add_to_hidden(carry: chex.ArrayTree, hidden: jax.Array) -> chex.ArrayTree:
    """Add to h, the last leaf of a carry."""
    *others, last = jax.tree.leaves(carry)
    return jax.tree.unflatten(jax.tree.structure(carry), [*others, last + hidden])


def _where(restart: jax.Array, first: chex.ArrayTree, carry: chex.ArrayTree) -> chex.ArrayTree:
    """Return `first` where an episode starts, [M] bool, else the carry."""

    def choose(leaf: jax.Array, first: jax.Array) -> jax.Array:
        return jnp.where(jnp.expand_dims(restart, range(1, leaf.ndim)), first, leaf)

    return jax.tree.map(choose, carry, first)
