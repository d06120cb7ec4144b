"""Log-probabilities and entropies of categorical actions in a kernel, with their gradients."""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from wdjax.train.kernels.layers import Shape

Pull: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
"""gradients of a loss with respect to log pi(action) and the entropy, [B] each -> its gradient with
respect to the outputs, [B, columns]"""


def component_columns(outputs: jax.Array, first: int, size: int) -> tuple[jax.Array, jax.Array]:
    """Return (the columns of a component, [B, columns] bool, its largest logit, [B])."""
    columns = jax.lax.broadcasted_iota(jnp.int32, outputs.shape, 1)
    inside = (columns >= first) & (columns < first + size)
    return inside, jnp.max(jnp.where(inside, outputs, -jnp.inf), axis=1)


def log_prob_and_entropy(
    outputs: jax.Array, actions: Sequence[jax.Array], shape: Shape
) -> tuple[jax.Array, jax.Array, Pull]:
    """Return log pi(action) and the entropy of `Categorical`, and a function for their gradients.

    With s = logits - max(logits), w = exp(s), p = w / sum(w) and m = sum(p s), a component has

        log pi(a) = s_a - log sum(w)        d log pi(a) / d logits = onehot(a) - p
        H = log sum(w) - m                  d H / d logits = -p (s - m)

    All components share the arrays s, w and p, since each column belongs to one of them.

    Args:
        outputs: [B, columns], logits.
        actions: [B] int32 for each component.
        shape: static sizes of the policy.

    Returns:
        (log pi(action) [B], entropy [B], pull). The result of `pull` is 0 in columns that belong to
        no component.
    """
    columns = jax.lax.broadcasted_iota(jnp.int32, outputs.shape, 1)
    insides, tops = zip(
        *(component_columns(outputs, *component) for component in shape.components), strict=True
    )
    own_columns = functools.reduce(jnp.logical_or, insides)
    chosen = [
        columns == first + action[:, None]
        for (first, _), action in zip(shape.components, actions, strict=True)
    ]
    is_chosen = functools.reduce(jnp.logical_or, chosen)

    def spread(values: Sequence[jax.Array]) -> jax.Array:
        """Return the value of each column's component, [B, columns]."""
        found = jnp.broadcast_to(values[-1][:, None], outputs.shape)
        for inside, own in zip(insides[:-1], values[:-1], strict=True):
            found = jnp.where(inside, own[:, None], found)
        return found

    def sums(values: jax.Array) -> list[jax.Array]:
        """Return the sum over the columns of each component, [B] each."""
        return [jnp.sum(jnp.where(inside, values, 0.0), axis=1) for inside in insides]

    shifted = jnp.where(own_columns, outputs - spread(tops), 0.0)
    weights = jnp.exp(shifted)
    totals = sums(weights)
    means = [own / total for own, total in zip(sums(weights * shifted), totals, strict=True)]
    log_total = functools.reduce(jnp.add, map(jnp.log, totals))
    log_prob = jnp.sum(jnp.where(is_chosen, shifted, 0.0), axis=1) - log_total
    entropy = log_total - functools.reduce(jnp.add, means)

    def pull(d_log_prob: jax.Array, d_entropy: jax.Array) -> jax.Array:
        probabilities = weights * spread([1.0 / total for total in totals])
        slopes = d_log_prob[:, None] + d_entropy[:, None] * (shifted - spread(means))
        gradient = jnp.where(is_chosen, d_log_prob[:, None], 0.0) - probabilities * slopes
        return jnp.where(own_columns, gradient, 0.0)

    return log_prob, entropy, pull
