"""Every algorithm learns the same on every engine that runs on a CPU."""

import dataclasses

import jax
import numpy as np
import pytest
from box_probes import tiny_ddpg
from probes import NETWORK, change_policy, tiny_config, tiny_policy

from wdjax.train import make_learner
from wdjax.train.fast.cpu import FEW_REPLICAS, Cpu
from wdjax.train.state.engine import Engine

pytestmark = pytest.mark.usefixtures("quick_compile")

UPDATES = 3
SMALL_STEPS = {"epochs": 2, "minibatches": 2, "target_kl": 1e-3}


def recurrent(memory):
    """Return PPO with a memory."""
    network = dataclasses.replace(NETWORK, recurrent_size=4, memory=memory)
    return "probe_signal", tiny_policy("PPO", **SMALL_STEPS, network=network), 16


CASES = {
    "A2C": ("probe_signal", tiny_policy("A2C"), 8),
    "PPO, many replicas": ("probe_signal", tiny_policy("PPO", **SMALL_STEPS), FEW_REPLICAS + 8),
    "PPO, LSTM": recurrent("lstm"),
    "PPO, minGRU": recurrent("mingru"),
    "DDPG": ("probe_box_signal", tiny_ddpg(), 8),
    "custom": (
        "probe_signal",
        change_policy(tiny_policy("PPO"), algorithm="custom_losses:Pulled"),
        8,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_engine_of_a_cpu_equals_plain_xla(name):
    env, policy, num_envs = CASES[name]
    config = tiny_config(env, {"agent": policy}, num_envs=num_envs)
    results = []
    for engine, kernels in ((Cpu, True), (Engine, False)):
        learner = make_learner(dataclasses.replace(config, kernels=kernels))
        assert type(learner.setup.engine) is type(learner.setup.policies["agent"].engine) is engine
        state, metrics = learner.init(jax.random.key(0)), []
        for _ in range(UPDATES):
            state, row = learner.update(state)
            metrics.append(row)
        results.append((state.replace(key=jax.random.key_data(state.key)), metrics))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_the_engine_states_why_a_policy_has_no_kernels():
    policies = {
        "DDPG has no kernels": ("probe_box_signal", tiny_ddpg(), {}),
        "kernels: false": ("probe_signal", tiny_policy("PPO"), {"kernels": False}),
        "": ("probe_signal", tiny_policy("PPO"), {}),
    }
    for reason, (env, policy, changes) in policies.items():
        learner = make_learner(tiny_config(env, {"agent": policy}, **changes))
        engine = learner.setup.policies["agent"].engine
        assert engine.reason == reason
        assert (engine.shape is None) == (reason != "")
