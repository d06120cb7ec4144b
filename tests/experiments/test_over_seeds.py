"""Interquartile means, intervals and probabilities of improvement, by hand and by SciPy."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from wdjax.experiments.over_seeds import (
    bootstrap_interval,
    interquartile_mean,
    interval_of_mean,
    probability_of_improvement,
)


def test_interquartile_mean_by_hand():
    assert (
        interquartile_mean(np.array([9.0, 1.0, 2.0, -50.0, 3.0])) == 2
    )  # one of five at either end
    assert interquartile_mean(np.array([1.0, 5.0, 99.0])) == 35  # of three none
    several = np.array([[0.0, 1.0, 2.0, 90.0], [8.0, 2.0, 1.0, 3.0]])
    np.testing.assert_array_equal(interquartile_mean(several), [1.5, 2.5])
    assert interquartile_mean(np.array([1.0, 2.0, 4.0, math.inf])) == 3


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_interquartile_mean_equals_scipy(scores):
    np.testing.assert_allclose(
        interquartile_mean(np.array(scores)), scipy.stats.trim_mean(scores, 0.25), atol=1e-6
    )


def test_probability_of_improvement_by_hand():
    """X is higher in 2 of 6 pairs and equal in 1."""
    x, y = np.array([1.0, 4.0]), np.array([1.0, 2.0, 5.0])
    assert probability_of_improvement(x, y) == 2.5 / 6
    assert probability_of_improvement(x, y) + probability_of_improvement(y, x) == 1


@given(*[st.lists(st.integers(0, 5), min_size=1, max_size=9)] * 2)
def test_probability_of_improvement_equals_mann_whitney(x, y):
    expected = scipy.stats.mannwhitneyu(x, y, method="asymptotic").statistic / (len(x) * len(y))
    assert probability_of_improvement(np.array(x, float), np.array(y, float)) == pytest.approx(
        expected
    )


def test_the_bootstrap_draws_from_all_scores():
    assert bootstrap_interval(np.array([2.0, 2.0])) == (2, 2)
    assert bootstrap_interval(np.array([1.0, 3.0])) == (1, 3)


def test_the_interval_equals_the_bootstrap_of_scipy():
    scores = np.random.default_rng(3).normal(10, 2, 24)
    theirs = scipy.stats.bootstrap(
        (scores,), interquartile_mean, n_resamples=4_000, method="percentile", random_state=1
    ).confidence_interval
    middle, low, high = interval_of_mean([*scores, math.nan])
    assert middle == interquartile_mean(scores)
    np.testing.assert_allclose([low, high], theirs, atol=0.12)  # their width is 2.2
    assert all(map(math.isnan, interval_of_mean([math.nan])))
    assert interval_of_mean([1.0, math.inf])[1:] == (1, math.inf)
    np.testing.assert_array_equal(
        interval_of_mean([3.0, math.nan]), [3, np.nan, np.nan]
    )  # of one seed no interval
