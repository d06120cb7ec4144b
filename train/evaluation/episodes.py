"""Results of whole episodes, with means, standard errors and quantiles."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import struct
from numpy.typing import ArrayLike

from wdjax.metric_names import (
    EVALUATED,
    STANDARD_ERROR,
    USER,
    divided_away,
    free_name,
    statistic_names,
)

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Ratios = Mapping[str, tuple[str, str]]  # `Env.info_ratios`: name -> (sum, divisor)
Statistics = dict[str, Any]  # "mean", "standard_error" and "quantiles" {"0.05": ...}


class Episodes(struct.PyTreeNode):
    """Results of E whole episodes, as NumPy arrays.

    Returns include the rewards of an agent up to and including the step in which it terminates or
    is truncated.
    """

    # by policy (by role from `cross_play`), [E] float32, summed over its agents
    episode_return: dict[str, np.ndarray]
    episode_length: np.ndarray  # [E] int32, env steps
    episode_info: dict[str, np.ndarray]  # [E], statistics of the environment, for example tags
    agent_return: dict[
        str, np.ndarray
    ]  # by policy (or role), [E, n] float32, for each of its agents
    group_return: dict[str, np.ndarray]  # by group, [E] float32, summed over its agents


def statistics(episodes: Episodes, info_ratios: Ratios | None = None) -> dict[str, Statistics]:
    """Return the mean, standard error and quantiles of every quantity of some episodes.

    Quantities: the statistics of the environment; "length"; "NAME return" of each policy (or role)
    and group, summed over its agents; "NAME agent return" of a policy with several agents, with
    quantiles over agents and episodes. If a policy and a group share a name, NAME is the policy. A
    statistic with one of these names becomes "user/NAME".

    Args:
        episodes: from `evaluate`, or a cell from `cross_play`.
        info_ratios: `Env.info_ratios`; each ratio replaces the sums that it divides.

    Returns:
        {quantity: {"mean", "standard_error", "quantiles": {"0.05": ...}}}.
    """
    returns = {"length": value_statistics(episodes.episode_length), **return_statistics(episodes)}
    statistics: dict[str, Statistics] = {}

    def taken(name: str) -> bool:
        return name in returns or name in statistics

    for part in info_statistics(episodes, info_ratios):
        for name, numbers in part.items():
            statistics[free_name(name, USER, taken)] = numbers
    return statistics | returns


def return_statistics(episodes: Episodes) -> dict[str, Statistics]:
    """Return the statistics of returns, by the names of `statistics`."""
    returns = {**episodes.group_return, **episodes.episode_return}
    statistics = {f"{name} return": value_statistics(values) for name, values in returns.items()}
    for name, values in episodes.agent_return.items():
        if values.shape[1] > 1:
            free = free_name(f"{name} agent return", USER, lambda name: name in statistics)
            statistics[free] = value_statistics(values)
    return statistics


def evaluation_metrics(
    episodes: Episodes, info_ratios: Ratios | None = None
) -> dict[str, float | None]:
    """Return the metrics of an evaluation, by their names in metrics.jsonl.

    These are eval/episode_length, eval/NAME/episode_return of each policy and group, and the
    statistics of the environment under their names in training: eval/episode_INFO, eval/RATIO, or
    eval/user/NAME if a name is taken. Each mean has a standard error, "..._standard_error".
    """
    ratios, info = info_statistics(episodes, info_ratios)
    names = statistic_names(
        episodes.episode_info, info_ratios or {}, episodes.episode_return, episodes.group_return
    )
    statistics = {"episode_length": value_statistics(episodes.episode_length)}
    for metric_names, part in zip(names, (info, ratios), strict=True):
        statistics |= {metric_names[name]: numbers for name, numbers in part.items()}
    # a policy wins over a group of its name
    returns = {**episodes.group_return, **episodes.episode_return}
    statistics |= {
        f"{name}/episode_return": value_statistics(values) for name, values in returns.items()
    }
    metrics: dict[str, float | None] = {}
    for name, numbers in statistics.items():
        name = f"{EVALUATED}/{name}"
        metrics |= {name: numbers["mean"], f"{name}{STANDARD_ERROR}": numbers["standard_error"]}
    return metrics


def info_statistics(
    episodes: Episodes, info_ratios: Ratios | None
) -> tuple[dict[str, Statistics], dict[str, Statistics]]:
    """Return (statistics of the environment's ratios, statistics of its other sums), by name."""
    ratios = info_ratios or {}
    info = {name: np.asarray(v, np.float64) for name, v in episodes.episode_info.items()}
    divided = divided_away(ratios)
    of_ratios = {
        name: ratio_statistics(info[total], info[count]) for name, (total, count) in ratios.items()
    }
    return of_ratios, {
        name: value_statistics(values) for name, values in info.items() if name not in divided
    }


def value_statistics(values: ArrayLike) -> Statistics:
    """Return the statistics of [E] or [E, n] values of E independent episodes.

    The standard error of the mean is s / sqrt(E), with s the standard deviation (ddof = 1) of the
    means of the episodes; None for one episode.
    """
    values = np.asarray(values, np.float64)
    by_episode = values.reshape(len(values), -1).mean(axis=1)
    error = float(np.std(by_episode, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return {"mean": float(values.mean()), "standard_error": error, "quantiles": quantiles(values)}


def ratio_statistics(total: np.ndarray, count: np.ndarray) -> Statistics:
    """Return the statistics of the ratio R = sum(total) / sum(count) over E episodes, [E] each.

    The standard error of R is the standard error of the mean of (total - R count) / mean(count).
    Quantiles are over the episodes with a positive count. All are None without one.
    """
    if not count.sum():
        nothing = dict.fromkeys(map(str, QUANTILES))
        return {"mean": None, "standard_error": None, "quantiles": nothing}
    ratio, some = total.sum() / count.sum(), count > 0
    error = value_statistics((total - ratio * count) / count.mean())["standard_error"]
    return {
        "mean": float(ratio),
        "standard_error": error,
        "quantiles": quantiles(total[some] / count[some]),
    }


def quantiles(values: np.ndarray) -> dict[str, float]:
    """Return {"0.05": ...} over all values, with linear interpolation."""
    return dict(zip(map(str, QUANTILES), np.quantile(values, QUANTILES).tolist(), strict=True))
