"""What an update reports: means, extremes and deviations over live rows, or over the episodes that ended.

Of every policy that learns, as POLICY/name ("mean" is over the live rows of the rollout unless it says otherwise;
"steps" are the update's gradient steps, of which losses and gradients are means; NaN where no row was live, or no step
taken):

    name                          meaning
    reward_mean, _min, _max       of an agent step, as the environment paid it
    live_fraction                 share of the rows that are live
    decision_fraction             share of the rows that are live and decide, if decisions_only; what is learned, and
                                  what is said of it below, is over these
    action_std_agents/i           deviation of component i of the actions over the agents of a replica and time, mean
    action_std_envs/i             ... over the replicas, for each agent and time
    action_std_time/i             ... over the steps of the rollout, for each agent and replica
    past_self_blocks              blocks of replicas that an earlier self played, if past_selves; the statistics of
                                  episodes count these too, evaluations do not
    learning_rate                 in this update; of DDPG the actor's

Of every policy of a run that keeps standings (rollout/standings.py) and that others play in the place of, WHO is past
(all earlier selves), a script, random, a run, or present (the policy itself):

    opponent_blocks/WHO           blocks of replicas that it played
    opponent_games/WHO            episodes that ended and count against it
    opponent_return/WHO           mean of the sum of the other policies' returns in the episodes that count against it
    opponent_win_rate/WHO         how often they beat it, over about the last 200 of these

By A2C or PPO:

    value_mean                    V(obs) when the agent acted
    return_mean                   what V learns to predict: advantage + value (of scaled rewards, if normalize_reward)
    advantage_mean, _std          before normalisation
    normalized_advantage_mean     after it, in the rows of a step, if normalize_advantage: 0 but for rounding
    explained_variance            1 - Var(R - V) / Var(R), not below -1: 1 is perfect, 0 as good as a constant
    reward_scale                  what normalize_reward divided the rewards by, before it clipped them
    undecided_ends                share of the ends of rollouts and time limits at which nothing is decided, so that V
                                  there is a guess, if decisions_only: keep it at 0
    positive_envs, negative_envs  replicas learned from in which an agent terminated, and others, if neg_pos_env_ratio
    loss                          the whole loss
    policy_loss, value_loss       its parts without their coefficients
    entropy                       of the policy [nats], mean over the rows of a step
    approx_kl                     PPO: KL(old, new) before each step, that of an early stop included
    clip_fraction                 PPO: share of rows whose ratio had left 1 +- clip
    gradient_steps                PPO: steps taken, fewer than epochs x minibatches after an early stop, or where no row
                                  of a minibatch was live
    grad_norm                     global norm of the gradient before it was clipped
    grad_clip_fraction            share of the steps whose gradient was clipped
    entropy_coefficient, value_coefficient                     in this update

By DDPG; those of steps are NaN until the buffer holds `warmup` rows:

    action_mean, action_min/i, action_max/i                    of the actions as the environment got them
    actor_loss                    minus the mean of Q(obs, actor(obs)), what the actor makes large
    critic_loss                   mean squared error of Q(obs, action), summed over twin critics
    q_mean, target_mean           Q(obs, action) of the first critic, and what it should be, in the rows of a step
    grad_norm_actor, grad_norm_critic                          global norms before clipping
    buffer_rows                   rows in the replay buffer
    critic_learning_rate, noise_scale                          in this update

Of the run:

    episodes                      that ended in the rollout; the rest is over these, NaN where there is none
    episode_length, _min, _max, _std                 env steps
    episode_X                     mean of the sum of info["X"] over an episode (Tag: episode_tags)
    NAME of `Env.info_ratios`     one sum over another, of all episodes (Tag: time_to_tag, the mean step of a tag)
    POLICY/episode_return, _min, _max, _std          summed over the policy's agents
    bad_numbers                   of `Learner.run` only: 0, or what was not finite (`describe_bad_numbers`): such an
                                  update is not committed, and its other metrics do not count

A statistic X of an environment whose name collides with another metric is reported as user/X, by evaluations as
eval/user/X (`wdjax.metric_names`), and such a metric of an algorithm as POLICY/user/X.

The rows of metrics.jsonl hold one number for each chunk of updates (`metrics_log.summarize`), of evaluations what
`evaluation_metrics` names, and, where one finds the best state so far, as eval/best/... what that comes to in as many
other episodes, which did not choose it: the number to report. Where on_bad_numbers is skip, they hold skipped_updates
(how many were left out, of which no other metric tells), and in any case of the clock
(`Trainer`): updates, env_steps, seconds, seconds_per_update, compile_seconds, env_steps_per_second (a step of a
replica, with all its agents) and agent_steps_per_second (a step of one agent).
"""

from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp

from wdjax.metric_names import statistic_names
from wdjax.train.devices.collectives import any_of, average, largest, smallest, total
from wdjax.train.devices.moments import masked_mean, masked_variance, mean_where, moments, of_devices
from wdjax.train.state.metric import Metric
from wdjax.train.state.rows import Rollout, Rows

Metrics = dict[str, jax.Array | Metric]


def rollout_metrics(rows: Rows, advantage: jax.Array, target: jax.Array) -> Metrics:
    """Returns what the rows of an on-policy rollout say before any gradient step; see the table above.

    Args:
        rows: leaves [T, N, n, ...].
        advantage, target: [T, N, n], not normalised.
    """
    live = rows.learned
    variance = masked_variance(advantage, live)
    explained = 1.0 - variance / (masked_variance(target, live) + 1e-8)
    learned = {
        "value_mean": masked_mean(rows.value, live),
        "return_mean": masked_mean(target, live),
        "advantage_mean": masked_mean(advantage, live),
        "advantage_std": jnp.sqrt(variance),
        "explained_variance": jnp.maximum(explained, -1.0),
    }
    learned = nan_unless(any_of(live), learned)
    for name in ("value_mean", "return_mean", "advantage_mean"):
        learned[name] = Metric(learned[name], weight=(learned_fraction(rows),))
    metrics = {**played_metrics(rows), **learned}
    if rows.decides is not None:
        metrics["decision_fraction"] = average(jnp.mean(live.astype(jnp.float32)))
    return metrics


def learned_fraction(rows: Rows) -> str:
    """Return the name of the metric that is the share of the rows to learn from."""
    return "live_fraction" if rows.decides is None else "decision_fraction"


def played_metrics(rows: Rows) -> Metrics:
    """Returns what was done and paid in the live rows of a rollout, leaves [T, N, n, ...], by any algorithm."""
    live = rows.live
    played = {
        "reward_mean": masked_mean(rows.reward, live),
        "reward_min": smallest(jnp.min(jnp.where(live, rows.reward, jnp.inf))),
        "reward_max": largest(jnp.max(jnp.where(live, rows.reward, -jnp.inf))),
        **action_deviations(rows.action, live),
    }
    played = nan_unless(any_of(live), played)
    played["reward_mean"] = Metric(played["reward_mean"], weight=("live_fraction",))
    played |= {f"reward_{over}": Metric(played[f"reward_{over}"], over) for over in ("min", "max")}
    return {**played, "live_fraction": average(jnp.mean(live.astype(jnp.float32)))}


def nan_unless(some: jax.Array, metrics: Metrics) -> Metrics:
    """Returns scalars where `some` is true, NaN where there was nothing to report."""
    return {name: jnp.where(some, value, jnp.nan) for name, value in metrics.items()}


def action_ranges(action: jax.Array, live: jax.Array) -> Metrics:
    """Returns the mean of all components of the actions, [T, N, n, ...], and the extremes of each, over live rows."""
    flat = action.reshape(*live.shape, -1)
    acted = jnp.broadcast_to(live[..., None], flat.shape)
    lowest = smallest(jnp.min(jnp.where(acted, flat, jnp.inf), axis=(0, 1, 2)))
    highest = largest(jnp.max(jnp.where(acted, flat, -jnp.inf), axis=(0, 1, 2)))
    metrics = {"action_mean": Metric(masked_mean(flat, acted), weight=("live_fraction",))}
    for i in range(flat.shape[-1]):
        metrics |= {f"action_min/{i}": Metric(lowest[i], "min"), f"action_max/{i}": Metric(highest[i], "max")}
    return metrics


def action_deviations(action: jax.Array, live: jax.Array) -> Metrics:
    """Returns the deviation of each component of the actions over agents, replicas and time, for [T, N, n, ...].

    Along each axis: the deviation of the live rows, averaged over all places of the other axes that have any.
    """
    flat = action.reshape(*live.shape, -1).astype(jnp.float32)
    metrics = {}
    for axis, name in enumerate(("time", "envs", "agents")):
        deviation, some = deviation_along(flat, live, axis)
        mean = mean_where if name == "envs" else masked_mean  # over the replicas of all devices: the same on each
        for i in range(flat.shape[-1]):
            metrics[f"action_std_{name}/{i}"] = mean(deviation[..., i], some)
    return metrics


def deviation_along(values: jax.Array, live: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Returns (deviation of the live rows along one axis of [T, N, n], where there are any): [., ., C], [., .] bool."""
    rows = moments(values, live[..., None], axis)
    rows = of_devices(rows) if axis == 1 else rows  # replicas lie on several devices
    return jnp.sqrt(jnp.squeeze(rows.variance, axis)), jnp.squeeze(rows.count > 0, (axis, -1))


def episode_metrics(
    played: Rollout, info_ratios: Mapping[str, tuple[str, str]], groups: Collection[str] = ()
) -> Metrics:
    """Returns how many episodes ended in a rollout, and what they say; see the table above.

    Args:
        played: the rollout.
        info_ratios: of the environment.
        groups: names of the environment's groups.
    """
    over = played.over
    episodes = total(jnp.sum(over, dtype=jnp.float32))

    def over_episodes(values: jax.Array) -> jax.Array:
        return total(jnp.sum(jnp.where(over, values.astype(jnp.float32), 0.0)))

    def spread(name: str, values: jax.Array) -> Metrics:
        ended = of_devices(moments(values.astype(jnp.float32), over))
        mean, lowest, highest, deviation = nan_unless(episodes > 0, {
            "mean": jnp.squeeze(ended.mean),
            "min": smallest(jnp.min(jnp.where(over, values, jnp.inf))),
            "max": largest(jnp.max(jnp.where(over, values, -jnp.inf))),
            "std": jnp.squeeze(jnp.sqrt(ended.variance)),
        }).values()  # fmt: skip
        return {
            name: Metric(mean, weight=("episodes",)), f"{name}_min": Metric(lowest, "min", ("episodes",)),
            f"{name}_max": Metric(highest, "max", ("episodes",)),
            f"{name}_std": Metric(deviation, "deviation", ("episodes",), name),
        }  # fmt: skip

    sums = {name: over_episodes(values) for name, values in played.episode_info.items()}
    metrics = {"episodes": Metric(episodes.astype(jnp.int32), "sum"), **spread("episode_length", played.episode_length)}
    own_names, ratio_names = statistic_names(sums, info_ratios, played.episode_return, groups)
    for name, (numerator, denominator) in info_ratios.items():
        weight = ("episodes", own_names[denominator])
        metrics[ratio_names[name]] = Metric(sums[numerator] / sums[denominator], weight=weight)
    for name, metric in own_names.items():
        metrics[metric] = Metric(sums[name] / episodes, weight=("episodes",))
    for name, values in played.episode_return.items():
        metrics |= spread(f"{name}/episode_return", values)
    return metrics
