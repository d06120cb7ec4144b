"""Soft actor-critic (SAC), off-policy, for actions in a bounded box.

Source: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018): twin critics and a
learned temperature.
"""

import dataclasses
import functools
import math
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.train.algorithms.critics import critic_target, num_values, q_values
from wdjax.train.algorithms.noise import uniform_actions
from wdjax.train.algorithms.off_policy import draw_normal
from wdjax.train.algorithms.off_policy_critic import (
    OffPolicyCritic,
    OffPolicyCriticOptions,
    box_of,
    critics_of,
    num_actions,
)
from wdjax.train.learning import (
    Assignment,
    Context,
    Hypers,
    Policy,
    PolicyConfig,
    PolicyState,
    ReplayBatch,
    Schedule,
    Terms,
    descend,
    draw_blocks,
    make_optimizer,
    traced,
)
from wdjax.train.networks.actor_critic import without_mask
from wdjax.train.networks.distributions import SquashedGaussian
from wdjax.train.networks.values import SoftActorActionValue, to_box
from wdjax.train.state.aliases import ActingState, Carry, Fields, Observation, OptState, Params


@dataclasses.dataclass(frozen=True)
class SACOptions(OffPolicyCriticOptions):
    """Options of SAC."""

    temperature: float = traced(1.0, allowed="finite and above 0")
    """Initial temperature: the weight of the policy's entropy against rewards."""
    learn_temperature: bool = True
    """Learn the temperature, so that the entropy of the policy approaches `target_entropy`. false:
    keep the initial one."""
    temperature_learning_rate: Schedule = traced(1e-3)
    """Learning rate of the logarithm of the temperature."""
    target_entropy: float = traced(-1.0, allowed="finite")
    """Target of the policy's entropy [nats] per number of an action, for actions in half-widths of
    the box. A uniform distribution over the box has log 2 = 0.69."""


class SAC(OffPolicyCritic):
    """A stochastic actor that maximizes the value of two critics and its own entropy."""

    Options = SACOptions
    actor_metrics = (*OffPolicyCritic.actor_metrics, "entropy", "temperature")

    def make_network(
        self, context: Context, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs
    ) -> SoftActorActionValue:
        space, size = assignment.observation_space, math.prod(assignment.action_space.shape)
        return SoftActorActionValue(
            without_mask(space), size, config.network, num_values(config), rngs=rngs
        )

    def init(self, policy: Policy, params: Params) -> PolicyState:
        state = super().init(policy, params)
        if not policy.config.trainable:
            return state
        optimizer = make_optimizer(policy.config, policy.config.max_grad_norm)
        own = {"temperature": optimizer.init(params["log_temperature"])}
        return state.replace(opt_state={**cast(dict[str, OptState], state.opt_state), **own})

    def targets_of(self, params: Params) -> Params:
        """Return the parameters of the critics."""
        return critics_of(params)

    def act(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        hypers: Hypers,
    ) -> tuple[jax.Array, Fields, Carry]:
        """Sample an action. With `uniform_warmup`, it is uniform until the first gradient step."""
        warms_up = policy.config.trainable and policy.config.options.uniform_warmup
        if not warms_up:
            return self.play(policy, state, carry, obs, keys, greedy=False)[0], {}, carry
        pairs = jax.vmap(jax.random.split)(keys)
        action, carry = self.play(policy, state, carry, obs, pairs[:, 0], greedy=False)
        shape = (*action.shape[:2], num_actions(policy))
        uniform = to_box(box_of(policy), uniform_actions(pairs[:, 1], shape))
        return jnp.where(state.gradient_steps == 0, uniform, action), {}, carry

    def play(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        greedy: bool,
    ) -> tuple[jax.Array, Carry]:
        """Sample an action; greedy: choose tanh of the mean."""
        networks = nnx.merge(policy.graphdef, state.params)
        outputs = networks.actor(policy.inputs(state, obs)[0])
        shape = (*outputs.shape[:-1], outputs.shape[-1] // 2)
        draw = functools.partial(jax.random.normal, dtype=jnp.float32)
        normal = jnp.zeros(shape, jnp.float32) if greedy else draw_blocks(draw, keys, shape)
        return to_box(box_of(policy), squashed_sample(outputs, normal)[0]), carry

    def draw(self, policy: Policy, keys: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Return standard normal numbers for actions at next_obs and at obs, [steps, B, 2 A]."""
        return draw_normal(keys, (*shape, 2 * num_actions(policy)))

    def bellman_target(
        self,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> jax.Array:
        """Return the targets y of the critics by the target critics Q'_i.

        y = reward + discount (min_i Q'_i(next_obs, a) - alpha log pi(a | next_obs)), a ~ pi
        """
        networks = nnx.merge(policy.graphdef, {**state.params, **cast(Params, state.target_params)})
        next_obs = policy.inputs(state, batch.next_obs)[0]
        normal = jnp.split(drawn, 2, axis=-1)[0]
        action, log_prob = squashed_sample(networks.actor(next_obs), normal)
        bonus = -temperature(state, hypers) * log_prob
        return critic_target(policy, hypers, batch, networks.values(next_obs, action), bonus)

    def actor_loss(
        self,
        policy: Policy,
        state: PolicyState,
        actor: Params,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> tuple[jax.Array, Terms]:
        """Return (mean(alpha log pi(a | obs) - min_i Q_i(obs, a)), {"entropy"}), a ~ pi."""
        networks = nnx.merge(policy.graphdef, {**state.params, "actor": actor})
        obs, normal = policy.inputs(state, batch.obs)[0], jnp.split(drawn, 2, axis=-1)[1]
        action, log_prob = squashed_sample(networks.actor(obs), normal)
        values = q_values(policy, hypers, networks.values(obs, action))
        loss = jnp.mean(temperature(state, hypers) * log_prob - jnp.min(values, axis=0))
        return loss, {"entropy": -jnp.mean(log_prob)}

    def actor_step(
        self,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> tuple[PolicyState, Terms]:
        """Take a step of the actor, the target critics and the temperature.

        The loss of the temperature is alpha (entropy - target), its gradient by log(alpha) is the
        same number.
        """
        used = temperature(state, hypers)
        state, metrics = super().actor_step(policy, state, hypers, batch, drawn)
        metrics = {**metrics, "temperature": used}
        if not policy.config.options.learn_temperature:
            return state, metrics
        optimizers = cast(dict[str, OptState], state.opt_state)
        target = hypers["target_entropy"] * num_actions(policy)
        value, opt_state = descend(
            policy.config,
            hypers,
            hypers["temperature_learning_rate"],
            used * (metrics["entropy"] - target),
            optimizers["temperature"],
            state.params["log_temperature"],
        )
        params = {**state.params, "log_temperature": value}
        return state.replace(
            params=params, opt_state={**optimizers, "temperature": opt_state}
        ), metrics


def temperature(state: PolicyState, hypers: Hypers) -> jax.Array:
    """Return the temperature alpha, (): the initial one times the learned factor."""
    return hypers["temperature"] * jnp.exp(state.params["log_temperature"])


def squashed_sample(outputs: jax.Array, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return actions tanh(mean + std normal) and the logarithms of their densities.

    Args:
        outputs: [..., 2 A], from a `GaussianActor`.
        normal: [..., A] standard normal numbers; zeros for the most likely normal number.

    Returns:
        (actions [..., A] in [-1, 1], log densities in this box [...]).
    """
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    free, size = mean + jnp.exp(log_std) * normal, mean.shape[-1]
    box = SquashedGaussian(size, (size,), (-1.0,) * size, (1.0,) * size)
    return jnp.tanh(free), box.log_prob(outputs, free)
