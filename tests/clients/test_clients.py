"""Algorithms written from outside, on public names only: teams, central critics, memories."""

import ast
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from match_env import Match

from wdjax.env_checker import check_env
from wdjax.train import (
    Trainer,
    evaluate,
    load_config,
    load_run,
    make_learner,
    with_hypers,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

PLACES = {"MAPPO": "mappo:MAPPO", "VDN": "vdn:VDN"}
NETWORK = {"hidden_sizes": [32], "activation": "tanh", "shared_trunk": False}
MATCH = {
    "env": "match_env:Match",
    "policies": {
        "caller": {"network": NETWORK, "learning_rate": 1e-2},
        "answerer": {"network": NETWORK, "learning_rate": 1e-2},
    },
    "num_envs": 64,
    "rollout_length": 6,
    "num_blocks": 4,
}
TEAMS = {
    "MAPPO": {"epochs": 4, "minibatches": 2, "gamma": 0.5},
    "VDN": {"gamma": 0.1, "epsilon": [[0, 0.5], [20_000, 0.05]]},
}


def team_config(algorithm, **changes):
    place = PLACES[algorithm]
    team = {"policies": ["caller", "answerer"], "algorithm": place, **TEAMS[algorithm]}
    return load_config({**MATCH, "teams": {"pair": team}}, **changes)


@functools.cache
def team_learner(algorithm):
    """Return one learner for all tests. They all run 3 updates, so that it compiles once."""
    return make_learner(team_config(algorithm))


@functools.cache
def after_three_updates(algorithm):
    """Return (state, metrics)."""
    learner = team_learner(algorithm)
    return learner.run(learner.init(jax.random.key(0)), num_updates=3)


def cartpole(algorithm, **changes):
    own = {"policies.agent.algorithm": algorithm, "num_envs": 16}
    return load_config("cartpole_ppo", **{**own, **changes})


def leaves_of(tree):
    """Return the leaves of a tree as NumPy arrays, keys as their words."""
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    leaves = jax.tree.leaves(tree)
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in leaves]


def assert_same(one, other, **tolerance):
    for a, b in zip(leaves_of(one), leaves_of(other), strict=True):
        np.testing.assert_allclose(
            a, b, **tolerance
        ) if tolerance else np.testing.assert_array_equal(a, b)


def test_clients_use_public_names_only():
    for path in Path(__file__).parent.glob("*.py"):
        imports = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
        ]
        places = {node.module for node in imports if node.module.startswith("wdjax")}
        assert places <= {"wdjax", "wdjax.train", "wdjax.train.learning", "wdjax.env_checker"}, (
            path.name
        )


@pytest.mark.slow
def test_the_environment_keeps_the_contract():
    check_env(Match())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "updates"), [("MAPPO", 60), ("VDN", 400)])
def test_a_team_of_two_policies_learns_to_cooperate(name, updates):
    """Random play matches in 1 of 2 * 3 * 3 steps; the best possible is every step."""
    state, metrics = after_three_updates(name)
    assert np.nanmean(metrics["episode_matches"]) / 3 < 0.3
    matches = []
    for _ in range(updates // 3):
        state, metrics = team_learner(name).run(state, num_updates=3)
        matches.extend(np.asarray(metrics["episode_matches"]))
    assert np.nanmean(matches[-10:]) / 3 > (0.9 if name == "MAPPO" else 0.7)


@pytest.mark.parametrize("name", ["MAPPO", "VDN"])
@pytest.mark.slow
def test_a_team_goes_on_exactly_and_from_a_checkpoint(name, tmp_path):
    """The trainer calls its program for each update."""
    config = team_config(name, updates_per_chunk=1, total_env_steps=3 * 64 * 6)
    whole, _ = after_three_updates(name)
    assert set(whole.shared) == {"pair"}
    assert set(whole.hypers) == {"caller", "answerer", "pair"}
    Trainer(config, tmp_path / "run", quiet=True, pictures=False).train()
    assert_same(load_run(tmp_path / "run", trust=["match_env", "mappo", "vdn"])[1], whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MAPPO", "VDN"])
def test_members_of_a_population_equal_their_solo_runs(name):
    learner = team_learner(name)
    keys, gammas = jax.random.split(jax.random.key(1), 2), jnp.array([0.2, 0.8])
    states = with_hypers(jax.vmap(learner.init)(keys), **{"pair.gamma": gammas})
    together, _ = jax.vmap(lambda state: learner.run(state, num_updates=3))(states)
    for i in range(2):
        own = with_hypers(learner.init(keys[i]), **{"pair.gamma": float(gammas[i])})
        alone, _ = learner.run(own, num_updates=3)
        member = jax.tree.map(lambda leaf, i=i: leaf[i], together.policies)
        assert_same(member, alone.policies, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MAPPO", "VDN"])
def test_two_devices_learn_as_one(name):
    if jax.device_count() < 2:
        pytest.skip("needs two devices")
    one, _ = after_three_updates(name)
    learner = make_learner(team_config(name, devices=2))
    two, _ = learner.run(learner.init(jax.random.key(0)), num_updates=3)
    assert_same((one.policies, one.shared), (two.policies, two.shared), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_policies_of_a_team_are_evaluated_alone():
    state, _ = after_three_updates("MAPPO")
    episodes = evaluate(team_learner("MAPPO"), state, jax.random.key(1), num_episodes=8)
    assert set(episodes.episode_return) == {"caller", "answerer"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "changes", "updates", "at_least"),
    [
        (
            "lstm:LSTMPPO",
            {
                "policies.agent.memory_size": 16,
                "policies.agent.minibatches": 1,
                "num_envs": 8,
                "rollout_length": 64,
                "num_blocks": 1,
            },
            100,
            60,
        ),
        ("rnd:RND", {"policies.agent.bonus": 0.1}, 40, 60),
        (
            "openes:OpenES",
            {
                "policies.agent.clip": 0.2,
                "policies.agent.learning_rate": 0.05,
                "policies.agent.network.hidden_sizes": [16],
                "num_envs": 64,
            },
            60,
            60,
        ),
    ],
)
def test_a_client_learns_cartpole(algorithm, changes, updates, at_least):
    learner = make_learner(cartpole(algorithm, **changes))
    assert learner.setup.policies["agent"].is_recurrent == (algorithm == "lstm:LSTMPPO")
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=updates)
    assert np.nanmean(metrics["agent/episode_return"][-5:]) > at_least
    assert np.isfinite(metrics["agent/loss"]).all()
    if algorithm == "lstm:LSTMPPO":  # with its own `play`
        require_play(learner, state)


def require_play(learner, state):
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=4, greedy=True)
    assert (episodes.episode_return["agent"] > 0).all()


@pytest.mark.slow
def test_q_learning_learns_cartpole_in_most_seeds():
    """Each seed forgets at some time, and rounding decides when, so that one seed is not enough."""
    changes = {
        "policies.agent.gamma": 0.98,
        "policies.agent.learning_rate": 2e-3,
        "policies.agent.max_grad_norm": 10.0,
        "num_envs": 64,
        "rollout_length": 32,
    }
    learner = make_learner(cartpole("q_learning:QLearning", **changes))
    run = jax.vmap(lambda key: learner.run(learner.init(key), num_updates=240))
    states, metrics = jax.jit(run)(jax.random.split(jax.random.key(0), 8))
    returns = np.nan_to_num(metrics["agent/episode_return"])
    best = [np.convolve(own, np.full(5, 0.2), "valid").max() for own in returns]
    assert np.median(best) > 150  # 326; of random networks without learning 31
    assert np.isfinite(metrics["agent/loss"]).all()
    require_play(learner, jax.tree.map(lambda leaf: leaf[0], states))


def recall(**changes):
    network = {"hidden_sizes": [16], "activation": "tanh", "recurrent_size": 8}
    policy = {"algorithm": "drqn:DRQN", "learning_rate": 5e-3, "network": network}
    sizes = {"num_envs": 16, "num_blocks": 4, "rollout_length": 6}
    run = {"env": "probes:Recall", "policies": {"agent": policy}, **sizes}
    return make_learner(load_config(run, **changes))


def test_drqn_learns_from_sequences():
    learner = recall()
    state = jax.eval_shape(learner.init, jax.random.key(0))
    # 2048 sequences of 4 steps in 4 blocks, and space for 6 steps of 4 replicas in each
    assert state.memory["agent"].replay.ring.rows.reward.shape == (4, 512 + 24, 4)
    jax.eval_shape(learner.update, state)


@pytest.mark.slow
def test_drqn_solves_a_task_that_requires_memory():
    learner = recall()
    state, _ = learner.run(learner.init(jax.random.key(0)), num_updates=100)
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=64)
    assert episodes.episode_return["agent"].mean() > 0.95
