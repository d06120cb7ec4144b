"""Spaces: samples are contained, other values are not."""

import copy

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax import Box, Dict, Discrete, MultiDiscrete

INF = np.inf
SPACES = {
    "discrete": Discrete(5),
    "discrete of one": Discrete(1),
    "discrete batch": Discrete(3).batch(4),
    "multi discrete": MultiDiscrete((2, 5, 1)),
    "multi discrete batch": MultiDiscrete((21, 3)).batch(4).batch(2),
    "box": Box(-1.0, 2.0, (3,)),
    "box scalar": Box(0.0, 1.0),
    "box unbounded": Box(shape=(2, 3)),
    "box half bounded": Box(
        np.array([0.0, -INF, -INF, -2.0]), np.array([INF, 1.0, INF, 5.0]), (4,)
    ),
    "box batch": Box(np.array([0.0, -3.0]), 1.0, (2,)).batch(5),
    "box of integers": Box(-3, 7, (4,), jnp.int32),
    "dict": Dict(
        {
            "a": Discrete(2).batch(3),
            "b": Dict({"c": Box(0.0, 1.0, (2,)), "d": MultiDiscrete((2, 2))}),
        }
    ),
}
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


@each_space
def test_samples_are_contained(space):
    samples = jax.jit(jax.vmap(space.sample))(jax.random.split(jax.random.key(0), 200))
    assert jax.jit(jax.vmap(space.contains))(samples).all()
    check_shape_and_dtype(space, samples)


def check_shape_and_dtype(space, samples):
    if isinstance(space, Dict):
        assert set(samples) == set(space.spaces)
        for name, part in space.spaces.items():
            check_shape_and_dtype(part, samples[name])
    else:
        assert samples.shape == (200, *space.shape)
        assert samples.dtype == space.dtype


@each_space
def test_spaces_are_equal_and_hashable_by_value(space):
    other = copy.deepcopy(space)
    assert other == space
    assert hash(other) == hash(space)
    assert space.batch(3) == space.batch(3)
    assert space.batch(3) != space.batch(4) != space
    assert space.batch(3).batch(2).single == space.single
    assert space.batch(3) != space


def test_unequal_spaces():
    different = [
        Discrete(2),
        Discrete(3),
        Discrete(2).batch(1),
        MultiDiscrete((2,)),
        MultiDiscrete((2, 3)),
        MultiDiscrete((3, 2)),
        MultiDiscrete((2, 3)).batch(2),
        Box(0.0, 1.0),
        Box(0.0, 2.0),
        Box(-1.0, 1.0),
        Box(0.0, 1.0, (1,)),
        Box(0, 1, (), jnp.int32),
        Box(0.0, 1.0, (3, 2)),
        Box(0.0, 1.0, (2,)).batch(3),
        Dict({"a": Discrete(2)}),
        Dict({"b": Discrete(2)}),
        Dict({"a": Discrete(3)}),
        Dict({"a": Discrete(2), "b": Discrete(2)}),
    ]
    for i, one in enumerate(different):
        assert [one == other for other in different] == [i == j for j in range(len(different))]


def test_equal_spaces_have_equal_hashes():
    pairs = [
        (Box(0.0, 1.0, (2,)), Box(np.zeros(2), np.ones(2), (2,))),
        (Box(0.0, 1.0, (2,), jnp.float32), Box(0.0, 1.0, (2,), np.dtype("float32"))),
        (Dict({"a": Discrete(2), "b": Discrete(3)}), Dict({"b": Discrete(3), "a": Discrete(2)})),
        (MultiDiscrete((2, 3)), MultiDiscrete([2, 3])),
        (MultiDiscrete((2, 3)), MultiDiscrete(np.array([2, 3]))),
    ]
    for one, other in pairs:
        assert one == other
        assert hash(one) == hash(other)


BOX = Box(np.array([0.0, -1.0]), np.array([1.0, INF]), (2,))
OUTSIDE = [
    (Discrete(3), 3),
    (Discrete(3), -1),
    (Discrete(3), 1.0),
    (Discrete(3), True),
    (Discrete(3), np.array([1])),
    (Discrete(3).batch(2), 1),
    (Discrete(3).batch(2), np.array([1, 3])),
    (Discrete(3).batch(2), np.array([1, 1, 1])),
    (MultiDiscrete((2, 5)), np.array([2, 0])),
    (MultiDiscrete((2, 5)), np.array([0, -1])),
    (MultiDiscrete((2, 5)), np.array([1.0, 0.0])),
    (MultiDiscrete((2, 5)), np.array([1, 0, 0])),
    (MultiDiscrete((2, 5)).batch(2), np.array([1, 0])),
    (MultiDiscrete((2, 5)), 1),
    (BOX, np.array([1.5, 0.0])),
    (BOX, np.array([-0.1, 0.0])),
    (BOX, np.array([0.5, -1.5])),
    (BOX, np.array([np.nan, 0.0])),
    (BOX, np.array([0.5, np.nan])),
    (BOX, np.array([0, 0])),
    (BOX, np.array([0.5])),
    (BOX, 0.5),
    (BOX, np.array([[0.5, 0.5]])),
    (BOX.batch(2), np.array([0.5, 0.5])),
    (Box(shape=(1,)), np.array([np.nan])),
    (Box(0, 3, (), jnp.int32), 1.0),
    (Box(0, 3, (), jnp.int32), 4),
    (Dict({"a": Discrete(2)}), {}),
    (Dict({"a": Discrete(2)}), {"a": 2}),
    (Dict({"a": Discrete(2)}), {"b": 1}),
    (Dict({"a": Discrete(2)}), {"a": 1, "b": 1}),
    (Dict({"a": Discrete(2)}), 1),
    (Dict({"a": Discrete(2)}), None),
]


@pytest.mark.parametrize(("space", "value"), OUTSIDE, ids=str)
def test_values_outside_a_space_are_not_contained(space, value):
    contained = space.contains(value)
    assert contained.shape == ()
    assert contained.dtype == bool
    assert not contained


def test_bounds_are_contained():
    assert Discrete(3).contains(np.int64(2))
    assert Discrete(3).contains(np.uint8(0))
    assert BOX.contains(np.array([0.0, -1.0]))
    assert BOX.contains(np.array([1.0, INF]))
    assert Box(0.1, 0.3).contains(np.float32(0.1))
    assert MultiDiscrete((2, 5)).contains(np.array([1, 4]))
    assert Dict({"b": Discrete(2), "a": Discrete(3)}).contains({"a": 2, "b": 1})


def test_samples_reach_every_value_evenly():
    keys = jax.random.split(jax.random.key(0), 4000)
    counts = np.bincount(jax.jit(jax.vmap(Discrete(4).sample))(keys))
    np.testing.assert_allclose(counts, 1000, atol=120)
    pairs = np.asarray(jax.jit(jax.vmap(MultiDiscrete((2, 3)).sample))(keys))
    np.testing.assert_allclose(np.bincount(pairs[:, 0] * 3 + pairs[:, 1]), 4000 / 6, atol=110)
    numbers = np.asarray(jax.jit(jax.vmap(Box(np.array([0.0, -4.0]), 2.0, (2,)).sample))(keys))
    np.testing.assert_allclose(numbers.mean(axis=0), [1, -1], atol=0.12)
    np.testing.assert_allclose(numbers.std(axis=0), np.array([2, 6]) / np.sqrt(12), rtol=0.05)
    whole = np.asarray(jax.jit(jax.vmap(Box(-1, 2, (), jnp.int32).sample))(keys))
    np.testing.assert_allclose(np.bincount(whole + 1), 1000, atol=120)


finite = st.floats(-(2.0**127), 2.0**127, width=32)


@jax.jit
def _sample_and_check(key, low, high):
    space = Box(low, high, (500,))
    sample = space.sample(key)
    return sample, space.contains(sample)


@hypothesis.given(finite, finite, st.integers(0, 100))
@hypothesis.example(-(2.0**127), 2.0**127, 0)
@hypothesis.example(-0.05, 1.5e-9, 0)
def test_samples_stay_inside_any_bounds(a, b, seed):
    low, high = np.float32(min(a, b)), np.float32(max(a, b))
    sample, inside = _sample_and_check(jax.random.key(seed), low, high)
    assert inside
    low, high, sample = np.float64(low), np.float64(high), np.float64(sample)
    # wide enough to resolve in float32
    if high - low > max(1e-5 * abs(low), 1e-5 * abs(high), 1e-30):
        assert 0.35 < np.mean(sample < low / 2 + high / 2) < 0.65


@hypothesis.given(finite, st.integers(0, 100))
@hypothesis.example(np.float32(0.1).item(), 0)
def test_samples_respect_a_single_bound(bound, seed):
    for low, high in ((bound, INF), (-INF, bound), (bound, bound)):
        assert _sample_and_check(jax.random.key(seed), np.float32(low), np.float32(high))[1]


def test_bools_are_drawn_evenly_and_contained():
    space = Box(0, 1, (1000,), bool)
    sample = space.sample(jax.random.key(0))
    assert 450 < int(sample.sum()) < 550
    assert bool(space.contains(sample))
    assert not bool(space.contains(jnp.ones(1000)))


def test_clip_moves_values_into_the_space():
    clipped = BOX.clip(jnp.array([7.0, -7.0]))
    np.testing.assert_array_equal(clipped, [1.0, -1.0])
    assert BOX.contains(clipped)
    np.testing.assert_array_equal(BOX.clip(jnp.array([0.25, 1e9])), [0.25, 1e9])
    batch = BOX.clip(jnp.array([[[7.0, -7.0]], [[-7.0, 7.0]], [[0.5, 0.5]]]))
    np.testing.assert_array_equal(batch, [[[1, -1]], [[0, 7]], [[0.5, 0.5]]])


def test_parts_of_a_dict_draw_independently():
    sample = Dict({"a": Box(0.0, 1.0, (4,)), "b": Box(0.0, 1.0, (4,))}).sample(jax.random.key(0))
    assert not np.any(sample["a"] == sample["b"])
    with jax.debug_key_reuse(True):
        jax.jit(Dict({"a": Box(shape=(4,)), "b": Discrete(2)}).sample)(jax.random.key(0))


def test_batch_adds_axes_and_single_removes_them():
    assert Discrete(3).batch(4).shape == (4,)
    assert MultiDiscrete((2, 5)).batch(4).batch(3).shape == (3, 4, 2)
    assert Box(0.0, 1.0, (2, 7)).batch(3).shape == (3, 2, 7)
    assert Box(0.0, 1.0, (2, 7)).batch(3).batch(5).single == Box(0.0, 1.0, (2, 7))
    space = Dict({"a": Box(0.0, 1.0, (2,)), "b": Discrete(3)})
    assert space.batch(4).single == space
    assert space.batch(4)["a"].shape == (4, 2)
    assert space["b"] == Discrete(3)
