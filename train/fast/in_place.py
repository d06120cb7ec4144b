"""A loop over the steps of a rollout that writes its results into arrays in its carry.

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
    `together` steps, and the words of the outcomes once in each iteration. If an iteration has a
    single step, they are left to `jax.lax.scan`: XLA then copies observations while other kernels
    run.

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
    unroll = min(unroll, num_steps)
    num_blocks = num_steps // unroll
    split = num_blocks * unroll

    def run_block(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
        (state, stored), (first, drawn) = carry, inputs
        rest, words = stored.rest, []
        for i in range(0, len(jax.tree.leaves(drawn)[0]), together):
            some = jax.tree.map(lambda leaf: leaf[i : i + together], drawn)  # noqa: B023
            state, outcomes = jax.lax.scan(step, state, some, unroll=True)
            pairs = zip(rest, outcomes.rest, strict=True)
            rest = [_write(rows, new, first + i) for rows, new in pairs]
            words.append(outcomes.words)
        all_words = _write(stored.words, jnp.concatenate(words), first)
        return (state, dataclasses.replace(stored, words=all_words, rest=rest)), None

    # shapes instead of arrays: reading a key would count as a use of it
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), drawn)
    # not the words: without any, they have no axis for members
    members_of = max(jax.tree.leaves(carry), key=lambda leaf: leaf.size)
    stored = jax.tree.map(
        lambda leaf: _empty(members_of, (num_steps, *leaf.shape), leaf.dtype),
        jax.eval_shape(lambda *inputs: step(*inputs)[1], carry, one),
    )
    blocks = jax.tree.map(
        lambda leaf: leaf[:split].reshape(num_blocks, unroll, *leaf.shape[1:]), drawn
    )
    firsts = unroll * jnp.arange(num_blocks)
    (carry, stored), _ = jax.lax.scan(run_block, (carry, stored), (firsts, blocks))
    if split < num_steps:
        last = jax.tree.map(lambda leaf: leaf[split:], drawn)
        (carry, stored), _ = run_block((carry, stored), (jnp.int32(split), last))
    return carry, stored


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
