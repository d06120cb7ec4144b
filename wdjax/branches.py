"""Work for some rows of a batch, which costs nothing in steps in which no row needs it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.kernels.backend import cuda_or_default


def when_any(condition: jax.Array, function: Callable, current: Any, *operands: Any) -> Any:
    """Return `function(current, *operands)` if any `condition` holds, else `current` at no cost.

    `function` runs for the whole batch if the condition holds in any row, also under vmap. It must
    therefore return `current` unchanged in rows where the condition is false. (Under vmap,
    `lax.cond` would become a select that always computes both branches.)
    """

    @jax.custom_batching.custom_vmap
    def branch(condition: jax.Array, current: Any, *operands: Any) -> Any:
        return jax.lax.cond(
            jnp.any(condition), function, lambda current, *_: current, current, *operands
        )

    @branch.def_vmap
    def batched(
        axis_size: int, in_batched: Any, condition: jax.Array, current: Any, *operands: Any
    ) -> Any:
        def spread(leaf, is_batched) -> jax.Array:
            return leaf if is_batched else jnp.broadcast_to(leaf, (axis_size, *leaf.shape))

        current = jax.tree.map(spread, current, in_batched[1])
        in_axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, tuple(in_batched[2:]))
        over_members = jax.vmap(function, in_axes=(0, *in_axes), axis_size=axis_size)
        result = when_any(condition, over_members, current, *operands)
        return result, jax.tree.map(lambda _: True, result)

    return branch(condition, current, *operands)


def always_on_cuda(condition: jax.Array, function: Callable, current: Any, *operands: Any) -> Any:
    """Apply `when_any` on most devices, but always call `function` on NVIDIA GPUs.

    For a function that only draws a few numbers, this is cheaper than a branch, which requires a
    synchronization with the host.
    """
    return cuda_or_default(
        lambda condition, current, *operands: function(current, *operands),
        lambda condition, current, *operands: when_any(condition, function, current, *operands),
        *(condition, current, *operands),
    )


def all_agents(flags: Any, ndim: int = 1) -> jax.Array:
    """Return [num_envs] bool: all agents flagged; leaves are [num_envs] or [num_envs, n].

    With `ndim` = 0 for one replica: () bool, from leaves () or [n].
    """
    leaves = [
        leaf.reshape(*leaf.shape[:ndim], -1).all(axis=ndim) for leaf in jax.tree.leaves(flags)
    ]
    return jnp.stack(leaves).all(axis=0)


def select(rows: jax.Array, chosen: Any, other: Any) -> Any:
    """Return `chosen` in the selected rows ([num_envs] bool) of every leaf, `other` elsewhere."""

    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(rows.reshape(rows.shape + (1,) * (a.ndim - rows.ndim)), a, b)

    return jax.tree.map(pick, chosen, other)
