"""Advantage actor-critic: Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning" (2016), section 4."""

import jax

from wdjax.train.masked import share_of_mean


def policy_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, live: jax.Array, clip: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The policy gradient loss, -mean(log pi(a) A) over live rows.

    Args:
        log_prob: [R] of the actions under the policy that learns.
        old_log_prob, clip: not used (PPO's).
        advantage: [R], a constant.
        live: [R] bool, the rows that count.

    Returns:
        (loss (), metrics), this device's parts of them.
    """
    return -share_of_mean(log_prob * advantage, live), {}
