"""Samples, targets, losses and one gradient step of SAC: numbers by hand.

The networks are linear: the actor has mean w s and log standard deviation v s, the critics have
Q_i(s, a) = a_i s + b_i a.
"""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from probes import new_policy

from wdjax import Box
from wdjax.train.algorithms.off_policy_critic import critics_of
from wdjax.train.algorithms.sac import SAC, squashed_sample
from wdjax.train.learning import ReplayBatch
from wdjax.train.networks.values import LOG_STD, GaussianActor, SoftActorActionValue
from wdjax.train.state.hypers import hypers_of

pytestmark = pytest.mark.usefixtures("quick_compile")

OBS, ACTION, NEXT_OBS = np.array([1.0, 2.0]), np.array([0.5, -1.0]), np.array([1.0, -0.5])
REWARD, DISCOUNT = np.array([10.0, 20.0]), np.array([0.5, 0.0])  # the second one terminates
NORMAL = np.array([[0.3, -0.4], [-1.0, 0.8]])  # at next_obs, at obs
W, V = 0.5, -0.25
CRITICS = ((3.0, 4.0), (1.0, 1.0))
ALPHA = 0.2


class LinearActor(nnx.Module):
    def __init__(self):
        self.w, self.v = nnx.Param(jnp.float32(0)), nnx.Param(jnp.float32(0))

    def __call__(self, obs):
        return jnp.concatenate([self.w * obs, self.v * obs], axis=-1)


class LinearCritic(nnx.Module):
    def __init__(self):
        self.a, self.b = nnx.Param(jnp.float32(0)), nnx.Param(jnp.float32(0))

    def __call__(self, obs, action):
        return (self.a * obs + self.b * action)[..., 0]


class Linear(SoftActorActionValue):
    def __init__(self):
        self.actor, self.critic, self.critic2 = LinearActor(), LinearCritic(), LinearCritic()
        self.log_temperature = nnx.Param(jnp.float32(0))


def parameters(*critics, w=W, v=V):
    pairs = zip(("critic", "critic2"), critics, strict=True)
    return {
        "actor": {"w": jnp.float32(w), "v": jnp.float32(v)},
        **{name: {"a": jnp.float32(a), "b": jnp.float32(b)} for name, (a, b) in pairs},
        "log_temperature": jnp.float32(0),
    }


def stand_in(params, target_params=None, **options):
    """Return (policy, state, hypers, batch) with plain gradient descent."""
    rates = {"learning_rate": 0.1, "critic_learning_rate": 0.01, "temperature_learning_rate": 0.5}
    fields = {"optimizer": "sgd", "max_grad_norm": math.inf, "tau": 0.25, "temperature": ALPHA}
    config = new_policy("SAC", **{**fields, **rates, **options})
    assignment = SimpleNamespace(action_space=Box(-1.0, 1.0, (1,)), observation_space=None)
    policy = SimpleNamespace(
        config=config,
        graphdef=nnx.graphdef(Linear()),
        inputs=lambda state, obs: (obs, None),
        assignment=assignment,
    )
    state = SAC().init(policy, params)
    if target_params is not None:
        state = state.replace(target_params=critics_of(target_params))
    column = lambda numbers: jnp.array(numbers, jnp.float32)[:, None]  # noqa: E731
    reward, discount = jnp.array(REWARD, jnp.float32), jnp.array(DISCOUNT, jnp.float32)
    batch = ReplayBatch(column(OBS), column(ACTION), reward, column(NEXT_OBS), discount)
    return policy, state, hypers_of(config).at(jnp.float32(0)), batch


DRAWN = jnp.array(NORMAL.T, jnp.float32)  # [B, 2 A]


def sample(obs, normal, w=W, v=V):
    """Return (actions, log densities) by the change of variables."""
    std = np.exp(v * obs)
    free = w * obs + std * normal
    log_normal = -0.5 * normal**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return np.tanh(free), log_normal - np.log(1 - np.tanh(free) ** 2)


def lowest(critics, obs, action):
    return np.min([a * obs + b * action for a, b in critics], axis=0)


@pytest.mark.slow
def test_density_of_a_sample_integrates_to_one():
    mean, std, cell = np.array([0.3, -0.7]), np.array([0.8, 1.5]), 0.03
    grid = np.arange(-6, 6, cell)
    normal = np.stack(np.meshgrid(grid, grid), axis=-1)
    outputs = np.broadcast_to(np.concatenate([mean, np.log(std)]), (*normal.shape[:2], 4))
    action, log_prob = squashed_sample(*(jnp.array(x, jnp.float32) for x in (outputs, normal)))
    slopes = np.prod((1 - np.tanh(mean + std * normal) ** 2) * std, axis=-1)
    np.testing.assert_allclose(np.sum(np.exp(log_prob) * slopes) * cell**2, 1.0, atol=1e-4)
    assert np.abs(action).max() <= 1


def test_target_by_hand():
    params = parameters((np.nan, np.nan), (np.nan, np.nan))  # no online critic is used
    policy, state, hypers, batch = stand_in(params, parameters(*CRITICS))
    action, log_prob = sample(NEXT_OBS, NORMAL[0])
    expected = REWARD + DISCOUNT * (lowest(CRITICS, NEXT_OBS, action) - ALPHA * log_prob)
    target = SAC().bellman_target(policy, state, hypers, batch, DRAWN)
    np.testing.assert_allclose(target, expected, rtol=1e-6)


def mean_actor_loss(w, v, critics=CRITICS, alpha=ALPHA):
    action, log_prob = sample(OBS, NORMAL[1], w, v)
    return np.mean(alpha * log_prob - lowest(critics, OBS, action))


def slopes_of_actor(critics=CRITICS, step=1e-5):
    """Return the derivatives of the actor's loss by w and v, from central differences."""
    loss = lambda x, y: mean_actor_loss(W + step * x, V + step * y, critics)  # noqa: E731
    ends = [loss(x, y) - loss(-x, -y) for x, y in ((1, 0), (0, 1))]
    return np.array(ends) / (2 * step)


@pytest.mark.slow
def test_actor_loss_by_hand():
    policy, state, hypers, batch = stand_in(parameters(*CRITICS))
    (loss, metrics), grads = jax.value_and_grad(SAC().actor_loss, argnums=2, has_aux=True)(
        policy, state, state.params["actor"], hypers, batch, DRAWN
    )
    np.testing.assert_allclose(loss, mean_actor_loss(W, V), rtol=1e-6)
    np.testing.assert_allclose([grads["w"], grads["v"]], slopes_of_actor(), rtol=1e-4)
    np.testing.assert_allclose(metrics["entropy"], -np.mean(sample(OBS, NORMAL[1])[1]), rtol=1e-5)


@pytest.mark.slow
def test_one_step_by_hand():
    policy, state, hypers, batch = stand_in(parameters(*CRITICS), parameters((0, 0), (0, 0)))
    new, metrics = SAC().gradient_step(policy, state, hypers, batch, DRAWN)
    # critics: the targets are rewards plus the entropy bonus
    y = REWARD - DISCOUNT * ALPHA * sample(NEXT_OBS, NORMAL[0])[1]
    np.testing.assert_allclose(metrics["target_mean"], np.mean(y), rtol=1e-6)
    critics = []
    for a, b in CRITICS:
        error = a * OBS + b * ACTION - y
        critics.append((a - 0.01 * np.sum(error * OBS), b - 0.01 * np.sum(error * ACTION)))
    for name, pair in zip(("critic", "critic2"), critics, strict=True):
        got = new.params[name]["a"], new.params[name]["b"]
        np.testing.assert_allclose(got, pair, rtol=1e-5)
        got = new.target_params[name]["a"], new.target_params[name]["b"]
        np.testing.assert_allclose(got, 0.25 * np.array(pair), rtol=1e-5)
    assert new.target_params.keys() == {"critic", "critic2"}
    # the actor descends its loss with the updated critics
    got = np.array([new.params["actor"]["w"], new.params["actor"]["v"]])
    np.testing.assert_allclose(got, np.array([W, V]) - 0.1 * slopes_of_actor(critics), rtol=1e-4)
    # the temperature: the entropy exceeds its target of -1 per number, so that it falls
    entropy = -np.mean(sample(OBS, NORMAL[1])[1])
    falls = 0.5 * ALPHA * (entropy + 1)
    np.testing.assert_allclose(new.params["log_temperature"], -falls, rtol=1e-5)
    assert falls > 0
    np.testing.assert_allclose(metrics["temperature"], ALPHA, rtol=1e-6)
    assert new.gradient_steps == 1


@pytest.mark.parametrize(("target", "sign"), [(-3.0, -1), (3.0, 1)])
def test_temperature_rises_where_the_entropy_is_below_its_target(target, sign):
    policy, state, hypers, batch = stand_in(parameters(*CRITICS), target_entropy=target)
    new, _ = SAC().gradient_step(policy, state, hypers, batch, DRAWN)
    assert np.sign(new.params["log_temperature"]) == sign


def test_a_fixed_temperature_stays():
    policy, state, hypers, batch = stand_in(parameters(*CRITICS), learn_temperature=False)
    new, metrics = SAC().gradient_step(policy, state, hypers, batch, DRAWN)
    assert new.params["log_temperature"] == 0
    np.testing.assert_allclose(metrics["temperature"], ALPHA, rtol=1e-6)


def test_policy_delay_updates_actor_targets_and_temperature_in_every_second_step():
    policy, state, hypers, batch = stand_in(parameters(*CRITICS), policy_delay=2)
    step = jax.jit(lambda state: SAC().gradient_step(policy, state, hypers, batch, DRAWN))
    first, metrics = step(state)
    assert first.params["critic"] != state.params["critic"]
    for part in ("actor", "log_temperature"):
        assert first.params[part] == state.params[part]
    assert first.target_params == state.target_params
    assert metrics["temperature"] == metrics["actor_loss"] == 0
    second, _ = step(first)
    for part in ("actor", "log_temperature"):
        assert second.params[part] != first.params[part]
    assert second.target_params != first.target_params


@pytest.mark.slow
def test_log_standard_deviations_are_bounded():
    config = new_policy("SAC").network
    actor = GaussianActor(Box(-1.0, 1.0, (1,)), 2, config, rngs=nnx.Rngs(0))
    obs = jnp.array([[0.0], [1e6], [-1e6]])
    log_std = jnp.split(actor(obs), 2, axis=-1)[1]
    assert log_std.shape == (3, 2)
    assert np.all((log_std >= LOG_STD[0]) & (log_std <= LOG_STD[1]))
    np.testing.assert_allclose(log_std[0], np.mean(LOG_STD), atol=0.1)
