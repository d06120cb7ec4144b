"""Metrics: the table of state/rollout_metrics.py has all names, and NumPy the same numbers."""

import dataclasses
import functools
import math
import re
import types

import jax
import numpy as np
import pytest
from box_probes import tiny_ddpg, tiny_sac
from probes import NETWORK, tiny_config, tiny_policy
from reference_on_policy import deviation_along

from wdjax.train import PolicyConfig, Rows, make_learner
from wdjax.train.host.loop import Chunk, Part, row_of_run
from wdjax.train.learner.learner import update_share
from wdjax.train.learning import Categorical, Metric
from wdjax.train.state import rollout_metrics as metrics
from wdjax.train.state.metric import values_of
from wdjax.train.storage.metrics_log import summarize

pytestmark = pytest.mark.usefixtures("quick_compile")

SMALL = {"buffer_size": 64, "warmup": 8, "batch_size": 8}
DDPG, SAC = tiny_ddpg(**SMALL), tiny_sac(**SMALL)


def table():
    """Return the names in the table of state/rollout_metrics.py, without the names of policies."""
    names = set()
    for line in metrics.__doc__.splitlines():
        if re.match(r" {4}\S", line) and not line.startswith("    name  "):
            first, *others = re.split("  +", line.strip().removeprefix("POLICY/"))[0].split(", ")
            names.add(first)
            for other in (
                others
            ):  # "reward_mean, _min" and "episode_length, _min" are both short for two names
                stem = first.rpartition("_")[0] if first.endswith("_mean") else first
                names.add(stem + other if other.startswith("_") else other)
    return names


def reported(env, policies, **changes):
    """Trace an update and return the names of its metrics, without the names of policies."""
    learner = make_learner(tiny_config(env, policies, **changes))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    shapes = jax.eval_shape(learner.update, state)[1]
    assert all(shape.shape == () for shape in shapes.values())
    names = {
        re.sub(r"/\d+$", "/i", name.removeprefix("agent/").removeprefix("tagger/"))
        for name in shapes
    }
    return {re.sub(r"(opponent_\w+)/.*", r"\1/WHO", name) for name in names}


@pytest.mark.slow
def test_table_lists_exactly_the_reported_metrics():
    options = {"neg_pos_env_ratio": 1.0, "normalize_reward": True, "normalize_advantage": True}
    ppo = tiny_policy("PPO", past_selves=1, **options)
    names = reported("pendulum", {"agent": DDPG}) | reported("pendulum", {"agent": SAC})
    hunted = dataclasses.replace(ppo, opponents={"chase_nearest": 0.1})
    names |= reported(
        "tag_gridworld", {"tagger": hunted, "agent": tiny_policy("A2C", agents=("runner",))}
    )
    policies = {
        "tagger": tiny_policy("A2C", agents=("worker[0]",), decisions_only=True),
        "agent": ppo,
    }
    policies["agent"] = dataclasses.replace(ppo, agents=("worker[1]",))
    names |= reported("probe_shift", policies)
    critic, values = (
        PolicyConfig(algorithm=name, network=NETWORK, options={"epochs": 2, "minibatches": 2})
        for name in ("MAPPO", "PQN")
    )
    runner = dataclasses.replace(values, agents=("runner",))
    names |= reported("tag_gridworld", {"tagger": critic, "agent": runner})
    listed = table()
    of_env = {"episode_tags": "episode_X", "time_to_tag": "NAME of `Env.info_ratios`"}
    assert {of_env.get(name, name) for name in names} == listed
    assert {*of_env} < names


def test_timing_of_a_chunk():
    policies = {
        "clerk": tiny_policy("A2C"),
        "pilot": tiny_policy("A2C", trainable=False),
    }  # 3 and 2 agents
    config = dataclasses.replace(
        tiny_config("probe_shop", policies), total_env_steps=48 * 20, best_metric="none"
    )
    part = Part({"episodes": np.zeros(10)}, np.zeros(10, int), streak=0, ends=False)
    chunk = Chunk(before=10, size=10, done=20, parts=[part], seconds=2.0, compile_seconds=1.5)
    row = row_of_run(make_learner(config).setup, chunk)
    assert row == {
        "updates": 20,
        "env_steps": 960,
        "seconds": 2.0,
        "seconds_per_update": 0.2,
        "compile_seconds": 1.5,
        "env_steps_per_second": 240.0,
        "agent_steps_per_second": 1200.0,
        "episodes": 0,
    }


def test_extremes_of_components_are_over_the_chunk():
    extremes = {
        "a/action_max/0": Metric([1.0, 3.0], "max"),
        "a/action_min/1": Metric([1.0, -math.inf], "min"),
    }
    rows = {"episodes": [0, 0], **extremes, "a/x/1": [1.0, 3.0]}
    assert summarize(rows) == {
        "episodes": 0,
        "a/action_max/0": 3.0,
        "a/action_min/1": None,
        "a/x/1": 2.0,
    }


# --- a rollout of 3 steps, 2 replicas and 2 agents; in the first replica both agents terminate ---

LIVE = np.ones((3, 2, 2), bool)
LIVE[1:, 0, 0] = LIVE[2, 0, 1] = False
POLICY = types.SimpleNamespace(distribution=Categorical((2,), scalar=False))
measure = jax.jit(lambda *arguments: values_of(metrics.rollout_metrics(POLICY, *arguments)))


@pytest.fixture(scope="module")
def rollout_numbers():
    """Return (arrays [3, 2, 2] by name, their metrics), with garbage for inactive agents."""
    rng = np.random.default_rng(0)
    names = ("reward", "value", "advantage", "first", "second")
    garbage = np.broadcast_to(np.array([0.0, 1e6, -1e6])[:, None, None], LIVE.shape)
    drawn = {
        name: np.where(LIVE, rng.normal(size=LIVE.shape) + i, garbage)
        for i, name in enumerate(names)
    }
    drawn = {name: values.astype(np.float32) for name, values in drawn.items()}
    action = np.stack([drawn["first"], drawn["second"]], axis=-1)
    rows = Rows(None, action, drawn["reward"], terminated=~LIVE, live=LIVE, value=drawn["value"])
    target = drawn["value"] + drawn["advantage"]
    return {**drawn, "target": target}, measure(rows, drawn["advantage"], target)


def test_chunk_means_exclude_nan():
    """For example updates without active agents, or without an actor step of TD3."""
    nan = math.nan
    metrics = {
        "episodes": [0, 1],
        "a/live_fraction": [0.0, 0.5],
        "a/value_mean": [nan, 3.0],
        "a/loss": [nan, 2.0],
        "a/reward_min": [nan, -1.0],
        "a/actor_loss": [nan, nan],
        "a/bad": [math.inf, 1.0],
    }
    assert summarize(metrics) == {
        "episodes": 1,
        "a/live_fraction": 0.25,
        "a/value_mean": 3.0,
        "a/loss": 2.0,
        "a/reward_min": -1.0,
        "a/actor_loss": None,
        "a/bad": None,
    }


def test_win_rates_are_weighted_by_episodes():
    """The opponent's name is the path of a run, with characters that other metrics use."""
    nan, who = math.nan, "runs/a_max/3"
    metrics = {
        "episodes": [4, 4, 4],
        f"a/opponent_games/{who}": [3.0, 0.0, 1.0],
        f"a/opponent_blocks/{who}": [1.0, 0.0, 2.0],
        f"a/opponent_return/{who}": [1.0, nan, 5.0],
        f"a/opponent_win_rate/{who}": [0.5, 0.5, 0.9],
    }
    for what in ("return", "win_rate"):
        name = f"a/opponent_{what}/{who}"
        metrics[name] = Metric(metrics[name], weight=(f"a/opponent_games/{who}",))
    found = summarize(metrics)
    assert found.pop(f"a/opponent_win_rate/{who}") == pytest.approx(0.6)
    assert found == {
        "episodes": 12, f"a/opponent_games/{who}": 4 / 3, f"a/opponent_blocks/{who}": 1.0,
        f"a/opponent_return/{who}": 2.0,
    }  # fmt: skip


def test_rollout_metrics_are_over_live_rows(rollout_numbers):
    arrays, ours = rollout_numbers
    kept = {name: values[LIVE].astype(np.float64) for name, values in arrays.items()}
    for name, expected in {
        "reward_mean": kept["reward"].mean(),
        "reward_min": kept["reward"].min(),
        "reward_max": kept["reward"].max(),
        "value_mean": kept["value"].mean(),
        "return_mean": kept["target"].mean(),
        "live_fraction": 9 / 12,
        "advantage_mean": kept["advantage"].mean(),
        "advantage_std": kept["advantage"].std(),
        "explained_variance": 1 - kept["advantage"].var() / kept["target"].var(),
    }.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_chunk_means_are_over_learned_transitions():
    """1 of 12 transitions decides in one update and all in the next. All are live in both."""
    ones = np.ones(LIVE.shape, np.float32)
    decides = [np.arange(12).reshape(LIVE.shape) < count for count in (1, 12)]
    reports = []
    for flags, value in zip(decides, (0.0, 13.0), strict=True):
        rows = Rows(
            None,
            np.stack([ones, ones], axis=-1),
            value * ones,
            LIVE & ~LIVE,
            LIVE | ~LIVE,
            value=value * ones,
        )
        reports.append(
            metrics.rollout_metrics(POLICY, rows.replace(decides=flags), value * ones, value * ones)
        )
    together = jax.tree.map(lambda *values: np.stack(values), *reports)
    chunk = summarize({"episodes": [0, 0], **together})
    means = [chunk[name] for name in ("value_mean", "return_mean", "advantage_mean", "reward_mean")]
    assert means == pytest.approx([12.0, 12.0, 12.0, 6.5])  # rewards are of live transitions


def test_metrics_of_gradient_steps_are_plain_means():
    """DDPG averages them over transitions drawn from its replay buffer, not over live ones."""
    learner = make_learner(tiny_config("pendulum", {"agent": DDPG}))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    found = jax.eval_shape(functools.partial(update_share, learner.setup), state)[1]
    assert not isinstance(found["agent/q_mean"], Metric)
    assert not isinstance(found["agent/target_mean"], Metric)
    assert found["agent/action_mean"].weight == ("agent/live_fraction",)


def test_action_deviations_are_means_over_live_rows(rollout_numbers):
    arrays, ours = rollout_numbers
    for i, component in enumerate(("first", "second")):
        for axis, name in enumerate(("time", "envs", "agents")):
            exact = deviation_along(arrays[component].astype(np.float64), LIVE, axis)
            np.testing.assert_allclose(ours[f"action_std_{name}/{i}"], exact, rtol=1e-4)


def test_metrics_without_live_rows_are_nan():
    ones = np.ones(LIVE.shape, np.float32)
    rows = Rows(
        None,
        np.stack([ones, ones], axis=-1),
        ones,
        LIVE,
        live=np.zeros(LIVE.shape, bool),
        value=ones,
    )
    ours = measure(rows, ones, ones)
    assert ours.pop("live_fraction") == 0
    assert np.all(np.isnan(list(ours.values())))


def test_explained_variance_is_at_least_minus_1():
    live, ones = np.ones(LIVE.shape, bool), np.ones(LIVE.shape, np.float32)
    value, target = ([[[9]], [[-9]], [[0]]] * ones, [[[0]], [[1]], [[0]]] * ones)
    rows = Rows(None, np.stack([value, value], axis=-1), value, ~live, live, value=value)
    assert measure(rows, target - value, target)["explained_variance"] == -1
    np.testing.assert_allclose(measure(rows, 0 * value, target)["explained_variance"], 1)


@pytest.mark.parametrize(
    ("name", "expected"), [("action_mean", 3.0), ("action_min/0", -2.0), ("action_max/1", 9.0)]
)
def test_ranges_of_actions(name, expected):
    action = np.array([[-2.0, 9.0], [1.0, 4.0], [-50.0, 50.0]], np.float32).reshape(3, 1, 1, 2)
    live = np.array([True, True, False]).reshape(3, 1, 1)
    assert metrics.action_ranges(action, live)[name].value == expected
