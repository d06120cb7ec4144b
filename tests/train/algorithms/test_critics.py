"""Categorical critics: projection, targets and losses against NumPy; networks; refused options."""

import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_probes import tiny_ddpg, tiny_sac
from probes import new_policy, tiny_config

from wdjax.train import load_config, make_learner, with_hypers
from wdjax.train.algorithms.critics import (
    critic_target,
    cross_entropy,
    expected_value,
    lowest,
    project,
    q_values,
    support,
)
from wdjax.train.learning import ReplayBatch
from wdjax.train.state.hypers import hypers_of

pytestmark = pytest.mark.usefixtures("quick_compile")

C51 = {"critic": "categorical", "num_atoms": 5, "v_min": -2.0, "v_max": 2.0}
ATOMS = np.linspace(-2, 2, 5)
# logits of two target critics for two transitions; their means differ by transition
LOGITS = np.random.default_rng(0).normal(size=(2, 2, 5)).astype(np.float32) * 2
REWARD, DISCOUNT = np.array([0.3, -1.7]), np.array([0.9, 0.0])


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def projected(probabilities, values, atoms=ATOMS):
    """Return the projection of one distribution, atom by atom."""
    result = np.zeros(len(atoms))
    for probability, value in zip(probabilities, values, strict=True):
        value = min(max(value, atoms[0]), atoms[-1])
        above = int(np.searchsorted(atoms, value))  # the first atom that is not below the value
        if atoms[above] == value:
            result[above] += probability
            continue
        share = (value - atoms[above - 1]) / (atoms[above] - atoms[above - 1])
        result[above - 1] += probability * (1 - share)
        result[above] += probability * share
    return result


def targets(bonus=(0.0, 0.0)):
    """Return the target distributions of both transitions, by NumPy."""
    rows = []
    for i in range(2):
        distributions = softmax(LOGITS[:, i].astype(np.float64))
        best = distributions[np.argmin(distributions @ ATOMS)]
        rows.append(projected(best, REWARD[i] + DISCOUNT[i] * (ATOMS + bonus[i])))
    return np.array(rows)


def test_projection_equals_a_loop_over_atoms():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(7), size=20)
    values = rng.normal(scale=3, size=(20, 7))
    atoms = support(jnp.float32(-3), jnp.float32(4.5), 7)
    np.testing.assert_allclose(atoms, np.linspace(-3, 4.5, 7), rtol=1e-6)
    result = project(*(jnp.array(x, jnp.float32) for x in (probabilities, values)), atoms)
    expected = [projected(*row, np.linspace(-3, 4.5, 7)) for row in zip(probabilities, values)]  # noqa: B905
    np.testing.assert_allclose(result, expected, atol=2e-6)
    np.testing.assert_allclose(np.sum(result, axis=-1), 1, rtol=1e-5)


def test_projection_keeps_the_mean_inside_the_atoms():
    atoms = support(jnp.float32(-3), jnp.float32(3), 4)
    probabilities = jnp.array([[0.1, 0.2, 0.3, 0.4]])
    result = project(probabilities, 0.5 + 0.4 * atoms[None], atoms)
    np.testing.assert_allclose(np.sum(result * atoms[None]), 0.5 + 0.4 * 1.0, rtol=1e-5)
    same = project(probabilities, atoms[None], atoms)
    np.testing.assert_allclose(same, probabilities, atol=1e-6)


def test_the_critic_with_the_lowest_mean_is_used_in_each_transition():
    means = softmax(LOGITS) @ ATOMS
    np.testing.assert_allclose(expected_value(LOGITS, jnp.array(ATOMS, jnp.float32)), means,
                               rtol=1e-4, atol=1e-6)  # fmt: skip
    assert len(set(np.argmin(means, axis=0))) == 2
    chosen = [softmax(LOGITS[np.argmin(means[:, i]), i]) for i in range(2)]
    np.testing.assert_allclose(lowest(LOGITS, jnp.array(ATOMS, jnp.float32)), chosen, rtol=1e-5)


@pytest.mark.parametrize("bonus", [None, (0.4, 5.0)])
def test_target_distributions_by_hand(bonus):
    config = new_policy("DDPG", **C51)
    policy, hypers = SimpleNamespace(config=config), hypers_of(config).at(jnp.float32(0))
    reward, discount = (jnp.array(x, jnp.float32) for x in (REWARD, DISCOUNT))
    batch = ReplayBatch(None, None, reward, None, discount)
    given = () if bonus is None else (jnp.array(bonus),)
    target = critic_target(policy, hypers, batch, jnp.array(LOGITS), *given)
    np.testing.assert_allclose(target, targets(bonus or (0.0, 0.0)), atol=2e-6)
    means = q_values(policy, hypers, jnp.array(LOGITS))
    np.testing.assert_allclose(means, softmax(LOGITS) @ ATOMS, rtol=1e-4, atol=1e-6)


def test_cross_entropy_by_hand():
    target = targets()
    expected = -np.sum(target[None] * np.log(softmax(LOGITS)), axis=-1)
    result = cross_entropy(jnp.array(LOGITS), jnp.array(target, jnp.float32))
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("tiny", [tiny_ddpg, tiny_sac])
def test_networks_have_one_output_per_atom(tiny):
    config = tiny_config("probe_box_signal", {"agent": tiny(critic="categorical", num_atoms=11)})
    state = jax.eval_shape(make_learner(config).init, jax.random.key(0)).policies["agent"]
    for params in (state.params, state.target_params):
        assert params["critic"]["head"]["kernel"].shape[-1] == 11


@pytest.mark.slow
def test_ranges_of_a_population_are_swept():
    policy = tiny_ddpg(critic="categorical", num_atoms=11)
    learner = make_learner(tiny_config("probe_box_signal", {"agent": policy}))
    states = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), 2))
    states = with_hypers(states, **{"agent.v_max": jnp.array([1.0, 20.0])})
    _, metrics = jax.vmap(lambda state: learner.run(state, num_updates=3))(states)
    assert np.all(np.abs(np.diff(metrics["agent/q_mean"][:, -1])) > 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"v_max": -10}, "v_max = -10.0: must be above v_min = -10.0"),
        ({"num_atoms": 1}, "num_atoms = 1: must be at least 2"),
        ({"critic": "c51"}, "critic = 'c51': known names: categorical, expected"),
        ({"v_min": -math.inf}, "v_min = -inf: must be finite"),
    ],
)
@pytest.mark.parametrize("preset", ["pendulum_ddpg", "pendulum_sac"])
def test_wrong_options_are_refused(preset, changes, words):
    fields = {f"policies.agent.{name}": value for name, value in changes.items()}
    with pytest.raises(ValueError, match=rf"^policies\.agent\.{re.escape(words)}"):
        make_learner(load_config(preset, **fields))
