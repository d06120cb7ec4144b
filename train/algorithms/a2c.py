"""Advantage actor-critic (A2C).

Source: Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning" (2016), section 4.
"""

import jax

from wdjax.train.learning import (
    Batch,
    Evaluation,
    Hypers,
    Mean,
    Memory,
    Metrics,
    OnPolicy,
    OnPolicyOptions,
    Policy,
    PolicyState,
    Rollout,
    Terms,
    apply_transforms,
    experience,
    fit,
    next_value,
    normalized_mean,
    rollout_metrics,
    update_normalizers,
)


class A2C(OnPolicy):
    """One gradient step per rollout, since without a probability ratio a second is off-policy."""

    Options = OnPolicyOptions
    keeps_log_prob = False

    def loss(
        self, new: Evaluation, batch: Batch, options: OnPolicyOptions, mean: Mean
    ) -> tuple[jax.Array, Terms]:
        """Return the loss and the means of its terms; arguments as for `PPO.loss`.

        loss = mean(-log pi(a) A) + c_v mean((V - R)^2) - c_e mean(entropy)
        """
        policy_loss, value_loss = -new.log_prob * batch.advantage, (new.value - batch.target) ** 2
        terms = normalized_mean(batch, options.normalize_advantage)
        terms |= {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": new.entropy}
        means = mean(terms)
        c_v, c_e = options.value_coefficient, options.entropy_coefficient
        loss = means["policy_loss"] + c_v * means["value_loss"] - c_e * means["entropy"]  # type: ignore[operator]  # scalars
        return loss, means

    def update(
        self,
        policy: Policy,
        state: PolicyState,
        memory: Memory,
        hypers: Hypers,
        rollout: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, Metrics]:
        """Take one gradient step on all transitions. Normalizers change last."""
        options = policy.options(hypers)
        data = experience(policy, state, rollout, options.gamma, options.gae_lambda)
        data, scale, key, metrics = apply_transforms(policy, state, memory, data, key, num_blocks)
        following = next_value(policy, state, rollout, data)
        advantage, target = self.advantages(policy, state, data, following)
        metrics |= rollout_metrics(policy, data.rows, advantage, target)
        state, losses = fit(
            self.loss,
            policy,
            state,
            hypers,
            Batch.of(policy, rollout, data, advantage, target),
            key,
            num_blocks,
            evaluate=self.evaluate,
            normalize_advantage=options.normalize_advantage,
        )
        state, memory = update_normalizers(state, memory, data, scale)
        return state, memory, metrics | losses
