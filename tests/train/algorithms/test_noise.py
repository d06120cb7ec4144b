"""Exploration noise: standard deviation, autocorrelation and random keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.train.algorithms.noise import explore, ornstein_uhlenbeck, uniform_actions

pytestmark = pytest.mark.usefixtures("quick_compile")

SHAPE = (500, 2, 3)
OPTIONS = (0.5, 0.2, 0.25)  # scale, standard deviation, damping


def keys_of(seed, num_blocks=5):
    return jax.random.split(jax.random.key(seed), num_blocks)


def test_ornstein_uhlenbeck_by_hand():
    after = ornstein_uhlenbeck(jnp.array([1.0, -2.0]), jnp.array([3.0, 0.5]), *OPTIONS[1:])
    np.testing.assert_allclose(after, [0.75 * 1 + 0.2 * 3, 0.75 * -2 + 0.2 * 0.5], rtol=1e-6)


def test_stationary_distribution_of_ornstein_uhlenbeck():
    def step(state, key):
        noise, state = explore(
            "ornstein_uhlenbeck", state, jax.random.split(key, 5), SHAPE, *OPTIONS
        )
        return state, (noise, state)

    keys = jax.random.split(jax.random.key(0), 60)
    _, (noise, states) = jax.lax.scan(step, jnp.zeros(SHAPE), keys)
    late = np.asarray(states[40:])
    deviation = 0.2 / np.sqrt(1 - 0.75**2)
    np.testing.assert_allclose(late.std(), deviation, rtol=0.03)
    np.testing.assert_allclose(late.mean(), 0, atol=0.02)
    np.testing.assert_allclose(np.mean(late[:-3] * late[3:]) / deviation**2, 0.75**3, atol=0.03)
    np.testing.assert_allclose(states[0].std(), 0.2, rtol=0.03)  # starts at 0
    np.testing.assert_allclose(noise, 0.5 * states, rtol=1e-6)


def test_gaussian_noise_has_no_state():
    noise, state = explore("gaussian", None, keys_of(0), SHAPE, *OPTIONS)
    assert state is None
    np.testing.assert_allclose(noise.std(), 0.5 * 0.2, rtol=0.04)
    np.testing.assert_allclose(noise.mean(), 0, atol=0.01)


def test_no_noise_and_a_scale_of_0_give_zeros():
    for kind, scale in (("none", 0.5), ("gaussian", 0.0)):
        noise, _ = explore(kind, None, keys_of(0), SHAPE, scale, 0.2, 0.25)
        np.testing.assert_array_equal(noise, np.zeros(SHAPE))


def test_uniform_actions_fill_the_box():
    actions = np.asarray(uniform_actions(keys_of(1), SHAPE))
    assert actions.shape == SHAPE
    assert -1 <= actions.min() < -0.99
    assert 0.99 < actions.max() <= 1
    np.testing.assert_allclose(actions.std(), 1 / np.sqrt(3), rtol=0.03)


@pytest.mark.parametrize(
    "draw",
    [
        lambda keys: explore("gaussian", None, keys, (10, 2, 3), *OPTIONS)[0],
        lambda keys: uniform_actions(keys, (10, 2, 3)),
    ],
)
def test_noise_of_a_block_depends_only_on_its_key(draw):
    keys = keys_of(2)
    one, other = draw(keys), draw(keys.at[1].set(jax.random.key(9)))
    changed = np.any(np.asarray(one != other), axis=(1, 2))
    np.testing.assert_array_equal(changed, [False] * 2 + [True] * 2 + [False] * 6)
    assert len(np.unique(one)) == one.size
