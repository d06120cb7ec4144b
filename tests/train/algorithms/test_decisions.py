"""Learning only from transitions with a choice of actions: `decisions_only`."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decision_probes import Shift, ShiftParams
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from probes import NETWORK, tiny_config, tiny_policy
from tiny_runs import numbers

import wdjax
from wdjax.train import A2C, PolicyConfig, load_config, make_learner, with_hypers
from wdjax.train.algorithms.transforms import decision_steps
from wdjax.train.learner.setup import make_setup
from wdjax.train.learning import Categorical, Rows, experience, next_value
from wdjax.train.state.engine import Engine
from wdjax.train.state.normalization import discounted_returns
from wdjax.train.storage.checkpoint import open_checkpoints, restore, save

pytestmark = pytest.mark.usefixtures("quick_compile")

GAMMA, UPDATES = 0.7, 300
T, N = 6, 3


# --- returns ---


class GivenValue(A2C):
    """Observations contain their values, and whether they leave a choice."""

    def value(self, policy, state, obs, carry):
        return obs["value"]


POLICY = SimpleNamespace(
    name="worker", algorithm=GivenValue(), engine=Engine(), decides=lambda obs: obs["decides"]
)


@jax.jit
def learned_returns(rows, last_value, last_decides, over):
    """Return (returns [T, N] of transitions [T, N, 1], share of undecided ends)."""
    rollout = SimpleNamespace(
        rows={"worker": rows},
        over=over,
        last_obs={"worker": {"value": last_value, "decides": last_decides}},
        last_carry={"worker": None},
    )
    data = experience(POLICY, None, rollout, jnp.float32(0.5), jnp.float32(0.5))
    data, share = decision_steps(POLICY, data)
    after = next_value(POLICY, None, rollout, data)
    advantage, target = POLICY.algorithm.advantages(POLICY, None, data, after)
    return advantage[..., 0] + data.rows.value[..., 0], target[..., 0], share


def column(numbers, dtype=np.float32):
    return np.array(numbers, dtype)[:, None, None]


def by_hand(reward, value, decides, last_value, last_decides, **ends):
    """Return (returns of one agent [T], share of undecided ends); `ends`: fields of Rows."""
    never = np.zeros(len(reward), bool)
    flags = {
        name: column(ends.get(name, never), bool)
        for name in ("terminated", "truncated", "final_decides")
    }
    rows = Rows(
        None,
        None,
        column(reward),
        live=~column(never, bool),
        value=column(value),
        decides=column(decides, bool),
        final_value=column(ends.get("final_value", never)),
        **flags,
    )
    over = (flags["terminated"] | flags["truncated"])[..., 0]
    found, target, share = learned_returns(
        rows, np.array([[last_value]], np.float32), np.array([[last_decides]]), over
    )
    np.testing.assert_array_equal(found, target)
    return found[:, 0], share


GARBAGE = 1e9  # V of observations without a choice


def test_rewards_are_summed_until_the_next_decision_and_discounted_there():
    found, share = by_hand([1, 2, 3, 4], [10, GARBAGE, 20, GARBAGE], [1, 0, 1, 0], 8, True)
    last = 3 + 4 + 0.5 * 8
    first = 1 + 2 + 0.5 * (0.5 * 20 + 0.5 * last)
    np.testing.assert_array_equal(found, [first, first - 1, last, last - 3])
    assert share == 0


def test_the_last_value_is_not_discounted_if_its_observation_leaves_no_choice():
    found, share = by_hand([1, 2], [10, GARBAGE], [1, 0], 8, False)
    np.testing.assert_array_equal(found, [11, 10])
    assert share == 1


def test_the_last_value_after_a_decision_is_discounted_only_before_another():
    assert by_hand([1], [10], [1], 8, True)[0] == 5
    assert by_hand([1], [10], [1], 8, False)[0] == 9


def test_termination_ends_the_return_also_without_a_choice():
    found, _ = by_hand([1, 2, 4], [10, GARBAGE, 6], [1, 0, 1], 8, True, terminated=[0, 1, 0])
    np.testing.assert_array_equal(found, [3, 2, 8])


@pytest.mark.parametrize(
    ("decides", "expected"), [(True, [1 + 2 + 0.5 * 6, 2 + 0.5 * 6]), (False, [9, 8])]
)
def test_truncation_without_a_choice_adds_the_final_value(decides, expected):
    ends = {"truncated": [0, 1, 0], "final_value": [0, 6, 0], "final_decides": [0, decides, 0]}
    found, share = by_hand([1, 2, 4], [10, GARBAGE, 100], [1, 0, 1], 8, True, **ends)
    np.testing.assert_array_equal(found, [*expected, 4 + 0.5 * 8])
    assert share == (0 if decides else 0.5)


values = arrays(np.float32, (T, N, 1), elements=st.floats(-10, 10, width=32))
flags, last = arrays(bool, (T, N, 1)), arrays(bool, (N, 1))


@given(values, values, values, flags, flags, flags, flags, last)
def test_returns_follow_the_recursion_of_their_definition(
    reward, value, final, ended, cut, decides, later, last_decides
):
    """Loop over all replicas in Python; gamma = lambda = 0.5."""
    cut &= ~ended
    rows = Rows(
        None,
        None,
        reward,
        ended,
        np.ones((T, N, 1), bool),
        cut,
        decides,
        later,
        value=value,
        final_value=np.where(cut, final, 0),
    )
    last_value = final[0] + 1
    found, _, _ = learned_returns(rows, last_value, last_decides, (ended | cut)[..., 0])
    following = 0.0
    for n in range(N):
        for t in reversed(range(T)):
            paid = float(reward[t, n, 0])
            if ended[t, n]:
                later_return = 0.0
            elif cut[t, n]:
                later_return = final[t, n, 0] * (0.5 if later[t, n] else 1.0)
            elif t == T - 1:
                later_return = last_value[n, 0] * (0.5 if last_decides[n] else 1.0)
            elif decides[t + 1, n]:
                later_return = 0.5 * (0.5 * value[t + 1, n, 0] + 0.5 * following)
            else:
                later_return = following
            following = paid + later_return
            np.testing.assert_allclose(found[t, n], following, rtol=1e-5, atol=1e-4)


def test_running_returns_discount_per_decision():
    reward, over = column([1, 2, 3, 4]), np.array([[False], [False], [True], [False]])
    gammas = column([1.0, 0.5, 1.0, 0.5])  # before rows 1 to 3, and the one after them
    totals, after = discounted_returns(jnp.array([[8.0]]), reward, over, gammas)
    np.testing.assert_array_equal(totals[:, 0, 0], [9, 11, 8.5, 4])
    assert after == 2


@pytest.mark.parametrize(
    ("mask", "has"),
    [
        ([1, 1, 1, 0, 0], True),
        ([1, 0, 1, 0, 0], False),
        ([0, 1, 0, 1, 1], True),
        ([0, 0, 1, 1, 0], True),
        ([0, 0, 0, 0, 1], False),
        ([0.0, 1.0, 0.0, 0.0, 1.0], False),
    ],
)
def test_a_mask_leaves_a_choice_if_any_component_has_one(mask, has):
    assert Categorical((2, 3), scalar=False).has_choice(jnp.array(mask)) == has


# --- learning ---


def learner_of(policies, **changes):
    if isinstance(policies, PolicyConfig):
        policies = {"worker": policies}
    return make_learner(tiny_config("probe_shift", policies, **changes))


def with_params(state, **env_params):
    cast = lambda old, new: jnp.asarray(new, old.dtype)  # noqa: E731
    return state.replace(env_params=jax.tree.map(cast, state.env_params, ShiftParams(**env_params)))


def by_decisions(algorithm="PPO", **changes):
    return tiny_policy(algorithm, decisions_only=True, **changes)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def normalized():
    """Return (learner, initial state) with all normalization options."""
    options = {"normalize_observation": True, "normalize_reward": True, "normalize_advantage": True}
    learner = learner_of(by_decisions(entropy_coefficient=0.01, **options))
    return learner, learner.init(jax.random.key(0))


@pytest.mark.slow
def test_transitions_without_a_choice_change_no_bit(normalized):
    learner, state = normalized
    runs = [
        learner.run(with_params(state, constant=1.0, late=1.0, forced_obs=garbage), num_updates=4)
        for garbage in (0.0, 1e6)
    ]
    assert_equal(*(after.policies for after, _ in runs))
    metrics = runs[0][1]
    np.testing.assert_allclose(metrics["worker/decision_fraction"], 5 / 12)
    np.testing.assert_array_equal(metrics["worker/live_fraction"], 1)
    np.testing.assert_array_equal(metrics["worker/undecided_ends"], 0)
    np.testing.assert_array_equal(metrics["bad_numbers"], 0)
    assert runs[0][0].policies["worker"].normalizer.obs["seen"].count == 4 * 8 * 5


@pytest.mark.slow
def test_a_policy_without_any_choice_learns_nothing(normalized):
    learner, state = normalized
    # gives the optimizer momentum
    busy, _ = learner.run(with_params(state, constant=1.0, late=1.0), num_updates=4)
    # the first steps still decide
    before, _ = learner.run(with_params(busy, intervals=(0, 0), constant=3.0), num_updates=4)
    after, metrics = learner.run(before, num_updates=4)
    assert_equal(before.policies, after.policies)
    assert after.num_updates == 12
    np.testing.assert_array_equal(metrics["bad_numbers"], 0)
    np.testing.assert_array_equal(metrics["worker/decision_fraction"], 0)
    np.testing.assert_array_equal(metrics["worker/gradient_steps"], 0)
    np.testing.assert_array_equal(metrics["worker/reward_mean"], 3)
    assert np.isnan(metrics["worker/loss"]).all()


@pytest.mark.slow
def test_an_a2c_update_without_valid_transitions_takes_no_step():
    """A2C has no metric gradient_steps: its NaN must not count as bad numbers."""
    learner = learner_of(by_decisions("A2C", neg_pos_env_ratio=1.0))
    state = with_params(learner.init(jax.random.key(0)), intervals=(0, 0), constant=3.0)
    state, _ = learner.run(state, num_updates=4)  # its first steps still decide
    after, metrics = learner.run(state, num_updates=4)
    assert_equal(state.policies, after.policies)
    np.testing.assert_array_equal(metrics["bad_numbers"], 0)
    np.testing.assert_array_equal(metrics["worker/positive_envs"], 0)


@pytest.mark.slow
def test_decisions_in_every_step_equal_plain_steps():
    options = {
        "normalize_reward": True,
        "network": dataclasses.replace(NETWORK, recurrent_size=4),
    }
    results = []
    for decisions_only in (False, True):
        learner = learner_of(
            tiny_policy("PPO", decisions_only=decisions_only, **options), num_blocks=4
        )
        state = with_params(
            learner.init(jax.random.key(0)),
            intervals=(1, 1),
            late=1.0,
            episode_length=4,
            time_limit=True,
        )
        results.append(learner.run(state, num_updates=3))
    (off, metrics), (on, ours) = results
    same = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(same, off.policies, on.policies)
    jax.tree.map(same, metrics, {name: ours[name] for name in metrics})
    np.testing.assert_array_equal(ours["worker/decision_fraction"], 1)


# V of each worker at its decisions, at times 0, 2, 4 and 0, 3
SUMS = [[2 + GAMMA * (2 + GAMMA * 2), 2 + GAMMA * 2, 2], [3 + GAMMA * 3, 3]]
ENDLESS = [[2 / (1 - GAMMA)] * 3, [3 / (1 - GAMMA)] * 2]


@pytest.fixture(scope="module")
def pair():
    """Return a learner with a policy for each worker."""
    policy = by_decisions(max_grad_norm=10.0)
    return learner_of(
        {
            name: dataclasses.replace(policy, agents=(f"worker[{i}]",))
            for i, name in enumerate(("first", "second"))
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(("time_limit", "expected"), [(False, SUMS), (True, ENDLESS)])
def test_values_are_those_of_the_decision_process(pair, time_limit, expected):
    learner = pair
    start = with_params(learner.init(jax.random.key(0)), constant=1.0, time_limit=time_limit)
    state, _ = learner.run(start, num_updates=UPDATES)
    for name, times, exact in zip(("first", "second"), ((0, 2, 4), (0, 3)), expected, strict=True):
        seen = jax.nn.one_hot(jnp.array(times), Shift.LENGTH + 1)
        obs = {"seen": seen, "action_mask": jnp.ones((len(times), 3))}
        value = learner.setup.policies[name].apply(state.policies[name], obs)[1]
        np.testing.assert_allclose(value, exact, rtol=0.02, atol=0.1)


@pytest.fixture(scope="module")
def recurrent():
    """Return (learner, initial state) of a policy with memory, paid for its decisions."""
    network = dataclasses.replace(NETWORK, recurrent_size=8)
    learner = learner_of(by_decisions(network=network, gae_lambda=0.0), num_blocks=4)
    return learner, with_params(learner.init(jax.random.key(0)), late=1.0)


@pytest.mark.slow
def test_a_decision_is_credited_with_later_rewards(recurrent):
    learner, start = recurrent
    _, metrics = learner.run(start, num_updates=UPDATES)
    assert metrics["worker/episode_return"][-20:].mean() > 0.95 * 5


@pytest.mark.slow
def test_ratio_is_one_without_learning(recurrent):
    learner, start = recurrent
    frozen = with_hypers(start, **{"worker.learning_rate": 0.0})
    _, metrics = learner.run(frozen, num_updates=UPDATES)
    assert np.all(metrics["worker/gradient_steps"] > 0)
    assert np.max(metrics["worker/approx_kl"]) < 1e-6
    np.testing.assert_array_equal(metrics["worker/clip_fraction"], 0)


@pytest.fixture(scope="module")
def advantages():
    network = dataclasses.replace(NETWORK, recurrent_size=4)
    policy = by_decisions("A2C", network=network, gamma=0.5, gae_lambda=0.5)
    return learner_of(policy, rollout_length=3)


@pytest.mark.slow
@pytest.mark.parametrize(("wraps", "gamma"), [(True, 0.5), (False, 1.0)])
def test_advantages_of_a_whole_update_by_hand(advantages, wraps, gamma):
    """V = 4, gamma = lambda = 0.5, a decision every 2 steps, and truncation after 3 steps.

    The final observation is of time 0 (a decision) or of time 3 (none).
    """
    learner = advantages
    state = learner.init(jax.random.key(0))
    state = with_params(
        state, intervals=(2, 2), constant=1.0, episode_length=3, time_limit=True, wraps=wraps
    )
    params = state.policies["worker"].params
    head = {"kernel": jnp.zeros_like(params["value_head"]["kernel"]), "bias": jnp.array([4.0])}
    own = state.policies["worker"].replace(params={**params, "value_head": head})
    _, metrics = learner.update(state.replace(policies={"worker": own}))
    last = 1 + gamma * 4
    first = 2 + 0.5 * (0.5 * 4 + 0.5 * last)
    np.testing.assert_allclose(metrics["worker/return_mean"], (first + last) / 2, rtol=1e-5)
    np.testing.assert_allclose(metrics["worker/advantage_std"], abs(first - last) / 2, rtol=1e-5)
    assert metrics["worker/undecided_ends"] == (not wraps)


@pytest.mark.slow
def test_a_population_member_equals_its_solo_run(normalized):
    learner, _ = normalized
    states = jax.vmap(learner.init)(jax.random.split(jax.random.key(3), 2))
    states = states.replace(env_params=states.env_params.replace(late=jnp.ones(2)))
    together, _ = jax.vmap(functools.partial(learner.run, num_updates=4))(states)
    for i in range(2):
        alone, _ = learner.run(jax.tree.map(lambda leaf, i=i: leaf[i], states), num_updates=4)
        ours = jax.tree.map(lambda leaf, i=i: leaf[i], together.policies)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        jax.tree.map(close, ours, alone.policies)


@pytest.mark.slow
def test_a_run_goes_on_from_a_saved_state(normalized, tmp_path):
    """The checkpoint contains the running returns of episodes that are not over."""
    learner, start = normalized
    half, _ = learner.run(with_params(start, constant=1.0, episode_length=5), num_updates=4)
    assert np.all(half.memory["worker"].discounted_return != 0)
    with open_checkpoints(tmp_path / "checkpoints", 1) as manager:
        save(manager, 4, half, {"metrics_size": 0})
        manager.wait_until_finished()
        restored, _ = restore(manager, 4, jax.eval_shape(learner.init, jax.random.key(0)))
    whole, resumed = (learner.run(state, num_updates=4)[0] for state in (half, restored))
    assert_equal(numbers(whole), numbers(resumed))


# --- refusals ---


OF_CARTPOLE = r"must be false, as the observations of group 'agent' have no action_mask"
OF_PILOT = r"must be false, as the observations of group 'pilot' have no action_mask"


@pytest.mark.parametrize(
    ("env", "algorithm", "words"),
    [
        ("pendulum", "DDPG", r"DDPG has no such option \(A2C and PPO have it\)\. Remove it"),
        ("cartpole", "PPO", OF_CARTPOLE),
        ("cartpole", "A2C", OF_CARTPOLE),
        ("cartpole", "wdjax.experiments.examples.own_algorithm:AWR", OF_CARTPOLE),
    ],
)
def test_policies_without_a_choice_or_the_option_are_refused(env, algorithm, words):
    policy = {"algorithm": algorithm, "decisions_only": True}
    with pytest.raises(ValueError, match=f"^policies.agent.decisions_only = True: {words}"):
        load_config({"env": env, "policies": {"agent": policy}})


def test_the_group_without_a_mask_is_named():
    policies = {"pilot": by_decisions(), "clerk": tiny_policy("A2C")}
    with pytest.raises(ValueError, match=OF_PILOT):
        make_setup(tiny_config("probe_pair", policies))


def test_policies_with_an_action_mask_have_no_kernel():
    policy = make_setup(tiny_config("probe_shift", {"worker": by_decisions()})).policies["worker"]
    assert policy.engine.shape is None
    assert policy.engine.reason == "it has an action mask"


@pytest.mark.slow
def test_the_probe_passes_check_env():
    wdjax.check_env(Shift(), num_steps=60)
