"""Critics: networks of values; and actors without values of their own, for such critics.

Actions are in [-1, 1], in half-widths of the box of the environment; see `to_box` and
`from_box`.
"""

import math
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from wdjax.spaces import Box, Space
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks.actor_critic import MLP, Trunk, _initializer
from wdjax.train.networks.distributions import flat_bounds, is_bounded
from wdjax.train.networks.encoders import make_encoder
from wdjax.train.networks.linear import product


class ValueNetwork(nnx.Module):
    """An encoder, hidden layers and a linear head: V(obs), Q(obs, action), or Q of all actions.

    Args:
        space: of one observation without its action mask, or of the global state.
        config: sizes, activation and initializer; `recurrent_size` and `head_hidden_sizes` are
            ignored.
        num_actions: numbers of a continuous action, a second input; 0: none.
        num_values: values per input, [..., num_values], such as one per discrete action; None:
            one, [...].
        kernel_init: initializer of the head; None: the one in `config`.
        rngs: random streams of flax.
    """

    def __init__(
        self,
        space: Space,
        config: NetworkConfig,
        *,
        num_actions: int = 0,
        num_values: int | None = None,
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        self.encoder = make_encoder(space, config, rngs)
        self.mlp = MLP(self.encoder.num_features + num_actions, config, rngs=rngs)
        self.single = num_values is None
        self.head = nnx.Linear(
            self.mlp.num_features,
            num_values or 1,
            kernel_init=kernel_init or _initializer(config, 1.0),
            dot_general=product,
            rngs=rngs,
        )

    def __call__(self, obs: chex.ArrayTree, action: jax.Array | None = None) -> jax.Array:
        """Return values [...] or [..., num_values].

        Args:
            obs: leaves [..., *part].
            action: [..., num_actions], if the network has this input.
        """
        features = self.encoder(obs)
        if action is not None:
            features = jnp.concatenate([features, action], axis=-1)
        values = self.head(self.mlp(features))
        return values[..., 0] if self.single else values


class CriticNetwork(nnx.Module):
    """A trunk, optional head layers and a linear head: V(obs), or a value per discrete action.

    With `recurrent_size` the trunk has a memory, and the values depend on all observations since
    the start of the episode.

    Args:
        space: of one observation without its action mask, or of another input.
        config: sizes, activation, initializer and memory; `shared_trunk` is ignored.
        num_values: values per input, [..., num_values]; None: one, [...].
        rngs: random streams of flax.
    """

    def __init__(
        self,
        space: Space,
        config: NetworkConfig,
        *,
        num_values: int | None = None,
        rngs: nnx.Rngs,
    ):
        self.trunk = Trunk(space, config, rngs=rngs)
        size, sizes = self.trunk.num_features, config.head_hidden_sizes
        self.mlp = MLP(size, config, sizes, rngs=rngs) if sizes else None
        self.single = num_values is None
        self.head = nnx.Linear(
            sizes[-1] if sizes else size,
            num_values or 1,
            kernel_init=_initializer(config, 1.0),
            dot_general=product,
            rngs=rngs,
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether the network has a recurrent memory."""
        return self.trunk.cell is not None

    def empty(self, shape: tuple[int, ...]) -> chex.ArrayTree | None:
        """Return the carry at the start of an episode, leaves [*shape, ...]; None without one."""
        return None if self.trunk.cell is None else self.trunk.cell.empty(shape)

    def __call__(
        self, obs: chex.ArrayTree, carry: chex.ArrayTree | None = None
    ) -> tuple[jax.Array, chex.ArrayTree | None]:
        """Advance one step, see `Trunk`. Return (values [...] or [..., num_values], next carry)."""
        features, carry = self.trunk(obs, carry)
        return self._values(features), carry

    def unroll(
        self,
        obs: chex.ArrayTree,
        carry: chex.ArrayTree,
        restart: jax.Array,
        start: chex.ArrayTree | None = None,
    ) -> jax.Array:
        """Advance T steps, see `Trunk.unroll`. Return values [T, M] or [T, M, num_values]."""
        return self._values(self.trunk.unroll(obs, carry, restart, start))

    def _values(self, features: jax.Array) -> jax.Array:
        values = self.head(features if self.mlp is None else self.mlp(features))
        return values[..., 0] if self.single else values


FINAL_SCALE = 3e-3
"""bound of head weights: actions and values start near 0 (Lillicrap et al., 2016, section 7)"""


class DeterministicActor(nnx.Module):
    """A trunk, a linear layer and tanh: obs, leaves [..., *part] -> action [..., num_actions]."""

    def __init__(
        self, observation_space: Space, num_actions: int, config: NetworkConfig, *, rngs: nnx.Rngs
    ):
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.head = nnx.Linear(
            self.trunk.num_features,
            num_actions,
            kernel_init=small_uniform,
            dot_general=product,
            rngs=rngs,
        )

    def __call__(self, obs: chex.ArrayTree) -> jax.Array:
        return jnp.tanh(self.head(self.trunk(obs)[0]))


LOG_STD = (-5.0, 2.0)
"""bounds of the log standard deviations of a `GaussianActor`"""


class GaussianActor(nnx.Module):
    """A trunk and a linear layer: obs, leaves [..., *part] -> a normal distribution, [..., 2 A].

    The outputs are A means and A log standard deviations, for `SquashedGaussian`. Tanh scales the
    latter to the bounds `LOG_STD`.
    """

    def __init__(
        self, observation_space: Space, num_actions: int, config: NetworkConfig, *, rngs: nnx.Rngs
    ):
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.head = nnx.Linear(
            self.trunk.num_features,
            2 * num_actions,
            kernel_init=small_uniform,
            dot_general=product,
            rngs=rngs,
        )

    def __call__(self, obs: chex.ArrayTree) -> jax.Array:
        mean, free = jnp.split(self.head(self.trunk(obs)[0]), 2, axis=-1)
        low, high = LOG_STD
        log_std = low + (high - low) / 2 * (jnp.tanh(free) + 1.0)
        return jnp.concatenate([mean, log_std], axis=-1)


class ActorActionValue(nnx.Module):
    """A deterministic actor and one or two critics, without shared layers."""

    make_actor: ClassVar[Any] = DeterministicActor

    def __init__(
        self,
        observation_space: Space,
        num_actions: int,
        config: NetworkConfig,
        twin: bool,
        num_values: int | None = None,
        *,
        rngs: nnx.Rngs,
    ):
        def critic() -> ValueNetwork:
            return ValueNetwork(
                observation_space,
                config,
                num_actions=num_actions,
                num_values=num_values,
                kernel_init=small_uniform,
                rngs=rngs,
            )

        self.actor = self.make_actor(observation_space, num_actions, config, rngs=rngs)
        self.critic = critic()
        self.critic2 = critic() if twin else None

    def values(self, obs: chex.ArrayTree, action: jax.Array) -> jax.Array:
        """Return the outputs of every critic, [critics, ...] or [critics, ..., num_values]."""
        critics = [self.critic] if self.critic2 is None else [self.critic, self.critic2]
        return jnp.stack([critic(obs, action) for critic in critics])


class SoftActorActionValue(ActorActionValue):
    """A Gaussian actor, two critics and the logarithm of a temperature, which starts at 0."""

    make_actor = GaussianActor

    def __init__(
        self,
        observation_space: Space,
        num_actions: int,
        config: NetworkConfig,
        num_values: int | None = None,
        *,
        rngs: nnx.Rngs,
    ):
        super().__init__(observation_space, num_actions, config, True, num_values, rngs=rngs)
        self.log_temperature = nnx.Param(jnp.float32(0.0))


def small_uniform(
    key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32, **_: object
) -> jax.Array:
    """Draw weights uniformly in [-FINAL_SCALE, FINAL_SCALE)."""
    return jax.random.uniform(key, shape, dtype, -FINAL_SCALE, FINAL_SCALE)


def to_box(space: Box, unit: jax.Array) -> jax.Array:
    """Return actions [..., *space.shape] for [..., A] in [-1, 1]: center + half-width * unit."""
    center, half = _center_and_half(space, unit.ndim - 1)
    return (center + half * unit).reshape(*unit.shape[:-1], *space.shape)


def from_box(space: Box, action: jax.Array) -> jax.Array:
    """Return [..., A] in [-1, 1] for actions [..., *space.shape], the inverse of `to_box`."""
    flat = action.reshape(*action.shape[: action.ndim - len(space.shape)], math.prod(space.shape))
    center, half = _center_and_half(space, flat.ndim - 1)
    return (flat - center) / half


def _center_and_half(space: Box, leading: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = (
        bound.astype(np.float32).reshape((1,) * leading + (-1,)) for bound in flat_bounds(space)
    )
    return (low + high) / 2, (high - low) / 2


def require_box(field: str, space: Space) -> None:
    """Raise TypeError or ValueError unless a space is a Box of floats with finite bounds."""
    if not (isinstance(space, Box) and jnp.issubdtype(space.dtype, jnp.floating)):
        raise TypeError(
            f"{field}: requires a Box of floats as action space, not {space}. Use A2C or PPO."
        )
    if not is_bounded(space):
        raise ValueError(
            f"{field}: requires an action space with finite bounds, low < high, not {space}"
        )
