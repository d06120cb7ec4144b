"""Networks: flax.nnx modules that map one agent's observation to the outputs of its distribution, and a value."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from wdjax.train.config import NetworkConfig
from wdjax.train.distributions import Distribution

MASK = "action_mask"
ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


class MLP(nnx.Module):
    """Linear layers, each with an activation after it."""

    def __init__(self, in_features: int, config: NetworkConfig, *, rngs: nnx.Rngs):
        sizes = (in_features, *config.hidden_sizes)
        self.activation = ACTIVATIONS[config.activation]
        self.depth = len(config.hidden_sizes)
        for i in range(self.depth):
            setattr(self, f"layer_{i}", _linear(sizes[i], sizes[i + 1], config, math.sqrt(2), rngs))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        for i in range(self.depth):
            inputs = self.activation(getattr(self, f"layer_{i}")(inputs))
        return inputs


class ActorCritic(nnx.Module):
    """An MLP with a head for the action distribution and one for the value, on one trunk or on two.

    Args:
        obs_size: numbers in an observation.
        distribution: what the outputs parametrise; all its components share one matrix, a block of columns each.
        config: sizes, activation, initialisation.
        rngs: flax's random streams.
    """

    def __init__(self, obs_size: int, distribution: Distribution, config: NetworkConfig, *, rngs: nnx.Rngs):
        width = config.hidden_sizes[-1] if config.hidden_sizes else obs_size
        self.trunk = MLP(obs_size, config, rngs=rngs)
        self.value_trunk = None if config.shared_trunk else MLP(obs_size, config, rngs=rngs)
        # A small policy head: every action is about equally likely at the start (Andrychowicz et al., 2021, 3.2).
        self.policy_head = _linear(width, distribution.num_outputs, config, 0.01, rngs)
        self.value_head = _linear(width, 1, config, 1.0, rngs)
        self.free = nnx.Param(jnp.zeros(distribution.num_free)) if distribution.num_free else None

    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[..., obs_size] -> (outputs [..., num_outputs + num_free], value [...])."""
        hidden = self.trunk(obs)
        value_hidden = hidden if self.value_trunk is None else self.value_trunk(obs)
        outputs = self.policy_head(hidden)
        if self.free is not None:
            free = jnp.broadcast_to(self.free[...], (*outputs.shape[:-1], self.free[...].shape[-1]))
            outputs = jnp.concatenate([outputs, free], axis=-1)
        return outputs, self.value_head(value_hidden)[..., 0]


def _linear(in_features: int, out_features: int, config: NetworkConfig, gain: float, rngs: nnx.Rngs) -> nnx.Linear:
    initializers: dict[str, Any] = {
        "orthogonal": nnx.initializers.orthogonal(gain),
        "xavier": nnx.initializers.xavier_uniform(),
        "lecun": nnx.initializers.lecun_normal(),
    }
    return nnx.Linear(in_features, out_features, kernel_init=initializers[config.initializer], rngs=rngs)


def split_mask(obs: Any) -> tuple[Any, jax.Array | None]:
    """Returns (what the network sees, the action mask or None): the mask is the key `action_mask` of a dict."""
    if isinstance(obs, Mapping) and MASK in obs:
        return {name: part for name, part in obs.items() if name != MASK}, obs[MASK]
    return obs, None


def encode(space: Space, obs: Any) -> jax.Array:
    """Lays one observation, or a batch of them, in a row of numbers for the network.

    Args:
        space: of one agent's observation: Box parts are flattened, discrete ones become one-hot, a Dict's parts follow
            each other in the order of the space, its `action_mask` left out.
        obs: leaves [..., *part of the space].

    Returns:
        [..., encoded_size(space)] float32.
    """
    match space:
        case Box():
            return obs.reshape((*obs.shape[: obs.ndim - len(space.shape)], -1)).astype(jnp.float32)
        case Discrete():
            return jax.nn.one_hot(obs, space.n)
        case MultiDiscrete():
            return jnp.concatenate([jax.nn.one_hot(obs[..., i], n) for i, n in enumerate(space.nvec)], axis=-1)
        case Dict():
            parts = [encode(part, obs[name]) for name, part in space.spaces.items() if name != MASK]
            return jnp.concatenate(parts, axis=-1)
    raise TypeError(f"observation space {space}: must be Box, Discrete, MultiDiscrete or a Dict of these")


def encoded_size(space: Space) -> int:
    """Returns how many numbers `encode` gives for one observation."""
    zeros = jax.eval_shape(lambda key: encode(space, space.sample(key)), jax.random.key(0))
    return zeros.shape[-1]
