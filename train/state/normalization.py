"""Running means and deviations of observations and returns: part of the training state, changed only by an update."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.spaces import Box, Dict, Space
from wdjax.train.devices.moments import moments, of_devices
from wdjax.train.networks.actor_critic import without_mask

CLIP = 10.0  # deviations; as in Stable-Baselines3's VecNormalize
EPSILON = 1e-8


@struct.dataclass
class RunningStatistics:
    """Count, mean and variance of everything seen so far, of one number or of an array of them."""

    count: jax.Array  # () float32
    mean: jax.Array  # [...] float32
    variance: jax.Array  # [...] float32, of the population; 1 before anything was seen


@struct.dataclass
class Normalizer:
    """What a policy knows of its inputs' scale; None where it does not normalise them."""

    obs: Any  # a RunningStatistics for each Box of the observation, None for other parts
    reward: RunningStatistics | None  # of the discounted return


def new_statistics(shape: tuple[int, ...] = ()) -> RunningStatistics:
    """Return statistics without any values: mean 0 and variance 1, both of the given shape."""
    return RunningStatistics(
        jnp.float32(0), jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32)
    )


def observation_statistics(space: Space) -> Any:
    """Returns new statistics for every Box in one agent's observation space, None for other parts: one-hot anyway."""
    if isinstance(space, Dict):
        return {name: observation_statistics(part) for name, part in space.spaces.items()}
    return new_statistics(space.shape) if isinstance(space, Box) else None


def new_normalizer(observations: bool, rewards: bool, space: Space) -> Normalizer | None:
    """Returns what a new policy knows of the scale of what it sees, one agent's observation, and of its rewards."""
    if not (observations or rewards):
        return None
    obs = observation_statistics(without_mask(space)) if observations else None
    return Normalizer(obs, new_statistics() if rewards else None)


def normalize_observation(statistics: Any, obs: Any) -> Any:
    """Returns (obs - mean) / deviation, clipped at 10, for every part that has statistics; leaves [..., *part]."""
    if isinstance(statistics, dict):
        return {
            name: normalize_observation(statistics.get(name), part) for name, part in obs.items()
        }
    if statistics is None:
        return obs
    scale = jax.lax.rsqrt(statistics.variance + EPSILON)
    leading = (1,) * (obs.ndim - scale.ndim)  # rank promotion is not implicit here
    shift, scale = (leaf.reshape(leading + leaf.shape) for leaf in (statistics.mean, scale))
    return jnp.clip((obs - shift) * scale, -CLIP, CLIP)


def normalize_reward(statistics: RunningStatistics, reward: jax.Array) -> jax.Array:
    """Returns reward / deviation of the discounted return, clipped at 10; the mean is not taken away.

    After rollouts without any reward the deviation is EPSILON's, and the first reward becomes 10 in size.
    """
    return jnp.clip(reward * reward_factor(statistics), -CLIP, CLIP)


def reward_factor(statistics: RunningStatistics) -> jax.Array:
    """Returns 1 / deviation, what `normalize_reward` multiplies by."""
    return jax.lax.rsqrt(statistics.variance + EPSILON)


def update_observation_statistics(statistics: Any, obs: Any, live: jax.Array) -> Any:
    """Returns statistics that have seen the live rows of obs too; leaves [*rows, *part], live [*rows] bool."""
    if isinstance(statistics, dict):
        return {
            name: update_observation_statistics(part, obs[name], live)
            for name, part in statistics.items()
        }
    return None if statistics is None else update_statistics(statistics, obs, live)


def update_statistics(
    statistics: RunningStatistics, values: jax.Array, live: jax.Array
) -> RunningStatistics:
    """Merges a batch into running statistics,

        delta = mean_b - mean,  mean' = mean + delta n_b / n',
        variance' = (variance n + variance_b n_b + delta^2 n n_b / n') / n',  n' = n + n_b.

    Args:
        statistics: of values of shape [...].
        values: [*rows, ...] float32.
        live: [*rows] bool, which rows count; where none does, nothing changes.

    Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
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
    share = old / known  # divided first, where a product with the count leaves float32
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
    """Returns (running sums R_t = gamma R_{t-1} + r_t, the one to go on from): R starts at 0 in every episode.

    Args:
        start: [N, n], gamma times the sum before the first row, or 0.
        reward: [T, N, n].
        over: [T, N] bool.
        gamma: (), or [T, N, n] that from each row to the next.
    """

    def step(
        before: jax.Array, row: tuple[jax.Array, jax.Array, jax.Array | None]
    ) -> tuple[jax.Array, jax.Array]:
        reward_t, over_t, gamma_t = row
        total = before + reward_t
        return jnp.where(
            over_t[:, None], 0.0, (gamma if gamma_t is None else gamma_t) * total
        ), total

    last, totals = jax.lax.scan(step, start, (reward, over, gamma if gamma.ndim else None))
    return totals, last
