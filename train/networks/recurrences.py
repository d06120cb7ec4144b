"""Gated memories unrolled over time, with few operations per step also in the gradient.

A gated memory computes its next carry elementwise from the old carry and two products, of the input
and of the hidden state h (the last leaf of the carry):

    carry' = advance(carry, x W_x + b, h W_h)

The second product may be missing. The products with W_x are computed for all steps at once before
the loop, and the gradients of W_x and W_h after the loop of the backward pass. Each loop contains
one product per step. On NVIDIA GPUs, each loop can be one kernel (wdjax/kernels/recurrence.py).

Kernels round to float16: gates of the input, carries, and gradients of gates and of hidden states
between layers, divided by the largest gradient of a hidden state of the last layer. Errors are at
most 2^-11 of a number, or 2^-25 of the largest gradient. Gradients that grow more than 65504 times
on the way back through an episode and the layers are clipped.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from wdjax.kernels import recurrence
from wdjax.kernels.backend import cuda_or_default
from wdjax.kernels.half import HALF, TINY, rounded, rounded_product
from wdjax.train.networks.linear import over_rows

UNROLL = 8
"""steps per iteration of a loop on a GPU: 1.5 times as fast as one; 16 take longer to compile"""


class Layer(NamedTuple):
    """Parameters of one layer of a gated memory."""

    input_kernel: jax.Array
    """[in, gates * size]"""
    kernel: jax.Array | None
    """[size, gates * size]; None: there are no gates of h"""
    bias: jax.Array
    """[gates * size], added to the products with `input_kernel`"""


class Residuals(NamedTuple):
    """Arrays for the backward pass of one layer."""

    layer: Layer
    carry: chex.ArrayTree  # before the first step
    start: chex.ArrayTree
    xs: jax.Array
    inputs: jax.Array  # products of xs and `input_kernel`
    carries: chex.ArrayTree  # after each step


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def unroll(
    advance: Callable[..., chex.ArrayTree],
    by_kernel: bool,
    layers: tuple[Layer, ...],
    carries: tuple[chex.ArrayTree, ...],
    xs: jax.Array,
    restarts: jax.Array,
    starts: tuple[chex.ArrayTree, ...],
) -> jax.Array:
    """Return the hidden states of the last layer of a gated memory, [T, M, size].

    Between layers, kernels keep hidden states and their gradients in float16.

    Args:
        advance: advance(carry, gates of the input, gates of h @ kernel) -> next carry. Gates are
            lists of [M, size].
        by_kernel: whether kernels unroll the memory on NVIDIA GPUs; `starts` must then be zeros.
        layers: the hidden states of each layer are the inputs of the next one.
        carries: carry of each layer before the first step, leaves [M, size].
        xs: [T, M, in] float32, inputs of the first layer.
        restarts: [T, M] bool, an episode starts with this step, from the carries `starts`.
        starts: leaves [M, size] or () for each layer, constant: they have no gradient.
    """
    return _forward(advance, by_kernel, layers, carries, xs, restarts, starts)[0]


def _forward(
    advance: Callable[..., chex.ArrayTree],
    by_kernel: bool,
    layers: tuple[Layer, ...],
    carries: tuple[chex.ArrayTree, ...],
    xs: jax.Array,
    restarts: jax.Array,
    starts: tuple[chex.ArrayTree, ...],
) -> tuple[jax.Array, tuple]:
    """Return (hidden states, residuals)."""
    saved = []
    for layer, carry, start in zip(layers, carries, starts, strict=True):
        saved.append(_layer_forward(advance, by_kernel, layer, carry, xs, restarts, start))
        xs = _hidden(saved[-1].carries)
    return xs.astype(jnp.float32), (saved, restarts)


def _layer_forward(
    advance: Callable[..., chex.ArrayTree],
    by_kernel: bool,
    layer: Layer,
    carry: chex.ArrayTree,
    xs: jax.Array,
    restarts: jax.Array,
    start: chex.ArrayTree,
) -> Residuals:
    """Advance one layer through all steps."""

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

        steps = inputs.astype(jnp.float32) + jnp.broadcast_to(bias, inputs.shape), restarts
        carries = jax.lax.scan(step, carry, steps, unroll=UNROLL)[1]
        return jax.tree.map(lambda leaf: rounded(leaf, dtype), carries)

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

    dtype = _dtype(by_kernel)
    inputs = rounded_product(xs, layer.input_kernel, dtype)
    operands = layer.kernel, layer.bias, carry, inputs, restarts
    carries = cuda_or_default(fused, plain, *operands) if by_kernel else plain(*operands)
    return Residuals(layer, carry, start, xs, inputs, carries)


def _backward(
    advance: Callable[..., chex.ArrayTree],
    by_kernel: bool,
    saved: tuple[list[Residuals], jax.Array],
    d_hidden: jax.Array,
) -> tuple:
    """Return the gradients of all arguments of `unroll` but the first two."""
    layers, restarts = saved
    top = jnp.maximum(jnp.max(jnp.abs(d_hidden)), TINY) if by_kernel else jnp.float32(1.0)
    d_layers: list[Layer] = []
    d_carries: list[chex.ArrayTree] = []
    factor = 1.0 / top
    for residuals in reversed(layers):
        d_layer, d_carry, d_inputs = _layer_backward(
            advance, by_kernel, residuals, restarts, d_hidden, factor
        )
        input_kernel = rounded(residuals.layer.input_kernel, _dtype(by_kernel))
        d_hidden = jnp.matmul(d_inputs, input_kernel.T, preferred_element_type=jnp.float32)
        if residuals is not layers[0]:  # divided by `top` already
            d_hidden, factor = rounded(d_hidden, _dtype(by_kernel)), jnp.float32(1.0)
        d_layers.insert(0, d_layer)
        d_carries.insert(0, d_carry)
    grads = tuple(d_layers), tuple(d_carries), d_hidden
    return *jax.tree.map(lambda grad: top * grad, grads), None, None


unroll.defvjp(_forward, _backward)


def _layer_backward(
    advance: Callable[..., chex.ArrayTree],
    by_kernel: bool,
    residuals: Residuals,
    restarts: jax.Array,
    d_hidden: jax.Array,
    factor: jax.Array,
) -> tuple[Layer, chex.ArrayTree, jax.Array]:
    """Return the gradients, times `factor`, of a layer, its first carry and its inputs.

    Args:
        advance: see `unroll`.
        by_kernel: see `unroll`.
        residuals: results of `_layer_forward`.
        restarts: see `unroll`.
        d_hidden: [T, M, size], gradients of the hidden states.
        factor: (), for all gradients.
    """
    layer, carry, start, xs, inputs, carries = residuals
    kernel, dtype = layer.kernel, _dtype(by_kernel)

    def fused(
        kernel: jax.Array | None,
        bias: jax.Array,
        carry: chex.ArrayTree,
        carries: chex.ArrayTree,
        inputs: jax.Array,
        restarts: jax.Array,
        d_hidden: jax.Array,
    ) -> tuple:
        leaves, structure = jax.tree.flatten(carry)
        by_leaves, after = _of_leaves(advance, structure), jax.tree.leaves(carries)
        rows = hidden, inputs, restarts, d_hidden, factor
        d_carry, *rest = recurrence.backward(by_leaves, kernel, bias, leaves, after, *rows)
        return jax.tree.unflatten(structure, d_carry), *rest

    plain = functools.partial(_plain_backward, advance, start, factor, dtype)
    hidden = None
    if kernel is not None:  # other gradients read the carries in place
        hidden = _hidden(_before(carry, carries, restarts, start))
    operands = kernel, layer.bias, carry, carries, inputs, restarts, d_hidden
    d_carry, d_bias, d_inputs, d_products = (
        cuda_or_default(fused, plain, *operands) if by_kernel else plain(*operands)
    )
    d_kernel = None if hidden is None else over_rows(hidden, d_products)
    return Layer(over_rows(rounded(xs, dtype), d_inputs), d_kernel, d_bias), d_carry, d_inputs


def _plain_backward(
    advance: Callable[..., chex.ArrayTree],
    start: chex.ArrayTree,
    factor: jax.Array,
    dtype: str,
    kernel: jax.Array | None,
    bias: jax.Array,
    carry: chex.ArrayTree,
    carries: chex.ArrayTree,
    inputs: jax.Array,
    restarts: jax.Array,
    d_hidden: jax.Array,
) -> tuple:
    """Return the gradients, times `factor`, of the first carry, bias, inputs and products.

    The last two are rounded to `dtype`.
    """
    carries = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), carries)
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
    inputs = inputs.astype(jnp.float32) + jnp.broadcast_to(bias, inputs.shape)
    steps = before, products, inputs, restarts, factor * d_hidden
    d_carry, d_gates = jax.lax.scan(step, last, steps, reverse=True, unroll=UNROLL)
    d_bias = jnp.sum(d_gates[0], (0, 1))
    return d_carry, d_bias, *jax.tree.map(lambda leaf: rounded(leaf, dtype), d_gates)


def _before(
    carry: chex.ArrayTree, carries: chex.ArrayTree, restarts: jax.Array, start: chex.ArrayTree
) -> chex.ArrayTree:
    """Return the carry before each step, leaves [T, M, size]."""
    before = jax.tree.map(
        lambda one, rows: jnp.concatenate([one[None].astype(rows.dtype), rows[:-1]]), carry, carries
    )
    return jax.vmap(_where, (0, None, 0))(restarts, start, before)


def _dtype(by_kernel: bool) -> str:
    """Return the dtype in which gates and carries are stored."""
    return HALF if by_kernel else "float32"


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
        starts = jnp.expand_dims(restart, range(1, leaf.ndim))
        return jnp.where(starts, jnp.asarray(first, leaf.dtype), leaf)

    return jax.tree.map(choose, carry, first)
