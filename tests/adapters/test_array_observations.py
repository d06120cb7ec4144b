"""Environments that return arrays of all agents: JaxMARL's storm, and a toy like SocialJax's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bare_done import Box, Discrete
from test_team_credit import Battle

import wdjax
from wdjax.adapters import from_jaxmarl
from wdjax.adapters._jaxmarl_agents import stack_agents
from wdjax.train import NetworkConfig, PolicyConfig, TrainConfig, make_learner


class Meadow:
    """In the form of SocialJax: agents 0, 1, 2 with images, and an episode of three steps.

    An agent is paid its own action, and its image shows the sum of its actions.
    """

    agents = (0, 1, 2)

    def reset(self, key):
        state = {"time": 0, "sums": jnp.zeros(3, jnp.int32)}
        return self.get_obs(state), state

    def step_env(self, key, state, actions):
        actions = jnp.array(actions)
        time, sums = state["time"] + 1, state["sums"] + actions
        state = {"time": time, "sums": sums}
        dones = {str(agent): time == 3 for agent in self.agents} | {"__all__": time == 3}
        return self.get_obs(state), state, actions * 1.0, dones, {"original_rewards": actions}

    def get_obs(self, state):
        return jnp.broadcast_to(state["sums"][:, None, None, None], (3, 4, 4, 2))

    def observation_space(self):
        return Box(0, 1e9, (4, 4, 2), jnp.uint8), (4, 4, 2)

    def action_space(self, agent_id=None):
        return Discrete(2)


class Plain(Meadow):
    """Observations and rewards as tuples, dones as an array."""

    def get_obs(self, state):
        return tuple(super().get_obs(state))

    def step_env(self, key, state, actions):
        obs, state, rewards, dones, _ = super().step_env(key, state, actions)
        return obs, state, tuple(rewards), jnp.full(3, dones["__all__"]), {}


class Silent(Meadow):
    """Only the done of the whole episode, as storm."""

    def step_env(self, key, state, actions):
        obs, state, rewards, dones, info = super().step_env(key, state, actions)
        return obs, state, rewards, {"__all__": dones["__all__"]}, info


@pytest.mark.parametrize("game", [Meadow, Plain, Silent])
def test_arrays_of_all_agents_become_groups(game):
    env, params = from_jaxmarl(game())
    assert dict(env.groups) == {"agent": 3}
    space = env.observation_space(params)["agent"]
    assert (space.shape, space.dtype) == ((3, 4, 4, 2), jnp.int32)  # not the declared uint8
    obs, state = env.reset(jax.random.key(0), params)
    step, action = jax.jit(env.step), {"agent": jnp.array([0, 1, 0])}
    for time in range(1, 5):
        obs, state, reward, terminated, truncated, info = step(
            jax.random.key(0), state, action, params
        )
        np.testing.assert_array_equal(obs["agent"][:, 0, 0, 0], [0, min(time, 3), 0])
        np.testing.assert_array_equal(reward["agent"], [0, time <= 3, 0])
        np.testing.assert_array_equal(terminated["agent"], [time >= 3] * 3)
        assert (reward["agent"].dtype, info) == (jnp.float32, {})
        assert not truncated["agent"].any()


def test_groups_of_named_agents_share_arrays():
    """Agents with names receive a dict of actions, and groups take their rows of an array."""

    class Herd(Meadow):
        agents = ("dog_0", "sheep", "dog_1")

        def step_env(self, key, state, actions):
            return super().step_env(key, state, [actions[agent] for agent in self.agents])

    env, params = from_jaxmarl(Herd())
    assert dict(env.groups) == {"dog": 2, "sheep": 1}
    _, state = env.reset(jax.random.key(0), params)
    action = {"dog": jnp.array([1, 0]), "sheep": jnp.array([1])}
    obs, _, reward, *_ = env.step(jax.random.key(0), state, action, params)
    assert jax.tree.map(np.ndarray.tolist, jax.device_get(reward)) == {
        "dog": [1.0, 0.0],
        "sheep": [1.0],
    }
    np.testing.assert_array_equal(obs["dog"][:, 0, 0, 0], [1, 0])


@pytest.mark.slow
def test_masks_as_arrays_restrict_dead_agents():
    class Stacked(Battle):
        def get_avail_actions(self, state):
            return jnp.stack(list(super().get_avail_actions(state).values()))

    masks = []
    for game in (Battle, Stacked):
        env, params = from_jaxmarl(game(), "team")
        obs, state = env.reset(jax.random.key(0), params)
        step = jax.jit(env.step)
        for _ in range(2):
            obs, state, *_ = step(
                jax.random.key(0), state, {"soldier": jnp.ones(2, jnp.int32)}, params
            )
        masks.append(obs["soldier"]["action_mask"].tolist())
    assert masks[0] == masks[1] == [[1, 1, 0], [0, 0, 1]]


def test_other_observations_raise():
    class Short(Meadow):
        def get_obs(self, state):
            return super().get_obs(state)[:2]

    with pytest.raises(
        TypeError,
        match=r"Short.reset must return observations of the agents \[0, 1, 2\]: an array of shape "
        r"\(2, 4, 4, 2\): must have an entry for each agent on its leading axis \(3 agents\)",
    ):
        from_jaxmarl(Short())
    with pytest.raises(TypeError, match="must have an entry for each agent"):
        stack_agents({"a": 1.0}, ["a", "b"], ["a", "b"])


@pytest.mark.slow
def test_toy_with_images_passes_check_env_and_trains(quick_compile):
    env, _ = from_jaxmarl(Meadow())
    wdjax.check_env(env, num_steps=100)
    wdjax.register("meadow", env)
    learner = make_learner(image_config("meadow"))
    _, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=10)
    returns = metrics["agent/episode_return"]
    assert returns[-1] > returns[0]


def image_config(env, **env_params):
    network = NetworkConfig((16,), "relu", encoder="cnn", encoder_options={"channels": [4]})
    return TrainConfig(
        env=env,
        env_params=env_params,
        policies={"agent": PolicyConfig(network=network, learning_rate=1e-2)},
        num_envs=8,
        rollout_length=12,
        total_env_steps=96 * 10,
        updates_per_chunk=1,
    )


@pytest.fixture
def storm(quick_compile):
    pytest.importorskip("jaxmarl", exc_type=ImportError)
    return wdjax.make("jaxmarl:storm", num_agents=4, num_inner_steps=6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")
def test_steps_of_storm_agree(storm):
    env, params = storm
    reset_key, *keys = jax.random.split(jax.random.key(3), 8)
    obs, state = jax.jit(env.reset)(reset_key, params)
    sample = jax.jit(env.action_space(params).sample)

    @jax.jit
    def both(key, state, action):
        with jax.numpy_rank_promotion("allow"):
            theirs = env.inner.step_env(key, state.inner, action["agent"])
        return theirs, env.step(key, state, action, params)

    for time, key in enumerate(keys, 1):
        action = sample(key)
        theirs, ours = both(key, state, action)
        their_obs, _, their_reward, dones, _ = theirs
        over = state.terminated["agent"].all()
        obs, state, reward, terminated, *_ = ours
        if over:
            assert not reward["agent"].any()
            continue
        np.testing.assert_array_equal(obs["agent"]["observations"], their_obs["observations"])
        np.testing.assert_array_equal(obs["agent"]["inventory"], their_obs["inventory"].T)
        np.testing.assert_array_equal(reward["agent"], their_reward)
        assert (terminated["agent"] == dones["__all__"]).all() == (time < 7)
    assert state.terminated["agent"].all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")
def test_mappo_trains_on_images_and_inventories_of_storm_with_agent_ids(quick_compile):
    pytest.importorskip("jaxmarl", exc_type=ImportError)
    config = image_config("jaxmarl:storm", num_agents=3, num_inner_steps=6)
    ids = {"agents": ("agent[*]",), "agent_type_feature": True, "algorithm": "MAPPO"}
    policy = dataclasses.replace(config.policies["agent"], **ids)
    learner = make_learner(dataclasses.replace(config, policies={"agent": policy}))
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=2)
    assert (metrics["episode_length"] == 6).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.policies))
