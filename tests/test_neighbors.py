"""Nearest neighbors, in plain XLA and in the interpreted kernel, against a stable sort in NumPy."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from cards import lowered
from hypothesis.extra import numpy as hnp

from wdjax.kernels.neighbors import nearest_neighbors_kernel, neighbor_rows_kernel
from wdjax.neighbors import (
    nearest_neighbors,
    nearest_neighbors_simple,
    neighbor_rows,
    neighbor_rows_simple,
)

N = 8
interpreted = functools.partial(nearest_neighbors_kernel, interpret=True)
IMPLEMENTATIONS = {
    name: jax.jit(function, static_argnums=3)
    for name, function in {"simple": nearest_neighbors_simple, "kernel": interpreted}.items()
}
each = pytest.mark.parametrize("find", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)


def expected_neighbors(x, y, active, k):
    """Return the indices of the k nearest active others of every agent, possibly fewer."""
    rows = []
    for i in range(len(x)):
        distance = np.sqrt((x - x[i]) ** 2 + (y - y[i]) ** 2)
        order = np.argsort(distance, kind="stable")
        rows.append([int(j) for j in order if j != i and active[j]][:k])
    return rows


def check(find, x, y, active, k):
    x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
    index, exists = find(x, y, np.asarray(active), k)
    assert index.shape == exists.shape == (len(x), k)
    assert index.dtype == np.int32
    assert exists.dtype == bool
    rows = [np.asarray(index)[i][np.asarray(exists)[i]].tolist() for i in range(len(x))]
    assert rows == expected_neighbors(x, y, active, k)
    # existing neighbors come first
    assert (np.diff(np.asarray(exists).astype(int), axis=1) <= 0).all()


@pytest.mark.slow
@each
@hypothesis.given(
    st.sampled_from([1, N - 1]),
    hnp.arrays(np.int32, (2, N), elements=st.integers(0, 3)),
    hnp.arrays(bool, N),
)
def test_ties_are_broken_by_index(find, k, places, active):
    check(find, *places, active, k)


@each
@hypothesis.given(st.sampled_from([3, N]), st.integers(0, 2**32 - 1))
def test_random_positions(find, k, seed):
    rng = np.random.default_rng(seed)
    check(find, *rng.uniform(0, 20, (2, N)), rng.random(N) < 0.7, k)


@each
@pytest.mark.parametrize("k", [1, 3, N])
def test_all_agents_at_one_point(find, k):
    check(find, np.full(N, 7.3), np.full(N, 0.1), np.ones(N, bool), k)


@each
@pytest.mark.parametrize("k", [1, 3, N])
def test_no_active_agent_gives_no_neighbors(find, k):
    _, exists = find(np.arange(N, dtype=np.float32), np.zeros(N, np.float32), np.zeros(N, bool), k)
    assert not exists.any()


@each
def test_agents_are_not_their_own_neighbors(find):
    active = np.arange(N) == 2
    index, exists = find(np.arange(N, dtype=np.float32), np.zeros(N, np.float32), active, 3)
    assert not exists[2].any()
    assert (np.asarray(index)[:, 0] == 2)[~active].all()
    np.testing.assert_array_equal(exists.sum(axis=1), np.where(active, 0, 1))


@each
def test_distances_of_every_magnitude(find):
    check(find, 10.0 ** np.arange(-4, 4), np.zeros(N), np.ones(N, bool), N)


@each
def test_vmap_agrees_with_single_calls(find):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (2, 5, N)).astype(np.float32)
    active = rng.random((5, N)) < 0.7
    index, exists = jax.jit(jax.vmap(functools.partial(find, k=3)))(x, y, active)
    for i in range(5):
        one_index, one_found = find(x[i], y[i], active[i], 3)
        np.testing.assert_array_equal(exists[i], one_found)
        np.testing.assert_array_equal(
            np.where(exists[i], index[i], -1), np.where(one_found, one_index, -1)
        )


@pytest.mark.parametrize("spread", [8, 24])
def test_distances_that_differ_in_the_last_bits_are_ordered(spread):
    """The squared distances differ by a few last bits. The sort key drops three of them."""
    for seed in range(40):
        steps = np.random.default_rng(seed).integers(0, spread, N - 1)
        x, y = np.append(0.0, np.full(N - 1, 1.25)), np.append(0.0, np.sqrt(steps * 2.0**-23))
        check(IMPLEMENTATIONS["kernel"], x, y, np.ones(N, bool), 3)


def test_many_agents_in_each_corner():
    """More agents with equal distances than the kernel sorts, as at the edges of a game."""
    rng = np.random.default_rng(0)
    x, y = rng.choice([0.0, 3.0], (2, 60)), rng.choice([0.0, 3.0], (2, 60))
    x[:, :5], y[:, :5] = rng.uniform(0, 3, (2, 5)), rng.uniform(0, 3, (2, 5))
    for i in range(2):
        check(IMPLEMENTATIONS["kernel"], x[i], y[i], np.ones(60, bool), 4)


@pytest.mark.parametrize(
    ("sizes", "k"), [((1, 2), 1), pytest.param((33, 105), 3, marks=pytest.mark.slow)]
)
def test_agent_counts_that_need_several_programs(sizes, k):
    rng = np.random.default_rng(1)
    for n in sizes:
        for places in (rng.uniform(0, 20, (2, n)), rng.integers(0, 5, (2, n))):
            check(IMPLEMENTATIONS["kernel"], *places, rng.random(n) < 0.8, k)


@pytest.mark.parametrize("k", [3, 14])
def test_float32_positions_with_x64_enabled(k):
    x, y = np.random.default_rng(k).uniform(size=(2, 20)).astype(np.float32)
    with jax.enable_x64(True):
        index, exists = nearest_neighbors_kernel(x, y, np.ones(20, bool), k, interpret=True)
    assert exists.all()
    np.testing.assert_array_equal(index, expected_neighbors(x, y, np.ones(20, bool), k))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "k", "ties"), [(1_000, 10, False), (1_000, 10, True), (2_100, 3, False)]
)
def test_thousands_of_agents_with_and_without_ties(n, k, ties):
    rng = np.random.default_rng(2)
    places = rng.uniform(0, 20, (2, n))
    check(
        IMPLEMENTATIONS["kernel"], *(np.round(places) if ties else places), rng.random(n) < 0.8, k
    )


def expected_rows(x, y, active, features, own_features, k, num_relative):
    """Return the rows of features, computed one by one from `expected_neighbors`."""
    rows = []
    for i, others in enumerate(expected_neighbors(x, y, active, k)):
        neighbor_features = np.zeros((features.shape[1], k), np.float32)
        for place, j in enumerate(others if active[i] else []):
            neighbor_features[:, place] = features[j]
            neighbor_features[:num_relative, place] -= features[i, :num_relative]
        rows.append(np.append(neighbor_features, own_features[i]))
    return np.array(rows)


def crowd(seed, n, num_features, num_own):
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 20, (2, n)).astype(np.float32)
    numbers = rng.normal(size=(n, num_features + num_own)).astype(np.float32)
    return x, y, rng.random(n) < 0.7, numbers[:, :num_features], numbers[:, num_features:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation",
    [neighbor_rows_simple, functools.partial(neighbor_rows_kernel, interpret=True)],
)
@pytest.mark.parametrize(
    ("sizes", "k", "num_features", "num_own", "num_relative"),
    [
        ((8,), 3, 2, 1, 1),
        ((2, 3), 5, 7, 1, 5),
        ((30, 1, 9), 5, 7, 3, 0),
        ((2, 38), 1, 1, 0, 1),
        ((36,), 14, 3, 1, 2),
    ],
)
def test_rows_contain_relative_features_of_neighbors(
    implementation, sizes, k, num_features, num_own, num_relative
):
    arrays = crowd(3, sum(sizes), num_features, num_own)
    part = {"k": k, "num_relative": num_relative, "sizes": sizes}
    rows = jax.jit(functools.partial(implementation, **part))(*arrays)
    assert [len(group) for group in rows] == list(sizes)
    np.testing.assert_array_equal(np.concatenate(rows), expected_rows(*arrays, k, num_relative))


@pytest.mark.slow
def test_rows_under_vmap():
    many = [
        np.stack(leaves)
        for leaves in zip(*(crowd(seed, N, 2, 1) for seed in range(3)), strict=True)
    ]
    kernel = functools.partial(
        neighbor_rows_kernel, k=3, num_relative=1, sizes=(2, 6), interpret=True
    )
    rows = np.concatenate(jax.jit(jax.vmap(kernel))(*many), axis=1)
    for i in range(3):
        np.testing.assert_array_equal(rows[i], expected_rows(*(leaf[i] for leaf in many), 3, 1))


def test_derivative_of_rows_equals_that_of_features():
    x, y, active, features, own_features = crowd(4, N, 2, 1)

    def kernel(scale):
        return neighbor_rows(x, y, active, scale * features, own_features, 3, 1, (N,))[0]

    value, derivative = jax.jit(lambda: jax.jvp(kernel, (1.0,), (1.0,)))()
    np.testing.assert_array_equal(value[:, :6], derivative[:, :6])
    np.testing.assert_array_equal(derivative[:, 6], 0)


@pytest.mark.slow
@pytest.mark.parametrize(("num_agents", "word"), [(40, "top_k"), (9_000, "sort")])
def test_many_neighbors_use_plain_xla(num_agents, word):
    x = np.zeros(num_agents, np.float32)
    find = functools.partial(nearest_neighbors, k=33)
    text = lowered(find, x, x, x == 0, platform="cuda")
    assert "triton" not in text
    assert word in text


@pytest.mark.slow
@pytest.mark.parametrize("num_agents", [1_000, 20_000])
def test_many_agents_use_cells(num_agents):
    x = np.zeros(num_agents, np.float32)
    text = lowered(functools.partial(nearest_neighbors, k=10), x, x, x == 0, platform="cuda")
    assert "nearest_cells" in text
    rows = lowered(
        lambda x: neighbor_rows(x, x, x == 0, x[:, None], x[:, None], 10, 1, (num_agents,)),
        *(x,),
        platform="cuda",
    )
    assert "nearest_cells" in rows


PLACES = (jax.ShapeDtypeStruct((40,), np.float32),) * 2 + (jax.ShapeDtypeStruct((40,), bool),)
COLUMNS = (jax.ShapeDtypeStruct((40, 7), np.float32), jax.ShapeDtypeStruct((40, 1), np.float32))


@pytest.mark.parametrize(("platform", "word"), [("cpu", "top_k"), ("cuda", "triton")])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (functools.partial(nearest_neighbors, k=10), PLACES),
        (lambda *arrays: neighbor_rows(*arrays, 10, 5, (4, 36)), (*PLACES, *COLUMNS)),
    ],
)
def test_kernel_is_used_on_cuda_only(function, arguments, platform, word):
    text = lowered(function, *arguments, platform=platform)
    assert [other in text for other in ("top_k", "triton")] == [word == "top_k", word == "triton"]


def test_neighbor_indices_have_no_gradient():
    def nearest_place(x):
        index, _ = nearest_neighbors(x, np.zeros(N, np.float32), np.ones(N, bool), 1)
        return x[index[0, 0]]

    gradient = jax.jit(jax.grad(nearest_place))(np.array([0, 9, 8, 7, 3, 5, 6, 4], np.float32))
    np.testing.assert_array_equal(gradient, np.eye(N)[4])
