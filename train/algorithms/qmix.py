"""QMIX: a team learns a monotonic function of its agents' values, which depends on the state.

Source: Rashid et al., "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent
Reinforcement Learning" (2018).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.spaces import sample_shapes
from wdjax.train.algorithms.central_critic import add_global_states, num_agents
from wdjax.train.algorithms.dqn import DQNOptions
from wdjax.train.algorithms.off_policy import COUNT
from wdjax.train.algorithms.vdn import VDN, any_agent
from wdjax.train.learning import (
    Context,
    Hypers,
    Memory,
    Policy,
    PolicyState,
    Rollout,
    Team,
    encoded_size,
    static,
)
from wdjax.train.networks.linear import orthogonal, product
from wdjax.train.state.algorithm import TeamUpdate
from wdjax.train.state.aliases import Params
from wdjax.train.state.normalization import new_normalizer, normalize_observation


@dataclasses.dataclass(frozen=True)
class QMIXOptions(DQNOptions):
    """Options of QMIX."""

    mixing_size: int = static(32, allowed=COUNT)
    """Width of the mixing network."""
    hyper_size: int = static(64, allowed=COUNT)
    """Width of the networks that map the global state to the weights of the mixing network."""


class Mixer(nnx.Module):
    """Q = w2(s) . elu(w1(s) q + b1(s)) + b2(s), with w1, w2 >= 0, so that Q rises with every q_i.

    Args:
        agents: number of agents.
        state_size: size of the global state.
        width: width of the mixing network.
        hyper: hidden width of the networks for w1, w2 and b2.
        rngs: random streams of flax.
    """

    def __init__(self, agents: int, state_size: int, width: int, hyper: int, *, rngs: nnx.Rngs):
        self.shape = (agents, width)

        def linear(inputs: int, outputs: int) -> nnx.Linear:
            start = orthogonal(1.0)
            return nnx.Linear(inputs, outputs, kernel_init=start, dot_general=product, rngs=rngs)

        self.hidden_w1, self.w1 = linear(state_size, hyper), linear(hyper, agents * width)
        self.hidden_w2, self.w2 = linear(state_size, hyper), linear(hyper, width)
        self.b1 = linear(state_size, width)
        self.hidden_b2, self.b2 = linear(state_size, hyper), linear(hyper, 1)

    def __call__(self, q: jax.Array, state: jax.Array) -> jax.Array:
        """Return the value of the team, [...], for q [..., n] and state [..., S]."""
        first = jnp.abs(self.w1(jax.nn.relu(self.hidden_w1(state))))
        first = first.reshape(*q.shape[:-1], *self.shape)
        hidden = jax.nn.elu(jnp.sum(q[..., None] * first, axis=-2) + self.b1(state))
        second = jnp.abs(self.w2(jax.nn.relu(self.hidden_w2(state))))
        bias = self.b2(jax.nn.relu(self.hidden_b2(state)))[..., 0]
        return jnp.sum(hidden * second, axis=-1) + bias


class QMIX(VDN):
    """VDN with a mixing network in place of the sum."""

    Options = QMIXOptions
    keeps = frozenset({"global_state"})

    def make_shared(self, team: Team, context: Context, rngs: nnx.Rngs) -> Mixer:
        options, size = team.first.config.options, encoded_size(context.global_state_space)
        return Mixer(num_agents(team), size, options.mixing_size, options.hyper_size, rngs=rngs)

    def init_shared(
        self, team: Team, states: Mapping[str, PolicyState], params: Params | None
    ) -> PolicyState:
        config, space = team.first.config, team.first.context.global_state_space
        normalizer = new_normalizer(config.normalize_observation, False, space)
        return super().init_shared(team, states, params).replace(normalizer=normalizer)

    def state_shape(self, policy: Policy) -> Any:
        return sample_shapes(policy.context.global_state_space)

    def mix(
        self, team: Team, joint: PolicyState, params: Params, q: jax.Array, state: Any
    ) -> jax.Array:
        if joint.normalizer is not None:
            state = normalize_observation(joint.normalizer.obs, state)
        return team.module(joint.replace(params=params))(q, state)

    def update_team(
        self,
        team: Team,
        states: dict[str, PolicyState],
        shared: PolicyState | None,
        memories: dict[str, Memory],
        hypers: Mapping[str, Hypers],
        rollout: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> TeamUpdate:
        states, learned, memories, metrics = super().update_team(
            team, states, shared, memories, hypers, rollout, key, num_blocks
        )
        counted = any_agent({name: rollout.rows[name].live for name in team.policies})
        learned = add_global_states(cast(PolicyState, learned), rollout, counted)
        return states, learned, memories, metrics
