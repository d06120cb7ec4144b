"""Transforms of a rollout before advantages are computed, in the order in which `apply_transforms` uses them:

decision_steps      learn only where the action mask leaves a choice, and discount per decision
scale_reward        divide rewards by the running standard deviation of the discounted return
select_replicas     learn from replicas with a termination, and from a few others
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from wdjax.train.algorithms.returns import Experience
from wdjax.train.devices.blocks import block_keys, draw_blocks
from wdjax.train.devices.collectives import all_rows, own_rows, total
from wdjax.train.devices.moments import masked_mean
from wdjax.train.state import Policy
from wdjax.train.state.normalization import (
    RunningStatistics,
    discounted_returns,
    normalize_reward,
    update_statistics,
)

Metrics = dict[str, jax.Array]


class RewardScale(NamedTuple):
    """The state of `scale_reward`: what it has learned, equal on all devices, and what it keeps for each replica."""

    statistics: RunningStatistics  # of the discounted return
    discounted_return: jax.Array  # [N, n], gamma times the running sum of each agent


def decision_steps(policy: Policy, data: Experience) -> tuple[Experience, jax.Array]:
    """Turn steps into decisions: a gamma and a lambda for each transition, with which `gae` discounts per decision.

    Rewards up to the next decision belong to the last one, undiscounted. With d_t = "the observation after transition t
    leaves a choice" and goes_on_t = 1 - terminated_t,

        A_t = r_t + gamma_t goes_on_t V_{t+1} - V_t + gamma_t lambda_t goes_on_t A_{t+1},
        (gamma_t, lambda_t) = (gamma, lambda) if d_t else (1, 1), where V_{t+1} cancels.

    The value is not learned where nothing is decided; there it is set to 0. After the last step of a rollout, and at a
    truncation, V is discounted only if that observation leaves a choice. Otherwise it is added as it is, a guess
    (metric undecided_ends). If every transition decides, this is plain `gae`.

    Returns:
        (data, undecided_ends): the share () of the ends of the rollout and the truncations at which nothing is decided.

    Source: Sutton, Precup, Singh, "Between MDPs and Semi-MDPs" (1999), section 3.2, with undiscounted rewards between
    decisions.
    """
    rows = data.rows
    after = jnp.concatenate([rows.decides[1:], policy.decides(data.last_obs)[None]])
    decides_next = (
        after if rows.final_decides is None else jnp.where(data.ends, rows.final_decides, after)
    )
    cut = jnp.broadcast_to(data.ends, rows.live.shape).at[-1].set(True)
    undecided_ends = masked_mean(1.0 - decides_next, rows.live & ~rows.terminated & cut)
    gamma, gae_lambda = (
        jnp.where(decides_next, number, 1.0) for number in (data.gamma, data.gae_lambda)
    )
    rows = rows.replace(value=jnp.where(rows.decides, rows.value, 0.0))
    return data.replace(rows=rows, gamma=gamma, gae_lambda=gae_lambda), undecided_ends


def scale_reward(scale: RewardScale, data: Experience) -> tuple[Experience, RewardScale]:
    """Divide rewards by the deviation of the discounted return before this rollout, and clip them to [-10, 10]."""
    totals, last = discounted_returns(scale.discounted_return, data.reward, data.over, data.gamma)
    statistics = update_statistics(scale.statistics, totals, data.rows.learned)
    return data.replace(reward=normalize_reward(scale.statistics, data.reward)), RewardScale(
        statistics, last
    )


def select_replicas(
    data: Experience, ratio: float, key: jax.Array, num_blocks: int
) -> tuple[Experience, Metrics]:
    """Learn from replicas in which an agent terminated (positive), and from `ratio` times as many others.

    WarpDrive's option `neg_pos_env_ratio` for sparse goals.
    """
    rows = data.rows
    positive, usable = (
        jnp.any(flags, axis=(0, 2)) for flags in (rows.terminated & rows.live, data.valid)
    )
    if rows.decides is not None:  # nothing is learned of a termination without a decision
        positive &= usable
    chosen = choose_replicas(key, positive, usable, ratio, num_blocks)
    counts = {
        "positive_envs": total(jnp.sum(positive)),
        "negative_envs": total(jnp.sum(chosen & ~positive)),
    }
    return data.replace(valid=data.valid & chosen[None, :, None]), counts


def choose_replicas(
    key: jax.Array, positive: jax.Array, usable: jax.Array, ratio: float, num_blocks: int
) -> jax.Array:
    """Return [N] bool: positive replicas and floor(ratio x their number) random others, without replacement.

    All usable replicas if none is positive or too few are not.
    """
    draw = functools.partial(jax.random.uniform, dtype=jnp.float32)
    score = draw_blocks(draw, block_keys(key, num_blocks), positive.shape)
    positive, usable, score = all_rows(
        (positive, usable, score)
    )  # the choice is one of the replicas of all devices
    rank = jnp.argsort(
        jnp.argsort(jnp.where(positive | ~usable, 2.0, score))
    )  # of negative replicas: 0, 1, 2, ...
    wanted = jnp.floor(ratio * jnp.sum(positive)).astype(jnp.int32)
    return own_rows(usable & (positive | (rank < wanted) | ~jnp.any(positive)))
