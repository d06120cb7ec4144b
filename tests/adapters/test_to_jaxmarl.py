"""`to_jaxmarl`: the round trip through `from_jaxmarl`, and JaxMARL's LogWrapper."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Pair
from toy_contract import Line, Team

import wdjax

pytest.importorskip("jaxmarl")
from jaxmarl.wrappers.baselines import LogWrapper

from wdjax.adapters import from_jaxmarl, to_jaxmarl


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", [wdjax.make("tag_gridworld", num_taggers=2)[0], Team()], ids=["tag", "team"]
)
def test_round_trip_agrees_with_the_environment(env):
    """The round trip has a single done and equal groups."""
    params = env.default_params.replace(episode_length=3)
    round_trip, no_params = from_jaxmarl(to_jaxmarl(env, params))
    assert round_trip.groups == env.groups
    key = jax.random.key(3)
    obs, state = jax.jit(env.reset)(key, params)
    its_obs, its_state = jax.jit(round_trip.reset)(key, no_params)
    step, its_step = jax.jit(env.step), jax.jit(round_trip.step)
    for t in range(3):
        # "energy" becomes "obs"
        jax.tree.map(np.testing.assert_array_equal, *map(jax.tree.leaves, (obs, its_obs)))
        step_key, action_key = jax.random.split(jax.random.key(t))
        action = env.action_space(params).sample(action_key)
        obs, state, reward, terminated, truncated, _ = step(step_key, state, action, params)
        its_obs, its_state, its_reward, its_end, *_ = its_step(
            step_key, its_state, action, no_params
        )
        jax.tree.map(np.testing.assert_array_equal, reward, its_reward)
        jax.tree.map(
            np.testing.assert_array_equal,
            jax.tree.map(jnp.logical_or, terminated, truncated),
            its_end,
        )
    assert all(end.all() for end in jax.tree.leaves(its_end))


def test_log_wrapper_works_in_a_scan():
    """Episodes of 4 steps reset automatically. Statistics have the shape that baselines expect."""
    env = to_jaxmarl(*wdjax.make("tag_gridworld", num_taggers=2, episode_length=4, grid_length=90))
    assert (env.num_agents, env.agents) == (3, ["tagger_0", "tagger_1", "runner_0"])
    assert env.agent_classes == {"tagger": ["tagger_0", "tagger_1"], "runner": ["runner_0"]}
    wrapped = LogWrapper(env)

    def step(carry, key):
        _, state = carry
        actions = {agent: wrapped.action_space(agent).sample(key) for agent in wrapped.agents}
        obs, state, reward, dones, infos = wrapped.step(key, state, actions)
        return (obs, state), (reward, dones["__all__"], infos)

    run = jax.jit(lambda key: jax.lax.scan(step, wrapped.reset(key), jax.random.split(key, 9)))
    (obs, _), (reward, over, infos) = run(jax.random.key(0))
    assert all(
        agent_obs.shape == env.observation_space(agent).shape for agent, agent_obs in obs.items()
    )
    np.testing.assert_array_equal(over, np.arange(1, 10) % 4 == 0)
    assert all(values.shape == (9, 3) for values in infos.values())
    np.testing.assert_allclose(
        infos["returned_episode_returns"][3, 2], reward["runner_0"][:4].sum(), rtol=1e-6
    )


@pytest.mark.slow
def test_masks_are_separate_from_observations():
    env = to_jaxmarl(Team())
    obs, state = env.reset(jax.random.key(0))
    masks = env.get_avail_actions(state)
    assert set(masks) == {"worker_0", "worker_1"}  # the pilot acts in a Box
    assert all(mask.shape == (5,) for mask in masks.values())
    assert [agent_obs.shape for agent_obs in obs.values()] == [
        env.observation_space(agent).shape for agent in env.agents
    ]
    plain = to_jaxmarl(wdjax.make("tag_gridworld")[0])
    with pytest.raises(
        NotImplementedError, match="observations of TagGridworld have no action_mask"
    ):
        plain.get_avail_actions(jax.jit(plain.reset)(jax.random.key(0))[1])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((Line(),), ValueError, "Line has no groups of agents: use to_gymnax"),
        ((Pair(),), TypeError, "observation of clerk contains signal, day: must be one array"),
        ((3,), TypeError, "env = 3: must be a wdjax.Env"),
    ],
)
def test_unsupported_environments_raise(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        to_jaxmarl(*arguments)
