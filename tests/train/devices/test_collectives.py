"""How often devices wait for each other in an update: each time takes its own time, however few
numbers they tell."""

import re

import jax
import pytest
from probes import tiny_config, tiny_policy

from wdjax.train import make_learner

SCALED = {"normalize_observation": True, "normalize_reward": True, "normalize_advantage": True}


def count_waits(policy):
    """Returns how many collective operations the program of an update on two devices has,
    inside of loops and out."""
    learner = make_learner(tiny_config("probe_signal", {"agent": policy}, devices=2))
    program = learner.update.lower(jax.eval_shape(learner.init, jax.random.key(0))).compile()
    kinds = (
        "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast"
    )
    found = re.findall(rf" (?:{kinds})(?:-start)?\(.*", program.as_text())
    in_loops = sum("/while/body/" in line for line in found)
    return len(found) - in_loops, in_loops


@pytest.mark.slow
def test_a2c_waits_once():
    assert count_waits(tiny_policy("A2C")) == (1, 0)  # gradients and metrics
    assert count_waits(tiny_policy("A2C", **SCALED)) == (2, 0)  # moments before them


@pytest.mark.slow
def test_ppo_waits_once_in_a_step_and_once_for_metrics():
    assert count_waits(tiny_policy("PPO")) == (1, 1)
    assert count_waits(tiny_policy("PPO", **SCALED)) == (1, 1)
