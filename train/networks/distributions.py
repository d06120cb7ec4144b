"""Distributions over actions, as pure functions of what the network puts out (`outputs`, [..., num_outputs]).

What is drawn is kept with its row as it was drawn, for its density is that of these bits; the environment gets
`to_space` of it, which is the same but for a squashed distribution.
"""

import dataclasses
import itertools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

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
        return self.choose(
            jax.random.uniform(key, (*outputs.shape[:-1], len(self.sizes)), jnp.float32), outputs
        )

    def choose(self, uniform: jax.Array, outputs: jax.Array) -> jax.Array:
        """Returns the actions that numbers in [0, 1) stand for: the first a with sum_{b <= a} p_b > uniform.

        One number for each component, [..., components], where the Gumbel trick takes one for every choice.
        """
        logits = self._logits(outputs)
        weight = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
        cumulated = cumulate(weight)
        # by the largest: rounding may leave the last a little below it, and some choice must be above
        below = cumulated <= uniform[..., None] * jnp.max(cumulated, axis=-1, keepdims=True)
        return self._pack(jnp.sum(below, axis=-1, dtype=jnp.int32))

    def mode(self, outputs: jax.Array) -> jax.Array:
        """Returns the most likely action (the lowest index of several)."""
        return self._pack(jnp.argmax(self._logits(outputs), axis=-1))

    def log_prob(self, outputs: jax.Array, action: jax.Array) -> jax.Array:
        """Returns log pi(action), [...] float32."""
        logits = self._logits(outputs)
        parts = action[..., None] if self.scalar else action
        # a one-hot sum and not a gather: it fuses with the softmax
        chosen = jax.nn.one_hot(parts, logits.shape[-1], dtype=logits.dtype)
        return jnp.sum(jax.nn.log_softmax(logits) * chosen, axis=(-2, -1))

    def entropy(self, outputs: jax.Array) -> jax.Array:
        """Returns the entropy in nats, [...] float32."""
        log = jax.nn.log_softmax(self._logits(outputs))
        return -jnp.sum(jnp.exp(log) * log, axis=(-2, -1))

    def kl(self, outputs: jax.Array, other_outputs: jax.Array) -> jax.Array:
        """Return KL(outputs || other_outputs) in nats, [...] float32: the sum over components."""
        log, other = (jax.nn.log_softmax(self._logits(one)) for one in (outputs, other_outputs))
        return jnp.sum(jnp.exp(log) * (log - other), axis=(-2, -1))

    def describe(self, outputs: jax.Array) -> dict[str, jax.Array]:
        """Returns {"probs": [..., num_outputs]}: of every choice, those of all components in a row."""
        log = jax.nn.log_softmax(self._logits(outputs))
        return {
            "probs": jnp.concatenate(
                [jnp.exp(log[..., i, :size]) for i, size in enumerate(self.sizes)], axis=-1
            )
        }

    def to_space(self, action: jax.Array) -> jax.Array:
        """Returns what the environment gets for what was drawn: the same."""
        return action

    def mask(self, outputs: jax.Array, allowed: jax.Array) -> jax.Array:
        """Returns outputs that give probability 0 where `allowed` ([..., num_outputs]) is not 1."""
        return jnp.where(allowed > 0, outputs, -1e9)

    def has_choice(self, allowed: jax.Array) -> jax.Array:
        """Returns whether a mask ([..., num_outputs]) leaves any component more than one choice, [...] bool."""
        parts = jnp.split(allowed > 0, np.cumsum(self.sizes)[:-1], axis=-1)
        return jnp.any(jnp.stack([jnp.sum(part, axis=-1) > 1 for part in parts]), axis=0)

    def _logits(self, outputs: jax.Array) -> jax.Array:
        """[..., num_outputs] -> [..., components, widest]: one array, hence one kernel where there were many.

        What pads the narrower ones is so low that it has probability 0 even where a mask allows nothing.
        """
        widest = max(self.sizes)
        if min(self.sizes) == widest:
            return outputs.reshape(*outputs.shape[:-1], len(self.sizes), widest)
        # neighbours of one size together: a hundred components alone take seconds to compile
        runs = [(len(list(run)), size) for size, run in itertools.groupby(self.sizes)]
        parts = jnp.split(outputs, np.cumsum([count * size for count, size in runs])[:-1], axis=-1)
        parts = [
            part.reshape(*outputs.shape[:-1], *run) for part, run in zip(parts, runs, strict=True)
        ]
        margins = [(0, 0)] * outputs.ndim
        padded = [
            jnp.pad(part, [*margins, (0, widest - part.shape[-1])], constant_values=-1e30)
            for part in parts
        ]
        return jnp.concatenate(padded, axis=-2)

    def _pack(self, components: jax.Array) -> jax.Array:
        return (components[..., 0] if self.scalar else components).astype(jnp.int32)


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
        return self._shaped(
            mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, jnp.float32)
        )

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

    def kl(self, outputs: jax.Array, other_outputs: jax.Array) -> jax.Array:
        """Return KL(outputs || other_outputs) in nats, [...] float32.

        For a squashed Gaussian it is equal to the divergence of the normal distributions, since
        both are squashed by the same function.
        """
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        other_mean, other_log_std = jnp.split(other_outputs, 2, axis=-1)
        log_ratio = log_std - other_log_std
        z = (mean - other_mean) * jnp.exp(-other_log_std)
        return jnp.sum(0.5 * (jnp.expm1(2 * log_ratio) + z**2) - log_ratio, axis=-1)

    def describe(self, outputs: jax.Array) -> dict[str, jax.Array]:
        """Returns {"mean", "std"}, [..., *shape] each, of the normal distribution (where squashed: before that)."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return {"mean": self._shaped(mean), "std": self._shaped(jnp.exp(log_std))}

    def to_space(self, action: jax.Array) -> jax.Array:
        """Returns what the environment gets for what was drawn, [..., *shape]: the same, not clipped yet."""
        return action

    def _shaped(self, flat: jax.Array) -> jax.Array:
        return flat.reshape((*flat.shape[:-1], *self.shape))


@dataclasses.dataclass(frozen=True)
class SquashedGaussian(Gaussian):
    """A Gaussian squashed into a bounded Box: a = center + half tanh(u), u normal; `outputs` as for Gaussian, of u.

    What is drawn, and what all but `to_space` take and return, is u: a rounds it away where the box is far from 0
    or u far from the middle.

    log pi(a) = log N(u) - sum_i log(half_i (1 - tanh^2 u_i)); the entropy has no closed form, and its expectation of
    log(1 - tanh^2 u) is taken by Gauss-Hermite quadrature (within 0.01 up to sigma = 3). Haarnoja et al., "Soft
    Actor-Critic" (2018), appendix C.
    """

    low: tuple[float, ...]  # of each number of an action, in a row
    high: tuple[float, ...]

    def to_space(self, action: jax.Array) -> jax.Array:
        """Returns actions inside the box for what was drawn, [..., *shape] each."""
        shape = (1,) * (action.ndim - len(self.shape)) + self.shape
        low, high = (np.array(bound, np.float32).reshape(shape) for bound in (self.low, self.high))
        # clipped, for rounding might lead outside
        return jnp.clip((low + high) / 2 + (high - low) / 2 * jnp.tanh(action), low, high)

    def log_prob(self, outputs: jax.Array, action: jax.Array) -> jax.Array:
        """Returns the log density of `to_space` of what was drawn, [...] float32."""
        flat = action.reshape((*outputs.shape[:-1], self.size))
        return (
            super().log_prob(outputs, action) - jnp.sum(log_slope(flat), axis=-1) - self._log_volume
        )

    def entropy(self, outputs: jax.Array) -> jax.Array:
        """Returns the differential entropy in nats, [...] float32."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        nodes, weights = np.polynomial.hermite_e.hermegauss(32)
        nodes = nodes.astype(np.float32).reshape((1,) * mean.ndim + (-1,))
        free = mean[..., None] + jnp.exp(log_std)[..., None] * nodes
        weights = (weights / weights.sum()).astype(np.float32).reshape(nodes.shape)
        expected = jnp.sum(
            log_slope(free) * weights, axis=-1
        )  # no matrix product: accelerators would round its inputs
        return super().entropy(outputs) + jnp.sum(expected, axis=-1) + self._log_volume

    @property
    def _log_volume(self) -> float:
        """Of half the box in each of its numbers."""
        return math.fsum(math.log((b - a) / 2) for a, b in zip(self.low, self.high, strict=True))


def log_slope(free: jax.Array) -> jax.Array:
    """Returns log(1 - tanh^2 u), without cancellation."""
    return 2.0 * (math.log(2.0) - free - jax.nn.softplus(-2.0 * free))


def cumulate(values: jax.Array) -> jax.Array:
    """Returns running sums of numbers that are not negative along the last axis, which rise only where a number is
    not 0; of few numbers in one fused reduction."""
    size = values.shape[-1]
    if (
        size > 64
    ):  # XLA adds up in parts, so that rounding lets sums fall, or rise where nothing is added
        return jax.lax.cummax(
            jnp.where(values == 0.0, 0.0, jnp.cumsum(values, axis=-1)), values.ndim - 1
        )
    before = np.tri(size, dtype=bool)  # [i, j]: j <= i
    return jnp.sum(jnp.where(before, values[..., None, :], 0.0), axis=-1)


Distribution = Categorical | Gaussian | SquashedGaussian


def make_distribution(space: Space, in_a_box: str = "gaussian") -> Distribution:
    """Returns the distribution for actions of one agent's space.

    Args:
        space: Discrete, MultiDiscrete or Box.
        in_a_box: "gaussian" or "squashed_gaussian", for a Box.

    Raises:
        TypeError: for a space without a distribution.
        ValueError: for a squashed one in a Box that is not bounded, or in another space.
    """
    if in_a_box != "gaussian" and not isinstance(space, Box):
        raise ValueError(
            f"action_distribution = {in_a_box!r}: must be gaussian (the default), as {space} is not a Box"
        )
    match space:
        case Discrete():
            return Categorical((space.n,), scalar=True)
        case MultiDiscrete():
            return Categorical(space.nvec, scalar=False)
        case Box() if in_a_box == "gaussian":
            return Gaussian(math.prod(space.shape), space.shape)
        case Box():
            low, high = (
                np.broadcast_to(bound, space.shape).reshape(-1) for bound in (space.low, space.high)
            )
            if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
                raise ValueError(
                    f"action_distribution = 'squashed_gaussian': requires finite bounds with low < high, not {space}"
                )
            return SquashedGaussian(
                math.prod(space.shape), space.shape, tuple(low.tolist()), tuple(high.tolist())
            )
    raise TypeError(f"action space {space}: must be Discrete, MultiDiscrete or Box")
