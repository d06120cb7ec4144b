"""Statistics over seeds: interquartile means, intervals and probabilities of improvement.

Source: Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(NeurIPS 2021), computed as in their library rliable, with a fixed seed.
"""

from collections.abc import Callable, Sequence

import numpy as np

LEVEL = 0.95  # confidence level of all intervals
DRAWS = 2_000  # bootstrap samples
Middle = Callable[[np.ndarray], np.ndarray]  # [..., seeds] -> [...]


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of scores, [..., seeds] -> [...].

    floor(n / 4) of n scores are omitted at either end, as in scipy.stats.trim_mean(scores, 0.25).
    """
    ordered = np.sort(scores, axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)


def plain_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of scores, [..., seeds] -> [...]."""
    return scores.mean(axis=-1)


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> float:
    """Return the probability that a run of X scores higher than one of Y.

    It is P(X > Y) + P(X = Y) / 2.

    Args:
        x: [seeds].
        y: [seeds].
    """
    pairs = x[:, None], y[None, :]
    return float((np.greater(*pairs) + 0.5 * np.equal(*pairs)).mean())


def bootstrap_interval(
    scores: np.ndarray, middle: Middle = interquartile_mean
) -> tuple[float, float]:
    """Return the bootstrap percentile interval of a mean of scores, [seeds]."""
    random = np.random.default_rng(0)
    drawn = scores[random.integers(len(scores), size=(DRAWS, len(scores)))]
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(
        middle(drawn), ends, method="inverted_cdf"
    )  # not between infinity and a number
    return float(low), float(high)


def interval_of_mean(
    scores: Sequence[float] | np.ndarray, middle: Middle = interquartile_mean
) -> tuple[float, float, float]:
    """Return (interquartile mean, low, high) of scores, with the ends of its interval.

    NaN scores are omitted. The mean is NaN without scores, and the interval with fewer than two.

    Args:
        scores: [seeds].
        middle: another mean, such as `plain_mean`.
    """
    known = np.asarray(scores, np.float64)
    known = known[~np.isnan(known)]
    mean = float(middle(known)) if len(known) else np.nan
    return mean, *(bootstrap_interval(known, middle) if len(known) > 1 else (np.nan, np.nan))
