"""Agents that join: their transitions begin there, and a slot used again is another agent."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interpreted import with_interpreted_rollouts
from probes import NETWORK, change_policy, tiny_config, tiny_policy
from relay_env import Relay, RelayParams
from tiny_runs import assert_same_run

import wdjax
from wdjax import envs
from wdjax.train import PPO, Trainer, evaluate, load_config, make_learner
from wdjax.train.algorithms.central_critic import evaluate_critic, evaluate_rollout, restarts_of
from wdjax.train.algorithms.replay import n_step_transitions
from wdjax.train.algorithms.team_values import team_targets
from wdjax.train.algorithms.vdn import team_steps
from wdjax.train.learning import Batch, Steps, experience, new_replay
from wdjax.train.rollout.scan import rollout

pytestmark = pytest.mark.usefixtures("quick_compile", "no_pictures")

# rollouts of 8 steps of an episode of 6 steps, [T, n]
LIVE = np.array([[1, 0], [1, 0], [0, 1], [1, 1], [1, 1], [0, 1], [1, 0], [1, 0]], bool)
JOINED = np.array([[0, 0], [0, 1], [1, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 1]], bool)
ENDED = np.array([[0, 0], [1, 0], [0, 0], [0, 0], [1, 0], [1, 1], [0, 0], [1, 0]], bool)
NEXT = np.array([[1, 0], [0, 1], [1, 1], [1, 1], [0, 1], [0, 0], [1, 0], [0, 1]], bool)
RESTARTS = JOINED | (np.arange(8) == 5)[:, None]
REPLAY = {"buffer_size": 64, "batch_size": 8, "warmup": 8, "updates_per_rollout": 1}
MEMORY = dataclasses.replace(NETWORK, recurrent_size=4)
GARBAGE = {"empty_obs": 1e6, "empty_reward": -1e6}


@pytest.fixture(scope="module", autouse=True)
def relay():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(envs._REGISTRY, "relay", Relay)
        yield


def learner_of(policy, **changes):
    return make_learner(
        tiny_config("relay", {"runner": policy}, **{"rollout_length": 8, "num_envs": 4, **changes})
    )


def of_team(algorithm, **options):
    network = {"hidden_sizes": [8], "recurrent_size": options.pop("recurrent_size", 0)}
    policy = {"network": network, "algorithm": algorithm, **options}
    sizes = {"num_envs": 4, "rollout_length": 8, "num_blocks": 2, "devices": 1}
    return make_learner(load_config({"env": "relay", "policies": {"runner": policy}, **sizes}))


def start(learner, **env_params):
    state = learner.init(jax.random.key(0))
    params = jax.tree.map(
        lambda old, new: jnp.asarray(new, old.dtype), state.env_params, RelayParams(**env_params)
    )
    return state.replace(env_params=params)


@functools.cache
def played(algorithm="DQN"):
    """Return (learner, state, rollout, transitions) with `next_obs`."""
    learner = of_team(algorithm, **REPLAY)
    state = start(learner)
    _, result = learner.rollout(state)
    return learner, state, result, result.rows["runner"]


@pytest.mark.slow
def test_probe_keeps_the_contract():
    wdjax.check_env(Relay(), num_steps=300)
    wdjax.check_env(Relay(), RelayParams(cut=True, by_action=1.0), num_steps=300)


def test_transitions_by_hand():
    _, state, result, rows = played()
    np.testing.assert_array_equal(state.live["runner"], [[True, False]] * 4)
    for name, expected in {"live": LIVE, "joined": JOINED, "terminated": ENDED}.items():
        per_replica = np.broadcast_to(expected[:, None], (8, 4, 2))
        np.testing.assert_array_equal(getattr(rows, name), per_replica, err_msg=name)
    np.testing.assert_array_equal(rows.active_next[:, 0], NEXT)
    np.testing.assert_array_equal(rows.restarts(result.over)[:, 0], RESTARTS)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [False, True])
def test_advantages_by_hand(cut):
    """V = 4, gamma = lambda = 0.5: delta = r - 2 until the last step of an agent, then r - 4."""
    learner = learner_of(tiny_policy("A2C", gamma=0.5, gae_lambda=0.5))
    state = start(learner, cut=cut)
    own = state.policies["runner"]
    head = own.params["value_head"]
    head = {"kernel": jnp.zeros_like(head["kernel"]), "bias": jnp.array([4.0])}
    own = own.replace(params={**own.params, "value_head": head})
    _, metrics = learner.update(state.replace(policies={"runner": own}))
    first = [-1.25, -1.0] if cut else [-1.75, -3.0]
    expected = np.array([*first, *first, -0.5, -2.0, 1.296875, 1.1875, 0.75, -1.0])
    np.testing.assert_allclose(metrics["runner/advantage_mean"], expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["runner/advantage_std"], expected.std(), rtol=1e-5)
    assert metrics["runner/live_fraction"] == 10 / 16


@pytest.mark.slow
def test_discounted_returns_by_hand():
    """The sums that `normalize_reward` divides by start at 0 with the second runner of a slot."""
    learner = learner_of(tiny_policy("PPO", gamma=0.5, normalize_reward=True, epochs=1))
    state, _ = learner.update(start(learner))
    sums = np.array([1, 1.5, 2, 3, 1, 1.5, 3, 4.5, 5.25, 5.625])
    statistics = state.policies["runner"].normalizer.reward
    assert statistics.count == 4 * len(sums)
    np.testing.assert_allclose(statistics.mean, sums.mean(), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, sums.var(), rtol=1e-5)
    np.testing.assert_allclose(state.memory["runner"].discounted_return, [[0.75, 0.0]] * 4)


def test_n_step_targets_by_hand():
    _, _, result, rows = played()
    batch, live = n_step_transitions(Steps.of(rows, result.over), jnp.float32(0.5), 3)
    np.testing.assert_array_equal(live[:, 0], LIVE[:6])
    reward, discount = (
        np.where(LIVE[:6], leaf[:, 0], 0) for leaf in (batch.reward, batch.discount)
    )
    expected = [[1.5, 0], [1, 0], [0, 5.25], [3, 5.25], [2, 4.5], [0, 3]]
    np.testing.assert_allclose(reward, expected)
    assert np.argwhere(discount).tolist() == [[2, 1]]
    assert discount[2, 1] == 0.125


@pytest.mark.slow
def test_sequences_begin_with_an_agent_and_end_with_it():
    _, _, result, rows = played()
    steps = Steps.of(rows, result.over)
    space = Relay().observation_space(None)["runner"].single
    shapes = Steps.shapes(space, wdjax.Discrete(2))
    replay = new_replay(shapes, 64, unit="sequence", length=4, shape=(8, 4, 2))
    replay = replay.add(steps, jnp.float32(0.5))
    assert replay.size == 3 * 4  # in every replica: steps 0, 2 (in slot 1) and 3
    valid = replay.ring.rows.valid[0, :12].reshape(3, 4, 4)[:, 0]
    np.testing.assert_array_equal(valid, [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.mark.slow
def test_team_steps_by_hand():
    """A team continues with the agents that join, and a reward belongs to the agents present."""
    learner, _, result, _ = played("VDN")
    (team,) = learner.setup.teams.values()
    steps = team_steps(team, result, keeps_state=False)
    np.testing.assert_array_equal(steps.obs[1]["runner"][:, 0], LIVE)
    np.testing.assert_array_equal(steps.next_obs[1]["runner"][:, 0], NEXT)
    np.testing.assert_array_equal(steps.reward[:, 0], [1, 1, 3, 5, 5, 3, 1, 1])
    np.testing.assert_array_equal(np.flatnonzero(steps.terminated[:, 0]), [5])


@pytest.mark.slow
def test_team_targets_by_hand():
    """PQN-VDN with a value of 4 for every agent, gamma = 0.5 and lambda = 0."""
    learner, state, result, rows = played()
    policy = learner.setup.policies["runner"]
    result = result.replace(rows={"runner": rows.replace(value=jnp.full((8, 4, 2), 4.0))})
    half, zero = jnp.float32(0.5), jnp.float32(0.0)
    data = {"runner": experience(policy, state.policies["runner"], result, half, zero)}
    following = {"runner": jnp.full((8, 4, 2), 4.0)}
    value, target = team_targets(data, following, result.over, policy.engine.decayed_sums)
    np.testing.assert_array_equal(value[:, 0, 0], 4 * LIVE.sum(axis=1))
    np.testing.assert_array_equal(target[:, 0, 0], [3, 3, 7, 9, 7, 3, 3, 3])


class StartsWarm(PPO):
    """PPO with an initial recurrent state other than 0."""

    def init_carry(self, policy, num_envs):
        return jax.tree.map(lambda zeros: zeros + 1.0, super().init_carry(policy, num_envs))


@pytest.mark.slow
def test_carries_start_with_an_agent():
    policy = tiny_policy("PPO", network=MEMORY, epochs=1, minibatches=1)
    policy = change_policy(policy, algorithm=f"{__name__}:StartsWarm")
    learner = learner_of(policy, rollout_length=3)
    state, metrics = learner.update(start(learner, empty_obs=50.0))
    carry = state.memory["runner"].carry[0]
    np.testing.assert_array_equal(carry[:, 0], np.ones((4, 4)))  # the second runner joined
    assert not np.any(carry[:, 1] == 1)  # the third one has acted
    assert metrics["runner/approx_kl"] < 1e-9  # unrolling in the loss equals acting


@pytest.mark.slow
def test_carries_of_pqn_and_its_sum_start_with_an_agent():
    """Without exploration, the chosen Q in the first loss is the largest one while acting."""
    for mixer in ("none", "sum"):
        options = {"epochs": 1, "minibatches": 1, "epsilon": 0.0, "mixer": mixer}
        learner = of_team("PQN", recurrent_size=4, **options)
        state = start(learner, empty_obs=50.0)
        _, result = learner.rollout(state)
        rows = result.rows["runner"]
        value = jnp.where(rows.live, rows.value, 0.0)
        count = rows.live.sum() if mixer == "none" else rows.live.any(axis=2).sum()
        _, metrics = learner.update(state)
        np.testing.assert_allclose(metrics["runner/q_mean"], value.sum() / count, rtol=1e-4)


@pytest.mark.slow
def test_carry_of_a_central_critic_starts_with_an_agent():
    learner = of_team("MAPPO", recurrent_size=4, epochs=1, minibatches=1)
    state = start(learner, empty_obs=50.0)
    _, result = learner.rollout(state)
    (team,), shared = learner.setup.teams.values(), state.shared["runner"]
    carry = state.memory["runner"].own
    values = evaluate_rollout(team, state.policies, shared, result, carry, True)
    batch = Batch.of_values(values.inputs, values.value, values.value, result.rows["runner"].live)
    batch = batch.in_sequences(restarts_of(team, result), carry).flat()
    again = evaluate_critic(team, None, shared, batch).value
    np.testing.assert_allclose(again, values.value.reshape(8, -1), rtol=1e-4, atol=1e-5)
    restart = batch.restart.reshape(8, 4, 2)[1:, 0]
    np.testing.assert_array_equal(restart, RESTARTS[:-1])


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [
        pytest.param(
            lambda: learner_of(
                tiny_policy(
                    "PPO", network=MEMORY, normalize_observation=True, normalize_reward=True
                )
            ),
            id="ppo",
        ),
        slow(lambda: of_team("PQN", recurrent_size=4), id="pqn"),
        slow(lambda: of_team("PQN", recurrent_size=4, mixer="sum", minibatches=1), id="pqn_sum"),
        slow(lambda: of_team("DQN", **REPLAY, n_step=3), id="dqn"),
        slow(lambda: of_team("QMIX", **REPLAY, n_step=3, normalize_observation=True), id="qmix"),
        slow(lambda: of_team("MAPPO", recurrent_size=4, minibatches=1), id="mappo"),
    ],
)
def test_empty_slots_change_no_bit(learner):
    learner = learner()
    results = [learner.run(start(learner, **params), num_updates=4) for params in ({}, GARBAGE)]
    learned = [
        [(own.params, own.normalizer) for own in (*state.policies.values(), *state.shared.values())]
        for state, _ in results
    ]
    jax.tree.map(np.testing.assert_array_equal, *learned)
    metrics = results[1][1]
    assert np.all(metrics["runner/reward_min"] == 1)
    assert np.all(metrics["runner/reward_max"] == 3)


@pytest.mark.slow
def test_evaluation_counts_present_agents_and_starts_their_memories():
    learner = learner_of(tiny_policy("PPO", network=MEMORY, normalize_observation=True))
    state, returns = start(learner), []
    for params in ({"by_action": 1.0}, {"by_action": 1.0, **GARBAGE}):
        state = start(learner, **params)
        returns.append(evaluate(learner, state, jax.random.key(1), 16).agent_return["runner"])
    np.testing.assert_array_equal(*returns)
    assert np.all((returns[0] >= [6, 12]) & (returns[0] <= [10, 16]))
    assert len(np.unique(returns[0])) > 4


@pytest.mark.slow
def test_no_transition_of_an_opponent_counts():
    """Random play always acts in slot 0, also in place of the second runner."""
    first = change_policy(
        tiny_policy("PPO", network=MEMORY, minibatches=1),
        agents=("runner[0]",),
        opponents={"random": 1.0},
    )
    policies = {"first": first, "second": change_policy(first, agents=("runner[1]",), opponents={})}
    learner = make_learner(tiny_config("relay", policies, num_envs=4, rollout_length=8))
    _, result = learner.rollout(start(learner))
    rows = result.rows["first"]
    assert not np.any(rows.live | rows.joined | rows.active_next)
    joined = np.broadcast_to(JOINED[:, None, 1:], (8, 4, 1))
    np.testing.assert_array_equal(result.rows["second"].joined, joined)


@pytest.mark.slow
def test_rollout_kernel_agrees(monkeypatch):
    learner = learner_of(tiny_policy("PPO"))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # matrix products as on a GPU
    state, results = learner.init(jax.random.key(0)), []
    for setup in (learner.setup, with_interpreted_rollouts(learner.setup)):
        after, result = jax.jit(functools.partial(rollout, setup))(state, jax.random.key(1))
        results.append((after.live, result.rows["runner"]))
    np.testing.assert_array_equal(results[1][1].joined[:, 0], JOINED)
    for name in ("live", "joined", "terminated", "reward", "action"):
        ours, theirs = (getattr(rows, name) for _, rows in results)
        np.testing.assert_array_equal(theirs, ours, err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, results[0][0], results[1][0])


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_where_slots_are_empty(tmp_path):
    """After 8 steps, one slot is empty in every replica."""
    base = {
        "env": "relay",
        "policies": {"runner": {"algorithm": "PPO", "network": {"hidden_sizes": [8]}}},
        **{"num_envs": 4, "rollout_length": 8, "updates_per_chunk": 1, "checkpoint_every": 1},
        **{"best_metric": "none", "eval_episodes": 4},
    }
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    Trainer(load_config(base, total_env_steps=64), whole, quiet=True).train()
    Trainer(load_config(base, total_env_steps=32), halves, quiet=True).train()
    Trainer(load_config(base, total_env_steps=64), halves, resume=True, quiet=True).train()
    assert_same_run(whole, halves)
