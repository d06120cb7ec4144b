"""Metrics of episodes against a replay in NumPy, with policies that span groups and split them."""

import functools

import jax
import numpy as np
import pytest
from probes import tiny_config, tiny_policy

from wdjax.experiments.commands.matrix import matrix_tables
from wdjax.train import Episodes, make_learner, statistics
from wdjax.train.learning import Metric
from wdjax.train.rollout.scan import rollout
from wdjax.train.state.metric import values_of
from wdjax.train.state.rollout_metrics import episode_metrics
from wdjax.train.storage.metrics_log import summarize

pytestmark = pytest.mark.usefixtures("quick_compile")

TAG = {"num_taggers": 3, "grid_length": 4, "episode_length": 7, "tag_penalty_for_runner": 5.0}
POLICIES = {
    "mixed": ("tagger[0:1]", "runner"),
    "rest": ("tagger[1:3]",),
}  # agents 0 and 3, agents 1 and 2
ROLLOUTS, LENGTH, REPLICAS = 12, 2, 3


@pytest.fixture(scope="module")
def played():
    """Return (each rollout, its metrics, metrics with their rules)."""
    policies = {name: tiny_policy("A2C", agents=agents) for name, agents in POLICIES.items()}
    sizes = {"rollout_length": LENGTH, "num_envs": REPLICAS}
    learner = make_learner(tiny_config("tag_gridworld", policies, env_params=TAG, **sizes))
    measure = jax.jit(functools.partial(episode_metrics, info_ratios=learner.env.info_ratios))
    state, play, parts = (
        learner.init(jax.random.key(1)),
        jax.jit(functools.partial(rollout, learner.setup)),
        [],
    )
    for i in range(ROLLOUTS):
        state, part = play(state, jax.random.key(i))
        parts.append((part, measure(part)))
    return [part for part, _ in parts], [values_of(metrics) for _, metrics in parts], parts[0][1]


def replay(parts):
    """Return the finished episodes of each rollout: (length, caught, return by policy)."""
    episodes, current = [], [{"length": 0, "mixed": 0.0, "rest": 0.0} for _ in range(REPLICAS)]
    for part in parts:
        episodes.append([])
        for t, n in np.ndindex(LENGTH, REPLICAS):
            current[n]["length"] += 1
            for name, rows in part.rows.items():
                current[n][name] += float(np.sum(rows.reward[t, n]))
            if all(np.all(rows.terminated[t, n]) for rows in part.rows.values()):
                episodes[-1].append(
                    current[n] | {"caught": bool(part.rows["rest"].reward[t, n, 0] > 5)}
                )
                current[n] = {"length": 0, "mixed": 0.0, "rest": 0.0}
    return episodes


def test_rollouts_include_both_ends_and_none(played):
    episodes = replay(played[0])
    assert not all(episodes)
    caught = [episode["caught"] for part in episodes for episode in part]
    assert any(caught)
    assert not all(caught)


@pytest.mark.parametrize(
    ("metric", "field"),
    [
        ("episode_length", "length"),
        ("episode_tags", "caught"),
        ("mixed/episode_return", "mixed"),
        ("rest/episode_return", "rest"),
    ],
)
def test_means_over_the_episodes_that_ended(played, metric, field):
    for episodes, metrics in zip(replay(played[0]), played[1], strict=True):
        assert metrics["episodes"] == len(episodes)
        mean = np.mean([episode[field] for episode in episodes]) if episodes else np.nan
        np.testing.assert_allclose(metrics[metric], mean, rtol=1e-5)


@pytest.mark.parametrize(
    ("metric", "field"),
    [
        ("episode_length", "length"),
        ("mixed/episode_return", "mixed"),
        ("rest/episode_return", "rest"),
    ],
)
def test_spread_over_the_episodes_that_ended(played, metric, field):
    spreads = set()
    for episodes, metrics in zip(replay(played[0]), played[1], strict=True):
        values = [episode[field] for episode in episodes] or [np.nan]
        spreads.add(len(set(values)))
        for name, function in {"min": np.min, "max": np.max, "std": np.std}.items():
            np.testing.assert_allclose(
                metrics[f"{metric}_{name}"], function(values), rtol=1e-5, atol=1e-5
            )
    assert max(spreads) > 1


def test_time_to_tag_is_the_mean_step_of_a_tag(played):
    """A tag ends the episode of gridworld. The sums of the ratio are not reported."""
    for episodes, metrics in zip(replay(played[0]), played[1], strict=True):
        steps = [episode["length"] for episode in episodes if episode["caught"]]
        np.testing.assert_allclose(
            metrics["time_to_tag"], np.mean(steps) if steps else np.nan, rtol=1e-6
        )
        assert "episode_tag_steps" not in metrics


def test_chunk_metrics_are_over_all_episodes(played):
    metrics = {name: np.array([row[name] for row in played[1]]) for name in played[1][0]}
    summary = summarize(
        {name: rule.replace(value=metrics[name]) for name, rule in played[2].items()}
    )
    episodes = [episode for part in replay(played[0]) for episode in part]
    assert summary["episodes"] == len(episodes)
    for metric, field in [("episode_length", "length"), ("mixed/episode_return", "mixed")]:
        values = [episode[field] for episode in episodes]
        for ending, function in {
            "": np.mean,
            "_min": np.min,
            "_max": np.max,
            "_std": np.std,
        }.items():
            np.testing.assert_allclose(summary[metric + ending], function(values), rtol=1e-5)
    caught = [episode["length"] for episode in episodes if episode["caught"]]
    np.testing.assert_allclose(summary["time_to_tag"], np.mean(caught), rtol=1e-6)


def test_summary_by_hand():
    """Means are weighted by valid transitions; other metrics of updates are plain means."""
    metrics = {
        "episodes": [0, 0],
        "episode_length": Metric([np.nan] * 2, weight=("episodes",)),
        "time_to_tag": Metric([np.nan] * 2, weight=("episodes", "episode_length")),
        "a/live_fraction": [0.25, 0.75],
        "a/reward_mean": Metric([4.0, 8.0], weight=("a/live_fraction",)),
        "a/reward_max": Metric([9.0, 5.0], "max"),
        "a/reward_min": Metric([1.0, 2.0], "min"),
        "a/advantage_std": [1.0, 3.0],
        "a/loss": [1.0, 2.0],
        "b/q_mean": [1.0, 2.0],
    }
    assert summarize(metrics) == {
        "episodes": 0,
        "episode_length": None,
        "time_to_tag": None,
        "a/live_fraction": 0.5,
        "a/reward_mean": 7.0,
        "a/reward_max": 9.0,
        "a/reward_min": 1.0,
        "a/advantage_std": 2.0,
        "a/loss": 1.5,
        "b/q_mean": 1.5,
    }
    mean, largest = Metric([0.0], weight=("a/live_fraction",)), Metric([-np.inf], "max")
    nothing = summarize(
        {"episodes": [0], "a/live_fraction": [0.0], "a/reward_max": largest, "a/reward_mean": mean}
    )
    assert nothing["a/reward_max"] is nothing["a/reward_mean"] is None


def test_statistics_hide_no_other_quantity():
    """Roles "a" and "a agent", and statistics with the names of their returns and lengths."""
    info = {"length": 1.0, "a return": 2.0, "net return": 3.0, "a agent return": 4.0, "x": 5.0}
    ones = np.ones((2, 1))
    episodes = Episodes(
        episode_return={"a": np.full(2, 10.0), "a agent": np.full(2, 20.0)},
        episode_length=np.full(2, 6),
        episode_info={name: np.full(2, value) for name, value in info.items()},
        agent_return={"a": np.array([[3.0, 7.0]] * 2), "a agent": 20 * ones},
        group_return={"crowd": np.full(2, 30.0)},
    )
    found = statistics(episodes, {"x": ("net return", "length")})
    assert {name: numbers["mean"] for name, numbers in found.items()} == {
        "x": 3.0,
        "user/length": 1.0,
        "user/a return": 2.0,
        "user/user/a agent return": 4.0,
        "user/x": 5.0,
        "length": 6.0,
        "crowd return": 30.0,
        "a return": 10.0,
        "a agent return": 20.0,
        "user/a agent return": 5.0,
    }
    [table] = matrix_tables({("p", "q"): episodes}, {("p", "q"): found})
    shown = [column.header for column in table.columns]
    assert shown == [
        "a",
        "a agent",
        "x",
        "user/length",
        "user/a return",
        "user/user/a agent return",
        "user/x",
        "length",
        "a return\n(sum of 2 agents)",
        "a agent return",
    ]


def test_all_rows_are_live_if_no_agent_leaves_early(played):
    for part in played[0]:
        assert all(np.all(rows.live) for rows in part.rows.values())


def test_policy_of_two_groups_gets_each_agents_reward(played):
    # without a tag a step costs the tagger 0.01, which the runner gets; a wall costs either 0.1
    reward = np.concatenate([part.rows["mixed"].reward for part in played[0]])
    assert_among(reward[..., 0], [-0.01, -0.11, 10.0, 9.9])
    assert_among(reward[..., 1], [0.01, -0.09, -5.0, -5.1])


def assert_among(values, allowed):
    distance = np.abs(np.asarray(values)[..., None] - np.array(allowed))
    assert np.all(np.min(distance, axis=-1) < 1e-5)
