"""Policies that take the action with the highest value, or a random one in training."""

from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.checks import require
from wdjax.spaces import Discrete
from wdjax.train.learning import (
    Algorithm,
    Assignment,
    Context,
    CriticNetwork,
    Hypers,
    Policy,
    PolicyConfig,
    PolicyState,
    TrainConfig,
    sample_blocks,
)
from wdjax.train.state.aliases import ActingState, Carry, Fields, Observation


class EpsilonGreedy(Algorithm):
    """Base class of algorithms that learn Q(obs, action) of Discrete actions.

    Its options need `epsilon`. The network returns the values of all actions.
    """

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        space, what = assignment.action_space, f"policies.{name}.algorithm: the action space"
        require(isinstance(space, Discrete), what, space, "Discrete")
        super().check(name, run, assignment)

    def make_network(
        self, context: Context, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs
    ) -> nnx.Module:
        num_values = cast(Discrete, assignment.action_space).n
        space = assignment.network_space
        return CriticNetwork(space, config.network, num_values=num_values, rngs=rngs)

    def init_carry(self, policy: Policy, num_envs: int) -> Carry:
        shape = (num_envs, policy.assignment.num_agents)
        return None if policy.memory is None else policy.memory.empty(shape)

    def q_values(
        self, policy: Policy, state: PolicyState, obs: Observation, carry: Carry = None
    ) -> tuple[jax.Array, Carry]:
        """Return (values of all actions [..., actions], next carry).

        Args:
            policy: static part of the policy.
            state: state of the policy.
            obs: leaves [..., *part].
            carry: from the previous step, leaves [..., *part]; None if not recurrent.
        """
        seen, mask = policy.inputs(state, obs)
        values, carry = nnx.merge(policy.graphdef, state.params)(seen, carry)
        return policy.masked(values, mask), carry

    def value(
        self, policy: Policy, state: PolicyState, obs: Observation, carry: Carry
    ) -> jax.Array:
        """Return max_a Q(obs, a), [...]."""
        return jnp.max(self.q_values(policy, state, obs, carry)[0], axis=-1)

    def chosen(
        self,
        policy: Policy,
        state: PolicyState,
        obs: Observation,
        action: jax.Array,
        carry: Carry = None,
        restart: jax.Array | None = None,
    ) -> jax.Array:
        """Return Q(obs, action), [...].

        Args:
            policy: static part of the policy.
            state: its state, with the parameters being trained.
            obs: leaves [..., *part]; [T, M, *part] for a recurrent policy.
            action: [...] int32.
            carry: carry of a recurrent policy before the first step, leaves [M, *part].
            restart: [T, M] bool, an episode starts with this step.
        """
        if carry is None:
            q, _ = self.q_values(policy, state, obs)
        else:
            seen, mask = policy.inputs(state, obs)
            network = nnx.merge(policy.graphdef, state.params)
            q = policy.masked(network.unroll(seen, carry, restart), mask)
        return jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]

    def act(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        hypers: Hypers,
    ) -> tuple[jax.Array, Fields, Carry]:
        """Take a random allowed action with probability epsilon, else the best one."""
        with policy.engine.kernels_of_parts(policy):
            q, carry = self.q_values(policy, state, obs, carry)
        epsilon = hypers["epsilon"] if policy.config.trainable else 0.0
        allowed = (q > -1e8).astype(jnp.float32)  # `masked` sets -1e9
        random = allowed / jnp.sum(allowed, axis=-1, keepdims=True)
        best = jax.nn.one_hot(jnp.argmax(q, axis=-1), q.shape[-1])
        probability = epsilon * random + (1.0 - epsilon) * best
        action = sample_blocks(policy.distribution, keys, jnp.log(probability))
        return action, {"value": jnp.max(q, axis=-1)}, carry

    def play(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        greedy: bool,
    ) -> tuple[jax.Array, Carry]:
        q, carry = self.q_values(policy, state, obs, carry)
        return jnp.argmax(q, axis=-1).astype(jnp.int32), carry

    def describe(
        self, policy: Policy, state: PolicyState, carry: Carry, obs: Observation
    ) -> Fields:
        return {"value": self.value(policy, state, obs, carry)}
