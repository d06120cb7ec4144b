"""KL early stop and the choice of replicas: the parts of an update that decide which rows and steps count."""

import dataclasses
import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.train import PolicyConfig
from wdjax.train.algorithms.fit import Batch, fit, shuffle
from wdjax.train.algorithms.optimizer import apply_gradient, make_optimizer
from wdjax.train.algorithms.ppo import PPO
from wdjax.train.algorithms.transforms import choose_replicas
from wdjax.train.fast.cpu import Cpu
from wdjax.train.networks.distributions import Categorical
from wdjax.train.state.policy import Policy
from wdjax.train.state.registry import make_hypers, with_options
from wdjax.train.state.state import PolicyState

pytestmark = pytest.mark.usefixtures("quick_compile")

# --- early stop: a policy whose parameters are the logits of each of 8 rows ---

CONFIG = PolicyConfig(
    epochs=3, minibatches=2, learning_rate=0.5, entropy_coefficient=0.0, max_grad_norm=math.inf
)
CONFIG = with_options("agent", CONFIG)


def gradient_steps(policy, state, hypers, batch, key, num_blocks):
    options = Policy.options(policy, hypers)
    stated = {
        name: getattr(options, name)
        for name in ("epochs", "minibatches", "normalize_advantage", "target_kl")
    }
    return fit(policy.algorithm.loss, policy, state, hypers, batch, key, num_blocks, **stated)


class Stand(SimpleNamespace):
    """A stand-in for a Policy."""

    backend = Cpu()
    options = Policy.options


def show(state, obs):
    return state.params["logits"][obs], state.params["value"][obs], None


POLICY = Stand(
    name="agent",
    apply=show,
    distribution=Categorical((2,), scalar=True),
    config=CONFIG,
    algorithm=PPO(),
)
PARAMS = {"logits": jnp.zeros((8, 2)), "value": jnp.zeros(8)}
SHAPE = (4, 2, 1)
ROWS = Batch(
    obs=jnp.arange(8).reshape(SHAPE), action=jnp.zeros(SHAPE, int), log_prob=jnp.full(SHAPE, math.log(0.5)),
    value=jnp.zeros(SHAPE), advantage=jnp.arange(1.0, 9.0).reshape(SHAPE), target=jnp.ones(SHAPE),
    valid=jnp.ones(SHAPE, bool).at[0, 0].set(False),
)  # fmt: skip
KEY = jax.random.key(3)
START = PolicyState(PARAMS, make_optimizer(CONFIG, make_hypers(CONFIG)).init(PARAMS))
HYPERS = make_hypers(CONFIG).at(jnp.float32(0))


@jax.jit
def steps_with(target_kl):
    return gradient_steps(
        POLICY,
        START,
        HYPERS.replace(options=HYPERS.options.replace(target_kl=target_kl)),
        ROWS,
        KEY,
        1,
    )


@pytest.fixture(scope="module")
def by_hand():
    """Returns (the states before each of the six steps and after the last, the metrics of each)."""

    @jax.jit
    def step(state, rows):
        grads, row = Cpu().gradient(POLICY.algorithm.loss, POLICY, state, HYPERS, rows)
        return apply_gradient(POLICY, HYPERS, grads)(state), row

    states, metrics = [START], []
    for key in jax.random.split(KEY, CONFIG.options.epochs):
        for index in shuffle(key, SHAPE, 1, CONFIG.options.minibatches, Cpu().permutation):
            rows = jax.tree.map(lambda leaf, index=index: leaf[index], ROWS.flat())
            state, row = step(states[-1], rows)
            states.append(state)
            metrics.append(row)
    return states, metrics


def assert_close(a, b):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), a, b)


def expect(by_hand, target_kl):
    """Returns (state, metrics) of stopping before the first step that begins further off than target_kl."""
    states, metrics = by_hand
    off = [float(row["approx_kl"]) > target_kl for row in metrics]
    taken = off.index(True) if any(off) else len(off)
    looked_at = min(taken + 1, len(off))
    means = {name: np.mean([row[name] for row in metrics[:taken]]) for name in metrics[0]}
    means["approx_kl"] = np.mean([row["approx_kl"] for row in metrics[:looked_at]])
    return states[taken], means | {"gradient_steps": taken}


def targets(by_hand):
    """Targets between the approx_kl of the steps, so that each stops somewhere else; the last never."""
    kl = [float(row["approx_kl"]) for row in by_hand[1]]
    return [1e-6, max(kl[:4]) * 0.99, max(kl[:5]) * 0.99, math.inf]


def test_no_step_is_taken_from_too_far_off(by_hand):
    taken = set()
    for target in targets(by_hand):
        state, metrics = steps_with(jnp.float32(target))
        expected_state, expected_metrics = expect(by_hand, target)
        assert_close(state, expected_state)  # the optimizer's state too
        assert metrics.keys() == expected_metrics.keys()
        assert_close(dict(metrics), expected_metrics)
        taken.add(int(metrics["gradient_steps"]))
    assert 6 in taken
    assert len(taken) >= 3
    assert min(taken) >= 1  # the first step begins where the policy acted


def test_a_member_that_stops_stops_no_other(by_hand):
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
def test_positive_replicas_and_so_many_others(ratio, others):
    for seed in range(5):
        chosen = np.asarray(choose(jax.random.key(seed), POSITIVE, ratio, 4))
        assert np.all(chosen[POSITIVE])
        assert np.sum(chosen & ~POSITIVE) == others


def test_all_where_no_replica_is_positive():
    assert np.all(choose(KEY, np.zeros(12, bool), 1.0, 4))
    assert np.all(choose(KEY, np.ones(12, bool), 1.0, 4))


def test_replicas_without_a_live_row_take_nobodys_place():
    usable = np.isin(np.arange(12), [1, 3, 4, 5, 6, 7, 9])  # four that are not positive
    for seed in range(5):
        chosen = np.asarray(choose_among(jax.random.key(seed), POSITIVE, usable, 1.0, 4))
        assert np.all(chosen[POSITIVE])
        assert not np.any(chosen & ~usable)
        assert np.sum(chosen & ~POSITIVE) == 3
    nobody = np.zeros(12, bool)
    np.testing.assert_array_equal(choose_among(KEY, nobody, usable, 1.0, 4), usable)


def test_others_are_drawn_evenly():
    keys = jax.random.split(KEY, 4000)
    chosen = jax.vmap(
        lambda key: choose_replicas(key, jnp.array(POSITIVE), jnp.ones(12, bool), 1.0, 4)
    )(keys)
    counts = np.sum(chosen, axis=0)[~POSITIVE]
    deviation = np.sqrt(4000 * (1 / 3) * (2 / 3))
    assert np.all(np.abs(counts - 4000 / 3) < 4.5 * deviation)
    pairs = np.asarray(chosen)[:, ~POSITIVE]
    together = np.sum(pairs[:, :, None] & pairs[:, None], axis=0)[np.triu_indices(9, 1)]
    expected = 4000 * 3 * 2 / (9 * 8)
    assert np.all(np.abs(together - expected) < 4.5 * np.sqrt(expected))


def test_what_is_drawn_for_a_block_does_not_depend_on_the_others():
    first = np.array([True, False, False, False])
    for others, ratio_alone, ratio in [(1, 1.0, 0.12), (2, 2.0, 0.23)]:
        alone = choose(KEY, first, ratio_alone, 1)
        among = choose(
            KEY, np.concatenate([first, np.ones(8, bool)]), ratio, 3
        )  # the rest takes part in no draw
        np.testing.assert_array_equal(among[:4], alone)
        assert np.sum(alone) == 1 + others


# --- nothing to learn from ---


@pytest.mark.parametrize(("epochs", "minibatches"), [(3, 2), (1, 1)])
def test_no_step_without_a_live_row(by_hand, epochs, minibatches):
    """Momentum alone would move the parameters; what was not measured is NaN."""
    config = dataclasses.replace(CONFIG, epochs=epochs, minibatches=minibatches)
    policy = Stand(**{**vars(POLICY), "config": config})
    moving = by_hand[0][1]  # with momentum
    step = jax.jit(lambda rows: gradient_steps(policy, moving, HYPERS, rows, KEY, 1))
    state, metrics = step(ROWS.replace(valid=jnp.zeros(SHAPE, bool)))
    jax.tree.map(np.testing.assert_array_equal, state, moving)
    assert metrics.pop("gradient_steps", 0) == 0
    assert np.all(np.isnan(list(metrics.values())))
    one = jnp.zeros(SHAPE, bool).at[1, 0].set(True)  # in one minibatch of each epoch
    state, metrics = step(ROWS.replace(valid=one))
    assert np.any(state.params["logits"] != moving.params["logits"])
    assert metrics.pop("gradient_steps", 1) == epochs
    assert np.all(np.isfinite(list(metrics.values())))
