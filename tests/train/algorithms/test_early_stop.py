"""Early stopping by KL divergence, and the selection of replicas."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shown_policy import fit_policy, shown_policy, state_of

from wdjax.train.algorithms.fit import apply_gradient
from wdjax.train.algorithms.shuffle import shuffle
from wdjax.train.algorithms.transforms import choose_replicas
from wdjax.train.fast.cpu import Cpu
from wdjax.train.learning import Batch
from wdjax.train.state.engine import Engine
from wdjax.train.state.hypers import hypers_of

pytestmark = pytest.mark.usefixtures("quick_compile")

# --- early stop: the parameters are the logits of each of 8 transitions ---

FIELDS = {
    "epochs": 3,
    "minibatches": 2,
    "learning_rate": 0.5,
    "entropy_coefficient": 0.0,
    "max_grad_norm": math.inf,
}
POLICY = shown_policy("PPO", Cpu(), **FIELDS)
PARAMS = {"outputs": jnp.zeros((8, 2)), "value": jnp.zeros(8)}
SHAPE = (4, 2, 1)
BATCH = Batch(
    obs=jnp.arange(8).reshape(SHAPE),
    action=jnp.zeros(SHAPE, int),
    log_prob=jnp.full(SHAPE, math.log(0.5)),
    value=jnp.zeros(SHAPE),
    advantage=jnp.arange(1.0, 9.0).reshape(SHAPE),
    target=jnp.ones(SHAPE),
    valid=jnp.ones(SHAPE, bool).at[0, 0].set(False),
)
KEY = jax.random.key(3)
START = state_of(POLICY, PARAMS)
HYPERS = hypers_of(POLICY.config).at(jnp.float32(0))


@jax.jit
def steps_with(target_kl):
    return fit_policy(POLICY, START, BATCH, KEY, target_kl=target_kl)


@pytest.fixture(scope="module")
def by_hand():
    """Return (states before each of the six steps and after the last, metrics of each step)."""

    @jax.jit
    def step(state, rows):
        engine = POLICY.engine
        grads, row = engine.gradient(POLICY.algorithm.loss, POLICY, state, HYPERS, rows)
        return apply_gradient(POLICY, HYPERS, grads, state), row

    states, metrics, options = [START], [], POLICY.config.options
    for key in jax.random.split(KEY, options.epochs):
        for index in shuffle(key, SHAPE, 1, options.minibatches):
            rows = jax.tree.map(lambda leaf, index=index: leaf[index], BATCH.flat())
            state, row = step(states[-1], rows)
            states.append(state)
            metrics.append(row)
    return states, metrics


def assert_close(a, b):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), a, b)


def expect(by_hand, target_kl):
    """Return (state, metrics) of stopping before the first step with approx_kl above target_kl."""
    states, metrics = by_hand
    exceeds = [float(row["approx_kl"]) > target_kl for row in metrics]
    taken = exceeds.index(True) if any(exceeds) else len(exceeds)
    evaluated = min(taken + 1, len(exceeds))
    means = {name: np.mean([row[name] for row in metrics[:taken]]) for name in metrics[0]}
    means["approx_kl"] = np.mean([row["approx_kl"] for row in metrics[:evaluated]])
    return states[taken], means | {"gradient_steps": taken}


def targets(by_hand):
    """Return values of target_kl that stop after different numbers of steps; the last one never."""
    kl = [float(row["approx_kl"]) for row in by_hand[1]]
    return [1e-6, max(kl[:4]) * 0.99, max(kl[:5]) * 0.99, math.inf]


@pytest.mark.slow
def test_no_step_is_taken_once_the_kl_divergence_exceeds_its_target(by_hand):
    taken = set()
    for target in targets(by_hand):
        state, metrics = steps_with(jnp.float32(target))
        expected_state, expected_metrics = expect(by_hand, target)
        assert_close(state, expected_state)  # with the optimizer state
        assert metrics.keys() == expected_metrics.keys()
        assert_close(dict(metrics), expected_metrics)
        taken.add(int(metrics["gradient_steps"]))
    assert 6 in taken
    assert len(taken) >= 3
    assert min(taken) >= 1  # before the first step the divergence is 0


@pytest.mark.slow
def test_a_population_member_that_stops_does_not_stop_the_others(by_hand):
    many = jnp.array(targets(by_hand), jnp.float32)
    states, metrics = jax.jit(jax.vmap(steps_with))(many)
    assert len(set(metrics["gradient_steps"].tolist())) >= 3
    for i, target in enumerate(many):
        alone = steps_with(target)
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], (states, metrics)), alone)


# --- neg_pos_env_ratio ---

POSITIVE = np.isin(np.arange(12), [1, 6, 7])
choose_among = jax.jit(choose_replicas, static_argnums=(3, 4))


def choose(key, positive, ratio, num_blocks):
    return choose_among(key, positive, np.ones(len(positive), bool), ratio, num_blocks)


@pytest.mark.parametrize(
    ("ratio", "others"), [(0.0, 0), (0.5, 1), (1.0, 3), (2.5, 7), (2.99, 8), (3.0, 9), (1e6, 9)]
)
def test_positive_replicas_and_a_multiple_of_others_are_chosen(ratio, others):
    for seed in range(5):
        chosen = np.asarray(choose(jax.random.key(seed), POSITIVE, ratio, 4))
        assert np.all(chosen[POSITIVE])
        assert np.sum(chosen & ~POSITIVE) == others


def test_all_replicas_are_chosen_if_none_or_all_are_positive():
    assert np.all(choose(KEY, np.zeros(12, bool), 1.0, 4))
    assert np.all(choose(KEY, np.ones(12, bool), 1.0, 4))


def test_replicas_without_a_valid_transition_are_not_chosen():
    usable = np.isin(np.arange(12), [1, 3, 4, 5, 6, 7, 9])  # four that are not positive
    for seed in range(5):
        chosen = np.asarray(choose_among(jax.random.key(seed), POSITIVE, usable, 1.0, 4))
        assert np.all(chosen[POSITIVE])
        assert not np.any(chosen & ~usable)
        assert np.sum(chosen & ~POSITIVE) == 3
    none = np.zeros(12, bool)
    np.testing.assert_array_equal(choose_among(KEY, none, usable, 1.0, 4), usable)


@pytest.mark.slow
def test_other_replicas_are_drawn_uniformly():
    keys = jax.random.split(KEY, 4000)
    positive, usable = jnp.array(POSITIVE), jnp.ones(12, bool)
    chosen = jax.vmap(lambda key: choose_replicas(key, positive, usable, 1.0, 4))(keys)
    counts = np.sum(chosen, axis=0)[~POSITIVE]
    deviation = np.sqrt(4000 * (1 / 3) * (2 / 3))
    assert np.all(np.abs(counts - 4000 / 3) < 4.5 * deviation)
    pairs = np.asarray(chosen)[:, ~POSITIVE]
    together = np.sum(pairs[:, :, None] & pairs[:, None], axis=0)[np.triu_indices(9, 1)]
    expected = 4000 * 3 * 2 / (9 * 8)
    assert np.all(np.abs(together - expected) < 4.5 * np.sqrt(expected))


def test_random_numbers_of_a_block_do_not_depend_on_other_blocks():
    first = np.array([True, False, False, False])
    for others, ratio_alone, ratio in [(1, 1.0, 0.12), (2, 2.0, 0.23)]:
        alone = choose(KEY, first, ratio_alone, 1)
        # the other replicas are positive: none of them is drawn
        among = choose(KEY, np.concatenate([first, np.ones(8, bool)]), ratio, 3)
        np.testing.assert_array_equal(among[:4], alone)
        assert np.sum(alone) == 1 + others


# --- nothing to learn from ---


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "epochs", "minibatches"), [(Cpu(), 1, 1), (Engine(), 3, 2)])
def test_no_step_is_taken_without_a_valid_transition(by_hand, engine, epochs, minibatches):
    """Momentum alone would change the parameters. Metrics without a step are NaN."""
    fields = FIELDS | {"epochs": epochs, "minibatches": minibatches}
    policy = shown_policy("PPO", engine, **fields)
    moving = by_hand[0][1]  # with momentum
    step = jax.jit(lambda rows: fit_policy(policy, moving, rows, KEY))
    state, metrics = step(BATCH.replace(valid=jnp.zeros(SHAPE, bool)))
    jax.tree.map(np.testing.assert_array_equal, state, moving)
    assert metrics.pop("gradient_steps", 0) == 0
    assert np.all(np.isnan(list(metrics.values())))
    one = jnp.zeros(SHAPE, bool).at[1, 0].set(True)  # in one minibatch of each epoch
    state, metrics = step(BATCH.replace(valid=one))
    assert np.any(state.params["outputs"] != moving.params["outputs"])
    assert metrics.pop("gradient_steps", 1) == epochs
    assert np.all(np.isfinite(list(metrics.values())))
