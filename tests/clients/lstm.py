"""PPO with LSTMs between the hidden layers and the heads of policy and value."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.train.learning import PPO, PPOOptions, static


@dataclasses.dataclass(frozen=True)
class LSTMOptions(PPOOptions):
    """Options of PPO, and the size of the LSTMs."""

    memory_size: int = static(32, allowed="at least 1")
    """Units of each LSTM."""


class Tower(nnx.Module):
    """A dense layer, an LSTM and a linear head."""

    def __init__(self, size, outputs, gain, config, rngs):
        width, units = config.network.hidden_sizes[-1], config.options.memory_size
        self.enter = nnx.Linear(size, width, rngs=rngs)
        self.cell = nnx.LSTMCell(width, units, rngs=rngs)
        init = nnx.initializers.orthogonal(gain)
        self.head = nnx.Linear(units, outputs, kernel_init=init, rngs=rngs)

    def __call__(self, obs, carry):
        carry, features = self.cell(carry, jnp.tanh(self.enter(obs)))
        return self.head(features), carry


class LSTMNetwork(nnx.Module):
    """Outputs, values and carry (a pair (c, h) of each tower) of an LSTM actor-critic."""

    def __init__(self, size, outputs, config, rngs):
        self.policy = Tower(size, outputs, 0.01, config, rngs)
        self.value = Tower(size, 1, 1.0, config, rngs)

    def __call__(self, obs, carry):
        """One step: obs [..., size] -> (outputs [..., outputs], value [...], carry)."""
        outputs, policy = self.policy(obs, carry["policy"])
        values, value = self.value(obs, carry["value"])
        return outputs, values[..., 0], {"policy": policy, "value": value}

    def unroll(self, obs, carry, restart):
        """T steps: obs [T, M, size], restart [T, M] -> (outputs [T, M, outputs], value [T, M])."""

        def step(carry, row):
            obs, restart = row
            carry = jax.tree.map(lambda leaf: jnp.where(restart[:, None], 0.0, leaf), carry)
            outputs, value, carry = self(obs, carry)
            return carry, (outputs, value)

        return jax.lax.scan(step, carry, (obs, restart))[1]


class LSTMPPO(PPO):
    """PPO whose network is an `LSTMNetwork`."""

    Options = LSTMOptions

    def make_network(self, context, config, assignment, rngs):
        size, outputs = assignment.observation_space.shape[0], assignment.action_space.n
        return LSTMNetwork(size, outputs, config, rngs)

    def init_carry(self, policy, num_envs):
        units = policy.config.options.memory_size
        zeros = jnp.zeros((num_envs, policy.assignment.num_agents, units), jnp.float32)
        return {"policy": (zeros, zeros), "value": (zeros, zeros)}
