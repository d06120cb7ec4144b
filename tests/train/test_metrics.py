"""What a run reports: every name is in the table of train/metrics.py, and the numbers of the clock are by hand."""

import dataclasses
import math
import re

import jax
import numpy as np
import pytest
from probes import NETWORK, tiny_config, tiny_policy

from wdjax.train import PolicyConfig, Trainer, make_learner, metrics
from wdjax.train.config import DDPGConfig
from wdjax.train.metrics_log import summarize

CLOCK = ("updates", "env_steps", "seconds", "seconds_per_update", "compile_seconds", "env_steps_per_second")


def table():
    """Returns the names in the table of train/metrics.py, of a policy's metrics without the policy."""
    names = set()
    for line in metrics.__doc__.splitlines():
        if re.match(r" {4}\S", line) and not line.startswith("    name  "):
            first, *others = re.split("  +", line.strip().removeprefix("POLICY/"))[0].split(", ")
            names.add(first)
            for other in others:  # "reward_mean, _min" and "episode_length, _min" are both short for two names
                stem = first.rpartition("_")[0] if first.endswith("_mean") else first
                names.add(stem + other if other.startswith("_") else other)
    return names


def reported(env, policies, **changes):
    """Returns the names that one update reports, and those of a policy without the policy; nothing is computed."""
    learner = make_learner(tiny_config(env, policies, **changes))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    shapes = jax.eval_shape(learner.update, state)[1]
    assert all(shape.shape == () for shape in shapes.values())
    return {re.sub(r"/\d+$", "/i", name.removeprefix("agent/").removeprefix("tagger/")) for name in shapes}


def test_the_table_has_every_metric_and_no_other():
    options = {"neg_pos_env_ratio": 1.0, "normalize_reward": True, "normalize_advantage": True}
    ppo = tiny_policy("PPO", past_selves=1, **options)
    ddpg = PolicyConfig(algorithm="DDPG", network=NETWORK, ddpg=DDPGConfig(buffer_size=64, warmup=8, batch_size=8))
    names = reported("pendulum", {"agent": ddpg})
    names |= reported("tag_gridworld", {"tagger": ppo, "agent": tiny_policy("A2C", agents=("runner",))})
    listed = table()
    of_env = {"episode_tags": "episode_X", "time_to_tag": "NAME of `Env.info_ratios`"}
    assert {of_env.get(name, name) for name in names} == listed
    assert {*of_env} < names


def test_the_clock_of_a_chunk_by_hand(tmp_path):
    policies = {"clerk": tiny_policy("A2C"), "pilot": tiny_policy("A2C", trainable=False)}  # 3 and 2 agents
    config = dataclasses.replace(tiny_config("probe_shop", policies), total_env_steps=48 * 20, best_metric="none")
    trainer = Trainer(config, tmp_path / "run", quiet=True)
    row = trainer._row(20, 10, 2.0, 1.5, {"episodes": np.zeros(10)})
    assert row == {
        "updates": 20, "env_steps": 960, "seconds": 2.0, "seconds_per_update": 0.2, "compile_seconds": 1.5,
        "env_steps_per_second": 240.0, "agent_steps_per_second": 1200.0, "episodes": 0,
    }  # fmt: skip


def test_extremes_of_a_component_are_those_of_the_chunk():
    rows = {"episodes": [0, 0], "a/action_max/0": [1.0, 3.0], "a/action_min/1": [1.0, -math.inf], "a/x/1": [1.0, 3.0]}
    assert summarize(rows) == {"episodes": 0, "a/action_max/0": 3.0, "a/action_min/1": None, "a/x/1": 2.0}


@pytest.mark.parametrize(("name", "expected"), [("action_mean", 3.0), ("action_min/0", -2.0), ("action_max/1", 9.0)])
def test_ranges_of_actions_by_hand(name, expected):
    action = np.array([[-2.0, 9.0], [1.0, 4.0], [-50.0, 50.0]], np.float32).reshape(3, 1, 1, 2)
    live = np.array([True, True, False]).reshape(3, 1, 1)
    assert metrics.action_ranges(action, live)[name] == expected
