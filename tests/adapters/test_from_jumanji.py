"""Environments of Jumanji through `from_jumanji`: steps, agents, actions, ends and training.

The quick tests use environments with Jumanji's interface, without the library.
"""

import functools
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import wdjax
from wdjax.adapters._jumanji_agents import own_views
from wdjax.drawing import Scene, Shapes
from wdjax.spaces import Box, Discrete, MultiDiscrete
from wdjax.train import NetworkConfig, PolicyConfig, TrainConfig, make_learner
from wdjax.train.config.env_params import complete_env_params

N, T = 2, 25
GAMES = {
    "RobotWarehouse-v0": {"shelf_rows": 1, "num_agents": 2, "time_limit": 20},
    "LevelBasedForaging-v0": {"grid_size": 5, "fov": 2, "num_food": 1, "time_limit": 20},
    "Connector-v3": {"grid_size": 5, "num_agents": 5, "time_limit": 20},
}
each_game = pytest.mark.parametrize("name", GAMES)


@pytest.fixture(scope="module", autouse=True)
def fast(quick_compile):  # compilation takes most of the time
    return None


@pytest.fixture
def library():
    """Skip if Jumanji, or one of its dependencies, is not installed."""
    return pytest.importorskip("jumanji", exc_type=ImportError)


def spec(shape=(), dtype=jnp.int32, **attributes):
    return SimpleNamespace(shape=shape, dtype=jnp.dtype(dtype), **attributes)


class Observation(NamedTuple):
    place: Any  # [2], of each agent
    board: Any  # [3], of all agents
    step_count: Any
    action_mask: Any


@struct.dataclass
class Timestep:
    reward: Any
    discount: Any
    is_last: Any
    observation: Any
    extras: Any

    def last(self):
        return self.is_last


class Relay:
    """Two agents that move by action 1. Agent 1 ends at 2; the last step is the fourth."""

    num_agents = 2
    reward_spec = spec((), jnp.float32)
    action_spec = spec((2,), num_values=np.array([2, 2]))
    observation_spec = SimpleNamespace(
        place=spec((2,), minimum=0, maximum=9),
        board=spec((3,), jnp.float32),
        step_count=spec((), minimum=0, maximum=4),
        action_mask=spec((2, 2), bool),
    )

    def _timestep(self, place, time):
        finished = jnp.array([False, True]) & (place >= 2)
        observation = Observation(
            place, jnp.arange(3.0) + place.sum(), time, jnp.array([[True, False], [True, True]])
        )
        return Timestep(
            jnp.float32(time),
            1.0 - finished,
            time >= 4,
            observation,
            {"total": place.sum(), "places": place},
        )

    def reset(self, key):
        place, time = jnp.zeros(2, jnp.int32), jnp.int32(0)
        return (place, time), self._timestep(place, time)

    def step(self, state, action):
        place, time = state[0] + action, state[1] + 1
        return (place, time), self._timestep(place, time)


@pytest.mark.slow
def test_agents_terminate_by_discount_and_are_truncated_at_the_last_step():
    env, params = wdjax.adapters.from_jumanji(Relay())
    assert dict(env.groups) == {"agent": 2}
    space = env.observation_space(params)["agent"]
    assert space["place"] == Box(0, 9, (2,), jnp.int32, batch_ndim=1)
    assert {name: part.shape for name, part in space.spaces.items()} == {
        "place": (2,), "board": (2, 3), "step_count": (2,), "action_mask": (2, 2),
    }  # fmt: skip
    assert env.action_space(params)["agent"] == Discrete(2, (2,))
    obs, state = env.reset(jax.random.key(0), params)
    np.testing.assert_array_equal(obs["agent"]["action_mask"], [[1, 0], [1, 1]])
    step, rows, infos = jax.jit(env.step), [], []
    for _ in range(4):
        obs, state, reward, terminated, truncated, info = step(
            jax.random.key(0), state, {"agent": jnp.ones(2, jnp.int32)}, params
        )
        rows.append((obs["agent"]["place"], reward, terminated, truncated))
        infos.append(float(info["total"]))
    columns = [
        [np.asarray(value["agent"] if isinstance(value, dict) else value).tolist() for value in row]
        for row in zip(*rows, strict=True)
    ]
    assert columns == [
        [[1, 1], [2, 2], [3, 2], [4, 2]],  # the action of a terminated agent has no effect
        [[1, 1], [2, 2], [3, 0], [4, 0]],  # each agent receives the reward of the team
        [[False, False], [False, True], [False, True], [False, True]],
        [[False, False], [False, False], [False, False], [True, False]],
    ]
    assert infos == [2, 2, 1, 1]
    assert sum(infos) == 4 + 2  # the extras at the end
    assert state.time == 4


def test_shared_arrays_are_the_global_state():
    env, params = wdjax.adapters.from_jumanji(Relay())
    _, state = env.reset(jax.random.key(0), params)
    assert env.global_state_space(params).shape == (6,)
    # by name: board, places of both agents, time
    np.testing.assert_array_equal(env.global_state(state, params), [0, 1, 2, 0, 0, 0])


def test_fields_select_observations():
    env, params = wdjax.adapters.from_jumanji(Relay(), fields=["place"])
    assert set(env.observation_space(params)["agent"].spaces) == {"place", "action_mask"}
    assert env.fields == ("place",)
    assert env.global_state_space(params) is None
    for fields, error, message in (
        (["plac"], ValueError, "unknown field of the observation of Relay 'plac': did you mean"),
        ([], ValueError, "fields = .*must be a list of at least one field"),
        ("place", ValueError, "fields = 'place': must be a list"),
    ):
        with pytest.raises(error, match=message):
            wdjax.adapters.from_jumanji(Relay(), fields)


class Board(Relay):
    """One agent chooses a row and a column of a 2 x 3 board; the mask has a flag for each cell."""

    num_agents = None
    action_spec = spec((2,), jnp.int8, num_values=np.array([2, 3]))
    mask = np.array([[True, False, True], [False, False, True]])

    def reset(self, key):
        return jnp.zeros(2, jnp.int8), self._timestep(jnp.zeros(2, jnp.int8))

    def _timestep(self, place):
        mask = jnp.asarray(self.mask) & (place == 0).all()
        observation = Observation(place, place, jnp.int32(0), mask)
        return Timestep(jnp.float32(1), jnp.float32(1), jnp.bool_(False), observation, {})

    def step(self, state, action):
        assert action.dtype == jnp.int8
        return action, self._timestep(action)


@pytest.mark.slow
def test_actions_with_a_mask_of_all_combinations_are_numbered_together():
    env, params = wdjax.adapters.from_jumanji(Board())
    assert not env.groups
    assert env.action_space(params) == Discrete(6)
    obs, state = env.reset(jax.random.key(0), params)
    assert obs["action_mask"].tolist() == [1, 0, 1, 0, 0, 1]
    obs, *_ = env.step(jax.random.key(0), state, jnp.int32(5), params)
    assert obs["place"].tolist() == [1, 2]
    assert obs["action_mask"].tolist() == [1] * 6  # without any choice, all are allowed


def test_unsupported_actions_raise():
    for action_spec, message in (
        (spec((2,), jnp.int16), "action_spec of Relay = .*must be a DiscreteArray"),
        (spec((3,), num_values=np.full(3, 2)), r"shape of the action_spec .*\(2, ...\)"),
        (spec((2,), num_values=np.array([2, 3])), "num_values .*must be equal for all agents"),
        (spec((2,), num_values=np.array([3, 3])), "action_mask of Relay = .*each of 3 choices"),
    ):
        env = Relay()
        env.action_spec = action_spec
        with pytest.raises(TypeError, match=message):
            wdjax.adapters.from_jumanji(env)
    with pytest.raises(TypeError, match="a Jumanji environment, an object with attribute"):
        wdjax.adapters.from_jumanji(wdjax.make("cartpole")[0])


def test_missing_library_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "jumanji", None)
    with pytest.raises(ImportError, match="jumanji is not installed: pip install jumanji"):
        wdjax.make("jumanji:Connector-v3")


def test_agents_of_connector_see_themselves_first():
    grid = np.array([[1, 2, 3], [4, 5, 0], [0, 0, 6]])
    first, second = own_views(jnp.stack([grid, grid]))
    np.testing.assert_array_equal(first, grid)
    np.testing.assert_array_equal(second, [[4, 5, 6], [1, 2, 0], [0, 0, 3]])


# --- with Jumanji ---


@functools.cache
def play(name):
    """Return (env, params, steps): outputs of Jumanji and of wdjax and states, [T, N, ...].

    Jumanji steps from its own states, with the same keys and actions.
    """
    env, params = wdjax.make(f"jumanji:{name}", **GAMES[name])

    def step(carry, key):
        state, theirs = carry
        mask = state.obs["agent"]["action_mask"]
        action = jax.random.categorical(key, jnp.log(mask.astype(jnp.float32)))
        with jax.numpy_rank_promotion("allow"):
            theirs, timestep = env.inner.step(theirs, action)
        obs, after, *rest = env.step(key, state, {"agent": action}, params)
        return (after, theirs), (timestep, (obs["agent"], *rest), state)

    @jax.jit
    @jax.vmap
    def run(key):
        _, state = env.reset(key, params)
        with jax.numpy_rank_promotion("allow"):
            theirs, _ = env.inner.reset(jax.random.key_data(key))
        return jax.lax.scan(step, (state, theirs), jax.random.split(key, T))[1]

    steps = jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(0), N)))
    return env, params, jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), steps)


@pytest.mark.slow
@each_game
def test_steps_agree_with_jumanji(library, name):
    env, params, (theirs, ours, _) = play(name)
    obs, reward, terminated, truncated, info = ours
    reward, terminated, truncated = (part["agent"] for part in (reward, terminated, truncated))
    num = env.agents.num

    def per_agent(value):
        """Return [T, N, num, ...] from this shape or from [T, N]."""
        value = np.asarray(value)
        return np.repeat(value[..., None], num, axis=-1) if value.ndim == 2 else value

    last = np.asarray(theirs.step_type == 2)
    assert last.any(axis=0).all()
    playing = np.cumsum(last, axis=0) - last == 0  # up to the first last step
    space = env.observation_space(params)["agent"]
    assert np.asarray(jax.jit(jax.vmap(jax.vmap(space.contains)))(obs))[playing].all()

    def same(ours, theirs):
        np.testing.assert_allclose(ours[playing], theirs[playing], rtol=1e-5, atol=1e-5)

    for field, value in theirs.observation._asdict().items():
        if field == "grid":
            views = jax.vmap(jax.vmap(lambda grid: own_views(jnp.stack([grid] * num))))
            same(obs[field], np.asarray(views(value)))
        else:
            same(obs[field], per_agent(value))
    before = np.concatenate([np.zeros((1, *terminated.shape[1:]), bool), terminated[:-1]])
    same(reward, np.where(before, 0, per_agent(theirs.reward)))
    same(terminated, before | (per_agent(theirs.discount) == 0))
    same(truncated, per_agent(last) & ~terminated)
    assert truncated.any() == (name == "LevelBasedForaging-v0")
    for key, value in theirs.extras.items():
        same(np.cumsum(info[key], axis=0), np.asarray(value))


@pytest.mark.slow
@each_game
def test_games_are_drawn(library, name):
    env, params, (_, _, states) = play(name)
    scene = env.scene(jax.tree.map(lambda leaf: leaf[:, 0], states), params)
    assert isinstance(scene, Scene)
    (agents,) = [mark for mark in scene.marks if isinstance(mark, Shapes) and mark.group == "agent"]
    assert agents.x.shape == (T, env.agents.num)
    one = jax.tree.map(lambda leaf: leaf[-1, 0], states)
    assert wdjax.render(env, one, params).std() > 5


@pytest.mark.slow
def test_environment_with_masks_and_single_ends_passes_check_env():
    wdjax.check_env(*wdjax.adapters.from_jumanji(Relay()), num_steps=100)


@pytest.mark.slow
def test_game_passes_check_env(library):
    name = "Connector-v3"  # with masks and changed observations; its agents end one by one
    wdjax.check_env(*wdjax.make(f"jumanji:{name}", **GAMES[name]), num_steps=100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("Snake-v1", Discrete(4)),
        ("Minesweeper-v0", Discrete(100)),  # a mask of all cells
        ("JobShop-v0", MultiDiscrete((21,) * 10)),  # a mask of each machine
        ("SearchAndRescue-v0", None),  # floats of two agents
    ],
)
def test_other_games_step(library, name, actions):
    env, params = wdjax.make(f"jumanji:{name}")
    space = env.action_space(params)
    assert actions is None or space == actions

    @jax.jit
    def first_step(reset_key, step_key, action_key):
        _, state = env.reset(reset_key, params)
        obs, _, reward, *_ = env.step(step_key, state, space.sample(action_key), params)
        return env.observation_space(params).contains(obs), reward

    contained, reward = first_step(*jax.random.split(jax.random.key(0), 3))
    assert contained
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(reward))


@pytest.mark.slow
def test_ppo_trains(library):
    name = "LevelBasedForaging-v0"  # with rewards of single agents and a time limit
    network = NetworkConfig((16,), "tanh")
    config = TrainConfig(
        env=f"jumanji:{name}",
        env_params=GAMES[name],
        policies={"agent": PolicyConfig(network=network, normalize_observation=True)},
        num_envs=8,
        rollout_length=25,
        total_env_steps=400,
        updates_per_chunk=1,
    )
    assert complete_env_params(config).env_params == GAMES[name]
    learner = make_learner(config)
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.policies))
    assert np.isfinite(metrics["agent/episode_return"]).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("Conector-v3", {}, ValueError, "'Conector-v3': did you mean 'Connector-v3'"),
        ("Connector-v3", {"num_agent": 5}, ValueError, "'num_agent': did you mean 'num_agents'"),
        ("Connector-v3", {"time_limt": 5}, ValueError, "'time_limt': did you mean 'time_limit'"),
        ("Connector-v3", {"grid_size": 5.5}, TypeError, "grid_size = 5.5: must be a whole number"),
        ("LevelBasedForaging-v0", {"penalty": "1"}, TypeError, "penalty = '1': must be a number"),
        ("LevelBasedForaging-v0", {"grid_size": 4}, ValueError, "jumanji:Level.* greater than 5"),
        ("MultiCVRP-v0", {}, TypeError, "action_spec of MultiCVRP = .*must be a DiscreteArray"),
    ],
)
def test_wrong_names_and_arguments_raise(library, name, changes, error, message):
    with pytest.raises(error, match=message):
        wdjax.make(f"jumanji:{name}", **changes)
