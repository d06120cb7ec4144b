"""Running means and deviations of observations and returns; they change only in updates."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.spaces import Box, Dict, Space
from wdjax.train.devices.moments import moments, of_devices
from wdjax.train.networks.actor_critic import without_mask
from wdjax.train.state.aliases import Observation

CLIP = 10.0  # standard deviations, as in Stable-Baselines3's VecNormalize
EPSILON = 1e-8


class RunningStatistics(struct.PyTreeNode):
    """Count, mean and variance of all past values, of a scalar or elementwise of an array."""

    count: jax.Array  # () float32
    mean: jax.Array  # [...] float32
    variance: jax.Array  # [...] float32, of the population; 1 without values


ObservationStatistics: TypeAlias = dict[str, "ObservationStatistics"] | RunningStatistics | None
"""statistics for each Box of an observation, None for other parts"""


class Normalizer(struct.PyTreeNode):
    """Running statistics of a policy's observations and rewards."""

    obs: ObservationStatistics  # None without `normalize_observation`
    reward: RunningStatistics | None  # of discounted returns; None without `normalize_reward`


def new_statistics(shape: tuple[int, ...] = ()) -> RunningStatistics:
    """Return statistics without any values: mean 0 and variance 1, both of the given shape."""
    return RunningStatistics(
        jnp.float32(0), jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32)
    )


def observation_statistics(space: Space) -> ObservationStatistics:
    """Return new statistics for every Box of an observation space, None for one-hot parts."""
    if isinstance(space, Dict):
        return {name: observation_statistics(part) for name, part in space.spaces.items()}
    return new_statistics(space.shape) if isinstance(space, Box) else None


def new_normalizer(observations: bool, rewards: bool, space: Space) -> Normalizer | None:
    """Return the normalizer of a new policy; None if it normalizes nothing.

    Args:
        observations: normalize observations.
        rewards: normalize rewards.
        space: observation space of one agent.
    """
    if not (observations or rewards):
        return None
    return Normalizer(
        obs=observation_statistics(without_mask(space)) if observations else None,
        reward=new_statistics() if rewards else None,
    )


def normalize_observation(statistics: ObservationStatistics, obs: Observation) -> Observation:
    """Return (obs - mean) / deviation, clipped at 10, for every part with statistics.

    Args:
        statistics: by part of the observation.
        obs: leaves [..., *part].
    """
    if isinstance(statistics, dict):
        return {
            name: normalize_observation(statistics.get(name), part) for name, part in obs.items()
        }
    if statistics is None:
        return obs
    scale = jax.lax.rsqrt(statistics.variance + EPSILON)
    leading = (1,) * (obs.ndim - scale.ndim)
    shift, scale = (leaf.reshape(leading + leaf.shape) for leaf in (statistics.mean, scale))
    return jnp.clip((obs - shift) * scale, -CLIP, CLIP)


def normalize_reward(statistics: RunningStatistics, reward: jax.Array) -> jax.Array:
    """Return reward / deviation of the discounted return, clipped at 10. The mean stays.

    After rollouts without any reward, the deviation is sqrt(EPSILON), and the first reward becomes
    10 in magnitude.
    """
    return jnp.clip(reward * reward_factor(statistics), -CLIP, CLIP)


def reward_factor(statistics: RunningStatistics) -> jax.Array:
    """Return 1 / deviation, the factor of `normalize_reward`."""
    return jax.lax.rsqrt(statistics.variance + EPSILON)


def update_observation_statistics(
    statistics: ObservationStatistics, obs: Observation, live: jax.Array
) -> ObservationStatistics:
    """Return statistics that include observations.

    Args:
        statistics: by part of the observation.
        obs: leaves [*rows, *part].
        live: [*rows] bool, rows that count.
    """
    if isinstance(statistics, dict):
        return {
            name: update_observation_statistics(part, obs[name], live)
            for name, part in statistics.items()
        }
    return None if statistics is None else update_statistics(statistics, obs, live)


def update_statistics(
    statistics: RunningStatistics, values: jax.Array, live: jax.Array
) -> RunningStatistics:
    """Merge a batch into running statistics.

        delta = mean_b - mean,  mean' = mean + delta n_b / n',
        variance' = (variance n + variance_b n_b + delta^2 n n_b / n') / n',  n' = n + n_b.

    Args:
        statistics: of values of shape [...].
        values: [*rows, ...] float32.
        live: [*rows] bool, rows that count. Without any, nothing changes.

    Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances" (1979).
    """
    rows = tuple(range(live.ndim))
    batch = of_devices(
        moments(values, live.reshape(live.shape + (1,) * (values.ndim - live.ndim)), rows)
    )
    new, mean, variance = (
        jnp.squeeze(batch.count),
        jnp.squeeze(batch.mean, rows),
        jnp.squeeze(batch.variance, rows),
    )
    old, count = statistics.count, statistics.count + new
    known = jnp.maximum(count, 1.0)
    delta = mean - statistics.mean
    merged = (statistics.variance * old + variance * new + delta**2 * (old * new / known)) / known
    share = old / known  # division before multiplication, if a product overflows float32
    divided = (
        statistics.variance * share
        + variance * (new / known)
        + (delta * share) * (delta * (new / known))
    )
    merged = jnp.where(jnp.isfinite(merged), merged, divided)
    return RunningStatistics(
        count=count,
        mean=statistics.mean + delta * (new / known),
        variance=jnp.where(count > 0, merged, statistics.variance),
    )


def discounted_returns(
    start: jax.Array, reward: jax.Array, over: jax.Array, gamma: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return running sums R_t = gamma R_{t-1} + r_t of rewards, which start at 0 in every episode.

    Args:
        start: [N, n], gamma times the sum before the first step, or 0.
        reward: [T, N, n].
        over: [T, N] or [T, N, n] bool, whether the sum is 0 after this step.
        gamma: (), or [T, N, n], the discount from each step to the next.

    Returns:
        (R [T, N, n], `start` for the next rollout [N, n]).
    """

    def step(
        before: jax.Array, row: tuple[jax.Array, jax.Array, jax.Array | None]
    ) -> tuple[jax.Array, jax.Array]:
        reward_t, over_t, gamma_t = row
        total = before + reward_t
        over_t = over_t[:, None] if over_t.ndim == 1 else over_t
        return jnp.where(over_t, 0.0, (gamma if gamma_t is None else gamma_t) * total), total

    last, totals = jax.lax.scan(step, start, (reward, over, gamma if gamma.ndim else None))
    return totals, last
