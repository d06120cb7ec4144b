"""Metrics of an update: statistics over valid transitions and over finished episodes.

Metrics of every trainable policy, named POLICY/name. Unless stated otherwise they are means over
the valid transitions of the rollout. "Steps" are the gradient steps of the update; losses and
gradients are means over them. A metric is NaN without valid transitions or without gradient steps.

    name                          meaning
    reward_mean, _min, _max       reward of an agent step, as returned by the environment
    live_fraction                 fraction of transitions that are valid
    decision_fraction             fraction of transitions that are valid and have a choice of
                                  actions, with decisions_only; the policy learns from these, and
                                  the metrics below are over these
    action_std_agents/i           standard deviation of action component i over the agents of a
                                  replica, mean
    action_std_envs/i             ... over replicas, for each agent and step
    action_std_time/i             ... over the steps of the rollout, for each agent and replica
    past_self_blocks              blocks of replicas played by a snapshot, with past_selves; episode
                                  statistics include these blocks, evaluations do not
    learning_rate                 in this update; for DDPG and SAC the actor's

Metrics of every policy with opponents, if win rates are recorded (rollout/pool.py). Values of
WHO: past (all snapshots), a script, random, a run, present (the policy itself).

    opponent_blocks/WHO           blocks of replicas that it played
    opponent_games/WHO            finished episodes that count against it
    opponent_return/WHO           mean return of the other policies, summed, in these episodes
    opponent_win_rate/WHO         win rate of the other policies against it, over about the last 200
                                  of these episodes

A2C and PPO:

    value_mean                    V(obs) when the agent acted
    return_mean                   value target: advantage + value (of scaled rewards, with
                                  normalize_reward)
    advantage_mean, _std          before normalization
    normalized_advantage_mean     after normalization, with normalize_advantage: 0 up to rounding
    explained_variance            1 - Var(R - V) / Var(R), at least -1: 1 is perfect, 0 is as good
                                  as a constant
    reward_scale                  divisor of rewards before clipping, with normalize_reward
    undecided_ends                fraction of rollout ends and truncations without a choice of
                                  actions, with decisions_only; V is only a guess there: keep it 0
    positive_envs, negative_envs  replicas to learn from with a terminated agent, and others, with
                                  neg_pos_env_ratio
    loss                          total loss
    policy_loss, value_loss       its parts without coefficients
    entropy                       of the policy [nats]
    approx_kl                     PPO: KL(old, new) before each step, including the step of an early
                                  stop
    clip_fraction                 PPO: fraction of transitions with a probability ratio outside 1 +-
                                  clip
    gradient_steps                PPO: steps taken; fewer than epochs x minibatches after an early
                                  stop, or if a minibatch has no valid transition
    grad_norm                     global norm of the gradient before clipping
    grad_clip_fraction            fraction of steps with a clipped gradient
    entropy_coefficient, value_coefficient                     in this update

MAPPO, for a team named TEAM/name:

    value_loss                    of the critic, with normalize_value in squared deviations
    critic_grad_norm              global norm of the gradient of the critic before clipping
    critic_grad_clip_fraction     fraction of steps with a clipped gradient of the critic

PQN:

    loss, q_loss                  mean of (Q(obs, action) - target)^2 / 2
    q_mean                        mean of Q(obs, action); with mixer "sum", of the sums
    epsilon                       in this update

DQN, VDN and QMIX; metrics of steps are NaN until the buffer contains `warmup` transitions:

    loss                          mean of (Q - target)^2 / 2; VDN and QMIX: Q is the team's
    q_mean, target_mean           Q, and its target
    grad_norm                     global norm of the gradient before clipping
    buffer_rows                   transitions in the replay buffer
    epsilon                       in this update

DDPG and SAC; metrics of steps are NaN until the buffer contains `warmup` transitions:

    action_mean, action_min/i, action_max/i                    actions as passed to the environment
    actor_loss                    minus the mean of Q(obs, actor(obs)); SAC uses the lower Q and
                                  adds temperature times log density
    critic_loss                   mean squared error of Q(obs, action), summed over twin critics;
                                  categorical critics: cross-entropy
    q_mean, target_mean           Q(obs, action) of the first critic, and its target
    grad_norm_actor, grad_norm_critic                          global norms before clipping
    buffer_rows                   transitions in the replay buffer
    critic_learning_rate, noise_scale                          in this update
    entropy                       SAC: entropy of the policy [nats], for actions in half-widths of
                                  the box
    temperature                   SAC: weight of the entropy
    temperature_learning_rate     in this update

Metrics of the run:

    episodes                      episodes finished in the rollout; the metrics below are over
                                  these, NaN without any
    episode_length, _min, _max, _std                 env steps
    episode_X                     mean of the sum of info["X"] over an episode (Tag: episode_tags)
    NAME of `Env.info_ratios`     ratio of two sums over all episodes (Tag: time_to_tag, the mean
                                  step of a tag)
    POLICY/episode_return, _min, _max, _std          summed over the agents of the policy
    bad_numbers                   `Learner.run` only: 0, or a code for NaN or infinity
                                  (`describe_bad_numbers`); such an update is discarded, and its
                                  other metrics are not valid

A statistic X of an environment with the name of another metric is reported as user/X (in
evaluations as eval/user/X, see `wdjax.metric_names`), and such a metric of an algorithm as
POLICY/user/X.

Each row of metrics.jsonl contains one number per metric for a chunk of updates
(`metrics_log.summarize`), the metrics of evaluations (`evaluation_metrics`), and eval/best/...
after an evaluation that finds a new best state: the result of that state in other episodes than
those that selected it. Report this number. With on_bad_numbers: skip there is also skipped_updates,
the number of discarded updates, which are excluded from all other metrics. Timing fields are
updates, env_steps, seconds, seconds_per_update, compile_seconds, env_steps_per_second (one env step
advances one replica with all its agents) and agent_steps_per_second (one agent step advances one
agent).
"""

from collections.abc import Collection, Mapping
from typing import cast

import jax
import jax.numpy as jnp

from wdjax.metric_names import statistic_names
from wdjax.train.devices.collectives import any_of, average, largest, smallest, total
from wdjax.train.devices.moments import (
    masked_mean,
    masked_variance,
    mean_where,
    moments,
    of_devices,
)
from wdjax.train.state.aliases import Metrics
from wdjax.train.state.metric import Metric
from wdjax.train.state.policy import Policy
from wdjax.train.state.rows import Rollout, Rows


def rollout_metrics(policy: Policy, rows: Rows, advantage: jax.Array, target: jax.Array) -> Metrics:
    """Return the metrics of an on-policy rollout before the first gradient step.

    Args:
        policy: static part of the policy.
        rows: leaves [T, N, n, ...].
        advantage: [T, N, n], not normalized.
        target: [T, N, n], value targets.
    """
    live, rows = rows.learned, rows.replace(action=policy.distribution.to_space(rows.action))
    variance = masked_variance(advantage, live)
    explained = 1.0 - variance / (masked_variance(target, live) + 1e-8)
    learned = {
        "value_mean": masked_mean(cast(jax.Array, rows.value), live),
        "return_mean": masked_mean(target, live),
        "advantage_mean": masked_mean(advantage, live),
        "advantage_std": jnp.sqrt(variance),
        "explained_variance": jnp.maximum(explained, -1.0),
    }
    learned = nan_unless(any_of(live), learned)
    metrics = {**played_metrics(rows), **learned}
    fraction = "live_fraction" if rows.decides is None else "decision_fraction"
    for name in ("value_mean", "return_mean", "advantage_mean"):
        metrics[name] = Metric(learned[name], weight=(fraction,))
    if rows.decides is not None:
        metrics["decision_fraction"] = average(jnp.mean(live.astype(jnp.float32)))
    return metrics


def played_metrics(rows: Rows) -> Metrics:
    """Return the metrics of rewards and actions over valid transitions, for any algorithm.

    Args:
        rows: leaves [T, N, n, ...].
    """
    live = rows.live
    played = {
        "reward_mean": masked_mean(rows.reward, live),
        "reward_min": smallest(jnp.min(jnp.where(live, rows.reward, jnp.inf))),
        "reward_max": largest(jnp.max(jnp.where(live, rows.reward, -jnp.inf))),
        **action_deviations(rows.action, live),
    }
    played = nan_unless(any_of(live), played)
    return {
        **played,
        "reward_mean": Metric(played["reward_mean"], weight=("live_fraction",)),
        "reward_min": Metric(played["reward_min"], "min"),
        "reward_max": Metric(played["reward_max"], "max"),
        "live_fraction": average(jnp.mean(live.astype(jnp.float32))),
    }


def nan_unless(some: jax.Array, metrics: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return the metrics if `some`, () bool, otherwise NaN."""
    return {name: jnp.where(some, value, jnp.nan) for name, value in metrics.items()}


def action_ranges(action: jax.Array, live: jax.Array) -> Metrics:
    """Return the mean over all components of actions, and the extremes of each component.

    Args:
        action: [T, N, n, ...].
        live: [T, N, n] bool, valid transitions.
    """
    flat = action.reshape(*live.shape, -1)
    acted = jnp.broadcast_to(live[..., None], flat.shape)
    lowest = smallest(jnp.min(jnp.where(acted, flat, jnp.inf), axis=(0, 1, 2)))
    highest = largest(jnp.max(jnp.where(acted, flat, -jnp.inf), axis=(0, 1, 2)))
    metrics: Metrics = {"action_mean": Metric(masked_mean(flat, acted), weight=("live_fraction",))}
    for i in range(flat.shape[-1]):
        metrics |= {
            f"action_min/{i}": Metric(lowest[i], "min"),
            f"action_max/{i}": Metric(highest[i], "max"),
        }
    return metrics


def action_deviations(action: jax.Array, live: jax.Array) -> dict[str, jax.Array]:
    """Return the standard deviation of each action component over agents, replicas and time.

    Along each axis: the deviation over valid transitions, averaged over the other two axes.

    Args:
        action: [T, N, n, ...].
        live: [T, N, n] bool, valid transitions.
    """
    flat = action.reshape(*live.shape, -1).astype(jnp.float32)
    metrics = {}
    for axis, name in enumerate(("time", "envs", "agents")):
        deviation, some = deviation_along(flat, live, axis)
        mean = mean_where if name == "envs" else masked_mean  # replicas: equal on all devices
        for i in range(flat.shape[-1]):
            metrics[f"action_std_{name}/{i}"] = mean(deviation[..., i], some)
    return metrics


def deviation_along(values: jax.Array, live: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Return the deviation over valid transitions along one axis.

    Args:
        values: [T, N, n, C].
        live: [T, N, n] bool.
        axis: 0, 1 or 2.

    Returns:
        (deviation [., ., C], whether any transition is valid [., .] bool), without the axis.
    """
    rows = moments(values, live[..., None], axis)
    rows = of_devices(rows) if axis == 1 else rows  # replicas are sharded
    return jnp.sqrt(jnp.squeeze(rows.variance, axis)), jnp.squeeze(rows.count > 0, (axis, -1))


def episode_metrics(
    played: Rollout, info_ratios: Mapping[str, tuple[str, str]], groups: Collection[str] = ()
) -> Metrics:
    """Return the number of episodes that ended in a rollout, and their statistics.

    Args:
        played: the rollout.
        info_ratios: `Env.info_ratios`.
        groups: names of the environment's groups.
    """
    over = played.over
    episodes = total(jnp.sum(over, dtype=jnp.float32))

    def over_episodes(values: jax.Array) -> jax.Array:
        return total(jnp.sum(jnp.where(over, values.astype(jnp.float32), 0.0)))

    def spread(name: str, values: jax.Array) -> Metrics:
        ended = of_devices(moments(values.astype(jnp.float32), over))
        mean, lowest, highest, deviation = nan_unless(
            episodes > 0,
            {
                "mean": jnp.squeeze(ended.mean),
                "min": smallest(jnp.min(jnp.where(over, values, jnp.inf))),
                "max": largest(jnp.max(jnp.where(over, values, -jnp.inf))),
                "std": jnp.squeeze(jnp.sqrt(ended.variance)),
            },
        ).values()
        return {
            name: Metric(mean, weight=("episodes",)),
            f"{name}_min": Metric(lowest, "min", ("episodes",)),
            f"{name}_max": Metric(highest, "max", ("episodes",)),
            f"{name}_std": Metric(deviation, "deviation", ("episodes",), name),
        }

    sums = {name: over_episodes(values) for name, values in played.episode_info.items()}
    metrics: Metrics = {
        "episodes": Metric(episodes.astype(jnp.int32), "sum"),
        **spread("episode_length", played.episode_length),
    }
    own_names, ratio_names = statistic_names(sums, info_ratios, played.episode_return, groups)
    for name, (numerator, denominator) in info_ratios.items():
        weight = ("episodes", own_names[denominator])
        metrics[ratio_names[name]] = Metric(sums[numerator] / sums[denominator], weight=weight)
    for name, metric in own_names.items():
        metrics[metric] = Metric(sums[name] / episodes, weight=("episodes",))
    for name, values in played.episode_return.items():
        metrics |= spread(f"{name}/episode_return", values)
    return metrics
