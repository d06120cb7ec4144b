"""`to_gymnasium_vector` in the mode SAME_STEP, against gymnasium's SyncVectorEnv."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from toy_contract import Line

import wdjax
from wdjax.adapters import to_gymnasium, to_gymnasium_vector
from wdjax.adapters._translate import advance

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.utils.seeding import np_random  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

NUM = 3


@struct.dataclass
class LadderState:
    height: jax.Array  # () int32
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class LadderParams:
    top: int = 4  # the height at which the climb terminates
    episode_length: int = 5  # steps, then truncated


@dataclasses.dataclass(frozen=True)
class Ladder(wdjax.Env):
    """Climbs 0, 1 or 2 rungs per step without randomness, so that libraries can be compared."""

    @property
    def default_params(self):
        return LadderParams()

    def reset(self, key, params):
        state = LadderState(jnp.int32(0), jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        climbed = self.action_sum(action)
        state = LadderState(jnp.minimum(state.height + climbed, params.top), state.time + 1)
        terminated = state.height >= params.top
        truncated = (state.time >= params.episode_length) & ~terminated
        info = {"climbed": climbed, "resting": climbed == 0, "share": state.height / params.top}
        return self.observe(state, params), state, 0.1 * state.height, terminated, truncated, info

    def action_sum(self, action):
        return action

    def observe(self, state, params):
        mask = jnp.stack([jnp.bool_(True), jnp.bool_(True), state.height < 3])
        return {"action_mask": mask, "height": state.height, "line": jnp.full(2, state.time / 2.0)}

    def observation_space(self, params):
        line = wdjax.Box(0.0, np.inf, (2,))
        return wdjax.Dict(
            {"action_mask": wdjax.Box(0, 1, (3,), bool), "height": wdjax.Discrete(9), "line": line}
        )

    def action_space(self, params):
        return wdjax.Discrete(3)


class PlainLadder(Ladder):
    """Observes an array and returns no info."""

    def step(self, key, state, action, params):
        *played, _ = super().step(key, state, action, params)
        return *played, {}

    def observe(self, state, params):
        return jnp.stack([state.height, state.time]).astype(jnp.float32)

    def observation_space(self, params):
        return wdjax.Box(0.0, np.inf, (2,))


class TwoHandedLadder(PlainLadder):
    """Climbs with two hands by MultiDiscrete actions."""

    def action_sum(self, action):
        return jnp.sum(action)

    def action_space(self, params):
        return wdjax.MultiDiscrete((2, 2))


def assert_same(one, other, path="infos"):
    """Assert equal types, keys, dtypes, shapes and values, recursively."""
    assert type(one) is type(other), path
    if isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(one, dict):
        assert set(one) == set(other), path
        for name in one:
            assert_same(one[name], other[name], f"{path}[{name}]")
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        if one.dtype == object:
            assert_same(list(one), list(other), path)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-7, err_msg=path)
    else:
        assert one == other, path


@pytest.mark.parametrize(
    "env", [Ladder(), PlainLadder(), TwoHandedLadder()], ids=lambda env: type(env).__name__
)
@pytest.mark.parametrize("statistics", [True, False])
def test_same_step_mode_agrees_with_sync_vector_env(env, statistics):
    ours = to_gymnasium_vector(env, NUM, episode_statistics=statistics)
    theirs = SyncVectorEnv(
        [lambda: to_gymnasium(env)] * NUM, autoreset_mode=AutoresetMode.SAME_STEP
    )
    for name in (
        "observation_space",
        "action_space",
        "single_observation_space",
        "single_action_space",
    ):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.metadata == theirs.metadata
    # SyncVectorEnv changes the metadata of its first environment
    assert "autoreset_mode" not in to_gymnasium(env).metadata
    assert_same(list(ours.reset(seed=0)), list(theirs.reset(seed=0)))
    ours.action_space.seed(0)
    ends = []
    for t in range(14):
        actions = ours.action_space.sample()
        *mine, infos = ours.step(actions)
        *others, expected = theirs.step(actions)
        assert (
            ("episode" in infos)
            == ("_episode" in infos)
            == (statistics and (mine[2] | mine[3]).any())
        )
        infos = {
            name: value for name, value in infos.items() if name not in ("episode", "_episode")
        }
        assert_same([*mine, infos], [*others, expected], f"step {t}")
        ends.append(np.stack(mine[2:]))
    terminated, truncated = np.concatenate(ends, axis=1)
    assert terminated.any()
    assert truncated.any()
    # some replicas end while others continue
    assert not all((end[0] | end[1]).all() == (end[0] | end[1]).any() for end in ends)


def test_episode_statistics_agree_with_record_episode_statistics():
    ours = to_gymnasium_vector(Ladder(), NUM)
    record = gymnasium.wrappers.RecordEpisodeStatistics
    theirs = SyncVectorEnv(
        [lambda: record(to_gymnasium(Ladder()))] * NUM, autoreset_mode=AutoresetMode.SAME_STEP
    )
    ours.reset()
    theirs.reset()
    ours.action_space.seed(1)
    episodes = 0
    for _ in range(20):
        actions = ours.action_space.sample()
        *_, infos = ours.step(actions)
        *_, expected = theirs.step(actions)
        assert ("episode" in infos) == ("final_info" in expected)
        if "episode" in infos:
            counted = expected["final_info"]["episode"]
            np.testing.assert_allclose(infos["episode"]["r"], counted["r"], rtol=1e-6)
            np.testing.assert_array_equal(infos["episode"]["l"], counted["l"])
            np.testing.assert_array_equal(infos["_episode"], expected["final_info"]["_episode"])
            episodes += infos["_episode"].sum()
    assert episodes > 10


def test_statistics_of_gymnasium_may_be_used_instead():
    envs = to_gymnasium_vector(Ladder(), NUM, episode_statistics=False)
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    envs.reset()
    for _ in range(2):
        *_, infos = envs.step(np.full(NUM, 2))
    np.testing.assert_array_equal(infos["episode"]["l"], np.full(NUM, 2))


@pytest.mark.slow
@pytest.mark.parametrize("reset", ["fresh", wdjax.ResetPool(2)])
def test_steps_agree_with_vectorize(reset):
    env, params = Line(), Line().default_params.replace(episode_length=3)
    ours = to_gymnasium_vector(env, NUM, params, reset)
    replicas = wdjax.vectorize(env, NUM, reset)
    rng, _ = np_random(5)
    reset_key, key = jax.random.split(jax.random.key(int(rng.integers(2**31))))
    expected_obs, state = jax.jit(replicas.reset)(reset_key, params)
    obs, _ = ours.reset(seed=5)
    ours.action_space.seed(0)
    step = jax.jit(replicas.step)
    ends = 0
    for _ in range(5):
        jax.tree.map(np.testing.assert_array_equal, obs, jax.device_get(expected_obs))
        assert obs in ours.observation_space
        actions = ours.action_space.sample()
        step_key, key = jax.random.split(key)
        expected_obs, state, *rest, info = step(step_key, state, actions.astype(np.int32), params)
        obs, *results, infos = ours.step(actions)
        jax.tree.map(np.testing.assert_array_equal, results, jax.device_get(rest))
        ends += info["over"].sum()
        if info["over"].any():
            for i in np.flatnonzero(info["over"]):
                expected = jax.tree.map(lambda leaf: np.asarray(leaf[i]), info["final_obs"])  # noqa: B023
                jax.tree.map(np.testing.assert_array_equal, infos["final_obs"][i], expected)
    assert ends >= NUM  # all replicas are truncated after 3 steps, unless they ended before


def test_seed_determines_this_and_later_episodes():
    envs = to_gymnasium_vector(*wdjax.make("cartpole")[:1], 2)
    first, second = envs.reset(seed=3)[0], envs.reset()[0]
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal([first, second], [envs.reset(seed=3)[0], envs.reset()[0]])
    np.testing.assert_array_equal(
        first, to_gymnasium_vector(wdjax.make("cartpole")[0], 2, seed=3).reset()[0]
    )
    assert not np.array_equal(first, envs.reset(seed=4)[0])


def test_reset_options_change_params_of_all_replicas():
    envs = to_gymnasium_vector(wdjax.make("cartpole")[0], 2)
    envs.reset(options={"params": {"episode_length": 1}})
    assert envs.step([0, 1])[3].all()
    compiled = advance._cache_size()
    envs.reset(options={"params": {"episode_length": 2}})
    assert not envs.step([0, 1])[3].any()
    assert advance._cache_size() == compiled  # params are arguments: no recompilation
    with pytest.raises(
        ValueError, match=r"options\['reset_mask'\]: requires autoreset_mode='disabled'"
    ):
        envs.reset(options={"reset_mask": np.ones(2, bool)})
    with pytest.raises(ValueError, match="'lenght': did you mean 'length'"):
        envs.reset(options={"params": {"lenght": 2}})


def test_step_before_reset_raises():
    envs = to_gymnasium_vector(wdjax.make("cartpole")[0], 2)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"step\(\) before the first reset"):
        envs.step([0, 0])


def test_render_returns_a_picture_of_each_replica():
    envs = to_gymnasium_vector(wdjax.make("cartpole")[0], 2, render_mode="rgb_array")
    envs.reset(seed=0)
    for _ in range(3):
        envs.step([0, 1])
    left, right = envs.render()
    assert left.shape == right.shape == (480, 640, 3)
    assert not np.array_equal(left, right)


class Namesake(Ladder):
    """Its statistics have names that gymnasium uses in infos."""

    def step(self, key, state, action, params):
        *results, _ = super().step(key, state, action, params)
        return *results, {
            "episode": jnp.float32(1),
            "action_mask": jnp.float32(2),
            "coins": 3,
            "_coins": 4,
        }


def test_colliding_statistics_get_the_prefix_user():
    statistics = {"user/episode": 1, "user/action_mask": 2, "coins": 3, "user/_coins": 4}
    single = to_gymnasium(Namesake())
    single.reset(seed=0)
    info = single.step(2)[-1]
    assert {name: info[name] for name in statistics} == statistics
    assert info["action_mask"].shape == (3,)
    replicas = to_gymnasium_vector(Namesake(), NUM)
    replicas.reset(seed=0)
    replicas.step(np.full(NUM, 2))
    infos = replicas.step(np.full(NUM, 2))[-1]
    assert {name: infos["final_info"][name].tolist() for name in statistics} == {
        name: [statistics[name]] * NUM for name in statistics
    }
    assert infos["episode"]["l"].tolist() == [2] * NUM
