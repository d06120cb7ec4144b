"""DDPG, TD3 and SAC on probe environments with box actions and known solutions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_probes import BoxSignalParams, tiny_ddpg, tiny_sac
from flax import nnx
from probes import Leaver, LeaverParams, tiny_config

from wdjax.train import make_learner
from wdjax.train.algorithms.critics import q_values
from wdjax.train.networks.values import from_box
from wdjax.train.state.hypers import hypers_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compile")]

GAMMA = 0.7
ENDLESS = 1 / (1 - GAMMA)  # the value of a reward of 1 in every step, without end
UPDATES = 150

PROBES = {
    "by_action": BoxSignalParams(by_action=1.0),
    "by_match": BoxSignalParams(by_match=1.0, target=0.5),
    "time_limit": BoxSignalParams(constant=1.0, episode_length=2, time_limit=True),
    "final_obs": BoxSignalParams(
        by_signal=1.0, episode_length=2, time_limit=True, same_signal=True
    ),
    "terminates": BoxSignalParams(constant=1.0, episode_length=2),
}
# all observations: (signal, time)
SIGNALS = jnp.array([[-1.0, 0.0], [1.0, 0.0], [-1.0, 1.0], [1.0, 1.0]])
C51 = {"critic": "categorical", "num_atoms": 21, "v_min": -6.0, "v_max": 6.0}
ALGORITHMS = {
    "DDPG": tiny_ddpg(),
    "TD3 of 3 steps": tiny_ddpg(
        n_step=3, twin_critics=True, policy_delay=2, target_noise=0.1, noise="gaussian"
    ),
    "SAC": tiny_sac(),
    "SAC, categorical": tiny_sac(**C51),
}


@pytest.fixture(scope="module", params=ALGORITHMS)
def algorithm(request):
    return ALGORITHMS[request.param]


def actions_and_values(policy, state, obs):
    """Return (greedy actions in the box [..., A], their values Q_1(obs, action) [...])."""
    networks = nnx.merge(policy.graphdef, state.params)
    action, _ = policy.algorithm.play(policy, state, None, obs, None, greedy=True)
    outputs = networks.values(obs, from_box(policy.assignment.action_space, action))
    hypers = hypers_of(policy.config).at(jnp.float32(0))
    return action, q_values(policy, hypers, outputs)[0]


@pytest.fixture(scope="module")
def learned(algorithm):
    """Train a population, one member per probe.

    Return (probe -> (action [4], value [4]) for SIGNALS, metrics).
    """
    learner = make_learner(tiny_config("probe_box_signal", {"agent": algorithm}))
    state = jax.vmap(learner.init)(jax.random.split(jax.random.key(1), len(PROBES)))
    state = state.replace(
        env_params=jax.tree.map(lambda *numbers: jnp.array(numbers), *PROBES.values())
    )
    state, metrics = jax.jit(jax.vmap(functools.partial(learner.run, num_updates=UPDATES)))(state)
    show = jax.vmap(
        functools.partial(actions_and_values, learner.setup.policies["agent"]), (0, None)
    )
    actions, values = show(state.policies["agent"], SIGNALS)
    return {name: (actions[i, :, 0], values[i]) for i, name in enumerate(PROBES)} | {
        "metrics": metrics
    }


def assert_values(learned, probe, expected):
    np.testing.assert_allclose(learned[probe][1][: len(expected)], expected, atol=0.15)


def test_best_action_may_be_the_edge_of_the_box(learned):
    assert np.all(learned["by_action"][0][:2] > 2.7)


def test_best_action_depends_on_the_observation(learned):
    np.testing.assert_allclose(learned["by_match"][0][:2], [-0.5, 0.5], atol=0.15)


def test_time_limit_bootstraps(learned):
    assert_values(learned, "time_limit", [ENDLESS] * 4)


def test_values_depend_on_observations_and_bootstrap_from_the_final_one(learned):
    assert_values(learned, "final_obs", [-ENDLESS, ENDLESS, -ENDLESS, ENDLESS])


def test_termination_does_not_bootstrap_and_later_rewards_are_discounted(learned):
    assert_values(learned, "terminates", [1 + GAMMA, 1 + GAMMA, 1, 1])


def test_actions_are_inside_the_box(learned):
    metrics = learned["metrics"]
    assert np.nansum(metrics["episode_outside"]) == 0
    assert metrics["agent/action_min/0"].min() >= -1
    assert metrics["agent/action_max/0"].max() <= 3


# --- two players, one leaves early ---


@pytest.fixture(scope="module")
def leaver():
    """Return (learner, run, initial state). SAC stores and draws transitions by the same code."""
    learner = make_learner(tiny_config("probe_box_leaver", {"player": tiny_ddpg(n_step=2)}))
    return (
        learner,
        functools.partial(learner.run, num_updates=UPDATES),
        learner.init(jax.random.key(0)),
    )


def play(learner, run, state, env_params):
    env_params = jax.tree.map(
        lambda old, new: jnp.asarray(new, old.dtype), state.env_params, env_params
    )
    return run(state.replace(env_params=env_params))


def test_rewards_after_leaving_have_no_value(leaver):
    state, metrics = play(*leaver, LeaverParams(dead_reward=-5.0))
    _, value = actions_and_values(
        leaver[0].setup.policies["player"], state.policies["player"], jnp.eye(8)
    )
    np.testing.assert_allclose(value[:2], [1 + GAMMA, 1], atol=0.15)
    stays = [sum(GAMMA**k for k in range(4 - time)) for time in range(4)]
    np.testing.assert_allclose(value[4:], stays, atol=0.15)
    assert np.all(metrics["player/reward_mean"] == 1)


def test_transitions_after_leaving_change_no_bit(leaver):
    zeros, _ = play(*leaver, LeaverParams())
    garbage, _ = play(*leaver, LeaverParams(dead_obs=1e6, dead_reward=-1e6))
    params = [state.policies["player"].params for state in (zeros, garbage)]
    jax.tree.map(np.testing.assert_array_equal, *params)
    ring = zeros.memory["player"].replay.ring
    assert Leaver.LENGTH == 4
    # each block of one replica holds the newest 64 of 2 + 4 valid transitions in every 4 steps
    np.testing.assert_array_equal(ring.size, [64] * 8)
