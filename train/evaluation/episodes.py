"""Results of whole episodes: returns, lengths and statistics; their means, standard errors and quantiles."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import struct

from wdjax.metric_names import EVALUATED, STANDARD_ERROR, USER, divided_away, free_name, statistic_names

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Ratios = Mapping[str, tuple[str, str]]  # `Env.info_ratios`: name -> (the sum that is divided, the one that divides)


class Episodes(struct.PyTreeNode):
    """Results of E whole episodes, as NumPy arrays.

    Returns include the rewards of an agent up to and including the step in which it terminates or is truncated.
    """

    episode_return: dict[str, Any]  # by policy (by role from `cross_play`), [E] float32, summed over its agents
    episode_length: Any  # [E] int32, env steps
    episode_info: dict[str, Any]  # [E], statistics of the environment, for example tags
    agent_return: dict[str, Any]  # by policy (or role), [E, n] float32, for each of its agents
    group_return: dict[str, Any]  # by group, [E] float32, summed over its agents


def statistics(episodes: Episodes, info_ratios: Ratios | None = None) -> dict[str, dict[str, Any]]:
    """Return the mean, standard error and quantiles of every quantity of some episodes.

    Quantities: the statistics of the environment; "length"; "NAME return" of each policy (or role) and group, summed
    over its agents; "NAME agent return" of a policy with several agents, with quantiles over agents and episodes. If a
    policy and a group share a name, NAME is the policy. A statistic with one of these names becomes "user/NAME".

    Args:
        episodes: from `evaluate`, or a cell from `cross_play`.
        info_ratios: `Env.info_ratios`; each ratio replaces the sums that it divides.

    Returns:
        {quantity: {"mean", "standard_error", "quantiles": {"0.05": ...}}}.
    """
    returns = {"length": value_statistics(episodes.episode_length), **return_statistics(episodes)}
    found: dict[str, dict[str, Any]] = {}
    taken = lambda name: name in returns or name in found  # noqa: E731
    for part in info_statistics(episodes, info_ratios):
        for name, numbers in part.items():
            found[free_name(name, USER, taken)] = numbers
    return found | returns


def return_statistics(episodes: Episodes) -> dict[str, dict[str, Any]]:
    """Return the statistics of returns, by the names of `statistics`."""
    returns = {**episodes.group_return, **episodes.episode_return}
    found = {f"{name} return": value_statistics(values) for name, values in returns.items()}
    for name, values in episodes.agent_return.items():
        if values.shape[1] > 1:
            own = free_name(f"{name} agent return", USER, lambda name: name in found)
            found[own] = value_statistics(values)
    return found


def evaluation_metrics(episodes: Episodes, info_ratios: Ratios | None = None) -> dict[str, float | None]:
    """Returns what an evaluation logs, by the names in metrics.jsonl, each mean with its "..._standard_error":

    eval/episode_length, eval/NAME/episode_return of each policy and group, and the environment's statistics under
    their names in training: eval/episode_INFO, eval/RATIO, eval/user/NAME of one that collides.
    """
    ratios, info = info_statistics(episodes, info_ratios)
    names = statistic_names(episodes.episode_info, info_ratios or {}, episodes.episode_return, episodes.group_return)
    found = {"episode_length": value_statistics(episodes.episode_length)}
    for own, part in zip(names, (info, ratios), strict=True):
        found |= {own[name]: numbers for name, numbers in part.items()}
    returns = {**episodes.group_return, **episodes.episode_return}  # of two with one name the policy's
    found |= {f"{name}/episode_return": value_statistics(values) for name, values in returns.items()}
    metrics = {}
    for name, numbers in found.items():
        name = f"{EVALUATED}/{name}"
        metrics |= {name: numbers["mean"], f"{name}{STANDARD_ERROR}": numbers["standard_error"]}
    return metrics


def info_statistics(episodes: Episodes, info_ratios: Ratios | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (statistics of the environment's ratios, those of its other sums), by name."""
    ratios, info = info_ratios or {}, {name: np.asarray(v, np.float64) for name, v in episodes.episode_info.items()}
    divided = divided_away(ratios)
    of_ratios = {name: ratio_statistics(info[total], info[count]) for name, (total, count) in ratios.items()}
    return of_ratios, {name: value_statistics(values) for name, values in info.items() if name not in divided}


def value_statistics(values: Any) -> dict[str, Any]:
    """Of [E] or [E, n] values of E independent episodes: the standard error of the mean is s / sqrt(E), with s the
    deviation (of E - 1) of the episodes' means; None for one episode."""
    values = np.asarray(values, np.float64)
    by_episode = values.reshape(len(values), -1).mean(axis=1)
    error = float(np.std(by_episode, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return {"mean": float(values.mean()), "standard_error": error, "quantiles": quantiles(values)}


def ratio_statistics(total: np.ndarray, count: np.ndarray) -> dict[str, Any]:
    """Of R = sum(total) / sum(count) over E episodes, [E] each: its standard error is that of the mean of
    (total - R count) / mean(count); quantiles are over the episodes that count anything. None where nothing does."""
    if not count.sum():
        return {"mean": None, "standard_error": None, "quantiles": dict.fromkeys(map(str, QUANTILES))}
    ratio, some = total.sum() / count.sum(), count > 0
    error = value_statistics((total - ratio * count) / count.mean())["standard_error"]
    return {"mean": float(ratio), "standard_error": error, "quantiles": quantiles(total[some] / count[some])}


def quantiles(values: np.ndarray) -> dict[str, float]:
    """Returns {"0.05": ...} over all values, linear between the two nearest."""
    return dict(zip(map(str, QUANTILES), np.quantile(values, QUANTILES).tolist(), strict=True))
