"""The policy-gradient algorithms: one file each, and one line in the list below."""

from wdjax.train.algorithms import a2c, ppo

# Name -> policy_loss(log_prob, old_log_prob, advantage, live, clip) -> (loss, metrics). They share the update in
# on_policy.py: advantages, epochs and minibatches, value loss, entropy bonus, clipped gradients, optimizer.
POLICY_LOSSES = {"A2C": a2c.policy_loss, "PPO": ppo.policy_loss}

__all__ = ["POLICY_LOSSES"]
