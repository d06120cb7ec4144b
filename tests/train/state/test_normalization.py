"""Compare running statistics with NumPy, and normalize observations and rewards by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wdjax import Box, Dict, Discrete, MultiDiscrete
from wdjax.train import Rows
from wdjax.train.algorithms.transforms import RewardScale, scale_reward
from wdjax.train.learning import Experience, RunningStatistics, new_statistics, update_statistics
from wdjax.train.state.normalization import (
    discounted_returns,
    normalize_observation,
    normalize_reward,
    observation_statistics,
    update_observation_statistics,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

merge = jax.jit(update_statistics)
# three rollouts of 2 steps, 3 replicas, 2 agents; a number of 2 parts
values = arrays(np.float32, (3, 2, 3, 2, 2), elements=st.floats(-1000, 1000, width=32))
flags = arrays(bool, (3, 2, 3, 2))


@settings(max_examples=100)
@given(values, flags)
def test_merged_statistics_equal_those_of_all_values(values, live):
    statistics = new_statistics((2,))
    for part, flag in zip(values, live, strict=True):
        statistics = merge(statistics, np.where(flag[..., None], part, np.nan), flag)
    seen = values[live].astype(np.float64)
    assert statistics.count == len(seen)
    np.testing.assert_allclose(
        statistics.mean, seen.mean(0) if len(seen) else 0, rtol=1e-4, atol=1e-3
    )
    np.testing.assert_allclose(
        statistics.variance, seen.var(0) if len(seen) else 1, rtol=1e-3, atol=1.0
    )


def test_merge_by_hand():
    # before 1, 3 (mean 2, variance 1); now 8 and an invalid row: 1, 3, 8 have mean 4 and
    # variance (9 + 1 + 16) / 3
    seen = RunningStatistics(jnp.float32(2), jnp.float32(2), jnp.float32(1))
    merged = merge(seen, np.array([8.0, np.inf], np.float32), np.array([True, False]))
    np.testing.assert_allclose(
        (merged.count, merged.mean, merged.variance), (3, 4, 26 / 3), rtol=1e-6
    )


@pytest.mark.parametrize("variance", [1e-12, 9e29, 1e33])
def test_a_variance_within_float32_does_not_overflow(variance):
    """A count of a billion times such a variance leaves float32."""
    seen = RunningStatistics(jnp.float32(1e9), jnp.float32(0), jnp.float32(variance))
    deviation = np.sqrt(np.float32(variance))
    merged = merge(seen, deviation * np.array([1, -1], np.float32), np.ones(2, bool))
    np.testing.assert_allclose(merged.variance, variance, rtol=1e-5)


def test_a_far_offset_costs_no_precision():
    """The mean square minus the squared mean would lose a variance of 1 at a mean of 10,000."""
    drawn = 1e4 + np.random.default_rng(0).normal(size=(4, 5000)).astype(np.float32)
    statistics = new_statistics()
    for part in drawn:
        statistics = merge(statistics, part, np.ones(5000, bool))
    np.testing.assert_allclose(statistics.variance, drawn.astype(np.float64).var(), rtol=1e-3)


def test_rollout_without_live_rows_changes_nothing():
    seen = RunningStatistics(jnp.float32(2), jnp.float32(2), jnp.float32(1))
    for before in (seen, new_statistics()):
        after = merge(before, np.full(3, np.nan, np.float32), np.zeros(3, bool))
        jax.tree.map(np.testing.assert_array_equal, after, before)


# --- observations ---

FORM = Dict(
    {
        "inner": Dict({"x": Box(-1.0, 1.0, (2,)), "kind": Discrete(3)}),
        "count": Box(0, 9, (1,), jnp.int32),
        "pair": MultiDiscrete((2, 3)),
    }
)


def test_every_box_has_statistics():
    statistics = observation_statistics(FORM)
    assert statistics["inner"]["kind"] is statistics["pair"] is None
    assert statistics["inner"]["x"].mean.shape == (2,)
    assert statistics["count"].mean.shape == (1,)
    assert observation_statistics(Box(shape=(4,))).mean.shape == (4,)
    assert observation_statistics(Discrete(4)) is None


def test_observations_by_hand():
    obs = {"inner": {"x": np.array([[1.0, 2.0], [3.0, 2.0]], np.float32), "kind": np.array([0, 2])},
           "count": np.array([[4], [8]], np.int32), "pair": np.array([[0, 1], [1, 2]])}  # fmt: skip
    statistics = update_observation_statistics(observation_statistics(FORM), obs, np.ones(2, bool))
    seen = normalize_observation(statistics, obs)
    np.testing.assert_allclose(seen["inner"]["x"], [[-1, 0], [1, 0]], atol=1e-6)
    np.testing.assert_allclose(seen["count"], [[-1], [1]], atol=1e-6)
    assert seen["pair"] is obs["pair"]
    assert seen["inner"]["kind"] is obs["inner"]["kind"]
    # a value that never changed has deviation 0: clipped, never infinite
    other = {**obs, "inner": {**obs["inner"], "x": np.array([[1e9, 3.0], [-1e9, 1.0]], np.float32)}}
    np.testing.assert_allclose(
        normalize_observation(statistics, other)["inner"]["x"], [[10, 10], [-10, -10]]
    )


# --- rewards ---


def test_rewards_are_divided_by_the_deviation_alone():
    statistics = RunningStatistics(jnp.float32(5), jnp.float32(100), jnp.float32(4))
    np.testing.assert_allclose(
        normalize_reward(statistics, jnp.array([3.0, -1.0, 99.0, -99.0])), [1.5, -0.5, 10, -10]
    )


def test_rewards_are_scaled_by_the_statistics_before_the_rollout():
    """Two replicas of one agent, which terminates in the first; its later reward is not counted."""
    live = np.array([[True, True], [False, True]])[..., None]
    reward = np.array([[2.0, 4.0], [99.0, 6.0]], np.float32)[..., None]
    rows = Rows(None, None, reward, terminated=~live, live=live)
    statistics = RunningStatistics(jnp.float32(1), jnp.float32(0), jnp.float32(4))
    before = RewardScale(statistics, jnp.array([[1.0], [0.0]]))
    over = np.array([[False, False], [True, False]])
    data = Experience(rows, reward, live, over, jnp.float32(0.5), 1.0, last_obs=None)
    scaled, (after, last) = scale_reward(before, data)
    np.testing.assert_allclose(scaled.reward[..., 0], [[1, 2], [10, 3]])
    assert scaled.rows is rows
    # sums of live agents: 1 + 2, 4 and 2 + 6; before them one value of mean 0 and mean square 4
    assert after.count == 4
    np.testing.assert_allclose(after.mean, 15 / 4)
    np.testing.assert_allclose(after.variance, (4 + 9 + 16 + 64) / 4 - (15 / 4) ** 2, rtol=1e-6)
    np.testing.assert_allclose(last, [[0], [4]])  # 0 at the start of an episode; gamma x 8


def test_discounted_returns_by_hand():
    # two replicas of one agent; the first episode ends in its second step, with a sum of 4 before
    reward = np.array([[[1.0], [1.0]], [[2.0], [1.0]], [[3.0], [1.0]]], np.float32)
    over = np.array([[False, False], [True, False], [False, False]])
    sums, last = jax.jit(discounted_returns)(
        np.array([[4.0], [0.0]], np.float32), reward, over, 0.5
    )
    np.testing.assert_allclose(sums[:, :, 0], [[1 + 4, 1], [2 + 2.5, 1.5], [3, 1.75]])
    np.testing.assert_allclose(last, [[1.5], [0.875]])
    _, last = jax.jit(discounted_returns)(last, reward[:1], np.array([[True, False]]), 0.5)
    np.testing.assert_allclose(last, [[0], [0.5 * 1.875]])
