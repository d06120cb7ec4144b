"""Proximal policy optimization (PPO).

Source: Schulman et al., "Proximal Policy Optimization Algorithms" (2017).
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.train.learning import (
    Assignment,
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
    TrainConfig,
    apply_transforms,
    experience,
    fit,
    next_value,
    normalized_mean,
    rollout_metrics,
    static,
    traced,
    update_normalizers,
)


@dataclasses.dataclass(frozen=True)
class PPOOptions(OnPolicyOptions):
    """Options of PPO."""

    clip: float = traced(0.2, allowed="above 0")
    """Clipping range of the probability ratio around 1."""
    value_clip: float = traced(math.inf, allowed="above 0")
    """Clipping range of the value around its old prediction. .inf: no clipping."""
    target_kl: float = traced(math.inf, allowed="above 0")
    """Stop the gradient steps of an update once approx_kl of a minibatch exceeds this value. .inf:
    never."""
    epochs: int = static(1, allowed="at least 1 and below 2**31")
    """Passes over a rollout per update."""
    minibatches: int = static(1, allowed="at least 1 and below 2**31")
    """Gradient steps per epoch. Must divide the transitions of a block, rollout_length x num_envs /
    num_blocks x agents. For recurrent networks it must divide the sequences instead (the same
    product without rollout_length)."""


class PPO(OnPolicy):
    """Epochs of minibatches on a clipped surrogate objective."""

    Options = PPOOptions

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        super().check(name, run, assignment)
        is_built_in = self.overridden("make_network") is None
        is_recurrent = is_built_in and run.policy(name).network.recurrent_size > 0
        require_minibatches(name, run, assignment.num_agents, is_recurrent)

    def check_network(self, policy: Policy, network: nnx.Module) -> None:
        super().check_network(policy, network)
        run = policy.context.run_config
        require_minibatches(policy.name, run, policy.assignment.num_agents, policy.is_recurrent)

    def loss(
        self, new: Evaluation, batch: Batch, options: PPOOptions, mean: Mean
    ) -> tuple[jax.Array, Terms]:
        """Return the loss and the means of its terms.

            loss = mean(policy_loss) + c_v mean(value_loss) - c_e mean(entropy)

        Args:
            new: log-probabilities, entropies and values under the parameters being trained, [B].
            batch: the transitions, leaves [B, ...].
            options: traced fields are scalars.
            mean: averages terms, {name: [B]}, over the valid transitions of all devices. The loss
                must be linear in its result.
        """
        terms = policy_terms(new.log_prob, batch, options)
        value_loss = value_error(new.value, batch, options)
        means = mean({**terms, "value_loss": value_loss, "entropy": new.entropy})
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
        """Take epochs x minibatches gradient steps. Normalizers change last."""
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
            epochs=options.epochs,
            minibatches=options.minibatches,
            normalize_advantage=options.normalize_advantage,
            target_kl=options.target_kl,
        )
        state, memory = update_normalizers(state, memory, data, scale)
        return state, memory, metrics | losses


def require_minibatches(name: str, run: TrainConfig, agents: int, is_recurrent: bool) -> None:
    """Raise ValueError unless the minibatches of a policy are equally large.

    Args:
        name: name of the policy.
        run: configuration of the run.
        agents: number of its agents; 1 if a transition is a step of a replica.
        is_recurrent: minibatches consist of whole sequences.
    """
    replicas = run.num_envs // run.blocks
    size, unit = replicas * agents, "sequences"
    factors = f"num_envs / num_blocks {replicas} x agents {agents}"
    if not is_recurrent:
        size, unit = size * run.rollout_length, "transitions"
        factors = f"rollout_length {run.rollout_length} x {factors}"
    minibatches = run.policy(name).options.minibatches
    if size % minibatches:
        allowed = f"a divisor of {size}, the number of {unit} per block ({factors})"
        larger = ". Increase num_envs or decrease num_blocks" if is_recurrent else ""
        raise ValueError(f"policies.{name}.minibatches = {minibatches}: must be {allowed}{larger}")


def policy_terms(log_prob: jax.Array, batch: Batch, options: PPOOptions) -> Terms:
    """Return PPO's policy loss and its metrics, [B] each.

        policy_loss = -min(ratio A, clip(ratio, 1 - eps, 1 + eps) A),    ratio = pi(a) / pi_old(a)

    Args:
        log_prob: [B] of the actions under the parameters being trained.
        batch: the transitions, leaves [B, ...].
        options: traced fields are scalars.

    Source: Schulman et al. (2017), eq. 7; approx_kl is the k3 estimator of Schulman (joschu.net,
    2020).
    """
    difference = log_prob - batch.log_prob  # type: ignore[operator]  # PPO keeps log_prob
    log_ratio = jnp.where(batch.valid, difference, 0.0)  # invalid transitions may overflow
    ratio = jnp.exp(log_ratio)
    # equals min and clip, whose derivatives split ties and take more operations
    gains = batch.advantage > 0.0
    limit = jnp.where(gains, 1.0 + options.clip, 1.0 - options.clip)
    clipped = jnp.where(gains, ratio > limit, ratio < limit)
    policy_loss = -jnp.where(clipped, limit, ratio) * batch.advantage
    terms = {
        "approx_kl": ratio - 1.0 - log_ratio,
        "clip_fraction": (jnp.abs(ratio - 1.0) > options.clip).astype(jnp.float32),
    }
    normalized = normalized_mean(batch, options.normalize_advantage)
    return terms | normalized | {"policy_loss": policy_loss}


def value_error(value: jax.Array, batch: Batch, options: PPOOptions) -> jax.Array:
    """Return max((V - R)^2, (clip(V, V_old - eps_v, V_old + eps_v) - R)^2), [B].

    Args:
        value: [B] under the parameters being trained.
        batch: the transitions, leaves [B, ...].
        options: traced fields are scalars.
    """
    limit = options.value_clip
    clipped_value = batch.value + jnp.clip(value - batch.value, -limit, limit)
    return jnp.maximum((value - batch.target) ** 2, (clipped_value - batch.target) ** 2)
