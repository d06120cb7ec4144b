"""Networks: flax.nnx modules that map one agent's observation to the outputs of its distribution, and a value.

A network is an encoder (an observation, any pytree -> a row of numbers), hidden layers, a recurrent cell where wanted,
and linear heads. The encoder is the place for a network of one's own: see train/networks/encoders.py.
"""

import math
from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.spaces import Dict, Space
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks.distributions import Distribution
from wdjax.train.networks.encoders import MASK, make_encoder
from wdjax.train.networks.linear import orthogonal, product
from wdjax.train.networks.memories import make_memory

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


class MLP(nnx.Module):
    """Linear layers, each with an activation after it."""

    def __init__(
        self,
        in_features: int,
        config: NetworkConfig,
        hidden_sizes: tuple[int, ...] | None = None,
        *,
        rngs: nnx.Rngs,
    ):
        """Args: hidden_sizes: None for those of `config`."""
        sizes = (in_features, *(config.hidden_sizes if hidden_sizes is None else hidden_sizes))
        self.activation = ACTIVATIONS[config.activation]
        self.depth = len(sizes) - 1
        self.num_features = sizes[-1]
        for i in range(self.depth):
            layer = _linear(
                sizes[i], sizes[i + 1], config, math.sqrt(2), rngs, jnp.dtype(config.compute_dtype)
            )
            setattr(self, f"layer_{i}", layer)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        for i in range(self.depth):
            inputs = self.activation(getattr(self, f"layer_{i}")(inputs))
        return inputs.astype(jnp.float32)  # the heads' products and all that follows


class Trunk(nnx.Module):
    """All of a network that comes before its heads: encoder, hidden layers, and a GRU where `recurrent_size` asks."""

    def __init__(self, observation_space: Space, config: NetworkConfig, *, rngs: nnx.Rngs):
        self.encoder = make_encoder(observation_space, config, rngs)
        self.mlp = MLP(self.encoder.num_features, config, rngs=rngs)
        width, size = self.mlp.num_features, config.recurrent_size
        self.cell = make_memory(width, config, _initializer(config, 1.0), rngs) if size else None
        self.num_features = size or width

    def __call__(
        self, obs: Any, carry: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        """One step: obs [..., *part], carry [..., recurrent_size] -> (features [..., num_features], carry)."""
        features = self.mlp(self.encoder(obs))
        if self.cell is None:
            return features, None
        carry, features = self.cell(carry, features)
        return features, carry

    def unroll(
        self,
        obs: chex.ArrayTree,
        carry: chex.ArrayTree,
        restart: jax.Array,
        start: chex.ArrayTree | None = None,
    ) -> jax.Array:
        """Advance T steps of M sequences.

        Args:
            obs: leaves [T, M, *part].
            carry: before the first step, leaves [M, ...].
            restart: [T, M] bool, an episode starts with this step.
            start: carry at the start of an episode, leaves [M, ...]; None: that of the memory.

        Returns:
            Features [T, M, num_features].
        """
        features = self.mlp(self.encoder(obs))
        starts = () if start is None else (start,)
        return self.cell.unroll(carry, features, restart, *starts)


class ActorCritic(nnx.Module):
    """A trunk with a head for the action distribution and one for the value, or a trunk for each of the two; between a
    trunk and a head stand the layers of `head_hidden_sizes`.

    Args:
        observation_space: of one agent, without its action mask.
        distribution: what the outputs parametrise; all its components share one matrix, a block of columns each.
        config: sizes, activation, initialisation.
        rngs: flax's random streams.
    """

    def __init__(
        self,
        observation_space: Space,
        distribution: Distribution,
        config: NetworkConfig,
        *,
        rngs: nnx.Rngs,
    ):
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.value_trunk = (
            None if config.shared_trunk else Trunk(observation_space, config, rngs=rngs)
        )
        size, sizes = self.trunk.num_features, config.head_hidden_sizes
        self.policy_mlp = MLP(size, config, sizes, rngs=rngs) if sizes else None
        self.value_mlp = MLP(size, config, sizes, rngs=rngs) if sizes else None
        size = sizes[-1] if sizes else size
        # A small policy head: every action is about equally likely at the start (Andrychowicz et al., 2021, 3.2).
        self.policy_head = _linear(size, distribution.num_outputs, config, 0.01, rngs)
        self.value_head = _linear(size, 1, config, 1.0, rngs)
        self.free = (
            nnx.Param(jnp.zeros(distribution.num_free, jnp.float32))
            if distribution.num_free
            else None
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether it has a recurrent memory."""
        return self.trunk.cell is not None

    def __call__(self, obs: Any, carry: Any = None) -> tuple[jax.Array, jax.Array, Any]:
        """One step: obs, leaves [..., *part] -> (outputs [..., num_outputs + num_free], value [...], carry).

        `carry` is that of each trunk, [..., recurrent_size] each, or None where the network is not recurrent.
        """
        if carry is None:
            carry = (None, None)
        features, trunk_carry = self.trunk(obs, carry[0])
        if self.value_trunk is None:
            return *self._heads(features, features), None if trunk_carry is None else (
                trunk_carry,
                carry[1],
            )
        value_features, value_carry = self.value_trunk(obs, carry[1])
        return *self._heads(features, value_features), None if trunk_carry is None else (
            trunk_carry,
            value_carry,
        )

    def unroll(
        self, obs: Any, carry: Any, restart: jax.Array, start: Any = None
    ) -> tuple[jax.Array, jax.Array]:
        """T steps in a row, see Trunk.unroll. Returns (outputs [T, M, ...], value [T, M])."""
        start = (None, None) if start is None else start
        features = self.trunk.unroll(obs, carry[0], restart, start[0])
        if self.value_trunk is None:
            return self._heads(features, features)
        return self._heads(features, self.value_trunk.unroll(obs, carry[1], restart, start[1]))

    def _heads(self, features: jax.Array, value_features: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.policy_mlp is not None:
            features, value_features = self.policy_mlp(features), self.value_mlp(value_features)
        outputs = self.policy_head(features)
        if self.free is not None:
            free = jnp.broadcast_to(self.free[...], (*outputs.shape[:-1], self.free[...].shape[-1]))
            outputs = jnp.concatenate([outputs, free], axis=-1)
        return outputs, self.value_head(value_features)[..., 0]


def has_memory(network: nnx.Module) -> bool:
    """Return whether a network is recurrent: it has a method `unroll`.

    An attribute `is_recurrent` of False marks a network whose memory is switched off.
    """
    return hasattr(network, "unroll") and getattr(network, "is_recurrent", True)


def empty_carry(
    memory: nnx.Module | None, config: NetworkConfig, shape: tuple[int, ...]
) -> tuple[chex.ArrayTree, chex.ArrayTree | None] | None:
    """Return the carry of an ActorCritic at the start of an episode, leaves [*shape, ...]; None without a memory.

    Args:
        memory: of the network, as `check_memory` returns it.
        config: configuration of the network.
        shape: leading axes.
    """
    if memory is None:
        return None
    carry = memory.empty(shape)
    return carry, None if config.shared_trunk else carry


def _linear(
    in_features: int,
    out_features: int,
    config: NetworkConfig,
    gain: float,
    rngs: nnx.Rngs,
    dtype: Any = None,
) -> nnx.Linear:
    init = _initializer(config, gain)
    return nnx.Linear(
        in_features, out_features, kernel_init=init, dtype=dtype, dot_general=product, rngs=rngs
    )


def _initializer(config: NetworkConfig, gain: float) -> Any:
    return {
        "orthogonal": orthogonal(gain),
        "xavier": nnx.initializers.xavier_uniform(),
        "lecun": nnx.initializers.lecun_normal(),
    }[config.initializer]


def split_mask(obs: Any) -> tuple[Any, jax.Array | None]:
    """Returns (what the network sees, the action mask or None): the mask is the key `action_mask` of a dict."""
    if isinstance(obs, Mapping) and MASK in obs:
        return {name: part for name, part in obs.items() if name != MASK}, obs[MASK]
    return obs, None


def without_mask(space: Space) -> Space:
    """Returns the space of what the network sees."""
    if isinstance(space, Dict) and MASK in space.spaces:
        return Dict({name: part for name, part in space.spaces.items() if name != MASK})
    return space
