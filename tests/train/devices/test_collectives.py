"""The number of collectives in an update. Devices synchronize at each of them."""

import re

import jax
import pytest
from probes import tiny_config, tiny_policy

from wdjax.train import make_learner

SCALED = {"normalize_observation": True, "normalize_reward": True, "normalize_advantage": True}


def count_collectives(policy):
    """Return the number of collectives in an update on two devices, (outside, inside) of loops."""
    learner = make_learner(tiny_config("probe_signal", {"agent": policy}, devices=2))
    program = learner.update.lower(jax.eval_shape(learner.init, jax.random.key(0))).compile()
    kinds = (
        "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast"
    )
    collectives = re.findall(rf" (?:{kinds})(?:-start)?\(.*", program.as_text())
    in_loops = sum("/while/body/" in line for line in collectives)
    return len(collectives) - in_loops, in_loops


@pytest.mark.slow
def test_a2c_update_has_one_collective():
    assert count_collectives(tiny_policy("A2C")) == (1, 0)  # gradients and metrics
    assert count_collectives(tiny_policy("A2C", **SCALED)) == (2, 0)  # preceded by moments


@pytest.mark.slow
def test_ppo_update_has_one_collective_per_step_and_one_for_metrics():
    # with all that moments are computed of: without them there are not more
    assert count_collectives(tiny_policy("PPO", **SCALED)) == (1, 1)
