"""JAX_ENABLE_X64: observations, rewards and actions keep their dtypes, and learners update."""

import jax
import numpy as np
import pytest

import wdjax
from wdjax.spaces import sample_shapes
from wdjax.train import NetworkConfig, PolicyConfig, TrainConfig, make_learner

pytestmark = pytest.mark.usefixtures("quick_compile")
each_env = pytest.mark.parametrize("name", wdjax.list_envs())
# their rules compute in float64 under x64, as their docstrings specify
WIDE = ("covid_economy", "rice")

BY_DDPG = {"algorithm": "DDPG"}
# 32 transitions, enough for gradient steps
BY_SAC = {"algorithm": "SAC", "options": {"batch_size": 16, "warmup": 16, "updates_per_rollout": 2}}
BY_MEMORY = {
    "normalize_observation": True,
    "past_selves": 1,
    "network": NetworkConfig((4,), "tanh", recurrent_size=3, head_hidden_sizes=(3,)),
    "options": {
        "normalize_reward": True,
        "normalize_advantage": True,
        "neg_pos_env_ratio": 1.0,
        "epochs": 2,
        "minibatches": 2,
    },
}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def dtypes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


@each_env
def test_dtypes_are_those_of_the_spaces(name):
    env, params = wdjax.make(name)
    key, action = jax.random.key(0), sample_shapes(env.action_space(params))
    obs, state = jax.eval_shape(env.reset, key, params)
    seen, after, reward, *_ = jax.eval_shape(env.step, key, state, action, params)
    assert dtypes(obs) == dtypes(seen) == dtypes(sample_shapes(env.observation_space(params)))
    assert dtypes(state) == dtypes(after)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(reward))
    wide = {leaf.dtype for leaf in jax.tree.leaves((state, action))} & {
        np.dtype("float64"),
        np.dtype("int64"),
    }
    assert not wide or name in WIDE


def learner_of(name, **changes):
    groups = wdjax.make(name)[0].groups or ["agent"]
    policies = {
        group: PolicyConfig(**{"network": NetworkConfig((4,), "tanh"), **changes})
        for group in groups
    }
    return make_learner(
        TrainConfig(
            env=name,
            policies=policies,
            num_envs=8,
            num_blocks=2,
            rollout_length=4,
            total_env_steps=32,
        )
    )


def check_dtypes(before, after):
    assert dtypes(before) == dtypes(after)
    learned = jax.tree_util.tree_leaves_with_path(
        (after.policies, after.memory, after.hypers, after.obs)
    )
    assert [path for path, leaf in learned if leaf.dtype == np.float64] == []


@pytest.mark.slow
@each_env
def test_states_of_a_learner_keep_their_dtypes(name):
    """Without compilation, which takes most of the time."""
    learner = learner_of(name)
    state = jax.eval_shape(learner.init, jax.random.key(0))
    after, _ = jax.eval_shape(learner.update, state)
    check_dtypes(state, after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        # one environment, which computes in float64
        ("covid_economy", {}),
        ("pendulum", BY_DDPG),
        ("pendulum", BY_SAC),
        ("tag_gridworld", BY_MEMORY),
    ],
)
def test_a_learner_updates(name, changes):
    learner = learner_of(name, **changes)
    state = learner.init(jax.random.key(0))
    after, _ = learner.update(state)
    check_dtypes(state, after)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.policies))
