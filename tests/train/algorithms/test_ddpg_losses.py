"""Targets, losses and one gradient step of DDPG and TD3: numbers by hand.

The networks are linear: mu(s) = w s, Q_i(s, a) = a_i s + b_i a.
"""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from probes import new_policy

from wdjax.train.algorithms.off_policy import soft_update
from wdjax.train.algorithms.off_policy_critic import critic_loss, critics_of
from wdjax.train.learning import DDPG, PolicyState, ReplayBatch, make_optimizer
from wdjax.train.networks.values import ActorActionValue
from wdjax.train.state.hypers import hypers_of

pytestmark = pytest.mark.usefixtures("quick_compile")

OBS, ACTION, NEXT_OBS = [1.0, 2.0], [0.5, -1.0], [1.0, -0.5]
REWARD, DISCOUNT = [10.0, 20.0], [0.5, 0.0]  # the second transition terminates
ZERO = jnp.zeros((2, 1))
bellman_target, gradient_step = DDPG().bellman_target, DDPG().gradient_step


class LinearActor(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.float32(0))

    def __call__(self, obs):
        return self.w * obs


class LinearCritic(nnx.Module):
    def __init__(self):
        self.a, self.b = nnx.Param(jnp.float32(0)), nnx.Param(jnp.float32(0))

    def __call__(self, obs, action):
        return (self.a * obs + self.b * action)[..., 0]


class Linear(ActorActionValue):
    def __init__(self, twin):
        self.actor, self.critic, self.critic2 = (
            LinearActor(),
            LinearCritic(),
            LinearCritic() if twin else None,
        )


def parameters(w, *critics):
    params = {"actor": {"w": jnp.float32(w)}}
    for name, (a, b) in zip(("critic", "critic2"), critics, strict=False):
        params[name] = {"a": jnp.float32(a), "b": jnp.float32(b)}
    return params


def stand_in(params, target_params, **options):
    """Return (policy, state, hypers, batch) with plain gradient descent."""
    twin = "critic2" in params
    config = new_policy(
        "DDPG",
        optimizer="sgd",
        max_grad_norm=math.inf,
        learning_rate=0.1,
        twin_critics=twin,
        **{"critic_learning_rate": 0.01, "tau": 0.25, **options},
    )
    graphdef = nnx.graphdef(Linear(twin))
    policy = SimpleNamespace(
        config=config, graphdef=graphdef, inputs=lambda state, obs: (obs, None)
    )
    hypers = hypers_of(config).at(jnp.float32(0))
    optimizer = make_optimizer(config, hypers["max_grad_norm"])
    opt_state = {
        "actor": optimizer.init(params["actor"]),
        "critic": optimizer.init(critics_of(params)),
    }
    state = PolicyState(params, opt_state, None, target_params, jnp.int32(0))
    rows = lambda numbers: jnp.array(numbers)[:, None]  # noqa: E731
    batch = ReplayBatch(
        rows(OBS), rows(ACTION), jnp.array(REWARD), rows(NEXT_OBS), jnp.array(DISCOUNT)
    )
    return policy, state, hypers, batch


# --- the target ---


def target_of(target_params, normal=ZERO, **options):
    """Return [2] targets. The online networks are NaN, as targets must not depend on them."""
    online = jax.tree.map(lambda leaf: leaf * jnp.nan, target_params)
    policy, state, hypers, batch = stand_in(online, target_params, **options)
    return bellman_target(policy, state, hypers, batch, normal)


def test_target_by_hand():
    # mu' = 0.5 * (1, -0.5); Q' = 3 s + 4 mu' = 5 in the first row
    np.testing.assert_allclose(target_of(parameters(0.5, (3, 4))), [10 + 0.5 * 5, 20])


@pytest.mark.parametrize(("critics", "lowest"), [(((3, 4), (1, 1)), 1.5), (((1, 1), (3, 4)), 1.5)])
def test_twin_critics_use_the_lower_value(critics, lowest):
    np.testing.assert_allclose(target_of(parameters(0.5, *critics)), [10 + 0.5 * lowest, 20])


def test_twin_critics_use_the_lower_value_of_each_transition():
    target_params = parameters(0.0, (1, 0), (-1, 0))
    policy, state, hypers, batch = stand_in(target_params, target_params)
    batch = batch.replace(discount=jnp.ones(2))
    np.testing.assert_allclose(
        bellman_target(policy, state, hypers, batch, ZERO), [10 - 1, 20 - 0.5]
    )


@pytest.mark.parametrize(
    ("normal", "action"),
    [
        (1.0, 0.5 + 0.2),  # sigma 0.2
        (-2.0, 0.5 - 0.3),  # clipped at 0.3
        (9.0, 0.5 + 0.3),
    ],
)
def test_smoothing_adds_clipped_noise_to_the_target_action(normal, action):
    target = target_of(
        parameters(0.5, (3, 4)), jnp.full((2, 1), normal), target_noise=0.2, target_noise_clip=0.3
    )
    np.testing.assert_allclose(target, [10 + 0.5 * (3 + 4 * action), 20], rtol=1e-6)


def test_smoothed_actions_are_clipped_to_the_box():
    target = target_of(
        parameters(0.5, (3, 4)), jnp.full((2, 1), 9.0), target_noise=1.0, target_noise_clip=2.0
    )
    np.testing.assert_allclose(target, [10 + 0.5 * (3 + 4 * 1), 20])


def test_without_target_noise_actions_are_not_smoothed():
    np.testing.assert_allclose(
        target_of(parameters(0.5, (3, 4)), jnp.full((2, 1), 9.0)), [12.5, 20]
    )


# --- the losses ---


def test_critic_loss_by_hand():
    params = parameters(0.5, (3, 4), (1, 1))
    policy, state, hypers, batch = stand_in(params, params)
    # Q_1 = 3 * 1 + 4 * 0.5, 3 * 2 - 4 = 5, 2; Q_2 = 1.5, 1
    target = jnp.array([4.0, 4.0])
    loss, metrics = critic_loss(policy, state, critics_of(params), hypers, batch, target)
    np.testing.assert_allclose(loss, (1 + 4) / 2 + (2.5**2 + 9) / 2)
    assert metrics["critic_loss"] == loss
    np.testing.assert_allclose(metrics["q_mean"], 3.5)


def test_actor_loss_by_hand():
    params = parameters(0.5, (3, 4), (jnp.nan, jnp.nan))  # the second critic is not used
    policy, state, hypers, batch = stand_in(params, params)
    (loss, _), gradient = jax.value_and_grad(DDPG().actor_loss, argnums=2, has_aux=True)(
        policy, state, params["actor"], hypers, batch, ZERO
    )
    np.testing.assert_allclose(loss, -(3 * 1.5 + 4 * 0.5 * 1.5))
    np.testing.assert_allclose(gradient["w"], -4 * 1.5)


# --- one gradient step ---

STATE = (parameters(0.5, (3, 4)), parameters(0.0, (0, 0)))


def test_one_step_by_hand():
    policy, state, hypers, batch = stand_in(*STATE)
    new, metrics = gradient_step(policy, state, hypers, batch, ZERO)
    # targets are the rewards: errors 5 - 10, 2 - 20; gradient of the mean square: error * (s, a)
    slope = np.array([-5 * 1 - 18 * 2, -5 * 0.5 + 18 * 1])
    critic = np.array([3, 4]) - 0.01 * slope
    np.testing.assert_allclose(
        [new.params["critic"]["a"], new.params["critic"]["b"]], critic, rtol=1e-6
    )
    # the actor ascends the updated critic
    actor = 0.5 + 0.1 * critic[1] * 1.5
    np.testing.assert_allclose(new.params["actor"]["w"], actor, rtol=1e-6)
    target = [
        new.target_params["actor"]["w"],
        new.target_params["critic"]["a"],
        new.target_params["critic"]["b"],
    ]
    np.testing.assert_allclose(target, 0.25 * np.array([actor, *critic]), rtol=1e-6)
    np.testing.assert_allclose(metrics["grad_norm_critic"], np.linalg.norm(slope), rtol=1e-6)
    np.testing.assert_allclose(metrics["grad_norm_actor"], critic[1] * 1.5, rtol=1e-6)
    np.testing.assert_allclose(metrics["target_mean"], 15)
    np.testing.assert_allclose(
        metrics["actor_loss"], -(critic[0] + critic[1] * 0.5) * 1.5, rtol=1e-6
    )
    assert new.gradient_steps == 1


def step_with(actor_rate, critic_rate):
    policy, state, hypers, batch = stand_in(*STATE)
    rates = {"learning_rate": actor_rate, "critic_learning_rate": critic_rate}
    hypers.update({name: jnp.float32(rate) for name, rate in rates.items()})
    return gradient_step(policy, state, hypers, batch, ZERO)[0].params


def test_each_loss_changes_only_its_own_network():
    both, critic, actor = step_with(0.1, 0.01), step_with(0, 0.01), step_with(0.1, 0)
    assert critic["critic"] == both["critic"]  # the critic does not depend on the actor's step
    assert critic["actor"] == STATE[0]["actor"]
    assert actor["critic"] == STATE[0]["critic"]
    np.testing.assert_allclose(actor["actor"]["w"], 0.5 + 0.1 * 4 * 1.5, rtol=1e-6)


def test_gradients_of_each_network_are_clipped_separately():
    policy, state, hypers, batch = stand_in(*STATE)
    hypers["max_grad_norm"] = jnp.float32(1.0)
    new = gradient_step(policy, state, hypers, batch, ZERO)[0].params
    moved = np.array([new["critic"]["a"] - 3, new["critic"]["b"] - 4])
    np.testing.assert_allclose(np.linalg.norm(moved), 0.01, rtol=1e-4)
    np.testing.assert_allclose(new["actor"]["w"] - 0.5, 0.1, rtol=1e-5)


def test_policy_delay_updates_actor_and_targets_in_every_third_step():
    policy, state, hypers, batch = stand_in(*STATE, policy_delay=3)
    step = jax.jit(lambda state: gradient_step(policy, state, hypers, batch, ZERO))
    moved = []
    for _ in range(7):
        new, metrics = step(state)
        assert new.params["critic"] != state.params["critic"]
        moved.append(new.params["actor"] != state.params["actor"])
        assert (
            moved[-1] == (new.target_params != state.target_params) == (metrics["actor_loss"] != 0)
        )
        state = new
    assert moved == [False, False, True] * 2 + [False]


def test_soft_update_by_hand():
    new = soft_update({"x": jnp.array([1.0, 2.0])}, {"x": jnp.array([5.0, 0.0])}, jnp.float32(0.25))
    np.testing.assert_allclose(new["x"], [2, 1.5])


def test_schedules_of_ddpg_are_evaluated():
    schedule = ((0, 1.0), (10, 0.0))
    config = new_policy("DDPG", noise_scale=schedule, critic_learning_rate=0.25)
    hypers = hypers_of(config).at(jnp.float32(4))
    np.testing.assert_allclose(hypers["noise_scale"], 0.6, rtol=1e-6)
    assert hypers["critic_learning_rate"] == 0.25
