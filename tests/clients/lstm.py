"""PPO with an LSTM between the hidden layer and the heads."""

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.train.learning import PPO


class LSTMNetwork(nnx.Module):
    """Outputs, values and carry (c, h) of an LSTM actor-critic."""

    def __init__(self, size, outputs, config, rngs):
        width, memory = config.hidden_sizes[-1], config.recurrent_size
        self.enter = nnx.Linear(size, width, rngs=rngs)
        self.cell = nnx.LSTMCell(width, memory, rngs=rngs)
        self.policy_head = nnx.Linear(memory, outputs, rngs=rngs)
        self.value_head = nnx.Linear(memory, 1, rngs=rngs)

    def __call__(self, obs, carry):
        carry, features = self.cell(carry, jnp.tanh(self.enter(obs)))
        return self.policy_head(features), self.value_head(features)[..., 0], carry

    def unroll(self, obs, carry, restart):
        def step(carry, row):
            features, restart = row
            carry = jax.tree.map(lambda leaf: jnp.where(restart[:, None], 0.0, leaf), carry)
            return self.cell(carry, features)

        _, features = jax.lax.scan(step, carry, (jnp.tanh(self.enter(obs)), restart))
        return self.policy_head(features), self.value_head(features)[..., 0]


class LSTMPPO(PPO):
    """PPO whose network is an `LSTMNetwork`; `network.recurrent_size` is its size."""

    def make_network(self, context, config, assignment, rngs):
        size, outputs = assignment.observation_space.shape[0], assignment.action_space.n
        return LSTMNetwork(size, outputs, config.network, rngs)

    def init_carry(self, policy, num_envs):
        size = policy.config.network.recurrent_size
        zeros = jnp.zeros((num_envs, policy.assignment.num_agents, size), jnp.float32)
        return zeros, zeros
