"""The nearest neighbours against a plain stable sort."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis.extra import numpy as hnp

from wdjax.neighbors import nearest_neighbors

N = 8
find = jax.jit(nearest_neighbors, static_argnums=3)


def expected_neighbors(x, y, active, k):
    """Returns for every agent the indices of its k nearest active others: lists, shorter where fewer are active."""
    rows = []
    for i in range(len(x)):
        distance = np.sqrt((x - x[i]) ** 2 + (y - y[i]) ** 2)
        order = np.argsort(distance, kind="stable")
        rows.append([int(j) for j in order if j != i and active[j]][:k])
    return rows


def check(x, y, active, k):
    x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
    index, found = find(x, y, np.asarray(active), k)
    assert index.shape == found.shape == (len(x), k)
    assert index.dtype == np.int32
    assert found.dtype == bool
    rows = [np.asarray(index)[i][np.asarray(found)[i]].tolist() for i in range(len(x))]
    assert rows == expected_neighbors(x, y, active, k)
    assert (np.diff(np.asarray(found).astype(int), axis=1) <= 0).all()  # those found come first


@hypothesis.given(
    st.sampled_from([1, 3, N - 1, N]),
    hnp.arrays(np.int32, (2, N), elements=st.integers(0, 3)),
    hnp.arrays(bool, N),
)
def test_places_on_a_grid_with_many_ties(k, places, active):
    check(*places, active, k)


@hypothesis.given(st.sampled_from([3, N]), st.integers(0, 2**32 - 1))
def test_random_places(k, seed):
    rng = np.random.default_rng(seed)
    check(*rng.uniform(0, 20, (2, N)), rng.random(N) < 0.7, k)


@pytest.mark.parametrize("k", [1, 3, N])
def test_everybody_in_one_point(k):
    check(np.full(N, 7.3), np.full(N, 0.1), np.ones(N, bool), k)


@pytest.mark.parametrize("k", [1, 3, N])
def test_nobody_is_active(k):
    _, found = find(np.arange(N, dtype=np.float32), np.zeros(N, np.float32), np.zeros(N, bool), k)
    assert not found.any()


def test_only_oneself_is_active():
    active = np.arange(N) == 2
    index, found = find(np.arange(N, dtype=np.float32), np.zeros(N, np.float32), active, 3)
    assert not found[2].any()
    assert (np.asarray(index)[:, 0] == 2)[~active].all()
    np.testing.assert_array_equal(found.sum(axis=1), np.where(active, 0, 1))


def test_distances_of_every_size():
    check(10.0 ** np.arange(-4, 4), np.zeros(N), np.ones(N, bool), N)


def test_batches():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (2, 5, N)).astype(np.float32)
    active = rng.random((5, N)) < 0.7
    index, found = jax.jit(jax.vmap(functools.partial(nearest_neighbors, k=3)))(x, y, active)
    for i in range(5):
        one_index, one_found = find(x[i], y[i], active[i], 3)
        np.testing.assert_array_equal(found[i], one_found)
        np.testing.assert_array_equal(np.where(found[i], index[i], -1), np.where(one_found, one_index, -1))
