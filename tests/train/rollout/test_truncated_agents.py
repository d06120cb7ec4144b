"""Agents truncated at different steps: their transitions end there and bootstrap from V."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_probes import BoxLeaver, tiny_ddpg
from flax import nnx
from interpreted import with_interpreted_rollouts
from probes import NETWORK, Leaver, LeaverParams, tiny_config, tiny_policy

import wdjax
from wdjax import envs
from wdjax.train import evaluate, make_learner
from wdjax.train.rollout.scan import rollout

pytestmark = pytest.mark.usefixtures("quick_compile")

GAMMA = 0.7
ENDLESS = 1 / (1 - GAMMA)  # the value of a reward of 1 in every step for ever
GARBAGE = {"dead_obs": 1e6, "dead_reward": -1e6}


class Cut(Leaver):
    """`Leaver` whose first agent is truncated instead of terminated."""

    can_truncate = True

    def step(self, key, state, action, params):
        *played, ended, _, info = super().step(key, state, action, params)
        first = jnp.array([True, False])
        return (
            *played,
            {"player": ended["player"] & ~first},
            {"player": ended["player"] & first},
            info,
        )

    def observe(self, state, params):
        garbage = jnp.where(self.ends(params) < state.time, params.dead_obs, 0.0)
        return {
            "player": super().observe(state, params.replace(dead_obs=0.0))["player"]
            + garbage[:, None]
        }


class BoxCut(Cut, BoxLeaver):
    """The same, with an action in a box."""


@pytest.fixture(scope="module", autouse=True)
def cut():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(envs._REGISTRY, "cut", Cut)
        patch.setitem(envs._REGISTRY, "box_cut", BoxCut)
        yield


def learner_of(policy, env="cut", **changes):
    return make_learner(tiny_config(env, {"player": policy}, **changes))


def play(learner, num_updates, **env_params):
    state = learner.init(jax.random.key(0))
    params = jax.tree.map(
        lambda old, new: jnp.asarray(new, old.dtype), state.env_params, LeaverParams(**env_params)
    )
    return learner.run(state.replace(env_params=params), num_updates=num_updates)


@pytest.mark.slow
def test_probe_keeps_the_contract():
    wdjax.check_env(Cut(), num_steps=100)


@pytest.mark.parametrize("recurrent_size", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_advantages_by_hand(recurrent_size):
    """V = 4, gamma = lambda = 0.5: delta = 1 + 0.5 * 4 - 4 = -1, at the end 1 - 4 = -3."""
    network = dataclasses.replace(NETWORK, recurrent_size=recurrent_size)
    learner = learner_of(
        tiny_policy("A2C", network=network, gamma=0.5, gae_lambda=0.5), rollout_length=4
    )
    state = learner.init(jax.random.key(0))
    params = state.policies["player"].params
    head = {"kernel": jnp.zeros_like(params["value_head"]["kernel"]), "bias": jnp.array([4.0])}
    own = state.policies["player"].replace(params={**params, "value_head": head})
    _, metrics = learner.update(state.replace(policies={"player": own}))
    cut_off, plays_on = [-1.25, -1.0], [-1.359375, -1.4375, -1.75, -3.0]
    expected = np.array(cut_off + plays_on)
    np.testing.assert_allclose(metrics["player/advantage_mean"], expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["player/advantage_std"], expected.std(), rtol=1e-5)
    assert metrics["player/live_fraction"] == 6 / 8
    assert metrics["player/reward_mean"] == 1


STAYS = [sum(GAMMA**k for k in range(4 - time)) for time in range(4)]


@pytest.mark.slow
def test_value_bootstraps_at_truncation():
    learner = learner_of(tiny_policy("PPO"))
    state, _ = play(learner, 300)
    _, value, _ = learner.setup.policies["player"].apply(
        state.policies["player"], jnp.eye(2 * Leaver.LENGTH)
    )
    np.testing.assert_allclose(value[:2], [ENDLESS] * 2, atol=0.15)
    np.testing.assert_allclose(value[4:], STAYS, atol=0.15)


@pytest.mark.slow
def test_ddpg_bootstraps_at_truncation_and_stores_no_later_row():
    learner = learner_of(tiny_ddpg(n_step=2), "box_cut")
    state, _ = play(learner, 150)
    policy, learned = learner.setup.policies["player"], state.policies["player"]
    obs = jnp.eye(2 * Leaver.LENGTH)
    value = value_by_critic(policy, learned, obs)
    np.testing.assert_allclose(value[:2], [ENDLESS] * 2, atol=0.2)
    np.testing.assert_allclose(value[4:], STAYS, atol=0.2)
    assert not np.any(np.abs(state.memory["player"].replay.ring.rows.reward) > 2)


def value_by_critic(policy, state, obs):
    networks = nnx.merge(policy.graphdef, state.params)
    return networks.critic(obs, networks.actor(obs))


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(
            tiny_policy("PPO", normalize_observation=True, normalize_reward=True), id="normalized"
        ),
        pytest.param(
            tiny_policy("A2C", network=dataclasses.replace(NETWORK, recurrent_size=4)),
            id="recurrent",
            marks=pytest.mark.slow,
        ),
        pytest.param(tiny_ddpg(n_step=3), id="ddpg", marks=pytest.mark.slow),
    ],
)
def test_rows_after_truncation_change_no_bit(policy):
    learner = learner_of(policy, "box_cut" if policy.algorithm == "DDPG" else "cut")
    zeros, metrics = play(learner, 6)
    garbage, _ = play(learner, 6, **GARBAGE)
    learned = [
        (state.policies["player"].params, state.policies["player"].normalizer)
        for state in (zeros, garbage)
    ]
    jax.tree.map(np.testing.assert_array_equal, *learned)
    assert np.all(metrics["player/reward_mean"] == 1)


@pytest.mark.slow
def test_evaluation_counts_rewards_until_truncation():
    learner = learner_of(tiny_policy("A2C"), env_params={"dead_reward": 100.0})
    episodes = evaluate(learner, learner.init(jax.random.key(0)), jax.random.key(1), 3)
    np.testing.assert_array_equal(episodes.agent_return["player"], [[2, 4]] * 3)
    np.testing.assert_array_equal(episodes.episode_length, [4] * 3)


@pytest.mark.slow
def test_rollout_kernel_truncates_the_same_transitions(monkeypatch):
    learner = learner_of(tiny_policy("PPO"))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # matrix products as on a GPU
    state, rows = learner.init(jax.random.key(0)), []
    for setup in (learner.setup, with_interpreted_rollouts(learner.setup)):
        _, played = jax.jit(functools.partial(rollout, setup))(state, jax.random.key(1))
        rows.append(played.rows["player"])
    np.testing.assert_array_equal(rows[0].live[:5, 0], [[1, 1], [1, 1], [0, 1], [0, 1], [1, 1]])
    np.testing.assert_array_equal(rows[0].truncated[:5, 0, 0], [0, 1, 1, 1, 0])
    for name in ("live", "truncated", "terminated", "reward", "action"):
        np.testing.assert_array_equal(getattr(rows[1], name), getattr(rows[0], name), err_msg=name)


# --- check_env ---


class Pulse(Cut):
    """The agent is truncated in one step only."""

    def step(self, key, state, action, params):
        *played, cut, info = super().step(key, state, action, params)
        return *played, {"player": cut["player"] & (state.time + 1 == params.leave)}, info


class Paid(Cut):
    @property
    def default_params(self):
        return LeaverParams(dead_reward=1.0)


class Meddles(Cut):
    """The action of a truncated agent changes the length of the episode."""

    def step(self, key, state, action, params):
        obs, after, *rest = super().step(key, state, action, params)
        return (
            obs,
            after.replace(
                time=after.time + (action["player"][0] == 1) * (state.time >= params.leave)
            ),
            *rest,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            Pulse,
            r"truncated\['player'\]\[0\] becomes false again in step 3 of an episode\. It must",
        ),
        (
            Paid,
            r"reward\['player'\]\[0\] is not 0 after truncation in step 3 of an episode\. Set the",
        ),
        (Meddles, r"step lets the action of a terminated or truncated agent change"),
    ],
)
def test_check_env_refuses_effects_of_truncated_agents(env, words):
    with pytest.raises(wdjax.env_checker.EnvCheckError, match=words):
        wdjax.check_env(env(), num_steps=100)
