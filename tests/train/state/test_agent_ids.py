"""Agent ids, `agents: ["worker[*]"]` with `agent_type_feature`, in cooperative algorithms."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import wdjax
from wdjax import Box, Dict, Discrete, Env, MultiDiscrete
from wdjax.train import evaluate, load_config, make_learner

pytestmark = [pytest.mark.usefixtures("quick_compile"), pytest.mark.slow]


@struct.dataclass
class Params:
    pay: float = 1.0  # reward for right actions, shared by the team


@dataclasses.dataclass(frozen=True)
class Roles(Env):
    """Four steps. All observations are equal, and worker i should take action i.

    The team is paid the share of right actions. Action 3 is forbidden by a mask.
    """

    image: bool = False  # observe an image instead of a number
    num_workers: int = 3
    can_truncate: ClassVar[bool] = False

    @property
    def groups(self):
        return {"worker": self.num_workers}

    @property
    def default_params(self):
        return Params()

    def reset(self, key, params):
        return self.observe(), jnp.int32(0)

    def step(self, key, state, action, params):
        right = jnp.mean(action["worker"] == jnp.arange(self.num_workers))
        reward = {"worker": jnp.full(self.num_workers, params.pay * right / self.num_workers)}
        over = {"worker": jnp.full(self.num_workers, state == 3)}
        return self.observe(), state + 1, reward, over, jax.tree.map(jnp.zeros_like, over), {}

    @property
    def shape(self):
        return (4, 4, 1) if self.image else (1,)

    def observe(self):
        mask = jnp.broadcast_to(jnp.array([1, 1, 1, 0]), (self.num_workers, 4))
        return {"worker": {"obs": jnp.ones((self.num_workers, *self.shape)), "action_mask": mask}}

    def observation_space(self, params):
        one = Dict({"obs": Box(0.0, 1.0, self.shape), "action_mask": MultiDiscrete((2,) * 4)})
        return Dict({"worker": one.batch(self.num_workers)})

    def action_space(self, params):
        return Dict({"worker": Discrete(4).batch(self.num_workers)})


MAPPO = {"algorithm": "MAPPO", "epochs": 4, "minibatches": 2, "entropy_coefficient": 0.0}
SUM = {
    "algorithm": "PQN",
    "mixer": "sum",
    "epochs": 4,
    "minibatches": 2,
    "epsilon": [[0, 1.0], [6_000, 0.05]],
}
RECURRENT = {"hidden_sizes": [16], "recurrent_size": 8}
CNN = {"encoder": "cnn", "encoder_options": {"channels": [4]}, "hidden_sizes": [16]}


@pytest.mark.parametrize(
    ("algorithm", "network"),
    [
        (MAPPO, RECURRENT),
        (MAPPO, CNN),
        (SUM, {"hidden_sizes": [16]}),
        (SUM, {**CNN, "recurrent_size": 8}),
    ],
    ids=["MAPPO-gru", "MAPPO-cnn", "sum", "sum-cnn-gru"],
)
def test_agents_with_ids_take_different_roles(algorithm, network):
    """Without ids, agents that act alike are right in one of three cases."""
    is_image = "encoder" in network
    wdjax.register("roles", Roles(is_image), replace=True)
    policy = {
        **algorithm,
        "agents": ["worker[*]"],
        "agent_type_feature": True,
        "network": network,
        "learning_rate": 1e-2,
        "gamma": 0.5,
        "normalize_observation": not is_image,
    }
    config = {
        "env": "roles",
        "policies": {"worker": policy},
        "num_envs": 32,
        "rollout_length": 8,
        "total_env_steps": 256 * 60,
    }
    learner = make_learner(load_config(config))
    space = learner.setup.policies["worker"].assignment.observation_space
    assert space["agent_type"] == Discrete(3)
    state, _ = learner.run(learner.init(jax.random.key(0)), num_updates=60)
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=4, greedy=True)
    np.testing.assert_allclose(episodes.episode_return["worker"], 4, rtol=1e-5)
