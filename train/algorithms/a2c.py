"""Advantage actor-critic: Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning" (2016), section 4."""

import jax


def policy_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, live: jax.Array, clip: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The policy gradient loss of each row, -log pi(a) A.

    Args:
        log_prob: [R] of the actions under the policy that learns.
        old_log_prob, clip: not used (PPO's).
        advantage: [R], a constant.
        live: [R] bool, the rows that count.

    Returns:
        (loss [R], metrics), to be averaged over live rows.
    """
    return -log_prob * advantage, {}
