"""DDPG in the learner: acting, replay, blocks, populations, several policies, refused options."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_probes import HIGH, LOW, tiny_ddpg
from probes import tiny_config, tiny_policy

from wdjax import Box, Discrete
from wdjax.train import (
    NetworkConfig,
    Trainer,
    evaluate,
    load_config,
    load_run,
    make_learner,
    with_hypers,
)
from wdjax.train.algorithms.ddpg import actor_of
from wdjax.train.devices.blocks import step_keys
from wdjax.train.learning import DDPG
from wdjax.train.networks.values import FINAL_SCALE, from_box, require_box, to_box
from wdjax.train.rollout.scan import StepInputs, play_step, rollout
from wdjax.train.state.state import current_hypers

pytestmark = pytest.mark.usefixtures("quick_compile")

GAME = {"by_match": 1.0, "target": 0.5, "episode_length": 4, "time_limit": True}


def signal_config(policy, **changes):
    return tiny_config("probe_box_signal", {"agent": policy}, **{"env_params": GAME, **changes})


def updates(learner, state, num):
    """Return (states after 0, 1, ... updates, metrics of each update)."""
    states, rows = [state], []
    for _ in range(num):
        state, metrics = learner.update(state)
        states.append(state)
        rows.append(metrics)
    return states, rows


@pytest.fixture(scope="module")
def learner():
    return make_learner(four_updates())


def four_updates(**changes):
    # 8 replicas x 6 steps; the last step waits for the next rollout: 40, 88, 136 transitions
    schedule = ((0, 1.0), (480, 0.0))
    policy = tiny_ddpg(n_step=2, warmup=80, noise_scale=schedule, normalize_observation=True)
    return signal_config(policy, **{"total_env_steps": 4 * 48, **changes})


@pytest.fixture(scope="module")
def four(learner):
    return updates(learner, learner.init(jax.random.key(0)), 4)


def moved(a, b):
    return [
        bool(np.any(np.not_equal(x, y)))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]


# --- the box ---


def test_actions_are_scaled_into_the_box_and_back():
    space = Box(np.array([[-1.0, 0.0]]), np.array([[3.0, 0.5]]), (1, 2))
    unit = jnp.array([[[-1.0, 1.0], [0.5, 0.0]]])
    action = to_box(space, unit)
    np.testing.assert_allclose(action, [[[[-1.0, 0.5]], [[2.0, 0.25]]]])
    np.testing.assert_allclose(from_box(space, action), unit, atol=1e-6)


@pytest.mark.parametrize(
    ("space", "error"),
    [
        (Discrete(2), TypeError),
        (Box(-1.0, 1.0, (2,), jnp.int32), TypeError),
        (Box(-1.0, np.inf, (2,)), ValueError),
        (Box(1.0, 1.0, (2,)), ValueError),
    ],
)
def test_unbounded_and_discrete_action_spaces_are_refused(space, error):
    with pytest.raises(error, match=r"policies\.agent\.algorithm = 'DDPG'"):
        require_box("policies.agent.algorithm = 'DDPG'", space)


# --- training ---


@pytest.mark.slow
def test_initial_networks(learner, four):
    state = four[0][0].policies["agent"]
    assert not any(moved(state.params, state.target_params))
    for name in ("actor", "critic"):
        final = np.abs(state.params[name]["head"]["kernel"])
        assert 0 < final.max() <= FINAL_SCALE
        assert not np.any(state.params[name]["head"]["bias"])
    assert "critic2" not in state.params


@pytest.mark.slow
def test_training_starts_when_the_buffer_holds_warmup_transitions(four):
    states, rows = four
    policies = [state.policies["agent"] for state in states]
    assert [int(row["agent/buffer_rows"]) for row in rows] == [40, 88, 136, 184]
    assert [int(policy.gradient_steps) for policy in policies] == [0, 0, 8, 16, 24]
    assert not any(moved(policies[0].params, policies[1].params))
    assert all(moved(policies[1].params, policies[2].params))
    assert all(moved(policies[1].target_params, policies[2].target_params))
    for name in (
        "actor_loss",
        "critic_loss",
        "q_mean",
        "target_mean",
        "grad_norm_actor",
        "grad_norm_critic",
    ):
        assert [bool(jnp.isnan(row[f"agent/{name}"])) for row in rows] == [
            True,
            False,
            False,
            False,
        ]


@pytest.mark.slow
def test_metrics_of_the_rollout(four):
    for row in four[1]:
        assert (
            LOW
            <= row["agent/action_min/0"]
            < row["agent/action_mean"]
            < row["agent/action_max/0"]
            <= HIGH
        )
        assert row["agent/live_fraction"] == 1
        assert row["agent/reward_mean"] < 0
    np.testing.assert_allclose(
        [row["agent/noise_scale"] for row in four[1]], [1, 0.9, 0.8, 0.7], rtol=1e-6
    )
    assert "agent/entropy_coefficient" not in four[1][0]


def test_the_buffer_holds_raw_observations_that_are_normalized_when_drawn(learner, four):
    state, policy = four[0][4].policies["agent"], learner.setup.policies["agent"]
    rows = four[0][4].memory["agent"].replay.ring.rows
    # the time, not normalized
    assert set(np.unique(rows.obs[..., 1])) == {0, 1, 2, 3}
    assert state.normalizer.obs.count == 4 * 48
    mean, deviation = state.normalizer.obs.mean, jnp.sqrt(state.normalizer.obs.variance)
    obs = jnp.array([[1.0, 2.0]])
    plain = state.replace(normalizer=None)
    np.testing.assert_allclose(
        actor_of(policy, state, obs),
        actor_of(policy, plain, (obs - mean[None]) / deviation[None]),
        rtol=1e-5,
    )


def play_one_step(learner, state, seed):
    """Return (action [N, n], carry before the step, carry after it, over [N])."""
    setup = learner.setup
    carry = (
        state.replicas,
        state.obs,
        state.live,
        {name: memory.carry for name, memory in state.memory.items()},
    )
    keys = step_keys(jax.random.key(seed), 1, 2, setup.config.blocks)[0]
    hypers = current_hypers(setup.config, state)
    drawn = (keys[0], {"agent": keys[1]})
    play = jax.jit(
        lambda carry: play_step(
            StepInputs(setup, state.policies, hypers, state.env_params), carry, *drawn
        )
    )
    after, (rows, (over, *_)) = play(carry)
    return rows["agent"].action[..., 0], carry[3]["agent"], after[3]["agent"], over


@pytest.mark.slow
def test_actions_are_uniform_during_warmup_then_from_the_actor_with_noise(learner, four):
    for state, scale in ((four[0][1], None), (four[0][2], 0.8)):
        action, before, after, over = play_one_step(learner, state, seed=3)
        mean = actor_of(
            learner.setup.policies["agent"], state.policies["agent"], state.obs["agent"]
        )
        process = after[..., 0]
        noisy = np.clip(mean[..., 0] + (scale or 1.0) * process, -1, 1) * 2 + 1
        assert not over.any()
        assert np.any(before != after)
        assert np.allclose(action, noisy, atol=1e-5) == (scale is not None)


def test_noise_starts_at_0_in_every_episode(learner, four):
    state = four[0][2]  # after 12 steps: three episodes of 4 steps have ended
    assert not jnp.any(state.memory["agent"].carry)
    assert jnp.all(four[0][1].memory["agent"].carry != 0)  # after 6


@pytest.mark.slow
def test_warmup_without_uniform_actions():
    learner = make_learner(signal_config(tiny_ddpg(uniform_warmup=False, noise="none")))
    action, before, after, _ = play_one_step(learner, learner.init(jax.random.key(0)), seed=0)
    assert before is after is None
    np.testing.assert_allclose(action, 1.0, atol=0.1)  # a new actor returns the center of the box


@pytest.mark.slow
def test_evaluation_plays_the_actor_without_noise(learner, four):
    state = four[0][4]
    greedy, drawn = (
        evaluate(learner, state, jax.random.key(1), 4, greedy=greedy) for greedy in (True, False)
    )
    np.testing.assert_array_equal(greedy.episode_return["agent"], drawn.episode_return["agent"])
    noisy = state.replace(memory=jax.tree.map(jnp.ones_like, state.memory))
    again = evaluate(learner, noisy, jax.random.key(1), 4)
    np.testing.assert_array_equal(greedy.episode_return["agent"], again.episode_return["agent"])


@pytest.mark.slow
def test_no_key_is_used_twice(learner):
    with jax.debug_key_reuse(True):  # checks while tracing
        learner.update.trace(jax.eval_shape(learner.init, jax.random.key(0)))


# --- blocks ---


@pytest.mark.slow
def test_every_block_stores_its_own_transitions(learner, four):
    """Each block is one replica here. Its ring holds the observations in order of time."""
    state = four[0][0]
    _, played = jax.jit(functools.partial(rollout, learner.setup))(
        state, jax.random.split(state.key, 3)[0]
    )
    ring = four[0][1].memory["agent"].replay.ring
    np.testing.assert_array_equal(ring.size, [5] * 8)
    rows = played.rows["agent"]
    np.testing.assert_array_equal(ring.rows.obs[:, :5], np.swapaxes(rows.obs[:5, :, 0], 0, 1))
    np.testing.assert_allclose(
        ring.rows.action[:, :5] * 2 + 1, np.swapaxes(rows.action[:5, :, 0], 0, 1), atol=1e-6
    )


# --- populations ---


@pytest.mark.slow
def test_a_population_member_equals_its_solo_run(learner):
    keys = jax.random.split(jax.random.key(7), 2)
    changes = {
        "agent.tau": [0.1, 0.3],
        "agent.critic_learning_rate": [2e-3, 1e-3],
        "agent.learning_rate": [1e-3, 2e-3],
    }
    states = with_hypers(
        jax.vmap(learner.init)(keys), **{name: jnp.array(pair) for name, pair in changes.items()}
    )
    vmapped = jax.jit(jax.vmap(learner.update))
    for _ in range(3):
        states, metrics = vmapped(states)
    for i in range(2):
        first = with_hypers(
            learner.init(keys[i]), **{name: pair[i] for name, pair in changes.items()}
        )
        alone, rows = (values[-1] for values in updates(learner, first, 3))
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        assert mine.policies["agent"].gradient_steps == 16
        for part in ("params", "target_params"):
            pair = (getattr(state.policies["agent"], part) for state in (mine, alone))
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), *pair)
        np.testing.assert_array_equal(
            mine.replicas.env_state.signal, alone.replicas.env_state.signal
        )
        ring, own = (state.memory["agent"].replay.ring.rows for state in (mine, alone))
        np.testing.assert_allclose(ring.action, own.action, atol=1e-5)  # the same noise
        np.testing.assert_allclose(
            metrics["agent/critic_loss"][i], rows["agent/critic_loss"], rtol=1e-3
        )


def test_hyperparameters_of_ddpg_are_changed_by_name(learner):
    state = learner.init(jax.random.key(0))
    # the second name is from version 0.2
    changes = {"agent.noise_scale": 0.25, "agent.ddpg.noise_damping": 0.5}
    changed = with_hypers(state, **changes)
    assert current_hypers(learner.config, changed)["agent"]["noise_scale"] == 0.25
    assert changed.hypers["agent"]["noise_damping"] == 0.5
    assert changed.hypers["agent"]["tau"] == state.hypers["agent"]["tau"]
    words = r"unknown hyperparameter 'agent\.tua': did you mean 'agent\.tau'"
    with pytest.raises(ValueError, match=words):
        with_hypers(state, **{"agent.tua": 0.1})
    with pytest.raises(ValueError, match=r"unknown hyperparameter 'agent\.clip'"):
        with_hypers(state, **{"agent.clip": 0.1})
    with pytest.raises(ValueError, match=r"shape of agent\.tau = \(2,\)"):
        with_hypers(state, **{"agent.tau": jnp.ones(2)})


# --- several policies ---


@pytest.fixture(scope="module")
def mixed():
    """Return (learner, (states, metrics)) of PPO clerks, a DDPG pilot and a frozen DDPG pilot."""
    td3 = {
        "twin_critics": True,
        "policy_delay": 2,
        "updates_per_rollout": 3,
        "warmup": 64,
        "n_step": 2,
    }
    policies = {
        "clerk": tiny_policy("PPO"),
        "pilot": tiny_ddpg(**td3, agents=("pilot[0]",)),
        "frozen": tiny_ddpg(**td3, agents=("pilot[1]",), trainable=False),
    }
    learner = make_learner(tiny_config("probe_pair", policies))
    return learner, updates(learner, learner.init(jax.random.key(0)), 3)


@pytest.mark.slow
def test_ddpg_and_ppo_learn_in_one_program(mixed):
    states, rows = mixed[1]
    assert all(moved(states[0].policies["clerk"].params, states[1].policies["clerk"].params))
    first, last = states[0].policies, states[3].policies
    assert all(moved(first["pilot"].params, last["pilot"].params))
    assert last["pilot"].gradient_steps == 6
    assert not any(moved(first["frozen"].params, last["frozen"].params))
    assert np.isfinite(rows[2]["pilot/actor_loss"])
    assert "pilot/entropy" not in rows[2]
    assert "tau" not in states[3].hypers["clerk"]
    assert "clip" not in states[3].hypers["pilot"]


@pytest.mark.slow
def test_frozen_policies_have_no_buffer_and_no_noise(mixed):
    learner, (states, rows) = mixed
    state, memory = states[3].policies["frozen"], states[3].memory["frozen"]
    assert state.opt_state is state.target_params is memory.replay is memory.carry is None
    assert {name for name in rows[0] if name.startswith("frozen/")} <= {
        f"frozen/episode_return{end}" for end in ("", "_min", "_max", "_std")
    }
    policy = learner.setup.policies["frozen"]
    obs = jnp.ones((8, 1, 1))
    action, _, _ = policy.algorithm.act(policy, state, None, obs, None, states[3].hypers["frozen"])
    np.testing.assert_array_equal(
        action, policy.algorithm.play(policy, state, None, obs, None, greedy=True)[0]
    )


@pytest.mark.slow
def test_ppo_does_not_depend_on_the_algorithm_of_other_policies(mixed):
    """The two groups do not interact."""
    policies = {
        "clerk": tiny_policy("PPO"),
        "pilot": tiny_policy("A2C", agents=("pilot[0]",), trainable=False),
        "frozen": tiny_policy("A2C", agents=("pilot[1]",), trainable=False),
    }
    learner = make_learner(tiny_config("probe_pair", policies))
    state, _ = learner.update(learner.init(jax.random.key(0)))
    pair = (other.policies["clerk"].params for other in (state, mixed[1][0][1]))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), *pair)


# --- resumed runs ---


@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_run(four, tmp_path):
    """The checkpoint contains the ring, pending n-step transitions, noise and target networks."""
    config = four_updates(updates_per_chunk=1, checkpoint_every=1, best_metric="none")
    half = dataclasses.replace(config, total_env_steps=2 * 48)
    Trainer(half, tmp_path, quiet=True, pictures=False).train()
    resumed = Trainer(config, tmp_path, resume=True, quiet=True, pictures=False).train()
    assert resumed.policies["agent"].gradient_steps == 8 * 3
    assert_equal(resumed, four[0][4])
    assert_equal(load_run(tmp_path)[1], resumed)


def assert_equal(a, b):
    a, b = (
        jax.tree.map(np.asarray, state.replace(key=jax.random.key_data(state.key)))
        for state in (a, b)
    )
    jax.tree.map(np.testing.assert_array_equal, a, b)


# --- refused options ---


REFUSED = [
    ({"buffer_size": 60}, r"buffer_size = 60: must be a multiple of num_blocks = 8"),
    ({"buffer_size": 32, "warmup": 64}, r"buffer_size = 32: must be at least batch_size = 64"),
    ({"batch_size": 20}, r"batch_size = 20: must be a multiple of num_blocks = 8"),
    ({"warmup": 63}, r"warmup = 63: must be between batch_size = 64 and buffer_size = 512"),
    ({"warmup": 513}, r"warmup = 513: must be between"),
    ({"n_step": 0}, r"n_step = 0: must be at least 1"),
    ({"n_step": 600}, r"n_step = 600: must be at most buffer_size = 512"),
    ({"updates_per_rollout": 0}, r"updates_per_rollout = 0"),
    ({"policy_delay": 0}, r"policy_delay = 0"),
    ({"tau": 0.0}, r"tau = 0\.0: must be above 0 and at most 1"),
    ({"tau": 1.5}, r"tau = 1\.5"),
    ({"gamma": 1.5}, r"gamma = 1\.5: must be between 0 and 1"),
    ({"noise_damping": -0.1}, r"noise_damping = -0\.1: must be between 0 and 1"),
    ({"noise_stddev": -1.0}, r"noise_stddev = -1\.0: must be finite and at least 0"),
    ({"target_noise": np.nan}, r"target_noise = nan"),
    ({"noise_scale": ()}, r"noise_scale = \(\)"),
    ({"critic_learning_rate": -1.0}, r"critic_learning_rate = -1\.0"),
    ({"noise": "gausian"}, r"noise = 'gausian': did you mean 'gaussian'"),
    ({"network": NetworkConfig(recurrent_size=4)}, r"network\.recurrent_size = 4: must be 0"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_wrong_options_are_refused(changes, words):
    with pytest.raises(ValueError, match=rf"^policies\.agent\.{words}"):
        make_learner(signal_config(tiny_ddpg(**changes)))


OF_OTHERS = [
    ({"normalize_reward": True}, r"normalize_reward = True: DDPG has no such option \(A2C and PPO"),
    ({"epochs": 4}, r"epochs = 4: DDPG has no such option \(PPO and PQN have it\)\. Remove it"),
    (
        {"action_distribution": "squashed_gaussian"},
        r"action_distribution = 'squashed_gaussian': DDPG",
    ),
    (
        {"algorithm": "PPO", "noise_stddev": 0.1},
        r"noise_stddev = 0\.1: PPO has no such option \(DDPG has it\)",
    ),
]


@pytest.mark.parametrize(("changes", "words"), OF_OTHERS)
def test_options_of_other_algorithms_are_refused(changes, words):
    """Unless they have their defaults: files of version 0.2 contain all options."""
    policy = {"algorithm": "DDPG", **changes}
    with pytest.raises(ValueError, match=rf"^policies\.agent\.{words}"):
        load_config({"env": "pendulum", "policies": {"agent": policy}})


def test_options_of_other_algorithms_at_their_defaults_are_dropped():
    policy = {"algorithm": "DDPG", "epochs": 1, "clip": 0.2, "tau": 0.01}
    config = load_config({"env": "pendulum", "policies": {"agent": policy}}).policies["agent"]
    assert config.options == DDPG.Options(tau=0.01)


@pytest.mark.parametrize("block", ["ddpg", "options"])
def test_blocks_of_older_files_are_read(block):
    policies = {"agent": {"algorithm": "DDPG", block: {"tau": 0.01, "noise": "gaussian"}}}
    name = f"policies.agent.{block}.batch_size"
    config = load_config({"env": "pendulum", "policies": policies}, **{name: 128})
    options = DDPG.Options(tau=0.01, noise="gaussian", batch_size=128)
    assert config.policies["agent"].options == options
    policies["agent"]["tau"] = 0.02
    words = rf"^policies\.agent\.tau = 0\.02: also given as policies\.agent\.{block}\.tau"
    with pytest.raises(ValueError, match=words):
        load_config({"env": "pendulum", "policies": policies})


def test_discrete_actions_are_refused():
    with pytest.raises(
        TypeError, match=r"policies\.agent\.algorithm = 'DDPG': requires a Box of floats"
    ):
        make_learner(tiny_config("probe_signal", {"agent": tiny_ddpg()}))
