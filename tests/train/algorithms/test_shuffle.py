"""Random orders without a sort: each element once, and every order equally often."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from wdjax.train.algorithms.shuffle import random_order

order_of = jax.jit(random_order, static_argnums=1)


def by_hand(words, size, rows, columns):
    """Return the order by Python's integers, one element after the other."""

    def mix(word):
        word = (word ^ (word >> 16)) * 0x85EBCA6B % 2**32
        word = (word ^ (word >> 13)) * 0xC2B2AE35 % 2**32
        return word ^ (word >> 16)

    def permute(place):
        a, b = divmod(place, columns)
        for first, second in words:
            a = (a + mix(b ^ first)) % rows
            b = (b + mix(a ^ second)) % columns
        return a * columns + b

    order = [permute(place) for place in range(size)]
    while max(order) >= size:
        order = [permute(place) if place >= size else place for place in order]
    return order


@pytest.mark.parametrize(
    ("size", "rounds", "rows", "columns"),
    [(12, 12, 3, 4), (97, 6, 10, 10), (512, 6, 16, 32), (1000, 6, 25, 40)],
)
def test_order_is_that_of_the_rounds_by_hand(size, rounds, rows, columns):
    key = jax.random.key(size)
    words = np.asarray(jax.random.bits(key, (rounds, 2))).tolist()
    np.testing.assert_array_equal(order_of(key, size), by_hand(words, size, rows, columns))


@pytest.mark.slow
def test_order_is_the_same_with_64_bits():
    expected = order_of(jax.random.key(3), 97)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(random_order(jax.random.key(3), 97), expected)


@pytest.mark.slow
@hypothesis.given(st.integers(1, 300) | st.sampled_from([1009, 4096, 46_341]), st.integers(0))
@hypothesis.settings(max_examples=10)
def test_every_element_is_there_once(size, seed):
    order = order_of(jax.random.key(seed % 2**32), size)
    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_every_order_is_equally_frequent(size):
    orders = list(itertools.permutations(range(size)))
    expected = 100
    keys = jax.random.split(jax.random.key(size), expected * len(orders))
    found = np.asarray(jax.jit(jax.vmap(lambda key: random_order(key, size)))(keys))
    code = size ** np.arange(size)
    counts = np.bincount(found @ code, minlength=size**size)[np.array(orders) @ code]
    assert counts.sum() == len(keys)
    chi_square, freedom = np.sum((counts - expected) ** 2) / expected, len(orders) - 1
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [65, 97, 512, 2048])
def test_large_orders_look_random(size):
    keys = jax.random.split(jax.random.key(0), 2000)
    orders = np.asarray(jax.jit(jax.vmap(lambda key: random_order(key, size)))(keys))
    fixed = np.sum(orders == np.arange(size), axis=1)  # mean and variance 1
    ascents = np.sum(np.diff(orders) > 0, axis=1)  # mean (n - 1) / 2, variance (n + 1) / 12
    bound = 4 / math.sqrt(len(keys))
    assert abs(fixed.mean() - 1) < bound
    assert abs(fixed.var() - 1) < 3 * bound
    assert abs(ascents.mean() - (size - 1) / 2) < bound * math.sqrt((size + 1) / 12)
    assert abs(ascents.var() * 12 / (size + 1) - 1) < 2 * bound
    steps = np.bincount((orders[:, 1] - orders[:, 0]) % size, minlength=size)[1:]
    mean = len(keys) / (size - 1)
    chi_square = np.sum((steps - mean) ** 2) / mean
    assert abs(chi_square - (size - 2)) < 4 * math.sqrt(2 * (size - 2))
