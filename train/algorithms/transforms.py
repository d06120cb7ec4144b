"""Transforms of a rollout before advantages are computed, in the order of `apply_transforms`.

decision_steps      learn only where the action mask leaves a choice, and discount per decision
scale_reward        divide rewards by the running standard deviation of the discounted return
select_replicas     learn from replicas with a termination, and from a few others
"""

import functools
from typing import NamedTuple, cast

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


class RewardScale(NamedTuple):
    """State of `scale_reward`."""

    statistics: RunningStatistics  # statistics of discounted returns, equal on all devices
    discounted_return: jax.Array  # [N, n], gamma times the running sum of each agent


def decision_steps(policy: Policy, data: Experience) -> tuple[Experience, jax.Array]:
    """Set gamma and lambda of each transition, so that `gae` discounts per decision.

    A decision is a step whose action mask allows a choice. Undiscounted rewards until the next
    decision belong to the last one. With d_t = "the observation after transition t is a decision"
    and goes_on_t = 1 - terminated_t,

        A_t = r_t + gamma_t goes_on_t V_{t+1} - V_t + gamma_t lambda_t goes_on_t A_{t+1},
        (gamma_t, lambda_t) = (gamma, lambda) if d_t else (1, 1), where V_{t+1} cancels.

    Values are learned at decisions only and set to 0 elsewhere. V after the last step of a rollout
    and at a truncation is discounted if that observation is a decision. Otherwise it is added
    undiscounted, although no loss has trained it (metric undecided_ends). If every step is a
    decision, `gae` is unchanged.

    Args:
        policy: static part of the policy.
        data: its transitions, with `rows.decides`.

    Returns:
        (data, undecided_ends): undecided_ends () is the fraction of rollout ends and truncations
        that are not decisions.

    Source: Sutton, Precup, Singh, "Between MDPs and Semi-MDPs" (1999), section 3.2, with
    undiscounted rewards between decisions.
    """
    rows, decides = data.rows, cast(jax.Array, data.rows.decides)
    after = jnp.concatenate([decides[1:], policy.decides(data.last_obs)[None]])
    decides_next = (
        after if rows.final_decides is None else jnp.where(data.ends, rows.final_decides, after)
    )
    cut = jnp.broadcast_to(data.ends, rows.live.shape).at[-1].set(True)
    undecided_ends = masked_mean(1.0 - decides_next, rows.live & ~rows.terminated & cut)
    gamma, gae_lambda = (
        jnp.where(decides_next, number, 1.0) for number in (data.gamma, data.gae_lambda)
    )
    rows = rows.replace(value=jnp.where(decides, data.value, 0.0))
    return data.replace(rows=rows, gamma=gamma, gae_lambda=gae_lambda), undecided_ends


def scale_reward(scale: RewardScale, data: Experience) -> tuple[Experience, RewardScale]:
    """Divide rewards by the standard deviation of discounted returns, and clip them to [-10, 10].

    The standard deviation excludes this rollout; the returned state includes it.
    """
    restarts = data.rows.restarts(data.over)
    totals, last = discounted_returns(scale.discounted_return, data.reward, restarts, data.gamma)
    statistics = update_statistics(scale.statistics, totals, data.rows.learned)
    data = data.replace(reward=normalize_reward(scale.statistics, data.reward))
    return data, RewardScale(statistics, last)


def select_replicas(
    data: Experience, ratio: float, key: jax.Array, num_blocks: int
) -> tuple[Experience, dict[str, jax.Array]]:
    """Learn from positive replicas, with a terminated agent, and `ratio` times as many others.

    Source: option `neg_pos_env_ratio` of WarpDrive, for sparse rewards.
    """
    rows = data.rows
    positive, usable = (
        jnp.any(flags, axis=(0, 2)) for flags in (rows.terminated & rows.live, data.valid)
    )
    if rows.decides is not None:  # a termination without a decision is not learned from
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
    """Return [N] bool: positive replicas, and floor(ratio x their number) random others.

    Without a positive replica, or with too few others, the result contains all usable replicas.

    Args:
        key: () key, equal on all devices.
        positive: [N] bool, replicas in which an agent terminated.
        usable: [N] bool, replicas with a valid transition.
        ratio: number of others per positive replica.
        num_blocks: blocks of replicas on this device.
    """
    draw = functools.partial(jax.random.uniform, dtype=jnp.float32)
    score = draw_blocks(draw, block_keys(key, num_blocks), positive.shape)
    # chosen among the replicas of all devices
    positive, usable, score = all_rows((positive, usable, score))
    # negative replicas have the ranks 0, 1, 2, ...
    rank = jnp.argsort(jnp.argsort(jnp.where(positive | ~usable, 2.0, score)))
    wanted = jnp.floor(ratio * jnp.sum(positive)).astype(jnp.int32)
    return own_rows(usable & (positive | (rank < wanted) | ~jnp.any(positive)))
