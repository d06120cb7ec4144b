"""Several policies in one program: slices of a group, A2C and PPO, and a frozen policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import tiny_config, tiny_policy

from wdjax.train import make_learner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compile")]


@pytest.fixture(scope="module")
def learner():
    policies = {
        "chief": tiny_policy("PPO", agents=("clerk[1:2]",)),
        "frozen": tiny_policy("PPO", agents=("clerk[2:3]", "clerk[0:1]"), trainable=False),
        "pilot": tiny_policy("A2C"),
    }
    return make_learner(tiny_config("probe_pair", policies))


@pytest.fixture(scope="module")
def updates(learner):
    """Return the states after 0, 1 and 2 updates, and the metrics of the last."""
    first = learner.init(jax.random.key(0))
    second, _ = learner.update(first)
    return first, second, *learner.update(second)


def parameters_that_moved(updates, name):
    first, last = updates[0].policies[name].params, updates[2].policies[name].params
    return jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.any(np.not_equal(a, b))), first, last))


def test_frozen_policies_do_not_change_and_the_others_learn(updates):
    assert not any(parameters_that_moved(updates, "frozen"))
    assert updates[0].policies["frozen"].opt_state is None
    assert all(parameters_that_moved(updates, "chief"))
    assert all(parameters_that_moved(updates, "pilot"))


def test_metrics_of_each_policy(updates):
    metrics = updates[3]
    names = {name.split("/")[1] for name in metrics if name.startswith("frozen/")}
    assert names == {f"episode_return{end}" for end in ("", "_min", "_max", "_std")}  # no loss
    assert "chief/approx_kl" in metrics  # PPO
    assert "pilot/approx_kl" not in metrics  # A2C
    assert "pilot/value_loss" in metrics


def test_each_policy_receives_the_rewards_of_its_agents(learner, updates):
    """Rewards of a frozen policy that always takes (0, 0) do not affect other policies."""
    state = updates[0]
    frozen = jax.tree.map(jnp.zeros_like, state.policies["frozen"].params)
    frozen["policy_head"]["bias"] = jnp.array([50.0, 0, 50.0, 0, 0])
    changed = state.replace(
        policies={**state.policies, "frozen": state.policies["frozen"].replace(params=frozen)}
    )
    before, after = learner.update(state), learner.update(changed)
    for name in ("chief", "pilot"):
        jax.tree.map(
            np.testing.assert_array_equal, before[0].policies[name], after[0].policies[name]
        )
        assert before[1][f"{name}/episode_return"] == after[1][f"{name}/episode_return"]
    assert before[1]["frozen/episode_return"] != after[1]["frozen/episode_return"]
    earned = [state.replicas.episode_return["clerk"] for state in (before[0], after[0])]
    np.testing.assert_array_equal(earned[0][:, 1], earned[1][:, 1])  # the chief's
