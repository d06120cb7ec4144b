"""Deep Q-network (DQN): Q-learning from a replay buffer with a target network.

Sources: Mnih et al., "Human-level control through deep reinforcement learning" (2015); van Hasselt,
Guez, Silver, "Deep Reinforcement Learning with Double Q-learning" (2016); Wang et al., "Dueling
Network Architectures for Deep Reinforcement Learning" (2016).
"""

import dataclasses
from typing import Any, cast

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from wdjax.spaces import Discrete, Space
from wdjax.train.algorithms.epsilon_greedy import EpsilonGreedy
from wdjax.train.algorithms.off_policy import (
    OffPolicy,
    OffPolicyOptions,
    soft_update,
    steps_taken,
)
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.learning import (
    Assignment,
    Context,
    CriticNetwork,
    Hypers,
    Policy,
    PolicyConfig,
    PolicyState,
    ReplayBatch,
    Schedule,
    Terms,
    average,
    descend,
    make_optimizer,
    static,
    traced,
)
from wdjax.train.state.aliases import Observation, Params
from wdjax.train.state.normalization import new_normalizer


@dataclasses.dataclass(frozen=True)
class DQNOptions(OffPolicyOptions):
    """Options of DQN. Traced fields can be swept without recompiling."""

    epsilon: Schedule = traced(((0, 1.0), (50_000, 0.05)), allowed="between 0 and 1", explores=True)
    """Probability of a random action in training. Opponents from the past and from other runs take
    the best action."""
    double: bool = static(True)
    """Choose the next action by the trained network and evaluate it by the target network (double
    DQN). false: the maximum of the target network."""
    dueling: bool = static(False)
    """Add the value of the observation to the advantages of the actions, each with its own
    `network.head_hidden_sizes`."""


class DuelingNetwork(nnx.Module):
    """Q(obs, a) = V(obs) + A(obs, a) - mean_a A(obs, a), with one network for V and A each.

    Args:
        space: of one observation without its action mask.
        config: configuration of both networks.
        num_values: number of actions.
        rngs: random streams of flax.
    """

    def __init__(self, space: Space, config: NetworkConfig, num_values: int, *, rngs: nnx.Rngs):
        self.value = CriticNetwork(space, config, rngs=rngs)
        self.advantage = CriticNetwork(space, config, num_values=num_values, rngs=rngs)

    def __call__(
        self, obs: chex.ArrayTree, carry: chex.ArrayTree | None = None
    ) -> tuple[jax.Array, chex.ArrayTree | None]:
        """Return (values of all actions [..., num_values], None)."""
        value, advantage = self.value(obs)[0], self.advantage(obs)[0]
        return value[..., None] + advantage - jnp.mean(advantage, axis=-1, keepdims=True), None


class DQN(OffPolicy, EpsilonGreedy):
    """Gradient steps on the squared error to the Bellman target of replayed transitions."""

    Options = DQNOptions

    def make_network(
        self, context: Context, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs
    ) -> nnx.Module:
        if not config.options.dueling:
            return super().make_network(context, config, assignment, rngs)
        num_values = cast(Discrete, assignment.action_space).n
        return DuelingNetwork(assignment.network_space, config.network, num_values, rngs=rngs)

    def init(self, policy: Policy, params: Params) -> PolicyState:
        config, space = policy.config, policy.assignment.observation_space
        normalizer = new_normalizer(config.normalize_observation, False, space)
        if not config.trainable:
            return PolicyState(params, None, normalizer)
        opt_state = make_optimizer(config, config.max_grad_norm).init(params)
        target = jax.tree.map(jnp.copy, params)
        return PolicyState(params, opt_state, normalizer, target, gradient_steps=jnp.int32(0))

    def next_value(self, policy: Policy, state: PolicyState, obs: Observation) -> jax.Array:
        """Return the value of the next action by the target network Q', [...].

            Q'(obs, argmax_a Q(obs, a)) if `double`, else max_a Q'(obs, a)

        Args:
            policy: static part of the policy.
            state: its state, with `target_params`.
            obs: leaves [..., *part].
        """
        target = self.q_values(policy, state.replace(params=state.target_params), obs)[0]
        double = policy.config.options.double
        best = jnp.argmax(self.q_values(policy, state, obs)[0] if double else target, axis=-1)
        return jnp.take_along_axis(target, best[..., None], axis=-1)[..., 0]

    def gradient_step(
        self, policy: Policy, state: PolicyState, hypers: Hypers, batch: ReplayBatch, drawn: Any
    ) -> tuple[PolicyState, Terms]:
        """Take a step on mean((Q(obs, action) - target)^2) / 2, then one of the target network.

        target = reward + discount * `next_value`(next_obs)
        """
        target = batch.reward + batch.discount * self.next_value(policy, state, batch.next_obs)

        def loss(params: Params) -> tuple[jax.Array, Terms]:
            own = state.replace(params=params)
            return squared_error(self.chosen(policy, own, batch.obs, batch.action), target)

        return improve(policy, state, hypers, loss)


def squared_error(q: jax.Array, target: jax.Array) -> tuple[jax.Array, Terms]:
    """Return (mean((q - target)^2) / 2, metrics) of the batch on this device, [B] each."""
    loss = 0.5 * jnp.mean((q - target) ** 2)
    return loss, {"loss": loss, "q_mean": jnp.mean(q), "target_mean": jnp.mean(target)}


def improve(
    policy: Policy, state: PolicyState, hypers: Hypers, loss: Any
) -> tuple[PolicyState, Terms]:
    """Take a step of the optimizer, then one of the target network. Return (state, metrics).

    Args:
        policy: static part of the policy whose optimizer and options count.
        state: parameters to train, their optimizer and target.
        hypers: hyperparameters at this point of the run.
        loss: loss(params) -> (loss, metrics) of the batch on this device.
    """
    with policy.engine.kernels_of_parts(policy):
        (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    grads, metrics = average((grads, metrics))
    metrics["grad_norm"] = optax.tree.norm(grads)
    params, opt_state = descend(
        policy.config, hypers, hypers["learning_rate"], grads, state.opt_state, state.params
    )
    return state.replace(
        params=params,
        opt_state=opt_state,
        target_params=soft_update(state.target_params, params, hypers["tau"]),
        gradient_steps=steps_taken(state) + 1,
    ), metrics
