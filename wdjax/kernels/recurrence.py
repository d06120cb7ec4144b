"""Kernels that unroll a gated memory over time: see train/networks/recurrences.py.

A program advances a block of rows through all steps. The carry stays in registers, so that a step
launches no kernel. Only products with the hidden state are inside the loop; the gates' functions
are traced, so that any memory of this form has both kernels.

Carries and gates are float32 in registers and float16 in memory; so are the gradients of gates,
multiplied by `scale`. Products round to float16, which has as many significant bits as tf32.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.half import HALF, rounded, rounded_product
from wdjax.kernels.support import uses_kernel

SIZES = (16, 32, 64, 128)  # supported widths: powers of two whose matrices fit
WIDER = (*SIZES, 256, 512)  # of memories whose gates do not depend on the hidden state
SHARED_MEMORY = 227 * 1024  # bytes of a program on an H100, where the device does not report them
SCRATCH = 35 * 1024  # bytes of shared memory for other data than matrices
ROWS = 16  # rows of a program: more take longer per step, and fewer have no matrix product
WARPS = 8
SHORT = 64  # widest memory of which two steps fit in registers
Ref = Any

Advance = Callable[..., list[jax.Array]]
"""advance(carry leaves, input gates, product gates) -> next carry leaves, [R, size] each"""


def is_chosen(size: int, shape: tuple[int, ...], starts_empty: bool, *, has_products: bool) -> bool:
    """Return whether kernels unroll a memory, and record the decision.

    Args:
        size: width of the memory.
        shape: (T, M, gates * size), shape of the inputs.
        starts_empty: whether episodes start from a carry of zeros.
        has_products: whether gates depend on the hidden state.
    """
    return uses_kernel("memory", why_not(size, shape, starts_empty, has_products))


def why_not(
    size: int, shape: tuple[int, ...], starts_empty: bool, has_products: bool
) -> str | None:
    """Return the reason why kernels cannot unroll a memory, or None.

    Args:
        size: width of the memory.
        shape: (T, M, gates * size), shape of the inputs.
        starts_empty: whether episodes start from a carry of zeros.
        has_products: whether gates depend on the hidden state.
    """
    if not starts_empty:
        return "its init_carry is custom"
    sizes = SIZES if has_products else WIDER
    if size not in sizes:
        return f"recurrent_size {size}: kernels support {', '.join(map(str, sizes))}"
    total = shape[0] * shape[1] * shape[2]
    fits = total <= pallas.MAX_NUMBERS
    return None if fits else f"{total:,} inputs: more than a kernel can index"


def forward(
    advance: Advance,
    kernel: jax.Array | None,
    bias: jax.Array,
    carry: Sequence[jax.Array],
    inputs: jax.Array,
    restarts: jax.Array,
    interpret: bool = False,
) -> list[jax.Array]:
    """Advance a memory T steps. Episodes start from a carry of zeros.

    Args:
        advance: function of the gates.
        kernel: [size, gates * size] float32; None: gates do not depend on the hidden state.
        bias: [gates * size], added to the inputs.
        carry: leaves [M, size] before the first step; the last one is the hidden state.
        inputs: [T, M, gates * size] float16.
        restarts: [T, M] bool, whether an episode starts with this step.
        interpret: run step by step in XLA on any device, for tests.

    Returns:
        The carry after each step, leaves [T, M, size] float16.
    """
    (length, num_rows), size = restarts.shape, carry[-1].shape[-1]
    shape = jax.ShapeDtypeStruct((length, num_rows, size), HALF)
    body = functools.partial(_forward, advance=advance, num_rows=num_rows)
    grid = (pallas.cdiv(num_rows, ROWS),)
    shapes = [shape] * len(carry)
    call = pallas.call(body, "unroll_memory", (shapes,), grid, WARPS, 1, interpret)
    matrices = None if kernel is None else _by_gate(kernel)
    return call(matrices, bias, [*carry], inputs, restarts.astype(jnp.int8))[0]


def backward(
    advance: Advance,
    kernel: jax.Array | None,
    bias: jax.Array,
    carry: Sequence[jax.Array],
    carries: Sequence[jax.Array],
    hidden: jax.Array | None,
    inputs: jax.Array,
    restarts: jax.Array,
    d_hidden: jax.Array,
    scale: jax.Array,
    interpret: bool = False,
) -> tuple[list[jax.Array], jax.Array, jax.Array, jax.Array | None]:
    """Propagate gradients backward through T steps.

    Args:
        advance: function of the gates.
        kernel: [size, gates * size] float32, or None, as for `forward`.
        bias: as for `forward`.
        carry: before the first step, leaves [M, size].
        carries: after each step, leaves [T, M, size] float16.
        hidden: hidden state before each step, [T, M, size] float16; None without a kernel.
        inputs: [T, M, gates * size] float16.
        restarts: [T, M] bool, whether an episode starts with this step.
        d_hidden: [T, M, size] float32 or float16, gradient of the hidden state after each step.
        scale: (), factor of all gradients, so that they are neither too large nor too small for
            float16.
        interpret: run step by step in XLA on any device, for tests.

    Returns:
        Gradients, times `scale`, of (the first carry, leaves [M, size]; bias; inputs, and
        hidden @ kernel, [T, M, gates * size] float16).
    """
    (length, num_rows), size = restarts.shape, d_hidden.shape[-1]
    gates = jax.ShapeDtypeStruct(inputs.shape, HALF)
    shapes = [jax.ShapeDtypeStruct((num_rows, size), jnp.float32)] * len(carry)
    body = functools.partial(_backward, advance=advance, length=length, num_rows=num_rows)
    grid = (pallas.cdiv(num_rows, ROWS),)
    sums = jax.ShapeDtypeStruct((*grid, *bias.shape), jnp.float32)
    call = pallas.call(
        body,
        "unroll_memory_back",
        (shapes, sums, gates, None if kernel is None else gates),
        grid,
        WARPS,
        1,
        interpret,
    )
    matrices = transposed = products = None
    if kernel is not None and hidden is not None:
        matrices = _by_gate(kernel)
        transposed = jnp.swapaxes(matrices, 1, 2)
        if 2 * kernel.size > max_resident():  # both do not fit: compute the products before
            matrices, products = None, rounded_product(hidden, kernel)
    constant = transposed, matrices, bias, [*carry]
    restarts = restarts.astype(jnp.int8)
    d_carry, d_bias, *rest = call(
        *constant, [*carries], inputs, products, restarts, d_hidden, scale[None]
    )
    return d_carry, jnp.sum(d_bias, axis=0), *rest


def _by_gate(kernel: jax.Array) -> jax.Array:
    """Return the matrix of each gate, [gates, size, size] float16."""
    size = kernel.shape[0]
    return rounded(jnp.swapaxes(kernel.reshape(size, -1, size), 0, 1), HALF)


class Block:
    """The rows of a program in arrays [T, M, width] and [M, width]; rows beyond M are masked."""

    def __init__(self, num_rows: int, size: int):
        self.first, self.size = pallas.program_id() * ROWS, size
        row = self.first + jax.lax.broadcasted_iota(jnp.int32, (ROWS, size), 0)
        self.mask = row < num_rows

    def at(self, ref: Ref, *step: Any, gate: int = 0) -> Ref:
        """Return the reference to [rows, size] of an array, of a step and a gate if it has them."""
        columns = pallas.span(gate * self.size, self.size)
        return ref.at[(*step, pallas.span(self.first, ROWS), columns)]

    def load(self, ref: Ref, *step: Any, gate: int = 0) -> jax.Array:
        return pallas.load(self.at(ref, *step, gate=gate), mask=self.mask, other=0.0)

    def store(self, ref: Ref, value: jax.Array, *step: Any, gate: int = 0) -> None:
        place = self.at(ref, *step, gate=gate)
        pallas.store(place, rounded(value, ref.dtype), mask=self.mask)

    def store_sum(self, ref: Ref, value: jax.Array, gate: int) -> None:
        """Store the sum over the rows, for each program."""
        place = ref.at[pallas.program_id(), pallas.span(gate * self.size, self.size)]
        pallas.store(place, jnp.sum(jnp.where(self.mask, value, 0.0), axis=0))

    def restart(self, ref: Ref, step: Any) -> jax.Array:
        """Return the flags of a step, [rows] int8."""
        flags = ref.at[step, pallas.span(self.first, ROWS)]
        inside = jnp.max(self.mask.astype(jnp.int32), axis=1) > 0
        return pallas.load(flags, mask=inside, other=0)


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.dot(left, right, preferred_element_type=jnp.float32)


def max_resident() -> int:
    """Return how many numbers of matrices stay in shared memory."""
    device = jax.devices()[0]
    return (getattr(device, "shared_memory_per_block_optin", SHARED_MEMORY) - SCRATCH) // 2


def _matrices(kernel_ref: Ref | None) -> list[Callable[[], jax.Array]]:
    """Return functions that return the matrices of the gates, if there are any.

    Matrices loaded before the loop stay in shared memory. If not all of them fit, the others are
    loaded in each step, one at a time.
    """
    if kernel_ref is None:
        return []
    gates, size, _ = kernel_ref.shape
    fitting = max_resident() // size**2
    resident = gates if gates <= fitting else max(fitting - 1, 0)
    loaded = {g: kernel_ref[g] for g in range(resident)}
    return [functools.partial(_matrix, kernel_ref, loaded, g) for g in range(gates)]


def _biases(bias_ref: Ref, size: int) -> list[jax.Array]:
    """Return the bias of each gate, [ROWS, size]."""
    gates = range(bias_ref.shape[0] // size)
    parts = [bias_ref[pallas.span(gate * size, size)] for gate in gates]
    return [jnp.broadcast_to(part[None], (ROWS, size)) for part in parts]


def _matrix(kernel_ref: Ref, loaded: dict[int, jax.Array], gate: int) -> jax.Array:
    return loaded[gate] if gate in loaded else kernel_ref[gate]


def _forward(
    kernel_ref: Ref | None,
    bias_ref: Ref,
    carry_refs: Sequence[Ref],
    inputs_ref: Ref,
    restarts_ref: Ref,
    output_refs: Sequence[Ref],
    *,
    advance: Advance,
    num_rows: int,
) -> None:
    length, size = inputs_ref.shape[0], carry_refs[-1].shape[-1]
    gates = range(inputs_ref.shape[-1] // size)
    block, matrices = Block(num_rows, size), _matrices(kernel_ref)
    biases = _biases(bias_ref, size)

    def load(t: Any) -> tuple[jax.Array, list[jax.Array]]:
        return block.restart(restarts_ref, t), [block.load(inputs_ref, t, gate=g) for g in gates]

    def step(t: jax.Array, carry: list[jax.Array], loaded: tuple) -> list[jax.Array]:
        restart, inputs = loaded
        carry = [jnp.where(restart[:, None] != 0, 0.0, leaf) for leaf in carry]
        hidden = rounded(carry[-1], HALF)
        products = [_dot(hidden, matrix()) for matrix in matrices]
        carry = advance(carry, [*map(jnp.add, inputs, biases)], products)
        for ref, leaf in zip(output_refs, carry, strict=True):
            block.store(ref, leaf, t)
        return carry

    turn = steps_of_turn(length, size, matrices)
    _loop(length, turn, load, step, [block.load(ref) for ref in carry_refs])


def steps_of_turn(length: int, size: int, matrices: Sequence) -> int:
    """Return how many steps an iteration takes: more if memory is slower than computing."""
    return 2 if size <= SHORT and not matrices and length % 2 == 0 else 1


def _loop(length: int, size: int, load: Callable, step: Callable, state: Any) -> Any:
    """Return the state after `state = step(t, state, load(t))` for t from 0 to length - 1.

    Each iteration takes `size` steps, a divisor of length, and first loads the rows of the next
    iteration, which arrive while it computes.
    """

    def turn(i: jax.Array, carry: tuple) -> tuple:
        state, loaded = carry
        following = [load(jnp.minimum((i + 1) * size + j, length - 1)) for j in range(size)]
        for j in range(size):
            state = step(i * size + j, state, loaded[j])
        return state, following

    first = [load(jnp.int32(j)) for j in range(size)]
    return jax.lax.fori_loop(0, length // size, turn, (state, first))[0]


def _backward(
    transposed_ref: Ref | None,
    kernel_ref: Ref | None,
    bias_ref: Ref,
    carry_refs: Sequence[Ref],
    carries_refs: Sequence[Ref],
    inputs_ref: Ref,
    products_ref: Ref | None,
    restarts_ref: Ref,
    d_hidden_ref: Ref,
    scale_ref: Ref,
    d_carry_refs: Sequence[Ref],
    d_bias_ref: Ref,
    d_inputs_ref: Ref,
    d_products_ref: Ref | None,
    *,
    advance: Advance,
    length: int,
    num_rows: int,
) -> None:
    size, scale = d_hidden_ref.shape[-1], scale_ref[0]
    gates = range(inputs_ref.shape[-1] // size)
    block, matrices = Block(num_rows, size), _matrices(kernel_ref)
    transposed, biases = _matrices(transposed_ref), _biases(bias_ref, size)
    first = [block.load(ref) for ref in carry_refs]

    def load(i: Any) -> tuple:
        t = length - 1 - i
        refs = [inputs_ref] if products_ref is None else [inputs_ref, products_ref]
        rows = [[block.load(ref, t, gate=g) for g in gates] for ref in refs]
        restart = block.restart(restarts_ref, t)
        earlier = [block.load(ref, jnp.maximum(t - 1, 0)) for ref in carries_refs]
        return earlier, rows, block.load(d_hidden_ref, t), restart

    def step(i: jax.Array, state: tuple, loaded: tuple) -> tuple:
        (d_carry, d_biases), (earlier, (inputs, *products), d_hidden, restart) = state, loaded
        t = length - 1 - i
        before = [jnp.where(t == 0, *leaves) for leaves in zip(first, earlier, strict=True)]
        restart = restart[:, None] != 0
        before = [jnp.where(restart, 0.0, leaf) for leaf in before]
        d_carry = [*d_carry[:-1], d_carry[-1] + scale * d_hidden]
        hidden = rounded(before[-1], HALF)
        products = products[0] if products else [_dot(hidden, matrix()) for matrix in matrices]
        products = [gate.astype(jnp.float32) for gate in products]
        inputs = [*map(jnp.add, inputs, biases)]
        d_before, d_inputs, d_products = jax.vjp(advance, before, inputs, products)[1](d_carry)
        for g in gates:
            block.store(d_inputs_ref, d_inputs[g], t, gate=g)
        for g, matrix in enumerate(transposed):
            block.store(d_products_ref, d_products[g], t, gate=g)
            d_before[-1] += _dot(rounded(d_products[g], HALF), matrix())
        d_carry = [jnp.where(restart, 0.0, leaf) for leaf in d_before]
        return d_carry, [*map(jnp.add, d_biases, d_inputs)]

    zeros = jnp.zeros((ROWS, size), jnp.float32)
    start = [zeros] * len(carry_refs), [zeros for _ in gates]
    turn = steps_of_turn(length, size, transposed)
    d_carry, d_biases = _loop(length, turn, load, step, start)
    for ref, leaf in zip(d_carry_refs, d_carry, strict=True):
        block.store(ref, leaf)
    for g, total in zip(gates, d_biases, strict=True):
        block.store_sum(d_bias_ref, total, g)
