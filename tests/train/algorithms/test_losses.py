"""Losses of A2C and PPO, one gradient step, and schedules: numbers by hand."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import new_policy
from shown_policy import fit_once, shown_policy, state_of

from wdjax.train import A2C, PPO
from wdjax.train.algorithms.fit import apply_gradient, normalized_advantages
from wdjax.train.fast.cpu import Cpu
from wdjax.train.learning import Batch, Evaluation, fit, make_optimizer, masked_mean
from wdjax.train.state.engine import Engine
from wdjax.train.state.hypers import ScheduleArrays, hypers_of

pytestmark = pytest.mark.usefixtures("quick_compile")

VALID = np.array([True, True, True, True, False])
ADVANTAGE = jnp.array([1.0, -1.0, 2.0, -2.0, jnp.inf])
# Ratios inside and outside of 1 +- 0.2; the transition with infinities is invalid.
RATIO = jnp.array([1.5, 1.5, 0.5, 0.5, jnp.inf])
ALGORITHMS = {"A2C": A2C, "PPO": PPO}


def batch_of(**fields):
    """Return a Batch [B]; fields that are left out are 0, and all transitions are valid."""
    fields = {
        name: np.array(values, np.float32) if isinstance(values, list) else values
        for name, values in fields.items()
    }
    zeros = jnp.zeros(len(next(iter(fields.values()))))
    names = ("log_prob", "value", "advantage", "target")
    defaults = {"obs": None, "action": None, "valid": zeros == 0, **dict.fromkeys(names, zeros)}
    return Batch(**{**defaults, **fields, "valid": np.array(fields.get("valid", zeros == 0), bool)})


def loss_of(algorithm, batch, log_prob=None, entropy=None, value=None, **options):
    """Return the loss and the means of its terms over valid transitions."""
    given = (log_prob, entropy, value)
    new = Evaluation(
        *(batch.advantage * 0 if part is None else jnp.asarray(part) for part in given)
    )
    cls = ALGORITHMS[algorithm]

    def mean(terms):
        return {name: masked_mean(values, batch.valid) for name, values in terms.items()}

    return cls().loss(new, batch, cls.Options(**options), mean)


# --- policy losses ---


@jax.jit
def a2c_loss(log_prob):
    batch = batch_of(log_prob=jnp.full(5, jnp.nan), advantage=ADVANTAGE, valid=VALID)
    return loss_of("A2C", batch, log_prob, entropy=jnp.zeros(5), value=jnp.zeros(5))


def test_a2c_loss_by_hand():
    loss, means = a2c_loss(jnp.array([-1.0, -2.0, -3.0, -4.0, -jnp.inf]))
    np.testing.assert_allclose(loss, -(-1 + 2 - 6 + 8) / 4, rtol=1e-6)
    assert means == {"policy_loss": loss, "value_loss": 0, "entropy": 0}


def test_a2c_gradient_is_minus_the_advantage():
    gradient = jax.grad(lambda log_prob: a2c_loss(log_prob)[0])(jnp.full(5, -1.0))
    np.testing.assert_allclose(gradient[:4], -ADVANTAGE[:4] / 4)


@jax.jit
def ppo_loss(log_prob, old_log_prob=0.0):
    batch = batch_of(log_prob=jnp.zeros(5) + old_log_prob, advantage=ADVANTAGE, valid=VALID)
    return loss_of("PPO", batch, log_prob, entropy=jnp.zeros(5), value=jnp.zeros(5), clip=0.2)


def test_ppo_loss_is_clipped_on_both_sides():
    loss, means = ppo_loss(jnp.log(RATIO))
    # min(1.5, 1.2), min(-1.5, -1.2), min(1, 1.6), min(-1, -1.6)
    np.testing.assert_allclose(loss, -(1.2 - 1.5 + 1.0 - 1.6) / 4, rtol=1e-6)
    assert means["clip_fraction"] == 1
    expected = 2 * (0.5 - math.log(1.5)) + 2 * (-0.5 - math.log(0.5))
    np.testing.assert_allclose(means["approx_kl"], expected / 4, rtol=1e-5)


def test_ppo_gradient_is_0_only_where_the_clip_is_active():
    gradient = jax.grad(lambda log_prob: ppo_loss(log_prob)[0])(jnp.log(RATIO))
    # d(ratio A) / d(log ratio) = ratio A; 0 if a good action is already more likely than the clip
    # allows, or a bad one less likely
    np.testing.assert_allclose(gradient, -np.array([0, -1.5, 1.0, 0, 0]) / 4, rtol=1e-6)


def test_ppo_at_ratio_1_has_the_gradient_of_a2c():
    log_prob = jnp.array([-1.0, -2.0, -3.0, -4.0, -5.0])
    of_ppo = jax.grad(lambda new: ppo_loss(new, log_prob)[0])(log_prob)
    of_a2c = jax.grad(lambda new: a2c_loss(new)[0])(log_prob)
    np.testing.assert_allclose(of_ppo[:4], of_a2c[:4], rtol=1e-6)


def test_ppo_metrics_are_means_over_valid_transitions():
    _, means = ppo_loss(jnp.log(jnp.array([1.1, 0.9, 1.3, 1.0, 9.0])))
    assert means["clip_fraction"] == 0.25
    expected = (0.3 - math.log(1.1 * 0.9 * 1.3)) / 4
    np.testing.assert_allclose(means["approx_kl"], expected, rtol=1e-4)


# --- value losses and the whole loss ---


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_value_loss_is_the_mean_squared_error(algorithm):
    batch = batch_of(target=[0, 4, 0], valid=[True, True, False])
    _, means = loss_of(algorithm, batch, value=[1.0, 2.0, 99.0])
    np.testing.assert_allclose(means["value_loss"], (1 + 4) / 2)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        # the value moved from 0 to 1 and 2, the clipped one to 0.5: (2 - 0.5)^2 is the larger error
        (2, (1.5**2 + 1.5**2) / 2),
        # the value moved away from the target: the error without clipping is the larger one
        (0, (1 + 4) / 2),
    ],
)
def test_value_clip_takes_the_larger_error(target, expected):
    batch = batch_of(target=[target, target, 0], valid=[True, True, False])
    _, means = loss_of("PPO", batch, value=[1.0, 2.0, 99.0], value_clip=0.5)
    np.testing.assert_allclose(means["value_loss"], expected)


def test_value_clip_stops_the_gradient_towards_the_target():
    batch = batch_of(target=[2, 2, 0], valid=[True, True, False])
    options = {"value_clip": 0.5, "value_coefficient": 1.0}
    loss = lambda value: loss_of("PPO", batch, value=value, **options)[0]  # noqa: E731
    gradient = jax.grad(loss)(jnp.array([1, 0.2, 99]))
    np.testing.assert_allclose(gradient, [0, (0.2 - 2) * 2 / 2, 0], rtol=1e-6)


# The parameters of the following policies are the outputs of their networks.


def rollout_of(advantage, target=(0, 0, 0), valid=(True, True, False)):
    """Return three transitions [3, 1, 1] with actions 0, 1, 0 of probability 0.5."""
    column = lambda values: np.array(values, np.float32).reshape(-1, 1, 1)  # noqa: E731
    return Batch(
        obs=None,
        action=np.array([0, 1, 0], np.int32).reshape(-1, 1, 1),
        log_prob=column([math.log(0.5)] * 3),
        value=column([0, 0, 0]),
        advantage=column(advantage),
        target=column(target),
        valid=np.array(valid).reshape(-1, 1, 1),
    )


def parameters(value=(0, 0, 0)):
    return {"outputs": np.zeros((3, 2), np.float32), "value": np.array(value, np.float32)}


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_loss_is_weighted_by_the_coefficients(algorithm):
    params = parameters(value=[1, 2, 99])
    params["outputs"][2] = [5.0, 0.0]  # an invalid transition with another entropy
    policy = shown_policy(algorithm, value_coefficient=0.25, entropy_coefficient=0.1)
    _, metrics = fit_once(policy, params, rollout_of([1, 3, 99], target=[0, 4, 0]))
    policy_loss = {"A2C": -math.log(0.5) * 2, "PPO": -2.0}[algorithm]
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss, rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy"], math.log(2), rtol=1e-6)
    loss = policy_loss + 0.25 * 2.5 - 0.1 * math.log(2)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)


# --- normalized advantages ---


def test_advantages_are_normalized_over_valid_transitions():
    params = parameters() | {"outputs": jnp.log(jnp.array([[0.6, 0.4], [0.5, 0.5], [0.1, 0.9]]))}
    policy = shown_policy("PPO", normalize_advantage=True)
    _, metrics = fit_once(policy, params, rollout_of([10, 30, 99]))
    np.testing.assert_allclose(metrics["policy_loss"], -(-1.2 + 1.0) / 2, rtol=1e-5)


def test_advantages_are_normalized_in_each_of_several_minibatches():
    rollout = rollout_of([10, 30, 99], valid=[True] * 3)
    rollout = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), rollout)
    policy = shown_policy("PPO", normalize_advantage=True, epochs=2, minibatches=2)
    _, metrics = fit_once(policy, parameters(), rollout)
    np.testing.assert_allclose(metrics["normalized_advantage_mean"], 0, atol=1e-6)


@pytest.mark.parametrize("steps", [(), (1,)])  # transitions, and sequences of a recurrent policy
def test_every_minibatch_is_normalized_by_itself(steps):
    batch = batch_of(advantage=[10, 1, 99, 30, 5, 2], valid=[True, True, False, True, True, True])
    batch = jax.tree.map(lambda leaf: leaf.reshape(*steps, 6), batch)
    advantage = normalized_advantages(batch, jnp.array([[3, 2, 0], [5, 1, 4]])).reshape(2, 3)
    np.testing.assert_allclose(advantage[0, jnp.array([0, 2])], [1, -1], rtol=1e-5)
    values = np.array([2, 1, 5])
    np.testing.assert_allclose(advantage[1], (values - values.mean()) / values.std(), rtol=1e-5)


# --- one gradient step ---


def step_by_hand(max_grad_norm):
    """Take one SGD step on a loss with gradient (3, 4) in the values. Return (change, metrics)."""
    policy = shown_policy(
        "A2C",
        optimizer="sgd",
        learning_rate=0.1,
        max_grad_norm=max_grad_norm,
        entropy_coefficient=0.0,
        value_coefficient=1.0,
    )
    params = parameters(value=[3, 4, 0])
    state, metrics = fit_once(policy, params, rollout_of([0, 0, 0]))
    return state.params["value"] - params["value"], metrics


def test_sgd_step_by_hand():
    change, metrics = step_by_hand(max_grad_norm=math.inf)
    np.testing.assert_allclose(metrics["grad_norm"], 5, rtol=1e-6)
    assert metrics["grad_clip_fraction"] == 0
    np.testing.assert_allclose(change, [-0.3, -0.4, 0], rtol=1e-5)


def test_gradients_are_clipped_by_their_global_norm():
    change, metrics = step_by_hand(max_grad_norm=2.0)
    np.testing.assert_allclose(change, np.array([-0.3, -0.4, 0]) * 2 / 5, rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], 5, rtol=1e-6)  # before clipping
    assert metrics["grad_clip_fraction"] == 1


def test_small_gradients_are_not_clipped():
    np.testing.assert_allclose(step_by_hand(max_grad_norm=6.0)[0], [-0.3, -0.4, 0], rtol=1e-5)


@pytest.mark.parametrize("take", [True, False])
def test_a_step_is_applied_only_if_it_is_taken(take):
    policy = shown_policy("PPO", optimizer="sgd", learning_rate=0.1)
    state = state_of(policy, parameters(value=[3, 4, 0]))
    grads = {"outputs": jnp.zeros((3, 2)), "value": jnp.array([0.1, 0.2, 0.3])}
    hypers = hypers_of(policy.config).at(jnp.float32(0))
    step = functools.partial(apply_gradient, policy, hypers, grads)
    after = jax.jit(lambda take: Engine().apply_if(take, step, state))(take)
    change = -0.1 * np.array([0.1, 0.2, 0.3]) if take else np.zeros(3)
    np.testing.assert_allclose(after.params["value"] - np.array([3, 4, 0]), change, atol=1e-6)


@pytest.mark.parametrize("engine", [Engine(), Cpu()], ids=["plain", "cpu"])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_fit_evaluates_batches_by_a_custom_function(engine, minibatches):
    """The function reads `Batch.extra`. Invalid transitions take no step."""

    def evaluate(policy, state, batch):
        log_prob = state.params["slope"] * batch.extra
        return Evaluation(log_prob, jnp.zeros_like(log_prob), state.params["bias"] + batch.extra)

    policy = shown_policy("A2C", engine, optimizer="sgd", learning_rate=0.1, max_grad_norm=math.inf)
    extra = jnp.array([2.0, 3.0, 9.0]).reshape(3, 1, 1)
    batch = rollout_of([5, -1, 9], target=[4, 4, 0]).replace(extra=extra)
    state = state_of(policy, {"slope": jnp.float32(1), "bias": jnp.float32(0)})
    hypers = hypers_of(policy.config).at(jnp.float32(0))
    run = functools.partial(fit, A2C().loss, policy, evaluate=evaluate, minibatches=minibatches)
    state, metrics = jax.jit(lambda state: run(state, hypers, batch, jax.random.key(0), 1))(state)
    # the gradient of the policy loss is -extra A, in two steps or as a mean
    slope = 1 + 0.1 * (2 * 5 - 3 * 1) / (2 if minibatches == 1 else 1)
    np.testing.assert_allclose(state.params["slope"], slope, rtol=1e-6)
    if minibatches == 1:  # 0.5 (V - R)^2, with errors 2 - 4 and 3 - 4
        np.testing.assert_allclose(state.params["bias"], 0.1 * (2 + 1) / 2, rtol=1e-6)
        np.testing.assert_allclose(metrics["value_loss"], (4 + 1) / 2, rtol=1e-6)
    else:
        assert metrics["gradient_steps"] == 2


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_first_step_of_an_adaptive_optimizer(optimizer):
    config = new_policy("PPO", optimizer=optimizer, max_grad_norm=math.inf, optimizer_epsilon=0.5)
    transform = make_optimizer(config, config.max_grad_norm)
    gradient = jnp.array([3.0, -4.0])
    step, _ = transform.update(gradient, transform.init(gradient), gradient)
    scale = {"adam": abs(gradient), "rmsprop": jnp.sqrt(0.01 * gradient**2)}[optimizer]
    np.testing.assert_allclose(step, gradient / (scale + 0.5), rtol=1e-5)


# --- schedules ---


def test_schedule_is_linear_between_its_points_and_constant_outside():
    schedule = ScheduleArrays(jnp.array([100.0, 200.0, 400.0]), jnp.array([1.0, 3.0, 0.0]))
    for env_steps, value in [(0, 1), (100, 1), (150, 2), (200, 3), (300, 1.5), (400, 0), (1e9, 0)]:
        np.testing.assert_allclose(schedule(jnp.float32(env_steps)), value)


def test_hyperparameters_at_a_time():
    schedule = ((0, 1.0), (10, 0.0))
    config = new_policy("PPO", learning_rate=schedule, entropy_coefficient=0.25, gamma=0.5)
    hypers = hypers_of(config).at(jnp.float32(4))
    np.testing.assert_allclose(hypers["learning_rate"], 0.6, rtol=1e-6)
    assert hypers["entropy_coefficient"] == 0.25
    assert hypers["value_coefficient"] == 0.5
    assert hypers["gamma"] == 0.5
