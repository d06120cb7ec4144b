"""A2C and PPO on probe environments with known solutions, each for one part of learning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import (
    Leaver,
    LeaverParams,
    Pair,
    SignalParams,
    change_policy,
    tiny_config,
    tiny_policy,
)

from wdjax.train import make_learner, with_hypers
from wdjax.train.learning import PPO, PolicyState

pytestmark = pytest.mark.usefixtures("quick_compile")

GAMMA = 0.7
ENDLESS = 1 / (1 - GAMMA)  # the value of a reward of 1 in every step, without end
UPDATES = 300

SIGNAL_PROBES = {
    "constant": SignalParams(constant=1.0),
    "by_signal": SignalParams(by_signal=1.0),
    "delayed": SignalParams(at_end=1.0, episode_length=2),
    "by_action": SignalParams(by_action=1.0),
    "by_match": SignalParams(by_match=1.0),
    "time_limit": SignalParams(constant=1.0, episode_length=2, time_limit=True),
    "final_obs": SignalParams(by_signal=1.0, episode_length=2, time_limit=True, same_signal=True),
    "terminates": SignalParams(constant=1.0, episode_length=2),
}
# All observations (signal, time), in the order of the arrays below.
SIGNALS = jnp.array([[-1.0, 0.0], [1.0, 0.0], [-1.0, 1.0], [1.0, 1.0]])


@pytest.fixture(scope="module", autouse=True)
def exact_products():
    """On an accelerator, rounded inputs of matrix products would move the ratio off 1."""
    with jax.default_matmul_precision("highest"):
        yield


class Spied(PPO):
    def loss(self, new, batch, options, mean):
        """Report the largest distance of the probability ratio from 1."""
        error = jnp.abs(jnp.exp(jnp.where(batch.valid, new.log_prob - batch.log_prob, 0.0)) - 1)
        spied = {"ratio_error": jnp.max(error) + jnp.zeros_like(error)}
        return super().loss(new, batch, options, lambda terms: mean(terms | spied))


def spied_policy(**changes):
    """Return a policy of PPO, which covers all code of A2C."""
    return change_policy(tiny_policy("PPO", **changes), algorithm=f"{__name__}:Spied")


def play(learner, run, state, env_params):
    """Train from `state` with these env_params. Return (parameters by policy, metrics)."""
    env_params = jax.tree.map(
        lambda old, new: jnp.asarray(new, old.dtype), state.env_params, env_params
    )
    state, metrics = run(state.replace(env_params=env_params))
    return {name: policy.params for name, policy in state.policies.items()}, metrics


# --- one agent: value, discount, advantage, policy, ends ---


@pytest.fixture(scope="module", params=[pytest.param("A2C", marks=pytest.mark.slow), "PPO"])
def learned(request):
    """Train a population, one member per probe.

    Return probe -> (probability of action 1 [4], value [4]) for SIGNALS.
    """
    learner = make_learner(tiny_config("probe_signal", {"agent": tiny_policy(request.param)}))
    run = jax.jit(jax.vmap(functools.partial(learner.run, num_updates=UPDATES)))
    keys = jax.random.split(jax.random.key(0), len(SIGNAL_PROBES))
    state = jax.vmap(learner.init)(keys)
    env_params = jax.tree.map(lambda *numbers: jnp.array(numbers), *SIGNAL_PROBES.values())
    states = run(state.replace(env_params=env_params))[0].policies["agent"]
    outputs, values, _ = jax.vmap(learner.setup.policies["agent"].apply, (0, None))(states, SIGNALS)
    probability = jax.nn.softmax(outputs)[..., 1]
    return {name: (probability[i], values[i]) for i, name in enumerate(SIGNAL_PROBES)}


def assert_values(learned, probe, expected):
    np.testing.assert_allclose(learned[probe][1][: len(expected)], expected, atol=0.1)


def test_constant_reward_is_the_value(learned):
    assert_values(learned, "constant", [1, 1])


def test_value_depends_on_the_observation(learned):
    assert_values(learned, "by_signal", [-1, 1])


def test_later_reward_is_discounted(learned):
    assert_values(learned, "delayed", [GAMMA, GAMMA, 1, 1])


def test_the_better_action_is_learned(learned):
    assert np.all(learned["by_action"][0][:2] > 0.95)


def test_action_depends_on_the_observation(learned):
    probability = learned["by_match"][0]
    assert probability[0] < 0.05
    assert probability[1] > 0.95


def test_time_limit_bootstraps(learned):
    assert_values(learned, "time_limit", [ENDLESS] * 4)


def test_time_limit_bootstraps_from_the_final_observation(learned):
    assert_values(learned, "final_obs", [-ENDLESS, ENDLESS, -ENDLESS, ENDLESS])


def test_termination_does_not_bootstrap(learned):
    assert_values(learned, "terminates", [1 + GAMMA, 1 + GAMMA, 1, 1])


def assert_ratio_is_one(metrics, policy):
    """In every minibatch of every epoch, as the learning rate is 0."""
    error = metrics[f"{policy}/ratio_error"]
    assert error.size >= UPDATES
    assert np.max(error) < 1e-4


# --- two players, one leaves early ---


@pytest.fixture(scope="module")
def leaver():
    """Return (learner, run, initial state)."""
    # all terms of the loss have a weight
    policy = spied_policy(entropy_coefficient=0.01)
    learner = make_learner(tiny_config("probe_leaver", {"player": policy}))
    return (
        learner,
        functools.partial(learner.run, num_updates=UPDATES),
        learner.init(jax.random.key(0)),
    )


@pytest.mark.slow
def test_rewards_after_leaving_have_no_value(leaver):
    # After leaving, the first player repeats its last observation: only `live` differs.
    params, _ = play(*leaver, LeaverParams(dead_reward=-5.0))
    rows = jnp.eye(2 * Leaver.LENGTH)
    _, value, _ = (
        leaver[0].setup.policies["player"].apply(PolicyState(params["player"], None), rows)
    )
    np.testing.assert_allclose(value[:2], [1 + GAMMA, 1], atol=0.1)
    stays = [sum(GAMMA**k for k in range(4 - time)) for time in range(4)]
    np.testing.assert_allclose(value[4:], stays, atol=0.1)


@pytest.mark.slow
def test_transitions_after_leaving_change_no_bit(leaver):
    zeros, _ = play(*leaver, LeaverParams())
    garbage, _ = play(*leaver, LeaverParams(dead_obs=1e6, dead_reward=-1e6))
    jax.tree.map(np.testing.assert_array_equal, zeros, garbage)


@pytest.mark.slow
def test_ratio_is_one_on_transitions_before_leaving(leaver):
    learner, run, state = leaver
    frozen = with_hypers(state, **{"player.learning_rate": 0.0})
    _, metrics = play(learner, run, frozen, LeaverParams(dead_obs=1e6))
    assert_ratio_is_one(metrics, "player")


# --- two groups of different spaces ---


@pytest.fixture(scope="module")
def pair():
    """Return (learner, run, initial state)."""
    policies = {"pilot": spied_policy(), "clerk": spied_policy()}
    learner = make_learner(tiny_config("probe_pair", policies))
    return (
        learner,
        functools.partial(learner.run, num_updates=UPDATES),
        learner.init(jax.random.key(0)),
    )


@pytest.fixture(scope="module")
def pair_learned(pair):
    """Return (parameters by policy, metrics) of a run with the default params."""
    return play(*pair, Pair().default_params)


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "other"), [("clerk", "pilot"), ("pilot", "clerk")])
def test_a_policy_does_not_depend_on_the_other_group(pair, pair_learned, changed, other):
    env_params = Pair().default_params.replace(
        **{f"{changed}_scale": -3.0, f"{changed}_noise": 7.0}
    )
    params, _ = play(*pair, env_params)
    jax.tree.map(np.testing.assert_array_equal, params[other], pair_learned[0][other])
    differs = jax.tree.map(
        lambda a, b: bool(np.any(np.not_equal(a, b))), params[changed], pair_learned[0][changed]
    )
    assert all(jax.tree.leaves(differs))


@pytest.mark.slow
def test_gaussian_finds_the_optimum_inside_the_box(pair, pair_learned):
    policy, params = pair[0].setup.policies["pilot"], pair_learned[0]["pilot"]
    outputs, *_ = policy.apply(PolicyState(params, None), jnp.array([[1.0], [-1.0]]))
    np.testing.assert_allclose(
        policy.distribution.mode(outputs), [Pair.TARGETS[1], Pair.TARGETS[-1]], atol=0.15
    )


@pytest.mark.slow
def test_actions_are_inside_the_box(pair_learned):
    assert np.nansum(pair_learned[1]["episodes"]) >= UPDATES
    assert np.nansum(pair_learned[1]["episode_outside"]) == 0


@pytest.mark.slow
def test_a_multi_discrete_policy_learns_both_choices(pair, pair_learned):
    policy, learned = pair[0].setup.policies["clerk"], PolicyState(pair_learned[0]["clerk"], None)
    signals, days = jnp.array([[1.0], [-1.0]]), jnp.array([1, 1])
    for second in ([1, 1, 1], [1, 1, 0], [0, 1, 1]):
        mask = jnp.array([[1, 1, *second]] * 2)
        outputs, *_ = policy.apply(learned, {"signal": signals, "day": days, "action_mask": mask})
        highest = 2 - second[::-1].index(1)
        best = jnp.array([[1, highest], [0, highest]])
        assert jnp.all(jnp.exp(policy.distribution.log_prob(outputs, best)) > 0.9)


@pytest.mark.slow
def test_masked_actions_are_never_taken(pair_learned):
    assert np.nansum(pair_learned[1]["episode_forbidden"]) == 0


@pytest.mark.slow
def test_ratio_is_one_for_each_policy(pair):
    _, run, state = pair
    frozen = with_hypers(state, **{"pilot.learning_rate": 0.0, "clerk.learning_rate": 0.0})
    _, metrics = run(frozen)
    assert_ratio_is_one(metrics, "pilot")
    assert_ratio_is_one(metrics, "clerk")
