"""Networks: flax.nnx modules that map one agent's observation to the outputs of its distribution, and a value.

A network is an encoder (an observation, any pytree -> a row of numbers), hidden layers, a recurrent cell where wanted,
and linear heads. The encoder is the place for a network of one's own: see `Encoder`.
"""

import importlib
import math
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.checks import require_known
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from wdjax.train.config import NetworkConfig
from wdjax.train.distributions import Distribution

MASK = "action_mask"
ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


class Encoder(Protocol):
    """What a network of one's own provides: an nnx.Module, named in a preset as "package.module:Class".

        class MyEncoder(nnx.Module):
            def __init__(self, observation_space, width=64, *, rngs):   # `width` comes from network.encoder_options
                self.layer = nnx.Linear(encoded_size(observation_space), width, rngs=rngs)
                self.num_features = width

            def __call__(self, obs):                                    # leaves [..., *part of the space]
                return jax.nn.relu(self.layer(encode_flat(obs)))        # [..., num_features]

    Hidden layers (`hidden_sizes`, which may be empty), memory and heads follow it, in every algorithm. It works on one
    agent's observation with any leading axes, and sees neither its action mask nor other agents' rows.
    """

    num_features: int

    def __call__(self, obs: Any) -> jax.Array: ...


class FlatEncoder(nnx.Module):
    """Lays an observation out in a row of numbers: `encode`."""

    def __init__(self, observation_space: Space, *, rngs: nnx.Rngs):
        self.space = observation_space
        self.num_features = encoded_size(observation_space)

    def __call__(self, obs: Any) -> jax.Array:
        return encode(self.space, obs)


# Name in a preset -> class; any other encoder is named by its import path.
ENCODERS: dict[str, Any] = {"flat": FlatEncoder}


class MLP(nnx.Module):
    """Linear layers, each with an activation after it."""

    def __init__(self, in_features: int, config: NetworkConfig, *, rngs: nnx.Rngs):
        sizes = (in_features, *config.hidden_sizes)
        self.activation = ACTIVATIONS[config.activation]
        self.depth = len(config.hidden_sizes)
        self.num_features = sizes[-1]
        for i in range(self.depth):
            setattr(self, f"layer_{i}", _linear(sizes[i], sizes[i + 1], config, math.sqrt(2), rngs))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        for i in range(self.depth):
            inputs = self.activation(getattr(self, f"layer_{i}")(inputs))
        return inputs


class Trunk(nnx.Module):
    """All of a network that comes before its heads: encoder, hidden layers, and a GRU where `recurrent_size` asks."""

    def __init__(self, observation_space: Space, config: NetworkConfig, *, rngs: nnx.Rngs):
        self.encoder = make_encoder(observation_space, config, rngs)
        self.mlp = MLP(self.encoder.num_features, config, rngs=rngs)
        size = config.recurrent_size
        self.cell = nnx.GRUCell(self.mlp.num_features, size, rngs=rngs) if size else None
        self.num_features = size or self.mlp.num_features

    def __call__(self, obs: Any, carry: jax.Array | None = None) -> tuple[jax.Array, jax.Array | None]:
        """One step: obs [..., *part], carry [..., recurrent_size] -> (features [..., num_features], carry)."""
        features = self.mlp(self.encoder(obs))
        if self.cell is None:
            return features, None
        carry, features = self.cell(carry, features)
        return features, carry

    def unroll(self, obs: Any, carry: jax.Array, restart: jax.Array) -> jax.Array:
        """T steps in a row: obs [T, M, ...], carry [M, recurrent_size], restart [T, M] bool -> [T, M, num_features].

        Where `restart`, the carry is emptied before the step: another episode begins with it.
        """

        def step(carry: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            features, restart = row
            return self.cell(jnp.where(restart[:, None], 0.0, carry), features)

        return jax.lax.scan(step, carry, (self.mlp(self.encoder(obs)), restart))[1]


class ActorCritic(nnx.Module):
    """A trunk with a head for the action distribution and one for the value, or a trunk for each of the two.

    Args:
        observation_space: of one agent, without its action mask.
        distribution: what the outputs parametrise; all its components share one matrix, a block of columns each.
        config: sizes, activation, initialisation.
        rngs: flax's random streams.
    """

    def __init__(
        self, observation_space: Space, distribution: Distribution, config: NetworkConfig, *, rngs: nnx.Rngs
    ):
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.value_trunk = None if config.shared_trunk else Trunk(observation_space, config, rngs=rngs)
        # A small policy head: every action is about equally likely at the start (Andrychowicz et al., 2021, 3.2).
        self.policy_head = _linear(self.trunk.num_features, distribution.num_outputs, config, 0.01, rngs)
        self.value_head = _linear(self.trunk.num_features, 1, config, 1.0, rngs)
        self.free = nnx.Param(jnp.zeros(distribution.num_free)) if distribution.num_free else None

    def __call__(self, obs: Any, carry: Any = None) -> tuple[jax.Array, jax.Array, Any]:
        """One step: obs, leaves [..., *part] -> (outputs [..., num_outputs + num_free], value [...], carry).

        `carry` is that of each trunk, [..., recurrent_size] each, or None where the network is not recurrent.
        """
        if carry is None:
            carry = (None, None)
        features, trunk_carry = self.trunk(obs, carry[0])
        if self.value_trunk is None:
            return *self._heads(features, features), None if trunk_carry is None else (trunk_carry, carry[1])
        value_features, value_carry = self.value_trunk(obs, carry[1])
        return *self._heads(features, value_features), None if trunk_carry is None else (trunk_carry, value_carry)

    def unroll(self, obs: Any, carry: Any, restart: jax.Array) -> tuple[jax.Array, jax.Array]:
        """T steps in a row, see Trunk.unroll. Returns (outputs [T, M, ...], value [T, M])."""
        features = self.trunk.unroll(obs, carry[0], restart)
        if self.value_trunk is None:
            return self._heads(features, features)
        return self._heads(features, self.value_trunk.unroll(obs, carry[1], restart))

    def _heads(self, features: jax.Array, value_features: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = self.policy_head(features)
        if self.free is not None:
            free = jnp.broadcast_to(self.free[...], (*outputs.shape[:-1], self.free[...].shape[-1]))
            outputs = jnp.concatenate([outputs, free], axis=-1)
        return outputs, self.value_head(value_features)[..., 0]


def empty_carry(config: NetworkConfig, shape: tuple[int, ...]) -> Any:
    """Returns the carry of an ActorCritic at the start of an episode, leaves [*shape, recurrent_size], or None."""
    if not config.recurrent_size:
        return None
    zeros = jnp.zeros((*shape, config.recurrent_size))
    return (zeros, None if config.shared_trunk else zeros)


def make_encoder(observation_space: Space, config: NetworkConfig, rngs: nnx.Rngs) -> Any:
    """Returns a new encoder; raises as `encoder_class`, and TypeError for options that it does not take."""
    cls = encoder_class(config.encoder)
    try:
        encoder = cls(observation_space, **config.encoder_options, rngs=rngs)
    except TypeError as error:
        options = config.encoder_options
        raise TypeError(f"network.encoder {config.encoder!r} with encoder_options {options}: {error}") from error
    if not isinstance(getattr(encoder, "num_features", None), int):
        raise TypeError(f"network.encoder {config.encoder!r}: must set num_features, the width of what it returns")
    return encoder


def encoder_class(name: str) -> Any:
    """Returns the class of an encoder: a name of ENCODERS, or "package.module:Class".

    Raises:
        ValueError: for an unknown name, a module that cannot be imported, or one without such a class.
    """
    if ":" not in name:
        require_known("network.encoder", name, ENCODERS)
        return ENCODERS[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"network.encoder {name!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, nnx.Module)):
        raise ValueError(f"network.encoder {name!r}: must name a subclass of flax.nnx.Module")
    return found


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


def batch_shape(space: Space, obs: Any) -> tuple[int, ...]:
    """Returns the leading axes of observations, leaves [*leading, *part of the space]."""
    ndims = jax.tree.map(lambda leaf: leaf.ndim, jax.eval_shape(space.sample, jax.random.key(0)))
    leaf, ndim = jax.tree.leaves(obs)[0], jax.tree.leaves(ndims)[0]
    return leaf.shape[: leaf.ndim - ndim]


def without_mask(space: Space) -> Space:
    """Returns the space of what the network sees."""
    if isinstance(space, Dict) and MASK in space.spaces:
        return Dict({name: part for name, part in space.spaces.items() if name != MASK})
    return space


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
