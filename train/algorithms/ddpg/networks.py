"""Networks of deterministic policies: an actor that names one action, and critics of an observation and an action.

Actions are in [-1, 1] here, the unit of a half width of the environment's box; `to_box` and `from_box` go between.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from wdjax.spaces import Box, Space
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks.actor_critic import MLP, Trunk, make_encoder
from wdjax.train.networks.linear import product

FINAL_SCALE = 3e-3  # of the last layers' weights: actions and values begin near 0 (Lillicrap et al., 2016, section 7)


class DeterministicActor(nnx.Module):
    """A trunk, one linear layer and tanh: obs, leaves [..., *part] -> action [..., num_actions] in [-1, 1]."""

    def __init__(
        self, observation_space: Space, num_actions: int, config: NetworkConfig, *, rngs: nnx.Rngs
    ):
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.head = _head(self.trunk.num_features, num_actions, rngs)

    def __call__(self, obs: Any) -> jax.Array:
        return jnp.tanh(self.head(self.trunk(obs)[0]))


class ActionValue(nnx.Module):
    """Hidden layers on the encoder's features beside the action: obs, action [..., num_actions] -> Q [...]."""

    def __init__(
        self, observation_space: Space, num_actions: int, config: NetworkConfig, *, rngs: nnx.Rngs
    ):
        self.encoder = make_encoder(observation_space, config, rngs)
        self.mlp = MLP(self.encoder.num_features + num_actions, config, rngs=rngs)
        self.head = _head(self.mlp.num_features, 1, rngs)

    def __call__(self, obs: Any, action: jax.Array) -> jax.Array:
        features = jnp.concatenate([self.encoder(obs), action], axis=-1)
        return self.head(self.mlp(features))[..., 0]


class ActorActionValue(nnx.Module):
    """An actor and one critic or two, which share nothing."""

    def __init__(
        self,
        observation_space: Space,
        num_actions: int,
        config: NetworkConfig,
        twin: bool,
        *,
        rngs: nnx.Rngs,
    ):
        self.actor = DeterministicActor(observation_space, num_actions, config, rngs=rngs)
        self.critic = ActionValue(observation_space, num_actions, config, rngs=rngs)
        self.critic2 = (
            ActionValue(observation_space, num_actions, config, rngs=rngs) if twin else None
        )

    def values(self, obs: Any, action: jax.Array) -> jax.Array:
        """Returns Q of every critic, [critics, ...]."""
        critics = [self.critic] if self.critic2 is None else [self.critic, self.critic2]
        return jnp.stack([critic(obs, action) for critic in critics])


def _head(in_features: int, out_features: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(
        in_features, out_features, kernel_init=small_uniform, dot_general=product, rngs=rngs
    )


def small_uniform(
    key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32, **_: Any
) -> jax.Array:
    """Draws weights uniformly in [-FINAL_SCALE, FINAL_SCALE)."""
    return jax.random.uniform(key, shape, dtype, -FINAL_SCALE, FINAL_SCALE)


def to_box(space: Box, unit: jax.Array) -> jax.Array:
    """Returns actions [..., *shape of the space] for [..., A] in [-1, 1]: center + half width * unit."""
    center, half = _center_and_half(space, unit.ndim - 1)
    return (center + half * unit).reshape(*unit.shape[:-1], *space.shape)


def from_box(space: Box, action: jax.Array) -> jax.Array:
    """Returns [..., A] in [-1, 1] for actions [..., *shape of the space]: the inverse of `to_box`."""
    flat = action.reshape(*action.shape[: action.ndim - len(space.shape)], math.prod(space.shape))
    center, half = _center_and_half(space, flat.ndim - 1)
    return (flat - center) / half


def _center_and_half(space: Box, leading: int) -> tuple[np.ndarray, np.ndarray]:
    bounds = (
        np.broadcast_to(np.asarray(bound, np.float32), space.shape)
        for bound in (space.low, space.high)
    )
    low, high = (bound.reshape((1,) * leading + (-1,)) for bound in bounds)
    return (low + high) / 2, (high - low) / 2
