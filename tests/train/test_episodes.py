"""Metrics of episodes against a replay in NumPy, with policies that span groups and split them."""

import functools

import jax
import numpy as np
import pytest
from probes import tiny_config, tiny_policy

from wdjax.train import make_learner
from wdjax.train.learner import episode_metrics
from wdjax.train.rollout import rollout

pytestmark = pytest.mark.usefixtures("quick_compile")

TAG = {"num_taggers": 3, "grid_length": 4, "episode_length": 7, "tag_penalty_for_runner": 5.0}
POLICIES = {"mixed": ("tagger[0:1]", "runner"), "rest": ("tagger[1:3]",)}  # agents 0 and 3, agents 1 and 2
ROLLOUTS, LENGTH, REPLICAS = 12, 2, 3


@pytest.fixture(scope="module")
def played():
    """Returns (what happened in each rollout, its metrics)."""
    policies = {name: tiny_policy("A2C", agents=agents) for name, agents in POLICIES.items()}
    sizes = {"rollout_length": LENGTH, "num_envs": REPLICAS}
    learner = make_learner(tiny_config("tag_gridworld", policies, env_params=TAG, **sizes))
    state, play, parts = learner.init(jax.random.key(1)), jax.jit(functools.partial(rollout, learner.setup)), []
    for i in range(ROLLOUTS):
        state, part = play(state, jax.random.key(i))
        parts.append((part, jax.jit(episode_metrics)(part)))
    return [part for part, _ in parts], [metrics for _, metrics in parts]


def replay(parts):
    """Returns for each rollout its finished episodes: (length, caught, return by policy), from the rows alone."""
    episodes, current = [], [{"length": 0, "mixed": 0.0, "rest": 0.0} for _ in range(REPLICAS)]
    for part in parts:
        episodes.append([])
        for t, n in np.ndindex(LENGTH, REPLICAS):
            current[n]["length"] += 1
            for name, rows in part.rows.items():
                current[n][name] += float(np.sum(rows.reward[t, n]))
            if all(np.all(rows.terminated[t, n]) for rows in part.rows.values()):
                episodes[-1].append(current[n] | {"caught": bool(part.rows["rest"].reward[t, n, 0] > 5)})
                current[n] = {"length": 0, "mixed": 0.0, "rest": 0.0}
    return episodes


def test_replay_meets_both_ends_and_rollouts_without_any(played):
    episodes = replay(played[0])
    assert not all(episodes)
    caught = [episode["caught"] for part in episodes for episode in part]
    assert any(caught)
    assert not all(caught)


@pytest.mark.parametrize(("metric", "field"), [
    ("episode_length", "length"), ("episode_tags", "caught"),
    ("mixed/episode_return", "mixed"), ("rest/episode_return", "rest"),
])  # fmt: skip
def test_means_over_the_episodes_that_ended(played, metric, field):
    for episodes, metrics in zip(replay(played[0]), played[1], strict=True):
        assert metrics["episodes"] == len(episodes)
        mean = np.mean([episode[field] for episode in episodes]) if episodes else np.nan
        np.testing.assert_allclose(metrics[metric], mean, rtol=1e-5)


def test_every_row_of_a_game_that_nobody_leaves_early_is_live(played):
    for part in played[0]:
        assert all(np.all(rows.live) for rows in part.rows.values())


def test_policy_that_spans_groups_plays_each_agent_by_its_own_reward(played):
    # without a tag a step costs the tagger 0.01, which the runner gets; a wall costs either 0.1
    reward = np.concatenate([part.rows["mixed"].reward for part in played[0]])
    assert_among(reward[..., 0], [-0.01, -0.11, 10.0, 9.9])
    assert_among(reward[..., 1], [0.01, -0.09, -5.0, -5.1])


def assert_among(values, allowed):
    distance = np.abs(np.asarray(values)[..., None] - np.array(allowed))
    assert np.all(np.min(distance, axis=-1) < 1e-5)
