"""`to_pettingzoo`: PettingZoo's tests, agreement with wdjax's steps, masks, seeds and errors."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from probes import Leaver, Pair
from relay_env import Relay
from toy_contract import Team, TeamState

import wdjax
from wdjax.adapters import to_pettingzoo
from wdjax.adapters._translate import advance

pettingzoo = pytest.importorskip("pettingzoo")
import gymnasium  # noqa: E402
from gymnasium.utils.seeding import np_random  # noqa: E402
from pettingzoo.test import parallel_api_test, parallel_seed_test  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_compile")

TOYS = {"leaver": Leaver, "pair": Pair, "team": Team}


def make(name, **changes):
    if name in TOYS:
        env = TOYS[name]()
        return env, env.default_params.replace(**changes)
    return wdjax.make(name, **changes)


def sample(env, obs):
    """Sample an action for every active agent, within its mask."""
    masks = {
        agent: agent_obs.get("action_mask") if isinstance(agent_obs, dict) else None
        for agent, agent_obs in obs.items()
    }
    return {agent: env.action_space(agent).sample(masks[agent]) for agent in env.agents}


def seed_actions(env):
    for i, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(i)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tag_continuous", "covid_economy", *TOYS])
def test_pettingzoo_tests_pass(name):
    env, params = make(name, episode_length=30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(to_pettingzoo(env, params), num_cycles=100)
        parallel_seed_test(lambda: to_pettingzoo(env, params), num_cycles=30)


def by_group(env, by_agent):
    """Return actions in wdjax's form, 0 for agents that have left."""
    action = jax.device_get(env.action_space(env.default_params).sample(jax.random.key(0)))
    action = {group: np.zeros_like(rows) for group, rows in action.items()}
    for agent, chosen in by_agent.items():
        group, _, i = agent.rpartition("_")
        action[group][int(i)] = chosen
    return action


def assert_row(obs, row):
    """Compare an agent's observation with its row of the environment's observation."""
    if isinstance(row, dict):
        assert set(obs) == set(row)
        for name in row:
            assert_row(obs[name], row[name])
    else:
        np.testing.assert_array_equal(np.concatenate(obs) if isinstance(obs, tuple) else obs, row)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tag_gridworld", "taxed_commons", "rice", "pair", "team"])
def test_steps_agree_with_the_environment(name):
    """Agent i of a group gets row i. The key of an episode is split for its reset and steps."""
    env, params = make(name)
    theirs = to_pettingzoo(env, params)
    rng, _ = np_random(7)
    reset_key, key = jax.random.split(jax.random.key(int(rng.integers(2**31))))
    _, state = jax.jit(env.reset)(reset_key, params)
    obs, _ = theirs.reset(seed=7)
    step = jax.jit(env.step)
    seed_actions(theirs)
    for _ in range(3):
        actions, alive = sample(theirs, obs), list(theirs.agents)
        step_key, key = jax.random.split(key)
        results = step(step_key, state, by_group(env, actions), params)
        expected_obs, state, reward, terminated, truncated, info = jax.device_get(results)
        obs, *results, infos = theirs.step(actions)
        assert all(list(result) == alive for result in (obs, *results, infos))
        for agent in alive:
            group, _, i = agent.rpartition("_")
            assert obs[agent] in theirs.observation_space(agent)
            assert_row(obs[agent], jax.tree.map(lambda leaf: leaf[int(i)], expected_obs[group]))  # noqa: B023
            expected = [leaf[group][int(i)].item() for leaf in (reward, terminated, truncated)]
            assert [result[agent] for result in results] == expected
            assert {name: infos[agent][name] for name in info} == {
                name: value.item() for name, value in info.items()
            }
        assert theirs.agents == [
            agent for agent in alive if not (results[1][agent] or results[2][agent])
        ]
    np.testing.assert_array_equal(
        theirs.state(), np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state)])
    )


def test_terminated_agents_leave_the_agents_list():
    """The first player terminates after 2 steps, the second after 4."""
    env = to_pettingzoo(Leaver())
    assert (env.possible_agents, env.agents) == (["player_0", "player_1"], [])
    env.reset()
    rows = []
    for _ in range(5):
        _, reward, terminated, truncated, _ = env.step(dict.fromkeys(env.possible_agents, 0))
        assert not any(truncated.values())
        rows.append((reward, terminated, list(env.agents)))
    both, second = ["player_0", "player_1"], ["player_1"]
    assert rows == [
        ({"player_0": 1.0, "player_1": 1.0}, {"player_0": False, "player_1": False}, both),
        ({"player_0": 1.0, "player_1": 1.0}, {"player_0": True, "player_1": False}, second),
        ({"player_1": 1.0}, {"player_1": False}, second),
        ({"player_1": 1.0}, {"player_1": True}, []),
        ({}, {}, []),
    ]
    assert env.env_state.time == 4  # the fifth step had no agents
    env.reset()
    assert env.agents == both


class Once(Relay):
    """`Relay` without its second runner, so that no slot is used twice."""

    def present(self, state, params):
        return {"runner": jnp.stack([state.time < 2, state.time >= 2])}

    def step(self, key, state, action, params):
        obs, after, reward, ended, *others = super().step(key, state, action, params)
        left = jnp.stack([after.time >= 2, False])
        return obs, after, reward, {"runner": ended["runner"] | left}, *others


def test_agents_that_join_are_in_the_agents_list():
    """One runner acts in steps 0 and 1, one in steps 3 and 4, and one from step 2 on."""
    env = to_pettingzoo(Relay())
    env.reset()
    rows = [env.agents]
    for _ in range(6):
        _, reward, terminated, _, _ = env.step(dict.fromkeys(env.agents, 0))
        rows.append((reward, [agent for agent, ended in terminated.items() if ended], env.agents))
    first, second, both = ["runner_0"], ["runner_1"], ["runner_0", "runner_1"]
    assert rows == [
        first,
        ({"runner_0": 1.0}, [], first),
        ({"runner_0": 1.0, "runner_1": 0.0}, first, second),
        ({"runner_0": 0.0, "runner_1": 3.0}, [], both),
        ({"runner_0": 2.0, "runner_1": 3.0}, [], both),
        ({"runner_0": 2.0, "runner_1": 3.0}, first, second),
        ({"runner_1": 3.0}, second, []),
    ]
    assert env.step({}) == ({}, {}, {}, {}, {})
    assert env.env_state.time == 6


@pytest.mark.slow
def test_pettingzoo_tests_pass_where_agents_join():
    wdjax.check_env(Once(), num_steps=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(to_pettingzoo(Once()), num_cycles=100)
        parallel_seed_test(lambda: to_pettingzoo(Once()), num_cycles=30)


class Late(Once):
    """`Once` without its first runner: at first no agent is present."""

    def present(self, state, params):
        return {"runner": jnp.stack([False, state.time >= 2])}


def test_an_episode_goes_on_while_no_agent_is_present():
    env = to_pettingzoo(Late())
    env.reset()
    assert env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})
    assert env.step({})[1] == {"runner_1": 0.0}
    assert env.agents == ["runner_1"]


def test_actions_of_agents_that_have_left_are_ignored():
    env = to_pettingzoo(Leaver())
    env.reset()
    for _ in range(2):
        env.step({"player_0": 0, "player_1": 0})
    assert env.agents == ["player_1"]
    env.step({"player_0": "anything", "player_1": 0})
    assert env.step({"player_1": 0})[2] == {"player_1": True}


def test_time_limit_truncates_all_agents():
    env = to_pettingzoo(*make("pair", episode_length=1))
    obs, _ = env.reset(seed=0)
    _, _, terminated, truncated, _ = env.step(sample(env, obs))
    assert set(truncated.values()) == {True}
    assert set(terminated.values()) == {False}
    assert env.agents == []


def test_spaces_of_agents_are_those_of_their_group():
    env = to_pettingzoo(Pair())
    spaces = gymnasium.spaces
    assert env.action_space("pilot_1") == spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert env.action_space("clerk_0") == spaces.MultiDiscrete([2, 3])
    masks = spaces.Tuple([spaces.Box(0, 1, (2,), np.int8), spaces.Box(0, 1, (3,), np.int8)])
    line = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert env.observation_space("clerk_2") == spaces.Dict(
        {"action_mask": masks, "signal": line, "day": spaces.Discrete(3)}
    )
    assert env.observation_space("pilot_0") == line
    assert env.action_space("clerk_0") is not env.action_space("clerk_1")  # each has its own seed
    with pytest.raises(ValueError, match="unknown agent 'clerk_9': did you mean 'clerk_"):
        env.action_space("clerk_9")


def test_masks_mark_illegal_actions():
    """Clerks that sample within their masks never make illegal choices, unlike other clerks."""
    env = to_pettingzoo(*make("pair", episode_length=100))
    obs, infos = env.reset(seed=0)
    illegal = {True: 0, False: 0}
    for t in range(40):
        masked = t % 2 == 0
        actions = {
            agent: env.action_space(agent).sample(infos[agent].get("action_mask"))
            for agent in env.agents
        }
        if not masked:
            actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        obs, _, _, _, infos = env.step(actions)
        jax.tree.map(
            np.testing.assert_array_equal,
            infos["clerk_0"]["action_mask"],
            obs["clerk_0"]["action_mask"],
        )
        illegal[masked] += infos["pilot_0"]["forbidden"]
    assert illegal[True] == 0
    assert illegal[False] > 0


def play(env, seed=None):
    obs, _ = env.reset(seed=seed)
    seed_actions(env)
    steps = []
    for _ in range(3):
        obs, *rest = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
        steps.append((obs, *rest))
    return jax.tree.leaves(steps)


def test_seed_determines_this_and_later_episodes():
    env, other = (to_pettingzoo(*make("pair", episode_length=9)) for _ in range(2))

    def same(one, two):
        return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))

    episodes = [play(env, seed=3), play(env)]
    assert not same(*episodes)
    assert all(
        same(one, two)
        for one, two in zip(episodes, [play(other, seed=3), play(other)], strict=True)
    )
    assert same(episodes[0], play(env, seed=3))
    assert not same(episodes[0], play(env, seed=4))


def test_reset_options_change_params():
    env = to_pettingzoo(*make("leaver"))
    before = env.action_space("player_0")
    env.reset(options={"params": {"leave": 1}, "whatever": 3})
    env.step({"player_0": 0, "player_1": 0})
    assert env.agents == ["player_1"]
    compiled = advance._cache_size()
    env.reset(options={"params": {"episode_length": 1}})
    assert (env.env_params.leave, env.env_params.episode_length) == (1, 1)
    env.step({"player_0": 0, "player_1": 0})
    assert env.agents == []
    assert advance._cache_size() == compiled  # params are arguments: no recompilation
    assert env.action_space("player_0") is before
    with pytest.raises(
        ValueError, match="unknown parameter of Leaver 'leaf': did you mean 'leave'"
    ):
        env.reset(options={"params": {"leaf": 1}})


def test_methods_before_reset_raise():
    env = to_pettingzoo(Leaver())
    for method, arguments in (("step", ({},)), ("render", ()), ("state", ())):
        with pytest.raises(
            gymnasium.error.ResetNeeded, match=rf"{method}\(\) before the first reset"
        ):
            getattr(env, method)(*arguments)


@pytest.mark.slow
def test_render_returns_pictures():
    name = "tag_gridworld"
    env = to_pettingzoo(*wdjax.make(name), render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((480, 640, 3), np.uint8)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 2
    silent = to_pettingzoo(*wdjax.make(name))
    silent.reset()
    with pytest.warns(UserWarning, match="make the environment with render_mode='rgb_array'"):
        assert silent.render() is None


@struct.dataclass
class KeyedState:
    inner: TeamState
    key: jax.Array


class Keyed(Team):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, KeyedState(state, key)


def test_state_leaves_out_keys():
    keyed, plain = to_pettingzoo(Keyed()), to_pettingzoo(Team())
    keyed.reset(seed=0), plain.reset(seed=0)
    np.testing.assert_array_equal(keyed.state(), plain.state())
