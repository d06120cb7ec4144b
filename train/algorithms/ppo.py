"""Proximal policy optimisation: Schulman et al., "Proximal Policy Optimization Algorithms" (2017), eq. 7."""

import jax
import jax.numpy as jnp


def policy_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, live: jax.Array, clip: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped surrogate loss of each row,

        -min(rho A, clip(rho, 1 - eps, 1 + eps) A),  rho = pi(a) / pi_old(a).

    Args:
        log_prob: [R] of the actions under the policy that learns.
        old_log_prob: [R] under the policy that acted, a constant.
        advantage: [R], a constant.
        live: [R] bool, the rows that count.
        clip: () eps.

    Returns:
        (loss [R], metrics [R]), to be averaged over live rows: approx_kl is the estimator (rho - 1) - log rho of
        Schulman (joschu.net, 2020).
    """
    log_ratio = jnp.where(live, log_prob - old_log_prob, 0.0)  # a dead row's ratio must not overflow
    ratio = jnp.exp(log_ratio)
    # the same by comparisons: the derivatives of min and clip, which share out ties, are many operations
    gains = advantage > 0.0
    limit = jnp.where(gains, 1.0 + clip, 1.0 - clip)
    beyond = jnp.where(gains, ratio > limit, ratio < limit)
    loss = -jnp.where(beyond, limit, ratio) * advantage
    metrics = {
        "approx_kl": ratio - 1.0 - log_ratio,
        "clip_fraction": (jnp.abs(ratio - 1.0) > clip).astype(jnp.float32),
    }
    return loss, metrics
