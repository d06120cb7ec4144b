"""Numbers of several seeds as the field reports them: interquartile means, their intervals, how likely one is better.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021), as their library
rliable computes them. What is drawn is drawn from a fixed seed: the same scores give the same interval.
"""

from collections.abc import Callable, Sequence

import numpy as np

LEVEL = 0.95  # of all intervals
DRAWS = 2_000  # of a bootstrap


def interquartile_mean(*tasks: np.ndarray) -> np.ndarray:
    """Returns the mean of the middle half of all tasks' scores together, along their last axis, [...].

    Of n scores floor(n / 4) are left out at either end, as by scipy.stats.trim_mean(scores, 0.25): of fewer than four
    it is the mean.

    Args:
        tasks: [..., seeds] each.
    """
    scores = np.sort(np.concatenate(tasks, axis=-1), axis=-1)
    cut = scores.shape[-1] // 4
    return scores[..., cut : scores.shape[-1] - cut].mean(axis=-1)


def probability_of_improvement(*tasks: np.ndarray) -> np.ndarray:
    """Returns the probability that a run of X scores higher than one of Y, P(X > Y) + P(X = Y) / 2, mean over tasks.

    Args:
        tasks: [..., seeds] each: those of X, then as many of Y.
    """
    half = len(tasks) // 2
    of_tasks = []
    for x, y in zip(tasks[:half], tasks[half:], strict=True):
        difference = x[..., :, None], y[..., None, :]
        better = np.greater(*difference) + 0.5 * np.equal(*difference)
        of_tasks.append(better.mean(axis=(-2, -1)))
    return np.mean(of_tasks, axis=0)


def bootstrap_interval(
    statistic: Callable[..., np.ndarray], tasks: Sequence[Sequence[float] | np.ndarray]
) -> tuple[float, float]:
    """Returns the percentile interval of a statistic, by a stratified bootstrap: in each of DRAWS draws every task gets
    as many of its seeds as it has, with replacement.

    Args:
        statistic: as the two above, of tasks [DRAWS, seeds] each, to [DRAWS].
        tasks: of each the scores of its seeds, without NaN.
    """
    random = np.random.default_rng(0)
    arrays = [np.asarray(scores, np.float64) for scores in tasks]
    drawn = [scores[random.integers(len(scores), size=(DRAWS, len(scores)))] for scores in arrays]
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(statistic(*drawn), ends, method="inverted_cdf")  # nothing between infinity and a number
    return float(low), float(high)


def interval_of_mean(scores: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Returns (interquartile mean, low, high) of one task's scores, the ends of its LEVEL interval; NaN without any,
    and ends of NaN for one: a seed alone tells nothing of others."""
    known = np.asarray(scores, np.float64)
    known = known[~np.isnan(known)]
    middle = float(interquartile_mean(known)) if len(known) else np.nan
    return middle, *(bootstrap_interval(interquartile_mean, [known]) if len(known) > 1 else (np.nan, np.nan))
