"""Masked statistics against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wdjax.train.learning import masked_mean, masked_variance, normalize

VALUES = np.array([1.0, 2.0, 6.0, 0.0], np.float32)
LIVE = np.array([True, True, True, False])
numbers = arrays(np.float32, (8,), elements=st.floats(-100, 100, width=32))
mean_jit, variance_jit, normalize_jit = (
    jax.jit(masked_mean),
    jax.jit(masked_variance),
    jax.jit(normalize),
)


def test_moments_by_hand():
    assert masked_mean(VALUES, LIVE) == 3
    np.testing.assert_allclose(masked_variance(VALUES, LIVE), 14 / 3, rtol=1e-6)
    np.testing.assert_allclose(
        normalize(VALUES, LIVE)[:3], np.array([-2, -1, 3]) / np.sqrt(14 / 3), rtol=1e-6
    )


@pytest.mark.slow
@given(numbers, arrays(bool, (8,)).filter(np.any))
def test_moments_agree_with_numpy(values, live):
    valid = values[live].astype(np.float64)
    np.testing.assert_allclose(mean_jit(values, live), valid.mean(), atol=1e-4)
    np.testing.assert_allclose(variance_jit(values, live), valid.var(), rtol=1e-4, atol=1e-2)
    if valid.std() > 0.1:
        exact = (valid - valid.mean()) / valid.std()
        np.testing.assert_allclose(normalize_jit(values, live)[live], exact, atol=1e-2)


@pytest.mark.parametrize("garbage", [np.inf, -np.inf, np.nan, 1e38])
def test_masked_values_are_ignored(garbage):
    values = jnp.array([*VALUES[:3], garbage])
    assert masked_mean(values, LIVE) == 3
    assert masked_variance(values, LIVE) == masked_variance(VALUES, LIVE)
    np.testing.assert_array_equal(normalize(values, LIVE)[:3], normalize(VALUES, LIVE)[:3])


def test_empty_mask_gives_0():
    assert masked_mean(jnp.full(3, jnp.inf), jnp.zeros(3, bool)) == 0
    assert masked_variance(jnp.full(3, jnp.inf), jnp.zeros(3, bool)) == 0


def test_equal_values_normalize_to_0():
    np.testing.assert_array_equal(normalize(jnp.full(4, 7.0), LIVE)[:3], 0)
