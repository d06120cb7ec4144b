"""A loop over the steps of a rollout that writes observations into arrays in its carry.

`jax.lax.scan` sets the memory of its outputs to 0 before the first step. Under `vmap` their axes
are [T, members, ...], but an update reads [members, T, ...]: XLA would transpose all observations.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from wdjax.train.devices.packing import Packed
from wdjax.train.state.aliases import PyTree


def scan_in_place(
    step: Callable[[Packed, PyTree], tuple[Packed, Packed]],
    carry: Packed,
    drawn: PyTree,
    unroll: int,
    together: int,
) -> tuple[Packed, Packed]:
    """Return the results of `jax.lax.scan` over the steps of a rollout, with outcomes packed.

    The observations, which are the separate leaves of the outcomes, are written after every
    `together` steps. If an iteration has a single step, they are left to `jax.lax.scan`: XLA then
    copies observations while other kernels run.

    Args:
        step: called with (carry, random numbers), returns (carry, outcome).
        carry: first carry.
        drawn: random numbers of all steps, leaves [T, ...].
        unroll: steps of an iteration.
        together: steps whose observations are written together, a divisor of `unroll`.
    """
    if unroll == 1:
        return jax.lax.scan(step, carry, drawn)
    num_steps = len(jax.tree.leaves(drawn)[0])
    num_blocks = num_steps // together
    split = num_blocks * together

    def run_block(carry: tuple, inputs: tuple) -> tuple[tuple, Packed]:
        (before, stored), (first, drawn) = carry, inputs
        after, outcomes = jax.lax.scan(step, before, drawn, unroll=True)
        pairs = zip(stored, outcomes.rest, strict=True)
        stored = [_write(rows, new, first) for rows, new in pairs]
        return (after, stored), dataclasses.replace(outcomes, rest=[])

    # shapes instead of arrays: reading a key would count as a use of it
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), drawn)
    shapes = jax.eval_shape(lambda *inputs: step(*inputs)[1].rest, carry, one)
    # not the words: without any, they have no axis for members
    members_of = max(jax.tree.leaves(carry), key=lambda leaf: leaf.size)
    stored = [_empty(members_of, (num_steps, *leaf.shape), leaf.dtype) for leaf in shapes]
    blocks = jax.tree.map(
        lambda leaf: leaf[:split].reshape(num_blocks, together, *leaf.shape[1:]), drawn
    )
    firsts = together * jnp.arange(num_blocks)
    (carry, stored), outcomes = jax.lax.scan(
        run_block, (carry, stored), (firsts, blocks), unroll=unroll // together
    )
    words = outcomes.words.reshape(split, -1)
    if split < num_steps:
        last = jax.tree.map(lambda leaf: leaf[split:], drawn)
        (carry, stored), remaining = run_block((carry, stored), (jnp.int32(split), last))
        words = jnp.concatenate([words, remaining.words])
    return carry, dataclasses.replace(outcomes, words=words, rest=stored)


def _empty(members_of: jax.Array, shape: Sequence[int], dtype: jax.typing.DTypeLike) -> jax.Array:
    """Return an uninitialized array; under `vmap` one for each member of another array."""

    @jax.custom_batching.custom_vmap
    def empty(_: jax.Array) -> jax.Array:
        return jax.lax.empty(shape, dtype)

    @empty.def_vmap
    def of_members(size: int, _: list[bool], numbers: jax.Array) -> tuple[jax.Array, bool]:
        return _empty(numbers, (size, *shape), dtype), True

    return cast(jax.Array, empty(members_of))


@jax.custom_batching.custom_vmap
def _write(stored: jax.Array, rows: jax.Array, first: jax.Array) -> jax.Array:
    """Return an array with new rows from `first` on.

    JAX would turn this into a scatter under `vmap`, for which XLA reads the old rows.
    """
    return jax.lax.dynamic_update_slice_in_dim(stored, rows, first, 0)


@_write.def_vmap
def _write_members(
    size: int, batched: list[bool], stored: jax.Array, rows: jax.Array, first: jax.Array
) -> tuple[jax.Array, bool]:
    stored, rows = (
        leaf if is_batched else jnp.broadcast_to(leaf, (size, *leaf.shape))
        for leaf, is_batched in zip((stored, rows), batched, strict=False)
    )
    # without it, XLA chooses the layout of `rows` for `stored`, and transposes it afterwards
    stored = with_layout_constraint(stored, Layout(tuple(range(stored.ndim))))
    return jax.lax.dynamic_update_slice_in_dim(stored, rows, first, 1), True
