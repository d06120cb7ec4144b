"""Action distributions, as pure functions of network outputs [..., num_outputs].

Transitions store actions as sampled, so that their log-probabilities are exact. The environment
receives `to_space` of them, which differs only for squashed distributions.
"""

import dataclasses
import functools
import itertools
import math
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.overrides import overridden
from wdjax.spaces import Box, Discrete, MultiDiscrete, Space
from wdjax.train.devices.blocks import draw_blocks


class Distribution(Protocol):
    """A distribution of actions: pure functions of the outputs of a network.

    `outputs` are [..., num_outputs + num_free]: outputs of the network, then free parameters of the
    policy that do not depend on the observation. An implementation is a frozen dataclass, because
    it is part of the static structure of a policy. See "Another distribution" in
    docs/how_to/own_algorithm.md.
    """

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the network."""

    @property
    def num_free(self) -> int:
        """Number of outputs that are free parameters, initially 0."""

    def sample(self, key: jax.Array, outputs: jax.Array) -> jax.Array:
        """Return sampled actions, [..., *shape], drawn with one key."""

    def log_prob(self, outputs: jax.Array, action: jax.Array) -> jax.Array:
        """Return the log probability or density of sampled actions, [...] float32."""

    def entropy(self, outputs: jax.Array) -> jax.Array:
        """Return the entropy in nats, [...] float32."""

    def kl(self, outputs: jax.Array, other_outputs: jax.Array) -> jax.Array:
        """Return the KL divergence of `outputs` from `other_outputs` in nats, [...] float32.

        It is E[log p - log q], p of `outputs` and q of `other_outputs`. PPO and A2C do not use it.
        """

    def mode(self, outputs: jax.Array) -> jax.Array:
        """Return the actions of greedy policies, [..., *shape], in the form of `sample`."""

    def to_space(self, action: jax.Array) -> jax.Array:
        """Return sampled actions as the environment receives them, before they are clipped."""

    def describe(self, outputs: jax.Array) -> dict[str, jax.Array]:
        """Return the parameters by name, leaves [..., *], for recorded episodes."""


@dataclasses.dataclass(frozen=True)
class Categorical:
    """Independent categorical components. Outputs are the concatenated logits of all components.

    log pi(a) = sum_i log softmax(logits_i)[a_i];  H = sum_i H_i.
    """

    sizes: tuple[int, ...]  # number of choices of each component
    scalar: bool  # whether an action is a number (Discrete) or a vector (MultiDiscrete)

    num_free: ClassVar[int] = 0  # outputs that do not depend on the observation

    @property
    def num_outputs(self) -> int:
        """Outputs that depend on the observation."""
        return sum(self.sizes)

    def sample(self, key: jax.Array, outputs: jax.Array) -> jax.Array:
        """Sample actions, [...] int32 or [..., components]."""
        return self.choose(
            jax.random.uniform(key, (*outputs.shape[:-1], len(self.sizes)), jnp.float32), outputs
        )

    def choose(self, uniform: jax.Array, outputs: jax.Array) -> jax.Array:
        """Return actions by inverse transform sampling, the first a with sum_{b <= a} p_b > u.

        The Gumbel trick would require a random number for each choice.

        Args:
            uniform: u, [..., components] in [0, 1), one number for each component.
            outputs: [..., num_outputs].
        """
        logits = self._logits(outputs)
        weight = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
        cumulated = cumulate(weight)
        # relative to the largest sum: because of rounding, the last one may be slightly smaller
        below = cumulated <= uniform[..., None] * jnp.max(cumulated, axis=-1, keepdims=True)
        return self._pack(jnp.sum(below, axis=-1, dtype=jnp.int32))

    def mode(self, outputs: jax.Array) -> jax.Array:
        """Return the most likely action, the first of several."""
        return self._pack(jnp.argmax(self._logits(outputs), axis=-1))

    def log_prob(self, outputs: jax.Array, action: jax.Array) -> jax.Array:
        """Return log pi(action), [...] float32."""
        logits = self._logits(outputs)
        parts = action[..., None] if self.scalar else action
        # a sum over one-hot vectors fuses with the softmax, a gather does not
        chosen = jax.nn.one_hot(parts, logits.shape[-1], dtype=logits.dtype)
        return jnp.sum(jax.nn.log_softmax(logits) * chosen, axis=(-2, -1))

    def entropy(self, outputs: jax.Array) -> jax.Array:
        """Return the entropy in nats, [...] float32."""
        log = jax.nn.log_softmax(self._logits(outputs))
        return -jnp.sum(jnp.exp(log) * log, axis=(-2, -1))

    def kl(self, outputs: jax.Array, other_outputs: jax.Array) -> jax.Array:
        """Return the KL divergence of `outputs` from `other_outputs` in nats, [...] float32.

        It is the sum over components.
        """
        log, other = (jax.nn.log_softmax(self._logits(one)) for one in (outputs, other_outputs))
        return jnp.sum(jnp.exp(log) * (log - other), axis=(-2, -1))

    def describe(self, outputs: jax.Array) -> dict[str, jax.Array]:
        """Return {"probs": [..., num_outputs]}, the probability of each choice."""
        log = jax.nn.log_softmax(self._logits(outputs))
        return {
            "probs": jnp.concatenate(
                [jnp.exp(log[..., i, :size]) for i, size in enumerate(self.sizes)], axis=-1
            )
        }

    def to_space(self, action: jax.Array) -> jax.Array:
        """Return the action for the environment, here unchanged."""
        return action

    def mask(self, outputs: jax.Array, allowed: jax.Array) -> jax.Array:
        """Return outputs with probability 0 where `allowed` ([..., num_outputs]) is not 1."""
        return jnp.where(allowed > 0, outputs, -1e9)

    def has_choice(self, allowed: jax.Array) -> jax.Array:
        """Return whether any component has more than one allowed choice, [...] bool.

        Args:
            allowed: mask [..., num_outputs].
        """
        parts = jnp.split(allowed > 0, np.cumsum(self.sizes)[:-1], axis=-1)
        return jnp.any(jnp.stack([jnp.sum(part, axis=-1) > 1 for part in parts]), axis=0)

    def _logits(self, outputs: jax.Array) -> jax.Array:
        """Return logits [..., components, largest size], padded to one array for fewer GPU kernels.

        The padding is lower than masked logits: its probability is 0 even if the mask
        allows no choice.
        """
        widest = max(self.sizes)
        if min(self.sizes) == widest:
            return outputs.reshape(*outputs.shape[:-1], len(self.sizes), widest)
        # adjacent components of equal size together: a hundred parts take seconds to compile
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
    """Diagonal normal distribution. Outputs are the means, then the log standard deviations.

    log pi(a) = -1/2 sum_i ((a_i - mu_i) / sigma_i)^2 + 2 log sigma_i + log 2 pi. The standard
    deviations are free parameters of the policy. The rollout clips actions to the environment's
    box; they are not clipped here.
    """

    size: int  # numbers in an action
    shape: tuple[int, ...]  # shape of an action

    @property
    def num_outputs(self) -> int:
        """Outputs that depend on the observation: the means."""
        return self.size

    @property
    def num_free(self) -> int:
        """Outputs that do not depend on the observation: the log standard deviations."""
        return self.size

    def sample(self, key: jax.Array, outputs: jax.Array) -> jax.Array:
        """Sample actions, [..., *shape] float32."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return self._shaped(
            mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, jnp.float32)
        )

    def mode(self, outputs: jax.Array) -> jax.Array:
        """Return the mean."""
        return self._shaped(jnp.split(outputs, 2, axis=-1)[0])

    def log_prob(self, outputs: jax.Array, action: jax.Array) -> jax.Array:
        """Return the log density of an action, [...] float32."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        z = (action.reshape(mean.shape) - mean) * jnp.exp(-log_std)
        return -0.5 * jnp.sum(z**2 + 2 * log_std + math.log(2 * math.pi), axis=-1)

    def entropy(self, outputs: jax.Array) -> jax.Array:
        """Return the differential entropy in nats, [...] float32."""
        log_std = jnp.split(outputs, 2, axis=-1)[1]
        return jnp.sum(log_std + 0.5 * (1 + math.log(2 * math.pi)), axis=-1)

    def kl(self, outputs: jax.Array, other_outputs: jax.Array) -> jax.Array:
        """Return the KL divergence of `outputs` from `other_outputs` in nats, [...] float32.

        For a squashed Gaussian it is equal to the divergence of the normal distributions, since
        both are squashed by the same function.
        """
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        other_mean, other_log_std = jnp.split(other_outputs, 2, axis=-1)
        log_ratio = log_std - other_log_std
        z = (mean - other_mean) * jnp.exp(-other_log_std)
        return jnp.sum(0.5 * (jnp.expm1(2 * log_ratio) + z**2) - log_ratio, axis=-1)

    def describe(self, outputs: jax.Array) -> dict[str, jax.Array]:
        """Return {"mean", "std"}, [..., *shape] each, of the normal distribution."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return {"mean": self._shaped(mean), "std": self._shaped(jnp.exp(log_std))}

    def to_space(self, action: jax.Array) -> jax.Array:
        """Return the action for the environment before clipping, here unchanged."""
        return action

    def _shaped(self, flat: jax.Array) -> jax.Array:
        return flat.reshape((*flat.shape[:-1], *self.shape))


@dataclasses.dataclass(frozen=True)
class SquashedGaussian(Gaussian):
    """Normal distribution squashed into a bounded box: a = center + half tanh(u), u normal.

    Outputs are the parameters of u, as for `Gaussian`. Methods take and return u, since a loses
    precision far from the center of the box; only `to_space` returns a.

    log pi(a) = log N(u) - sum_i log(half_i (1 - tanh^2 u_i)). The entropy has no closed form. The
    expectation of log(1 - tanh^2 u) is computed by Gauss-Hermite quadrature, with an error of at
    most 0.01 up to sigma = 3.

    Source: Haarnoja et al., "Soft Actor-Critic" (2018), appendix C.
    """

    low: tuple[float, ...]  # bounds of each number of a flattened action
    high: tuple[float, ...]

    def to_space(self, action: jax.Array) -> jax.Array:
        """Return actions in the box, [..., *shape], for sampled u of this shape."""
        shape = (1,) * (action.ndim - len(self.shape)) + self.shape
        low, high = (np.array(bound, np.float32).reshape(shape) for bound in (self.low, self.high))
        # clipped, because of rounding
        return jnp.clip((low + high) / 2 + (high - low) / 2 * jnp.tanh(action), low, high)

    def log_prob(self, outputs: jax.Array, action: jax.Array) -> jax.Array:
        """Return the log density of `to_space(action)`, [...] float32."""
        flat = action.reshape((*outputs.shape[:-1], self.size))
        return (
            super().log_prob(outputs, action) - jnp.sum(log_slope(flat), axis=-1) - self._log_volume
        )

    def entropy(self, outputs: jax.Array) -> jax.Array:
        """Return the differential entropy in nats, [...] float32."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        points, weights = np.polynomial.hermite_e.hermegauss(32)
        nodes = points.astype(np.float32).reshape((1,) * mean.ndim + (-1,))
        free = mean[..., None] + jnp.exp(log_std)[..., None] * nodes
        weights = (weights / weights.sum()).astype(np.float32).reshape(nodes.shape)
        # accelerators would round the inputs of a matrix product
        expected = jnp.sum(log_slope(free) * weights, axis=-1)
        return super().entropy(outputs) + jnp.sum(expected, axis=-1) + self._log_volume

    @property
    def _log_volume(self) -> float:
        """Sum of the logarithms of the half-widths of the box."""
        return math.fsum(math.log((b - a) / 2) for a, b in zip(self.low, self.high, strict=True))


def log_slope(free: jax.Array) -> jax.Array:
    """Return log(1 - tanh^2 u), without cancellation."""
    return 2.0 * (math.log(2.0) - free - jax.nn.softplus(-2.0 * free))


def cumulate(values: jax.Array) -> jax.Array:
    """Return cumulative sums of nonnegative numbers along the last axis.

    They increase only where a number is above 0. Up to 64 numbers take one fused reduction.
    """
    size = values.shape[-1]
    if size > 64:  # the cumsum of XLA adds in parts: rounding may decrease it, or increase it at 0
        return jax.lax.cummax(
            jnp.where(values == 0.0, 0.0, jnp.cumsum(values, axis=-1)), values.ndim - 1
        )
    before = np.tri(size, dtype=bool)  # [i, j]: j <= i
    return jnp.sum(jnp.where(before, values[..., None, :], 0.0), axis=-1)


def flat_bounds(space: Box) -> tuple[np.ndarray, ...]:
    """Return the bounds (low, high) of the numbers of an action, flattened."""
    return tuple(
        np.broadcast_to(bound, space.shape).reshape(-1) for bound in (space.low, space.high)
    )


def is_bounded(space: Box) -> bool:
    """Return whether all bounds are finite, with low < high."""
    low, high = flat_bounds(space)
    return bool(np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all())


def make_distribution(space: Space, in_a_box: str = "gaussian") -> Distribution:
    """Return the distribution of actions in the space of one agent.

    Args:
        space: Discrete, MultiDiscrete or Box.
        in_a_box: distribution in a Box, "gaussian" or "squashed_gaussian".

    Raises:
        TypeError: for a space without a distribution.
        ValueError: for "squashed_gaussian" in an unbounded Box or in another space.
    """
    if in_a_box != "gaussian" and not isinstance(space, Box):
        raise ValueError(
            f"action_distribution = {in_a_box!r}: must be gaussian (the default), "
            f"as {space} is not a Box"
        )
    match space:
        case Discrete():
            return Categorical((space.n,), scalar=True)
        case MultiDiscrete():
            return Categorical(space.nvec, scalar=False)
        case Box() if in_a_box == "gaussian":
            return Gaussian(math.prod(space.shape), space.shape)
        case Box():
            if not is_bounded(space):
                raise ValueError(
                    "action_distribution = 'squashed_gaussian': requires finite bounds "
                    f"with low < high, not {space}"
                )
            bounds = (tuple(bound.tolist()) for bound in flat_bounds(space))
            return SquashedGaussian(math.prod(space.shape), space.shape, *bounds)
    raise TypeError(f"action space {space}: must be Discrete, MultiDiscrete or Box")


def sample_blocks(distribution: Distribution, keys: jax.Array, outputs: jax.Array) -> jax.Array:
    """Sample actions, each block of replicas with its own key.

    Args:
        distribution: parametrized by `outputs`.
        keys: [B] keys, or the uniform numbers from `draw_uniform`.
        outputs: [N, n, K] network outputs.

    Returns:
        Actions [N, n, ...].
    """
    if isinstance(distribution, Categorical) and keys.dtype == jnp.float32:
        return distribution.choose(keys, outputs)
    blocks = outputs.reshape(keys.shape[0], -1, *outputs.shape[1:])
    actions = jax.vmap(distribution.sample)(keys, blocks)
    return actions.reshape(outputs.shape[0], *actions.shape[2:])


def draws_by_uniform(distribution: Distribution) -> bool:
    """Return whether `choose` returns the actions of `sample` from uniform numbers."""
    return isinstance(distribution, Categorical) and not overridden(
        distribution, Categorical, ["sample"]
    )


def draw_uniform(
    distribution: Categorical, keys: jax.Array, num_envs: int, num_agents: int
) -> jax.Array:
    """Draw the numbers in [0, 1) for `sample_blocks`, [N, n, components], from [B] keys."""
    draw = functools.partial(jax.random.uniform, dtype=jnp.float32)
    return draw_blocks(draw, keys, (num_envs, num_agents, len(distribution.sizes)))
