"""Nearest neighbors by strips and by cells against all distances, for even and extreme layouts."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax import kernels
from wdjax.cells import nearest_neighbors_cells
from wdjax.kernels.cells import nearest_neighbors_cells_kernel, neighbor_rows_cells_kernel
from wdjax.neighbors import nearest_neighbors_simple, neighbor_rows_simple, rows_of
from wdjax.searching import NOTHING, smallest_pairs

pytestmark = pytest.mark.usefixtures("quick_compile")

simple = jax.jit(nearest_neighbors_simple, static_argnums=3)
kernel = functools.partial(nearest_neighbors_cells_kernel, interpret=True)
# number of agents and neighbors
SIZES = (1, 1), (2, 2), (7, 3), (30, 12), (150, 5), pytest.param(400, 10, marks=pytest.mark.slow)
# with keys, which compile faster for at most 5 neighbors, and by insertion
KERNEL_SIZES = (
    (7, 3),
    (150, 5),
    *(pytest.param(*size, marks=pytest.mark.slow) for size in ((600, 3), (200, 20))),
)
LAYOUTS = {
    "uniform": lambda rng, n: rng.uniform(-20, 20, (2, n)),
    "clusters": lambda rng, n: (
        rng.normal(size=(2, 3))[:, rng.integers(0, 3, n)] * 50 + rng.normal(size=(2, n))
    ),
    "line": lambda rng, n: np.outer(rng.normal(size=2), rng.uniform(0, 9, n)),
    "vertical line": lambda rng, n: np.stack([np.full(n, 3.1), rng.uniform(0, 9, n)]),
    "one point": lambda rng, n: np.full((2, n), -7.0),
    "grid": lambda rng, n: rng.integers(0, 12, (2, n)),
    "few points": lambda rng, n: rng.integers(0, 2, (2, n)),
    "walls": lambda rng, n: np.clip(rng.uniform(-5, 15, (2, n)), 0, 10),
    "outlier": lambda rng, n: rng.uniform(0, 1, (2, n)) + 1e6 * (np.arange(n) == 0),
    "far away": lambda rng, n: rng.uniform(0, 1, (2, n)) + 1e5,
    "huge": lambda rng, n: rng.uniform(-1, 1, (2, n)) * 3.4e38,
    "overflowing squares": lambda rng, n: rng.uniform(-1, 1, (2, n)) * 1e20,
    "tiny": lambda rng, n: rng.uniform(-1, 1, (2, n)) * 1e-18,
    "underflowing squares": lambda rng, n: rng.uniform(-1, 1, (2, n)) * 1e-30,
    "every magnitude": lambda rng, n: 10.0 ** rng.uniform(-20, 15, (2, n)),
}


EXACT = {"one point", "grid", "few points"}  # squares of integers have no rounding errors


def same(found, expected):
    """Assert that the neighbors are equal where they exist."""
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(
        np.where(found[1], found[0], -1), np.where(expected[1], expected[0], -1)
    )


def equally_near(found, expected, x, y, active):
    """Assert that neighbors are as near as expected, except for the last bits of squares.

    XLA may add a product without rounding it, in one program and not in another.
    """
    (index, exists), (other, _) = (map(np.asarray, pair) for pair in (found, expected))
    np.testing.assert_array_equal(exists, expected[1])
    own = np.arange(len(x))[:, None]
    with np.errstate(over="ignore", under="ignore"):
        distance, others = (
            np.where(exists, np.hypot(x[own] - x[i], y[own] - y[i]), 0.0) for i in (index, other)
        )
    np.testing.assert_allclose(distance, others, rtol=5e-7, atol=2e-19)
    assert (active[index] & (index != own))[exists].all()
    unique = np.sort(np.where(exists, index, -np.arange(1, index.shape[1] + 1)), axis=1)
    assert (np.diff(unique, axis=1) > 0).all()


each_layout = hypothesis.given(
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.integers(0, 2**32 - 1),
)


def check(find, num_agents, k, layout, active, seed):
    rng = np.random.default_rng(seed)
    x, y = LAYOUTS[layout](rng, num_agents).astype(np.float32)
    active = rng.random(num_agents) < active
    found, expected = find(x, y, active, k), simple(x, y, active, k)
    if layout in EXACT:
        same(found, expected)
    else:
        equally_near(found, expected, x, y, active)


@pytest.mark.slow
@pytest.mark.parametrize(("num_agents", "k"), SIZES)
@each_layout
def test_neighbors_are_those_of_all_distances(num_agents, k, layout, active, seed):
    check(nearest_neighbors_cells, num_agents, k, layout, active, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("num_agents", "k"), KERNEL_SIZES)
@each_layout
def test_kernel_finds_those_of_all_distances(num_agents, k, layout, active, seed):
    check(kernel, num_agents, k, layout, active, seed)


@pytest.mark.slow
def test_more_places_than_keys_can_number_are_searched_by_insertion(monkeypatch):
    # another k than elsewhere: the kernel is traced with this limit
    monkeypatch.setattr("wdjax.kernels.cells.MAX_WINDOW", 128)
    for layout in LAYOUTS:
        check(kernel, 300, 4, layout, 1.0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("num_agents", "k"), [(160, 5), (161, 13), (704, 10)])
def test_a_block_that_begins_at_the_last_place_reads_no_other_replica(num_agents, k):
    # interpreted kernels read missing values there, a GPU reads the next replica
    x, y = np.random.default_rng(0).uniform(size=(2, num_agents)).astype(np.float32)
    cells = jax.jit(kernels.cells._cells, static_argnums=3)
    scene = np.asarray(cells(x, y, np.ones(num_agents, bool), k)[2]).reshape(2, -1)
    assert scene.shape[1] >= num_agents + kernels.nearest.block_size(k) - 1
    assert np.isinf(scene[:, num_agents:]).all()


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_positions_of_empty_slots_may_be_anything(value):
    rng = np.random.default_rng(0)
    active = rng.random(150) < 0.7
    x, y = np.where(active, rng.integers(0, 40, (2, 150)), value).astype(np.float32)
    expected = simple(*np.where(active, (x, y), 0).astype(np.float32), active, 5)
    for find in (nearest_neighbors_cells, kernel):
        index, found = find(x, y, active, 5)
        same((index[active], found[active]), (expected[0][active], expected[1][active]))


@pytest.mark.slow
def test_rows_of_features_are_those_of_all_distances():
    rng = np.random.default_rng(0)
    x, y = LAYOUTS["grid"](rng, 150).astype(np.float32)
    features, own = (rng.normal(size=(150, n)).astype(np.float32) for n in (3, 2))
    sizes = {"k": 5, "num_relative": 2, "sizes": (50, 100)}
    for share in (0.7, 0.0):
        args = x, y, rng.random(150) < share, features, own
        expected = neighbor_rows_simple(*args, **sizes)
        for find in (
            functools.partial(rows_of, nearest_neighbors_cells),
            functools.partial(neighbor_rows_cells_kernel, interpret=True),
        ):
            for rows, others in zip(find(*args, **sizes), expected, strict=True):
                np.testing.assert_array_equal(rows, others)


def test_neighbors_by_hand():
    x = np.array([0.0, 3.0, 1.0, 0.0, -1.0], np.float32)
    y = np.array([0.0, 4.0, 0.0, 9.0, 0.0], np.float32)
    active = np.array([True, True, True, False, True])
    index, found = nearest_neighbors_cells(x, y, active, 4)
    assert index.dtype == np.int32
    assert found.dtype == bool
    rows = [[2, 4, 1], [2, 0, 4], [0, 4, 1], [1, 0, 2, 4], [0, 2, 1]]  # ties: the lower index
    assert [
        i[f].tolist() for i, f in zip(np.asarray(index), np.asarray(found), strict=True)
    ] == rows


@pytest.mark.slow
def test_replicas_agree_with_single_calls_under_two_vmaps():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (2, 2, 3, 40)).astype(np.float32)
    y[0, 1], x[1, 2] = 0.0, x[1, 2] * 1024  # replicas differ in shape and size
    active = rng.random((3, 40)) < 0.7
    for search in (nearest_neighbors_cells, kernel):
        find = jax.vmap(functools.partial(search, k=1))  # compiles fast
        index, found = jax.jit(jax.vmap(find, in_axes=(0, 0, None)))(x, y, active)
        for i in np.ndindex(2, 3):
            same((index[i], found[i]), simple(x[i], y[i], active[i[1]], 1))


def test_no_gradient_flows_through_indices():
    def total(x):
        index, _ = nearest_neighbors_cells(x, x, jnp.ones(7, bool), 3)
        return jnp.sum(x[index])

    x = jnp.arange(7.0)
    gradient = jax.jit(jax.grad(total))(x)
    index, _ = nearest_neighbors_cells(x, x, jnp.ones(7, bool), 3)
    np.testing.assert_array_equal(gradient, np.bincount(np.ravel(index), minlength=7))


@pytest.mark.parametrize("k", [0, 8])
def test_impossible_number_of_neighbors_is_refused(k):
    with pytest.raises(ValueError, match=rf"k = {k}: must be from 1 to .*\(7\)"):
        nearest_neighbors_cells(*np.zeros((2, 7), np.float32), np.ones(7, bool), k)


@pytest.mark.parametrize("axes", [(0, 2), (2,)])
def test_smallest_pairs_are_sorted_by_distance_and_then_index(axes):
    rng = np.random.default_rng(0)
    distance = rng.choice([0.0, 1.0, 2.0, np.inf], (2, 3, 4)).astype(np.float32)
    index = rng.permutation(24).reshape(2, 3, 4).astype(np.int32)
    lists = smallest_pairs(jnp.asarray(distance), jnp.asarray(index), 5, axes)
    result = np.stack([np.stack(values, -1).astype(float) for values in lists], -1)
    pairs = np.stack([distance, index], -1)
    pairs = pairs.swapaxes(0, 1).reshape(1, 3, 8, 2) if axes == (0, 2) else pairs
    padded = np.pad(pairs, ((0, 0), (0, 0), (0, 5), (0, 0)))
    padded[..., -5:, :] = NOTHING
    for place in np.ndindex(padded.shape[:2]):
        expected = sorted(map(tuple, padded[place]))[:5]
        row = result[place[-1] if axes == (0, 2) else place]
        np.testing.assert_array_equal(row, np.array(expected))
