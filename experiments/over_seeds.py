"""Numbers of several seeds as the field reports them: interquartile means, their intervals, how likely one is better.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021), as their library
rliable computes them. What is drawn is drawn from a fixed seed: the same scores give the same interval.
"""

from collections.abc import Sequence

import numpy as np

LEVEL = 0.95  # of all intervals
DRAWS = 2_000  # of a bootstrap


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of scores, [..., seeds] -> [...].

    Of n scores floor(n / 4) are left out at either end, as by scipy.stats.trim_mean(scores, 0.25): of fewer than four
    it is the mean.
    """
    ordered = np.sort(scores, axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> float:
    """Return the probability that a run of X scores higher than one of Y, P(X > Y) + P(X = Y) / 2.

    Args:
        x, y: [seeds] each.
    """
    pairs = x[:, None], y[None, :]
    return float((np.greater(*pairs) + 0.5 * np.equal(*pairs)).mean())


def bootstrap_interval(scores: np.ndarray) -> tuple[float, float]:
    """Return the percentile interval of the interquartile mean of scores, [seeds] without NaN: in each of DRAWS draws
    as many of them as there are, with replacement."""
    random = np.random.default_rng(0)
    drawn = scores[random.integers(len(scores), size=(DRAWS, len(scores)))]
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(
        interquartile_mean(drawn), ends, method="inverted_cdf"
    )  # not between infinity and a number
    return float(low), float(high)


def interval_of_mean(scores: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Returns (interquartile mean, low, high) of one task's scores, the ends of its LEVEL interval; NaN without any,
    and ends of NaN for one: a seed alone tells nothing of others."""
    known = np.asarray(scores, np.float64)
    known = known[~np.isnan(known)]
    middle = float(interquartile_mean(known)) if len(known) else np.nan
    return middle, *(bootstrap_interval(known) if len(known) > 1 else (np.nan, np.nan))
