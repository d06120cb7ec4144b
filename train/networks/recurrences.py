"""Gated memories unrolled over time, with few operations per step also in the gradient.

A gated memory computes its next carry elementwise from the old carry and two products, of the input
and of the hidden state h (the last leaf of the carry):

    carry' = advance(carry, x W_x + b, h W_h)

The products with W_x are computed for all steps at once before the loop, and the gradient of W_h
after the loop of the backward pass. Each loop contains one product per step.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

UNROLL = 8
"""steps per iteration of a loop on a GPU: 1.5 times as fast as one; 16 take longer to compile"""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def unroll(
    advance: Callable[..., chex.ArrayTree],
    kernel: jax.Array,
    carry: chex.ArrayTree,
    inputs: jax.Array,
    restarts: jax.Array,
    start: chex.ArrayTree,
) -> jax.Array:
    """Return the hidden states of a gated memory, [T, M, size].

    Args:
        advance: advance(carry, input [M, gates], h @ kernel [M, gates]) -> next carry.
        kernel: [size, gates].
        carry: before the first step, leaves [M, ...].
        inputs: [T, M, gates].
        restarts: [T, M] bool, an episode starts with this step, from the carry `start`.
        start: leaves [M, ...] or (), constant: it has no gradient.
    """
    return _forward(advance, kernel, carry, inputs, restarts, start)[0]


def _forward(
    advance: Callable[..., chex.ArrayTree],
    kernel: jax.Array,
    carry: chex.ArrayTree,
    inputs: jax.Array,
    restarts: jax.Array,
    start: chex.ArrayTree,
) -> tuple[jax.Array, tuple]:
    """Return (hidden states, what `_backward` needs)."""

    def step(
        carry: chex.ArrayTree, row: tuple[jax.Array, jax.Array]
    ) -> tuple[chex.ArrayTree, tuple[jax.Array, chex.ArrayTree, jax.Array]]:
        given, restart = row
        before = _where(restart, start, carry)
        product = _hidden(before) @ kernel
        carry = advance(before, given, product)
        return carry, (_hidden(carry), before, product)

    _, (hidden, before, products) = jax.lax.scan(step, carry, (inputs, restarts), unroll=UNROLL)
    return hidden, (kernel, before, inputs, products, restarts)


def _backward(advance: Callable[..., chex.ArrayTree], saved: tuple, d_hidden: jax.Array) -> tuple:
    """Return the gradients with respect to (kernel, carry, inputs, restarts, start)."""
    kernel, before, inputs, products, restarts = saved

    def step(
        d_carry: chex.ArrayTree, row: tuple
    ) -> tuple[chex.ArrayTree, tuple[jax.Array, jax.Array]]:
        d_hidden, restart, *given = row
        pull = jax.vjp(advance, *given)[1]
        d_before, d_input, d_product = pull(_add_to_hidden(d_carry, d_hidden))
        d_before = _add_to_hidden(d_before, d_product @ kernel.T)
        zeros = jax.tree.map(lambda _: 0.0, d_before)
        return _where(restart, zeros, d_before), (d_input, d_product)

    rows = (d_hidden, restarts, before, inputs, products)
    last = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), before)
    d_carry, (d_inputs, d_products) = jax.lax.scan(step, last, rows, reverse=True, unroll=UNROLL)
    d_kernel = jnp.tensordot(_hidden(before), d_products, ((0, 1), (0, 1)))
    return d_kernel, d_carry, d_inputs, None, None


unroll.defvjp(_forward, _backward)


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
