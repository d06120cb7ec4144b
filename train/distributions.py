"""Distributions over actions, as pure functions of what the network puts out (`outputs`, [..., num_outputs])."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from wdjax.spaces import Box, Discrete, MultiDiscrete, Space


@dataclasses.dataclass(frozen=True)
class Categorical:
    """Independent categorical components; `outputs` holds the logits of all of them in a row.

    log pi(a) = sum_i log softmax(logits_i)[a_i];  H = sum_i H_i.
    """

    sizes: tuple[int, ...]  # of each component
    scalar: bool  # whether an action is one number (Discrete) and not a row of them (MultiDiscrete)

    num_free: ClassVar[int] = 0  # outputs that do not depend on the observation

    @property
    def num_outputs(self) -> int:
        return sum(self.sizes)

    def sample(self, key: jax.Array, outputs: jax.Array) -> jax.Array:
        """Draws actions: [...] int32, or [..., components]."""
        keys = jax.random.split(key, len(self.sizes))
        heads = self._heads(outputs)
        return self._pack([jax.random.categorical(keys[i], logits) for i, logits in enumerate(heads)])

    def mode(self, outputs: jax.Array) -> jax.Array:
        """Returns the most likely action (the lowest index of several)."""
        return self._pack([jnp.argmax(logits, axis=-1) for logits in self._heads(outputs)])

    def log_prob(self, outputs: jax.Array, action: jax.Array) -> jax.Array:
        """Returns log pi(action), [...] float32."""
        parts = action[..., None] if self.scalar else action
        total = jnp.zeros(outputs.shape[:-1])
        for i, logits in enumerate(self._heads(outputs)):
            # a one-hot sum and not a gather: it fuses with the softmax
            chosen = jax.nn.one_hot(parts[..., i], self.sizes[i], dtype=logits.dtype)
            total += jnp.sum(jax.nn.log_softmax(logits) * chosen, axis=-1)
        return total

    def entropy(self, outputs: jax.Array) -> jax.Array:
        """Returns the entropy in nats, [...] float32."""
        logs = [jax.nn.log_softmax(logits) for logits in self._heads(outputs)]
        return -sum(jnp.sum(jnp.exp(log) * log, axis=-1) for log in logs)

    def mask(self, outputs: jax.Array, allowed: jax.Array) -> jax.Array:
        """Returns outputs that give probability 0 to what is not allowed ([..., num_outputs], 1 allowed)."""
        return jnp.where(allowed > 0, outputs, -1e9)

    def _heads(self, outputs: jax.Array) -> list[jax.Array]:
        ends = [sum(self.sizes[: i + 1]) for i in range(len(self.sizes) - 1)]
        return jnp.split(outputs, ends, axis=-1)

    def _pack(self, parts: list[jax.Array]) -> jax.Array:
        return (parts[0] if self.scalar else jnp.stack(parts, axis=-1)).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """A diagonal normal distribution; `outputs` holds the means, then the log standard deviations.

    log pi(a) = -1/2 sum_i ((a_i - mu_i) / sigma_i)^2 + 2 log sigma_i + log 2 pi. The deviations are free parameters of
    the policy. Actions are not clipped here: the rollout hands the environment the nearest one inside its box.
    """

    size: int  # numbers of an action
    shape: tuple[int, ...]  # of an action

    @property
    def num_outputs(self) -> int:
        return self.size

    @property
    def num_free(self) -> int:
        return self.size

    def sample(self, key: jax.Array, outputs: jax.Array) -> jax.Array:
        """Draws actions, [..., *shape] float32."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return self._shaped(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape))

    def mode(self, outputs: jax.Array) -> jax.Array:
        """Returns the mean."""
        return self._shaped(jnp.split(outputs, 2, axis=-1)[0])

    def log_prob(self, outputs: jax.Array, action: jax.Array) -> jax.Array:
        """Returns the log density of an action, [...] float32."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        z = (action.reshape(mean.shape) - mean) * jnp.exp(-log_std)
        return -0.5 * jnp.sum(z**2 + 2 * log_std + math.log(2 * math.pi), axis=-1)

    def entropy(self, outputs: jax.Array) -> jax.Array:
        """Returns the differential entropy in nats, [...] float32."""
        log_std = jnp.split(outputs, 2, axis=-1)[1]
        return jnp.sum(log_std + 0.5 * (1 + math.log(2 * math.pi)), axis=-1)

    def _shaped(self, flat: jax.Array) -> jax.Array:
        return flat.reshape((*flat.shape[:-1], *self.shape))


Distribution = Categorical | Gaussian


def make_distribution(space: Space) -> Distribution:
    """Returns the distribution for actions of one agent's space; raises TypeError for a space without one."""
    match space:
        case Discrete():
            return Categorical((space.n,), scalar=True)
        case MultiDiscrete():
            return Categorical(space.nvec, scalar=False)
        case Box():
            return Gaussian(math.prod(space.shape), space.shape)
    raise TypeError(f"action space {space}: a policy acts in a Discrete, MultiDiscrete or Box space")
