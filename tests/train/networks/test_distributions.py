"""Action distributions: numbers by hand, and frequencies of samples."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from wdjax import Box, Dict, Discrete, MultiDiscrete
from wdjax.train.learning import Categorical, Gaussian, make_distribution

pytestmark = pytest.mark.usefixtures("quick_compile")

DISCRETE = Categorical((3,), scalar=True)
MULTI = Categorical((2, 3), scalar=False)
PLANE = Gaussian(2, (2,))
# Probabilities (1/2, 1/4, 1/4) and (1/4, 3/4). A shift of the logits has no effect.
THREE = np.log([0.5, 0.25, 0.25]).astype(np.float32) + 5
TWO = np.log([0.25, 0.75]).astype(np.float32) - 3
BOTH = jnp.concatenate([TWO, THREE])


@functools.cache
def samples(distribution, outputs, num=20_000):
    rows = jnp.broadcast_to(jnp.array(outputs), (num, len(outputs)))
    return np.asarray(jax.jit(distribution.sample)(jax.random.key(0), rows))


def assert_frequency(count_of_20_000, probability):
    """Compare within 4.5 standard deviations."""
    deviation = np.sqrt(20_000 * probability * (1 - probability))
    assert abs(count_of_20_000 - 20_000 * probability) <= 4.5 * deviation


# --- Categorical ---


def test_categorical_log_prob_by_hand():
    log_prob = DISCRETE.log_prob(jnp.tile(THREE, (3, 1)), jnp.arange(3))
    np.testing.assert_allclose(log_prob, np.log([0.5, 0.25, 0.25]), rtol=1e-6)
    actions = jnp.array([[0, 0], [1, 0], [1, 2]])
    expected = np.log([0.25 * 0.5, 0.75 * 0.5, 0.75 * 0.25])
    np.testing.assert_allclose(MULTI.log_prob(jnp.tile(BOTH, (3, 1)), actions), expected, rtol=1e-6)


def test_categorical_entropy_by_hand():
    three = 0.5 * np.log(2) + 0.5 * np.log(4)
    two = -0.25 * np.log(0.25) - 0.75 * np.log(0.75)
    np.testing.assert_allclose(DISCRETE.entropy(jnp.array(THREE)), three, rtol=1e-6)
    np.testing.assert_allclose(MULTI.entropy(BOTH), two + three, rtol=1e-6)


def test_categorical_mode_is_the_lowest_most_likely_action():
    assert DISCRETE.mode(jnp.array(THREE)) == 0
    assert DISCRETE.mode(jnp.array([0.0, 1.0, 1.0])) == 1  # the lowest on ties
    np.testing.assert_array_equal(MULTI.mode(BOTH), [1, 0])


def test_categorical_sample_frequencies():
    drawn = samples(DISCRETE, tuple(THREE.tolist()))
    for action, probability in enumerate([0.5, 0.25, 0.25]):
        assert_frequency(np.sum(drawn == action), probability)


def test_multi_discrete_sample_frequencies():
    drawn = samples(MULTI, tuple(BOTH.tolist()))
    for first, p in enumerate([0.25, 0.75]):
        # jointly, since the components are independent
        for second, q in enumerate([0.5, 0.25, 0.25]):
            assert_frequency(np.sum((drawn[:, 0] == first) & (drawn[:, 1] == second)), p * q)


def test_equal_components_are_drawn_independently():
    drawn = samples(Categorical((2, 2), scalar=False), (0.0,) * 4)
    assert_frequency(np.sum(drawn[:, 0] == drawn[:, 1]), 0.5)


def test_categorical_shapes_and_dtypes():
    assert DISCRETE.num_outputs == 3
    assert MULTI.num_outputs == 5
    assert samples(DISCRETE, tuple(THREE.tolist())).shape == (20_000,)
    assert samples(MULTI, tuple(BOTH.tolist())).shape == (20_000, 2)
    for drawn in (samples(MULTI, tuple(BOTH.tolist())), MULTI.mode(BOTH)):
        assert drawn.dtype == jnp.int32
    rows = jnp.tile(BOTH, (4, 7, 1))
    assert (
        MULTI.log_prob(rows, jnp.zeros((4, 7, 2), int)).shape == MULTI.entropy(rows).shape == (4, 7)
    )


def test_masked_actions_have_probability_0():
    allowed = jnp.array([1, 0, 0, 1, 1])
    outputs = MULTI.mask(BOTH, allowed)
    drawn = samples(MULTI, tuple(outputs.tolist()))
    assert np.all(drawn[:, 0] == 0)
    assert np.all(drawn[:, 1] > 0)
    assert_frequency(np.sum(drawn[:, 1] == 1), 0.5)
    np.testing.assert_allclose(MULTI.log_prob(outputs, jnp.array([0, 2])), np.log(0.5), rtol=1e-6)
    np.testing.assert_allclose(MULTI.entropy(outputs), np.log(2), rtol=1e-6)
    np.testing.assert_array_equal(MULTI.mode(outputs), [0, 1])
    gradient = jax.grad(lambda outputs: MULTI.entropy(MULTI.mask(outputs, allowed)))(BOTH)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)  # and never NaN


def test_mask_without_legal_actions_is_finite():
    outputs = DISCRETE.mask(jnp.array(THREE), jnp.zeros(3))
    np.testing.assert_allclose(DISCRETE.log_prob(outputs, jnp.int32(1)), -np.log(3), rtol=1e-6)
    np.testing.assert_allclose(DISCRETE.entropy(outputs), np.log(3), rtol=1e-6)


# --- Gaussian ---


def test_gaussian_log_prob_by_hand():
    outputs = jnp.array([1.0, -1.0, np.log(2.0), 0.0])  # means 1 and -1, deviations 2 and 1
    # one deviation from the first mean, two from the second
    expected = -0.5 * (1 + 4) - np.log(2) - np.log(2 * np.pi)
    np.testing.assert_allclose(PLANE.log_prob(outputs, jnp.array([3.0, 1.0])), expected, rtol=1e-6)


def test_gaussian_entropy_by_hand():
    outputs = jnp.array([1.0, -1.0, np.log(2.0), 0.0])
    np.testing.assert_allclose(
        PLANE.entropy(outputs), np.log(2) + np.log(2 * np.pi * np.e), rtol=1e-6
    )


def test_gaussian_mode_is_the_mean():
    np.testing.assert_array_equal(PLANE.mode(jnp.array([1.0, -1.0, 3.0, 3.0])), [1, -1])


def test_gaussian_samples_have_mean_and_deviation():
    drawn = samples(PLANE, (1.0, -1.0, float(np.log(2.0)), 0.0)).astype(np.float64)
    for i, (mean, deviation) in enumerate([(1, 2), (-1, 1)]):
        assert abs(drawn[:, i].mean() - mean) < 4.5 * deviation / np.sqrt(20_000)
        np.testing.assert_allclose(drawn[:, i].std(), deviation, rtol=0.03)
        assert_frequency(np.sum(drawn[:, i] > mean + deviation), 0.158655)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 4.5 / np.sqrt(20_000)


def test_gaussian_keeps_the_shape_of_the_box():
    distribution = make_distribution(Box(-1.0, 1.0, (2, 3)))
    outputs = jnp.arange(5 * 12, dtype=jnp.float32).reshape(5, 12) / 100
    action = distribution.sample(jax.random.key(0), outputs)
    assert action.shape == distribution.mode(outputs).shape == (5, 2, 3)
    np.testing.assert_array_equal(distribution.mode(outputs).reshape(5, 6), outputs[:, :6])
    assert distribution.log_prob(outputs, action).shape == (5,)


def test_gaussian_of_a_scalar_box():
    distribution = make_distribution(Box(-1.0, 1.0))
    outputs = jnp.array([[0.5, 0.0]])
    assert distribution.mode(outputs).shape == (1,)
    np.testing.assert_allclose(
        distribution.log_prob(outputs, jnp.array([0.5])), [-0.5 * np.log(2 * np.pi)], rtol=1e-6
    )


# --- SquashedGaussian ---

# asymmetric, and 0.3 is not a float32
BAND = make_distribution(Box(-0.1, 0.3), "squashed_gaussian")
BOTH_SIDES = make_distribution(
    Box(np.array([-1.0, 2.0]), np.array([1.0, 8.0]), (2,)), "squashed_gaussian"
)
SHAPES = [(0.0, 0.0), (0.7, -1.0), (-0.8, 0.2)]  # mean and log deviation of u


def density_of(mean, log_std, num=100_001):
    """Return (actions inside BAND, exp of their log_prob)."""
    actions = np.linspace(-0.1, 0.3, num + 2)[1:-1].astype(np.float32)
    outputs = jnp.broadcast_to(jnp.array([mean, log_std]), (num, 2))
    free = np.arctanh((actions.astype(np.float64) - 0.1) / 0.2).astype(np.float32)
    return actions.astype(np.float64), np.exp(
        np.asarray(jax.jit(BAND.log_prob)(outputs, free), np.float64)
    )


@pytest.mark.parametrize(("mean", "log_std"), SHAPES)
def test_squashed_density_integrates_to_1_and_to_the_distribution_function(mean, log_std):
    actions, density = density_of(mean, log_std)
    mass = np.cumsum(density) * (0.4 / (len(actions) + 1))
    np.testing.assert_allclose(mass[-1], 1, atol=2e-3)
    for u in (-1.0, 0.0, 1.2):  # P(a < squash(u)) equals the normal probability below u
        below = 0.5 * (1 + math.erf((u - mean) / np.exp(log_std) / np.sqrt(2)))
        place = np.searchsorted(actions, 0.1 + 0.2 * np.tanh(u))
        np.testing.assert_allclose(mass[place], below, atol=2e-3)


def test_squashed_log_prob_by_hand():
    # u = 0 in the middle of (-1, 1), where da/du = 1; u = log 3 / 2 at 3/4 of (2, 8), where da/du =
    # 3 (1 - 1/4)
    outputs = jnp.array([1.0, 0.0, 0.0, np.log(2.0)])
    u = np.log(3) / 2
    expected = -0.5 - 0.5 * (u / 2) ** 2 - np.log(2) - np.log(2 * np.pi) - np.log(3 * 3 / 4)
    np.testing.assert_allclose(
        BOTH_SIDES.log_prob(outputs, jnp.array([0.0, u])), expected, rtol=1e-5
    )
    mode = BOTH_SIDES.mode(jnp.array([0.0, u, 1.0, 1.0]))
    np.testing.assert_allclose(BOTH_SIDES.to_space(mode), [0.0, 6.5], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("mean", "log_std"), SHAPES)
def test_squashed_entropy_is_minus_the_mean_log_prob(mean, log_std):
    u = mean + np.exp(log_std) * np.random.default_rng(0).normal(size=200_000)
    slope = 0.2 * (1 - np.tanh(u) ** 2)
    log = (
        -0.5 * ((u - mean) / np.exp(log_std)) ** 2
        - log_std
        - 0.5 * np.log(2 * np.pi)
        - np.log(slope)
    )
    entropy = BAND.entropy(jnp.array([mean, log_std]))
    np.testing.assert_allclose(entropy, -log.mean(), atol=4.5 * log.std() / np.sqrt(200_000) + 1e-4)
    drawn = samples(BAND, (mean, log_std))
    ours = np.asarray(
        BAND.log_prob(jnp.broadcast_to(jnp.array([mean, log_std]), (20_000, 2)), drawn), np.float64
    )
    np.testing.assert_allclose(entropy, -ours.mean(), atol=4.5 * ours.std() / np.sqrt(20_000))


def test_squashed_entropy_of_two_components_is_their_sum():
    outputs = jnp.array([0.7, -1.5, -1.0, 0.5])
    one = [BAND.entropy(jnp.array(pair)) for pair in [(0.7, -1.0), (-1.5, 0.5)]]
    expected = sum(one) + np.log(2 / 0.4) + np.log(6 / 0.4)
    np.testing.assert_allclose(BOTH_SIDES.entropy(outputs), expected, rtol=1e-5)


def test_squashed_samples_are_in_bounds_and_follow_the_density():
    for mean, log_std in [*SHAPES, (30.0, 2.0), (-30.0, 2.0)]:
        drawn = BAND.to_space(samples(BAND, (mean, log_std)))
        assert np.all((drawn >= np.float32(-0.1)) & (drawn <= np.float32(0.3)))
    # center +- half is outside, in float32
    rounded = make_distribution(Box(-0.5, 1.9), "squashed_gaussian")
    edges = [rounded.to_space(rounded.mode(jnp.array([u, 0.0]))) for u in (-30.0, 30.0)]
    assert edges == [np.float32(-0.5), np.float32(1.9)]
    drawn = BAND.to_space(samples(BAND, SHAPES[1]))
    assert_frequency(np.sum(drawn < 0.1 + 0.2 * np.tanh(0.7)), 0.5)
    assert_frequency(np.sum(drawn < 0.1 + 0.2 * np.tanh(0.7 + np.exp(-1.0))), 1 - 0.158655)


@pytest.mark.slow
@pytest.mark.parametrize("action", [-60.0, 60.0])
def test_squashed_log_prob_and_gradient_are_finite_at_the_edges(action):
    for outputs in ([0.0, 0.0], [20.0, -3.0], [-20.0, 3.0]):
        log_prob, gradient = jax.value_and_grad(BAND.log_prob)(
            jnp.array(outputs), jnp.float32(action)
        )
        assert jnp.isfinite(log_prob)
        assert jnp.all(jnp.isfinite(gradient))
        assert jnp.all(jnp.isfinite(jax.grad(BAND.entropy)(jnp.array(outputs))))


def test_squashed_gradient_by_hand():
    outputs, action = np.array([0.3, -0.4]), 0.36
    z = (action - 0.3) / np.exp(-0.4)
    gradient = jax.grad(BAND.log_prob)(jnp.array(outputs), jnp.float32(action))
    np.testing.assert_allclose(gradient, [z / np.exp(-0.4), z**2 - 1], rtol=1e-4)


def test_squashed_keeps_the_shape_of_the_box():
    high = np.arange(1.0, 7.0).reshape(2, 3)
    distribution = make_distribution(Box(np.zeros((2, 3)), high, (2, 3)), "squashed_gaussian")
    outputs = jnp.zeros((5, 12))
    np.testing.assert_allclose(distribution.to_space(distribution.mode(outputs))[4], high / 2)
    action = distribution.sample(jax.random.key(0), outputs)
    assert action.shape == distribution.to_space(action).shape == (5, 2, 3)
    assert (
        distribution.log_prob(outputs, action).shape == distribution.entropy(outputs).shape == (5,)
    )


@pytest.mark.parametrize(
    ("box", "mean"), [(Box(10_000.0, 10_001.0), 0.3), (Box(-1.0, 1.0), 8.0), (Box(-1.0, 1.0), -8)]
)
def test_squashed_density_and_score_are_exact_for_saturated_actions(box, mean):
    distribution, outputs = make_distribution(box, "squashed_gaussian"), jnp.array([mean, -0.5])
    drawn = np.asarray(samples(distribution, (mean, -0.5)), np.float64)
    log_prob, score = jax.jit(jax.vmap(jax.value_and_grad(distribution.log_prob), (None, 0)))(
        outputs, drawn[:2000]
    )
    z = (drawn[:2000] - mean) / np.exp(-0.5)
    slope = 2 * (np.log(2) - drawn[:2000] - np.logaddexp(0, -2 * drawn[:2000])) + np.log(
        (box.high - box.low) / 2
    )
    np.testing.assert_allclose(
        log_prob, -0.5 * (z**2 + np.log(2 * np.pi)) + 0.5 - slope, rtol=1e-5, atol=1e-4
    )
    np.testing.assert_allclose(
        score, np.stack([z / np.exp(-0.5), z**2 - 1], axis=1), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(score.mean(axis=0), [0, 0], atol=0.15)
    actions = distribution.to_space(drawn)
    assert np.all((actions >= box.low) & (actions <= box.high))


@pytest.mark.parametrize(
    "box", [Box(), Box(0.0), Box(1.0, 1.0), Box(np.array([0.0, -np.inf]), np.ones(2), (2,))]
)
def test_squashed_requires_a_bounded_box(box):
    with pytest.raises(ValueError, match="requires finite bounds"):
        make_distribution(box, "squashed_gaussian")


# --- spaces ---


def test_make_distribution_depends_on_the_space():
    assert make_distribution(Discrete(3)) == DISCRETE
    assert make_distribution(MultiDiscrete((2, 3))) == MULTI
    assert make_distribution(Box(-1.0, 1.0, (2,))) == PLANE


def test_dict_of_actions_raises():
    with pytest.raises(TypeError, match="Discrete, MultiDiscrete or Box"):
        make_distribution(Dict({"a": Discrete(2)}))


# --- many choices with a mask ---


@pytest.mark.parametrize("num_choices", [65, 300, 441, 1_000])
def test_no_random_number_selects_a_masked_choice(num_choices):
    """Try the cumulative sums and their neighbors, where sums in parts may round incorrectly."""
    rng = np.random.default_rng(num_choices)
    distribution = make_distribution(Discrete(num_choices))
    allowed = rng.random(num_choices) < 0.3
    outputs = distribution.mask(
        jnp.asarray(rng.normal(size=num_choices).astype(np.float32)), jnp.asarray(allowed)
    )
    sums = np.asarray(jnp.cumsum(jnp.exp(outputs - jnp.max(outputs))))
    numbers = [np.float32(0), np.nextafter(np.float32(1), np.float32(0)), *(sums / sums.max())]
    numbers = np.array(
        [numbers, *(np.nextafter(numbers, np.float32(side)) for side in (0, 1))], np.float32
    ).ravel()
    numbers = numbers[(numbers >= 0) & (numbers < 1)][:, None]
    rows = jnp.broadcast_to(outputs, (len(numbers), num_choices))
    chosen = np.asarray(jax.jit(distribution.choose)(numbers, rows))
    assert chosen.max() < num_choices
    assert allowed[chosen].all(), np.unique(chosen[~allowed[chosen]])
    order = np.argsort(numbers[:, 0], kind="stable")
    assert np.all(np.diff(chosen[order]) >= 0)


@pytest.mark.parametrize("num_choices", [3, 65])
def test_nan_logits_select_a_valid_index(num_choices):
    """Non-finite numbers are reported after the update. Until then indices must be valid."""
    distribution = make_distribution(Discrete(num_choices))
    for outputs in (jnp.full(num_choices, jnp.nan), jnp.zeros(num_choices).at[1].set(jnp.nan)):
        assert 0 <= distribution.choose(jnp.array([0.9]), outputs) < num_choices


# --- KL divergence ---


def test_categorical_kl_equals_scipy():
    generator = np.random.default_rng(0)
    distribution = Categorical((2, 4, 3), scalar=False)
    outputs, others = generator.normal(size=(2, 5, 9)).astype(np.float32) * 3
    expected = np.zeros(5)
    for first, size in ((0, 2), (2, 4), (6, 3)):
        own, other = (
            scipy.special.softmax(one[:, first : first + size], axis=-1)
            for one in (outputs.astype(float), others.astype(float))
        )
        expected += scipy.stats.entropy(own, other, axis=-1)
    np.testing.assert_allclose(distribution.kl(outputs, others), expected, rtol=1e-4)


def test_categorical_kl_of_masked_outputs_counts_allowed_actions_only():
    outputs, others = jnp.array([1.0, -2.0, 3.0]), jnp.array([0.5, 4.0, 1.0])
    allowed = jnp.array([1, 0, 1])
    masked = [DISCRETE.mask(one, allowed) for one in (outputs, others)]
    pairs = [one[jnp.array([0, 2])] for one in (outputs, others)]
    found, slope = jax.value_and_grad(DISCRETE.kl)(*masked)
    np.testing.assert_allclose(found, Categorical((2,), scalar=True).kl(*pairs), rtol=1e-5)
    assert np.isfinite(slope).all()
    assert slope[1] == 0


@pytest.mark.parametrize("distribution", [PLANE, BOTH_SIDES], ids=["gaussian", "squashed"])
def test_gaussian_kl_equals_the_mean_log_ratio_of_samples(distribution):
    count = distribution.num_outputs
    generator = np.random.default_rng(1)
    outputs, others = generator.normal(size=(2, 2 * count)).astype(np.float32) * 0.5
    rows = jnp.tile(outputs, (200_000, 1))
    actions = distribution.sample(jax.random.key(2), rows)
    ratio = distribution.log_prob(rows, actions) - distribution.log_prob(
        jnp.tile(others, (200_000, 1)), actions
    )
    error = float(ratio.std()) / np.sqrt(200_000)
    assert abs(float(distribution.kl(outputs, others)) - float(ratio.mean())) < 4 * error


def test_gaussian_kl_by_hand():
    found = PLANE.kl(jnp.array([1.0, 2.0, 0.0, 1.0]), jnp.array([3.0, 2.0, np.log(2.0), 1.0]))
    np.testing.assert_allclose(found, np.log(2) + (1 + 4) / 8 - 0.5, rtol=1e-6)


@pytest.mark.parametrize("distribution", [DISCRETE, MULTI, PLANE, BOTH_SIDES])
def test_kl_from_itself_is_0(distribution):
    outputs = jax.random.normal(
        jax.random.key(0), (distribution.num_outputs + distribution.num_free,)
    )
    assert distribution.kl(outputs, outputs) == 0
