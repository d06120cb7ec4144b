"""The losses, one gradient step and the schedules: numbers by hand.

The stand-in policy below has its parameters for the outputs of its network: every gradient can be written down.
"""

import dataclasses
import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.train import PolicyConfig
from wdjax.train.algorithms.on_policy import losses
from wdjax.train.algorithms.on_policy.minibatches import Batch, normalized_advantages
from wdjax.train.algorithms.on_policy.update import descend_where, gradient, gradient_steps
from wdjax.train.algorithms.optimizer import make_optimizer
from wdjax.train.devices.moments import masked_mean
from wdjax.train.networks.distributions import Categorical
from wdjax.train.state.hypers import ScheduleArrays
from wdjax.train.state.registry import find_algorithm, make_hypers
from wdjax.train.state.state import PolicyState

pytestmark = pytest.mark.usefixtures("quick_compile")

LIVE = jnp.array([True, True, True, True, False])
ADVANTAGE = jnp.array([1.0, -1.0, 2.0, -2.0, jnp.inf])
# Ratios inside and outside of 1 +- 0.2; the row of infinities is dead.
RATIO = jnp.array([1.5, 1.5, 0.5, 0.5, jnp.inf])


# --- the two policy losses ---


@jax.jit
def mean_over_live(loss_and_metrics):
    loss, metrics = loss_and_metrics
    return masked_mean(loss, LIVE), {name: masked_mean(values, LIVE) for name, values in metrics.items()}


@jax.jit
def a2c_loss(log_prob):
    return mean_over_live(losses.a2c_loss(log_prob, jnp.full(5, jnp.nan), ADVANTAGE, LIVE, {}))


def test_a2c_loss_by_hand():
    log_prob = jnp.array([-1.0, -2.0, -3.0, -4.0, -jnp.inf])
    result, metrics = a2c_loss(log_prob)
    np.testing.assert_allclose(result, -(-1 + 2 - 6 + 8) / 4, rtol=1e-6)
    assert metrics == {}


def test_a2c_gradient_is_minus_the_advantage():
    gradient = jax.grad(lambda log_prob: a2c_loss(log_prob)[0])(jnp.full(5, -1.0))
    np.testing.assert_allclose(gradient[:4], -ADVANTAGE[:4] / 4)


@jax.jit
def ppo_loss(log_prob, clip=0.2, old_log_prob=0.0):
    return mean_over_live(losses.ppo_loss(log_prob, jnp.zeros(5) + old_log_prob, ADVANTAGE, LIVE, {"clip": clip}))


def test_ppo_loss_is_clipped_on_both_sides():
    result, metrics = ppo_loss(jnp.log(RATIO))
    # min(1.5, 1.2), min(-1.5, -1.2), min(1, 1.6), min(-1, -1.6)
    np.testing.assert_allclose(result, -(1.2 - 1.5 + 1.0 - 1.6) / 4, rtol=1e-6)
    assert metrics["clip_fraction"] == 1
    expected = 2 * (0.5 - math.log(1.5)) + 2 * (-0.5 - math.log(0.5))
    np.testing.assert_allclose(metrics["approx_kl"], expected / 4, rtol=1e-5)


def test_ppo_gradient_is_0_only_where_the_clip_is_active():
    gradient = jax.grad(lambda log_prob: ppo_loss(log_prob)[0])(jnp.log(RATIO))
    # d(ratio A) / d(log ratio) = ratio A; clipped: a good action already likelier, a bad one already rarer
    np.testing.assert_allclose(gradient, -np.array([0, -1.5, 1.0, 0, 0]) / 4, rtol=1e-6)


def test_ppo_at_ratio_1_has_the_gradient_of_a2c():
    log_prob = jnp.array([-1.0, -2.0, -3.0, -4.0, -5.0])
    ours = jax.grad(lambda new: ppo_loss(new, 0.2, log_prob)[0])(log_prob)
    theirs = jax.grad(lambda new: a2c_loss(new)[0])(log_prob)
    np.testing.assert_allclose(ours[:4], theirs[:4], rtol=1e-6)


def test_ppo_clip_fraction_counts_live_rows():
    _, metrics = ppo_loss(jnp.log(jnp.array([1.1, 0.9, 1.3, 1.0, 9.0])))
    assert metrics["clip_fraction"] == 0.25
    np.testing.assert_allclose(metrics["approx_kl"], (0.3 - math.log(1.1 * 0.9 * 1.3)) / 4, rtol=1e-4)


# --- the whole loss ---


def show(state, obs):
    return state.params["outputs"], state.params["value"], None


def hypers_of(config):
    return make_hypers(config).at(jnp.float32(0))


def loss(policy, state, hypers, batch):
    """The mean over live rows, where `losses.loss` has the sum."""

    @jax.jit
    def means(state, hypers, batch):
        sums = losses.loss(policy, state, hypers, batch)
        return jax.tree.map(lambda total: total / jnp.sum(batch.live), sums)

    mean, metrics = means(state, hypers, batch)
    return mean, {**metrics, "loss": mean}


def stand_in(**changes):
    config = PolicyConfig(**changes)
    algorithm = find_algorithm(config.algorithm)
    return SimpleNamespace(
        name="agent", apply=show, distribution=Categorical((2,), scalar=True), config=config, algorithm=algorithm,
        kernels=None,
    )


def batch_of(value, old_value, target, advantage=(1.0, 1.0, 1.0), live=(True, True, False)):
    array = lambda numbers: np.array(numbers, np.float32)  # noqa: E731
    return Batch(
        obs=None, action=np.array([0, 1, 0], np.int32), log_prob=array([math.log(0.5)] * 3), value=array(old_value),
        advantage=array(advantage), target=array(target), live=np.array(live),
    ), {"outputs": np.zeros((3, 2), np.float32), "value": array(value)}  # fmt: skip


def test_value_loss_is_the_mean_squared_error():
    batch, params = batch_of(value=[1, 2, 99], old_value=[0, 0, 0], target=[0, 4, 0])
    policy = stand_in(algorithm="A2C")
    _, metrics = loss(policy, PolicyState(params, None), hypers_of(policy.config), batch)
    np.testing.assert_allclose(metrics["value_loss"], (1 + 4) / 2)


def test_value_clip_takes_the_larger_error():
    # moved from 0 to 1 and 2, but no further than 0.5: targets 2 and 2 leave (2 - 0.5)^2, (2 - 0.5)^2
    batch, params = batch_of(value=[1, 2, 99], old_value=[0, 0, 0], target=[2, 2, 0])
    policy = stand_in(value_clip=0.5)
    hypers = hypers_of(policy.config)
    _, metrics = loss(policy, PolicyState(params, None), hypers, batch)
    np.testing.assert_allclose(metrics["value_loss"], (1.5**2 + 1.5**2) / 2)
    # targets behind: the free error is the larger one
    batch, params = batch_of(value=[1, 2, 99], old_value=[0, 0, 0], target=[0, 0, 0])
    _, metrics = loss(policy, PolicyState(params, None), hypers, batch)
    np.testing.assert_allclose(metrics["value_loss"], (1 + 4) / 2)


def test_value_clip_stops_the_gradient_towards_the_target():
    batch, params = batch_of(value=[1, 0.2, 99], old_value=[0, 0, 0], target=[2, 2, 0])
    policy = stand_in(value_clip=0.5, value_coefficient=1.0)
    loss_of = lambda params: loss(policy, PolicyState(params, None), hypers_of(policy.config), batch)  # noqa: E731
    gradient = jax.grad(loss_of, has_aux=True)(params)[0]
    np.testing.assert_allclose(gradient["value"], [0, (0.2 - 2) * 2 / 2, 0], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_total_is_weighted_by_the_coefficients(algorithm):
    batch, params = batch_of(value=[1, 2, 99], old_value=[0, 0, 0], target=[0, 4, 0], advantage=[1, 3, 99])
    params["outputs"][2] = [5.0, 0.0]  # a dead row, of another entropy
    policy = stand_in(algorithm=algorithm, value_coefficient=0.25, entropy_coefficient=0.1)
    total, metrics = loss(policy, PolicyState(params, None), hypers_of(policy.config), batch)
    policy_loss = {"A2C": -math.log(0.5) * 2, "PPO": -2.0}[algorithm]
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss, rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy"], math.log(2), rtol=1e-6)
    np.testing.assert_allclose(total, policy_loss + 0.25 * 2.5 - 0.1 * math.log(2), rtol=1e-6)
    assert metrics["loss"] == total


# --- normalised advantages ---


def update_by(batch, params, **changes):
    """Gradient steps on a batch [R, ...] with normalised advantages: returns the metrics."""
    policy = stand_in(normalize_advantage=True, **changes)
    hypers = hypers_of(policy.config)
    state = PolicyState(params, make_optimizer(policy.config, hypers).init(params))
    rollout = jax.tree.map(lambda leaf: leaf.reshape(-1, 1, 1), batch)
    steps = jax.jit(lambda *arguments: gradient_steps(policy, *arguments, 1)[1])
    return steps(state, hypers, rollout, jax.random.key(0))


def test_advantages_are_normalized_over_live_rows():
    batch, params = batch_of(value=[0, 0, 0], old_value=[0, 0, 0], target=[0, 0, 0], advantage=[10, 30, 99])
    params["outputs"] = jnp.log(jnp.array([[0.6, 0.4], [0.5, 0.5], [0.1, 0.9]]))
    metrics = update_by(batch, params, epochs=1, minibatches=1)
    np.testing.assert_allclose(metrics["policy_loss"], -(-1.2 + 1.0) / 2, rtol=1e-5)


def test_advantages_are_normalized_in_each_of_several_minibatches():
    batch, params = batch_of([0, 0, 0], [0, 0, 0], [0, 0, 0], advantage=[10, 30, 99], live=[True] * 3)
    batch = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), batch)
    metrics = update_by(batch, params, epochs=2, minibatches=2)
    np.testing.assert_allclose(metrics["normalized_advantage_mean"], 0, atol=1e-6)


@pytest.mark.parametrize("steps", [(), (1,)])  # rows, and sequences of a recurrent policy
def test_every_minibatch_is_normalized_by_itself(steps):
    batch, _ = batch_of([0] * 6, [0] * 6, [0] * 6, [10, 1, 99, 30, 5, 2], [True, True, False, True, True, True])
    batch = jax.tree.map(lambda leaf: leaf.reshape(*steps, 6), batch.replace(action=None, log_prob=None))
    found = normalized_advantages(batch, jnp.array([[3, 2, 0], [5, 1, 4]])).reshape(2, 3)
    np.testing.assert_allclose(found[0, jnp.array([0, 2])], [1, -1], rtol=1e-5)
    values = np.array([2, 1, 5])
    np.testing.assert_allclose(found[1], (values - values.mean()) / values.std(), rtol=1e-5)


# --- one gradient step ---


def step_by_hand(max_grad_norm):
    """One SGD step from a loss whose gradient is (3, 4) in the values: returns (the change, metrics)."""
    batch, params = batch_of([3, 4, 0], [0, 0, 0], [0, 0, 0], advantage=[0, 0, 0])
    config = PolicyConfig(algorithm="A2C", optimizer="sgd", learning_rate=0.1, max_grad_norm=max_grad_norm,
                          entropy_coefficient=0.0, value_coefficient=1.0)  # fmt: skip
    policy = stand_in(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})
    hypers = hypers_of(config)
    state = PolicyState(params, make_optimizer(config, hypers).init(params))
    grads, metrics = jax.jit(functools.partial(gradient, policy))(state, hypers, batch)
    descend = jax.jit(lambda go_on, *arguments: descend_where(go_on, policy, *arguments))
    assert descend(False, state, hypers, grads).params["value"].tolist() == params["value"].tolist()
    new = descend(True, state, hypers, grads)
    return new.params["value"] - params["value"], metrics


def test_sgd_step_by_hand():
    change, metrics = step_by_hand(max_grad_norm=math.inf)
    np.testing.assert_allclose(metrics["grad_norm"], 5, rtol=1e-6)
    assert metrics["grad_clip_fraction"] == 0
    np.testing.assert_allclose(change, [-0.3, -0.4, 0], rtol=1e-5)


def test_gradients_are_clipped_by_their_global_norm():
    change, metrics = step_by_hand(max_grad_norm=2.0)
    np.testing.assert_allclose(change, np.array([-0.3, -0.4, 0]) * 2 / 5, rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], 5, rtol=1e-6)  # as it was before
    assert metrics["grad_clip_fraction"] == 1


def test_small_gradients_are_not_clipped():
    np.testing.assert_allclose(step_by_hand(max_grad_norm=6.0)[0], [-0.3, -0.4, 0], rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_first_step_of_an_adaptive_optimizer(optimizer):
    config = PolicyConfig(optimizer=optimizer, max_grad_norm=math.inf, optimizer_epsilon=0.5)
    transform = make_optimizer(config, hypers_of(config))
    gradient = jnp.array([3.0, -4.0])
    step, _ = transform.update(gradient, transform.init(gradient), gradient)
    scale = {"adam": abs(gradient), "rmsprop": jnp.sqrt(0.01 * gradient**2)}[optimizer]
    np.testing.assert_allclose(step, gradient / (scale + 0.5), rtol=1e-5)


# --- schedules ---


def test_schedule_is_linear_between_its_points_and_flat_outside():
    schedule = ScheduleArrays(jnp.array([100.0, 200.0, 400.0]), jnp.array([1.0, 3.0, 0.0]))
    for env_steps, value in [(0, 1), (100, 1), (150, 2), (200, 3), (300, 1.5), (400, 0), (1e9, 0)]:
        np.testing.assert_allclose(schedule(jnp.float32(env_steps)), value)


def test_hypers_at_a_time():
    config = PolicyConfig(learning_rate=((0, 1.0), (10, 0.0)), entropy_coefficient=0.25, gamma=0.5)
    hypers = make_hypers(config).at(jnp.float32(4))
    np.testing.assert_allclose(hypers.learning_rate, 0.6, rtol=1e-6)
    assert hypers.entropy_coefficient == 0.25
    assert hypers.value_coefficient == 0.5
    assert hypers.gamma == 0.5
