"""Environments of JaxMARL through `from_jaxmarl`: steps, groups, masks, ends and training."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from bare_done import Box, Discrete

import wdjax
from wdjax.adapters._jaxmarl_agents import stem
from wdjax.train import NetworkConfig, PolicyConfig, TrainConfig, Trainer, load_run, make_learner
from wdjax.train.config.env_params import complete_env_params

N, T = 2, 12


@pytest.fixture(scope="module", autouse=True)
def library(quick_compile):  # compilation takes most of the time
    """Skip if JaxMARL is not installed. Importing it here saves seconds when no test runs."""
    return pytest.importorskip("jaxmarl", exc_type=ImportError)


@functools.cache
def play(name, **changes):
    """Return (env, outputs of JaxMARL, outputs of wdjax) of N random replicas, [T, N, ...].

    JaxMARL steps from the state of the adapter, with the same key and actions, and action 0 for
    terminated agents.
    """
    env, params = wdjax.make(f"jaxmarl:{name}", **changes)

    def step(state, key):
        action_key, step_key = jax.random.split(key)
        action = env.action_space(params).sample(action_key)
        actions = {}
        for group, members in env.members.items():
            for i, agent in enumerate(members.agents):
                dead = state.terminated[group][i]
                # the action "stop" of SMAX
                no_op = 0 if env.credit == "agent" else env.inner.num_movement_actions - 1
                actions[agent] = jnp.where(dead, no_op, action[group][i])
        with jax.numpy_rank_promotion("allow"):
            obs, inner, reward, dones, _ = env.inner.step_env(step_key, state.inner, actions)
            masks = env.inner.get_avail_actions(inner) if "SMAX" in name else {}
        ours = env.step(step_key, state, action, params)
        return ours[1], ((obs, inner, reward, dones, masks), ours)

    @jax.jit
    @jax.vmap
    def run(key):
        _, state = env.reset(key, params)
        return jax.lax.scan(step, state, jax.random.split(key, T))[1]

    steps = jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(0), N)))
    return env, *jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), steps)


def check_steps(env, theirs, ours):
    """Compare all outputs until agents terminate. Return whether any is active, [T, N] bool."""
    their_obs, their_inner, their_reward, dones, masks = theirs
    obs, after, reward, terminated, truncated, _ = ours
    before = {
        name: np.concatenate([np.zeros_like(flags[:1]), flags[:-1]])
        for name, flags in terminated.items()
    }
    running = ~np.concatenate(list(before.values()), axis=-1).all(axis=-1)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: close(a[running], b[running]), after.inner, their_inner)
    for group, members in env.members.items():
        assert not truncated[group].any()
        for i, agent in enumerate(members.agents):
            agent_obs = obs[group]["obs"] if members.masked else obs[group]
            close(agent_obs[:, :, i][running], their_obs[agent][running])
            if members.masked:
                np.testing.assert_array_equal(
                    obs[group]["action_mask"][:, :, i][running], masks[agent][running]
                )
            was_terminated = before[group][:, :, i]
            close(reward[group][:, :, i], np.where(was_terminated, 0, their_reward[agent]))
            ended = was_terminated | (dones[agent] & (env.credit == "agent")) | dones["__all__"]
            np.testing.assert_array_equal(terminated[group][:, :, i][running], ended[running])
            assert (terminated[group][:, :, i] >= was_terminated).all()
    return running


@pytest.mark.parametrize(
    ("name", "changes", "groups"),
    [
        ("switch_riddle", {}, {"agent": 3}),
        pytest.param(
            "MPE_simple_spread_v3",
            {"num_agents": 2, "num_landmarks": 2, "max_steps": 9},
            {"agent": 2},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "MPE_simple_tag_v3",
            {"max_steps": 9},
            {"adversary": 3, "agent": 1},
            marks=pytest.mark.slow,
        ),
        pytest.param(  # test_team_credit.py compares the credits
            "SMAX",
            {"scenario": "3m", "max_steps": 9, "credit": "team"},
            {"ally": 3, "enemy": 3},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_steps_agree_with_jaxmarl(name, changes, groups):
    env, theirs, ours = play(name, **changes)
    assert list(env.groups.items()) == list(groups.items())
    running = check_steps(env, theirs, ours)
    space = env.observation_space(env.default_params)
    assert jax.jit(jax.vmap(jax.vmap(space.contains)))(ours[0]).all()
    assert running[0].all()
    assert not running[-1].all()  # an episode ended, after which its state is constant
    _, after, reward, terminated, *_ = ours
    over = ~running
    for leaf in jax.tree.leaves(after.inner):
        np.testing.assert_array_equal(leaf[1:][over[1:]], leaf[:-1][over[1:]])
    assert all(
        (gain[over] == 0).all() and terminated[group][over].all() for group, gain in reward.items()
    )
    assert all(gain.dtype == np.float32 for gain in reward.values())


class Shaped:
    """Two agents, paid 10, with shaped rewards of 1 and 2."""

    agents = ("agent_0", "agent_1")

    def reset(self, key):
        return dict.fromkeys(self.agents, jnp.zeros(1)), jnp.int32(0)

    def step_env(self, key, state, actions):
        obs, _ = self.reset(key)
        dones = dict.fromkeys((*self.agents, "__all__"), state == 3)
        info = {"shaped_reward": {"agent_0": 1, "agent_1": 2.0}}
        return obs, state + 1, dict.fromkeys(self.agents, 10.0), dones, info

    def observation_space(self, agent):
        return Box(0.0, 1.0, (1,), jnp.float32)

    def action_space(self, agent):
        return Discrete(2)


def test_shaped_rewards_have_a_weight():
    env, params = wdjax.adapters.from_jaxmarl(Shaped())
    assert params.shaped_reward == env.default_params.shaped_reward == 0
    _, state = env.reset(jax.random.key(0), params)
    action = {"agent": jnp.zeros(2, jnp.int32)}
    for weight, expected in ((0.0, [10, 10]), (0.5, [10.5, 11])):
        params = params.replace(shaped_reward=weight)
        _, _, reward, _, _, info = env.step(jax.random.key(0), state, action, params)
        np.testing.assert_array_equal(reward["agent"], expected)
        assert info == {"shaped_reward": 3.0}


def test_overcooked_has_the_weight_of_shaped_rewards():
    layout = {"layout": "cramped_room"}
    assert wdjax.make("jaxmarl:overcooked", **layout)[1].shaped_reward == 0
    assert wdjax.make("jaxmarl:overcooked", **layout, shaped_reward=0.5)[1].shaped_reward == 0.5
    with pytest.raises(TypeError, match="shaped_reward = 'x': must be a number"):
        wdjax.make("jaxmarl:overcooked", **layout, shaped_reward="x")
    with pytest.raises(ValueError, match="unknown argument of jaxmarl:coin_game 'shaped_reward'"):
        wdjax.make("jaxmarl:coin_game", shaped_reward=0.5)


class Relay:
    """An environment in the form of JaxMARL.

    agent_1 leaves after the first step, `__all__` ends after the third.
    """

    agents = ("agent_0", "agent_1", "adversary_0")

    def reset(self, key):
        state = (jnp.int32(0), jnp.zeros(3))
        return self.get_obs(state), state

    def step_env(self, key, state, actions):
        time, place = state
        place = place + jnp.stack([actions[agent] for agent in self.agents])
        state = (time + 1, place)
        dones = {
            "agent_0": time == 2,
            "agent_1": time == 0,
            "adversary_0": False,
            "__all__": time == 2,
        }
        reward = dict.fromkeys(self.agents, 1)
        info = {
            "sum": place.sum(),
            "shaped": {"agent_0": 0.0},
            "places": place,
            "discount": jnp.float32(1),
        }
        return self.get_obs(state), state, reward, dones, info

    def get_obs(self, state):
        return {agent: state[1][i][None] for i, agent in enumerate(self.agents)} | {
            "world_state": state[1]
        }

    def observation_space(self, agent):
        return Box(0.0, 1.0, (3,), jnp.float32)  # not the shape that it returns

    def action_space(self, agent):
        return Discrete(2)

    def get_avail_actions(self, state):
        return {agent: jnp.array([1, i > 0]) for i, agent in enumerate(self.agents)}


def test_agents_end_one_by_one():
    env, params = wdjax.adapters.from_jaxmarl(Relay())
    assert dict(env.groups) == {"agent": 2, "adversary": 1}
    assert env.observation_space(params)["agent"]["obs"].shape == (2, 1)
    obs, state = env.reset(jax.random.key(0), params)
    np.testing.assert_array_equal(obs["agent"]["action_mask"], [[1, 0], [1, 1]])
    action = {"agent": jnp.ones(2, jnp.int32), "adversary": jnp.ones(1, jnp.int32)}
    step, rows = jax.jit(env.step), []
    for _ in range(5):
        obs, state, reward, terminated, truncated, info = step(
            jax.random.key(0), state, action, params
        )
        place = obs["agent"]["obs"][:, 0]
        rows.append(
            (place, reward["agent"], terminated["agent"], terminated["adversary"], info["sum"])
        )
        assert not any(leaf.any() for leaf in jax.tree.leaves(truncated))
        assert set(info) == {"sum"}
    columns = [np.array(column).tolist() for column in zip(*rows, strict=True)]
    assert columns[0] == [[1, 1], [2, 1], [3, 1], [3, 1], [3, 1]]  # agent_1 has terminated
    assert columns[1] == [[1, 1], [1, 0], [1, 0], [0, 0], [0, 0]]
    assert columns[2] == [[False, True], [False, True], [True, True], [True, True], [True, True]]
    assert columns[3] == [[False], [False], [True], [True], [True]]
    assert columns[4] == [3, 5, 7, 0, 0]
    assert state.time == 5


@pytest.mark.slow
def test_adapter_passes_check_env():
    """test_team_credit.py checks an adapter with masks and the credit of a team."""
    wdjax.check_env(wdjax.make("jaxmarl:switch_riddle")[0], num_steps=300)


def test_groups_are_named_by_stem():
    """Groups with unequal spaces are split and named after their first agent.

    Names that are numbers belong to the group "agent".
    """

    class Odd(Relay):
        agents = ("agent_0", "agent_1", "walker2d", "7")

        def reset(self, key):
            state = (jnp.int32(0), jnp.zeros(4))
            return self.get_obs(state), state

        def get_obs(self, state):
            return {agent: jnp.zeros(1 + (agent == "agent_1")) for agent in self.agents}

        def get_avail_actions(self, state):
            raise NotImplementedError

        def observation_space(self, agent):
            return Box(0.0, 1.0, (1 + (agent == "agent_1"),), jnp.float32)

    env, _ = wdjax.adapters.from_jaxmarl(Odd())
    assert [(name, group.agents, group.masked) for name, group in env.members.items()] == [
        ("agent_0", ("agent_0", "7"), False),
        ("agent_1", ("agent_1",), False),
        ("walker2d", ("walker2d",), False),
    ]
    names = {"adversary_12": "adversary", "eve_0": "eve", "0": "agent", "left_leg": "left_leg"}
    assert {name: stem(name) for name in names} == names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes", "groups", "masked"),
    [
        ("MPE_simple_tag_v3", {"num_adversaries": 4}, {"adversary": 4, "agent": 1}, False),
        # equal spaces, different names
        ("MPE_simple_facmac_v1", {}, {"adversary": 3, "agent": 1}, False),
        # declares 16 numbers, returns 28
        ("MPE_simple_facmac_6a_v1", {}, {"adversary": 6, "agent": 2}, False),
        ("hanabi", {}, {"agent": 2}, True),  # masks from get_legal_moves
        # declares (width, height), returns (height, width)
        ("overcooked", {"layout": "coord_ring"}, {"agent": 2}, False),
        ("coin_game", {}, {"agent": 2}, False),
        # arrays of all agents, also with the agents last (5 numbers in the inventory), and a tuple
        ("storm", {"num_agents": 5}, {"agent": 5}, False),
        ("storm_2p", {}, {"agent": 2}, False),
        # its masks do not match the actions
        ("jaxnav", {"act_type": "Discrete"}, {"agent": 2}, False),
    ],
)
def test_spaces_match_the_returned_arrays(name, changes, groups, masked):
    env, params = wdjax.make(f"jaxmarl:{name}", **changes)
    assert dict(env.groups) == groups
    assert all(group.masked == masked for group in env.members.values())
    obs, _ = jax.eval_shape(env.reset, jax.random.key(0), params)
    sample = jax.eval_shape(env.observation_space(params).sample, jax.random.key(0))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), obs) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), sample
    )
    assert {
        group: space.shape[0] for group, space in env.action_space(params).spaces.items()
    } == groups


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        (
            "MPE_simple_spred_v3",
            {},
            ValueError,
            "'MPE_simple_spred_v3': did you mean 'MPE_simple_spread_v3'",
        ),
        (
            "MPE_simple_spread_v3",
            {"num_agent": 5},
            ValueError,
            "argument .* 'num_agent': did you mean 'num_agents'",
        ),
        ("coin_game", {"cnm": True}, TypeError, "cnm"),
        (
            "MPE_simple_tag_v3",
            {"credits": "team"},
            ValueError,
            "argument .* 'credits': did you mean 'credit'",
        ),
        (
            "switch_riddle",
            {"credit": "teams"},
            ValueError,
            "unknown credit 'teams': did you mean 'team'",
        ),
        ("SMAX", {"scenario": "33m"}, ValueError, "unknown scenario '33m': did you mean '3m'"),
        (
            "overcooked",
            {"layout": "ring"},
            ValueError,
            "unknown layout 'ring': did you mean 'coord_ring'",
        ),
        (
            "LearnedPolicyEnemySMAX",
            {},
            TypeError,
            "missing 2 required positional arguments: 'policy' and 'params'",
        ),
    ],
)
def test_wrong_names_and_arguments_raise(name, changes, error, message):
    with pytest.raises(error, match=message):
        wdjax.make(f"jaxmarl:{name}", **changes)


def test_other_objects_raise():
    with pytest.raises(
        TypeError, match="must be a JaxMARL environment, an object with attribute agents"
    ):
        wdjax.adapters.from_jaxmarl(wdjax.make("cartpole")[0])
    with pytest.raises(TypeError, match="must be a JaxMARL environment"):
        wdjax.adapters.from_jaxmarl(Relay)

    class Unhashable(Relay):
        __hash__ = None

    with pytest.raises(TypeError, match="must be hashable"):
        wdjax.adapters.from_jaxmarl(Unhashable())


def test_missing_library_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    with pytest.raises(ImportError, match="jaxmarl is not installed: pip install jaxmarl"):
        wdjax.make("jaxmarl:coin_game")


def tag_config(**changes):
    network = NetworkConfig((16,), "tanh")
    policies = {
        name: PolicyConfig(network=network, algorithm="A2C") for name in ("adversary", "agent")
    }
    return TrainConfig(
        **{
            "env": "jaxmarl:MPE_simple_tag_v3",
            "env_params": {"num_adversaries": 2, "max_steps": 10},
            "policies": policies,
            "num_envs": 8,
            "rollout_length": 12,
            "total_env_steps": 2 * 96,
            "updates_per_chunk": 1,
            **changes,
        }
    )


def test_config_of_a_run_can_be_written_and_read():
    complete = complete_env_params(tag_config())
    assert complete.env_params == {"num_adversaries": 2, "max_steps": 10, "credit": "agent"}
    assert yaml.safe_load(yaml.safe_dump(complete.env_params)) == complete.env_params


@pytest.mark.slow
def test_two_policies_train_on_tag_and_resume(tmp_path):
    config = tag_config()
    Trainer(config, tmp_path / "run", quiet=True).train()
    learner, state = load_run(tmp_path / "run")
    assert dict(learner.env.groups) == {"adversary": 2, "agent": 1}
    assert state.num_updates == 2
    state, _ = learner.run(state, num_updates=2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.policies))
    whole, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=2)
    whole, _ = learner.run(whole, num_updates=2)
    assert np.isfinite(metrics["adversary/episode_return"]).all()
    # MPE compares the time before the step: max_steps and one more
    assert (metrics["episode_length"] == 11).all()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        whole.policies,
        state.policies,
    )


@pytest.mark.slow
def test_pqn_trains_a_team_on_overcooked_with_falling_shaped_rewards():
    encoder = {"channels": [4], "padding": "same", "layer_norm": True}
    network = NetworkConfig((16,), encoder="cnn", encoder_options=encoder, layer_norm=True)
    config = tag_config(
        env="jaxmarl:overcooked",
        env_params={"layout": "counter_circuit", "max_steps": 12},
        env_schedules={"shaped_reward": [[0, 1.0], [192, 0.0]]},
        policies={
            "agent": PolicyConfig(network=network, algorithm="PQN", options={"mixer": "sum"})
        },
    )
    learner = make_learner(config)
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=3)
    assert state.env_params.shaped_reward == 0
    assert np.isfinite(metrics["agent/q_loss"]).all()
    assert np.isfinite(metrics["episode_shaped_reward"]).all()


@pytest.mark.slow
def test_masked_actions_of_smax_are_never_sampled():
    policies = {"ally": PolicyConfig(network=NetworkConfig((16,), "tanh"))}
    env_params = {"scenario": "3m", "credit": "team"}
    config = tag_config(env="jaxmarl:HeuristicEnemySMAX", env_params=env_params, policies=policies)
    learner = make_learner(config)
    state = learner.init(jax.random.key(0))
    policy = learner.setup.policies["ally"]
    outputs, *_ = policy.apply(state.policies["ally"], state.obs["ally"])
    action = jax.vmap(lambda key: policy.distribution.sample(key, outputs))(
        jax.random.split(jax.random.key(1), 50)
    )
    mask = np.broadcast_to(state.obs["ally"]["action_mask"], (50, 8, 3, outputs.shape[-1]))
    assert 0.1 < mask.mean() < 0.9
    assert np.take_along_axis(mask, np.asarray(action)[..., None], axis=-1).all()
    jax.eval_shape(learner.update, state)  # test_team_credit.py trains with masks
