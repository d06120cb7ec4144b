"""Autoreset modes and gymnasium's vector wrappers, against gymnasium's SyncVectorEnv."""

import re

import numpy as np
import pytest
from test_to_gymnasium_vector import NUM, Ladder, PlainLadder, assert_same

import wdjax
from wdjax.adapters import register_gymnasium, to_gymnasium, to_gymnasium_vector

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from gymnasium.wrappers import vector as wrappers  # noqa: E402


def pair(env, mode):
    ours = to_gymnasium_vector(env, NUM, episode_statistics=False, autoreset_mode=mode)
    theirs = SyncVectorEnv(
        [lambda: to_gymnasium(env)] * NUM, autoreset_mode=ours.metadata["autoreset_mode"]
    )
    assert ours.metadata == theirs.metadata
    assert_same(list(ours.reset(seed=0)), list(theirs.reset(seed=0)))
    ours.action_space.seed(0)
    return ours, theirs


def test_next_step_mode_agrees_with_sync_vector_env():
    ours, theirs = pair(Ladder(), "next_step")
    over = 0
    for t in range(16):
        actions = ours.action_space.sample()
        mine, others = ours.step(actions), theirs.step(actions)
        assert_same(list(mine), list(others), f"step {t}")
        over += (mine[2] | mine[3]).sum()
    assert over > NUM


def test_disabled_mode_agrees_with_sync_vector_env():
    ours, theirs = pair(Ladder(), AutoresetMode.DISABLED)
    masked = 0
    for t in range(16):
        actions = ours.action_space.sample()
        mine, others = ours.step(actions), theirs.step(actions)
        assert_same(list(mine), list(others), f"step {t}")
        over = mine[2] | mine[3]
        if over.any():
            with pytest.raises(gymnasium.error.ResetNeeded, match="reset_mask"):
                ours.step(actions)
            masked += not over.all()
            mask = over | (np.arange(NUM) == t % NUM)  # and one in the middle of its episode
            resets = [envs.reset(options={"reset_mask": mask.copy()}) for envs in (ours, theirs)]
            assert_same(list(resets[0]), list(resets[1]), f"reset {t}")
    assert masked


def test_partial_resets_are_seeded_and_use_the_pool():
    """The seed of a masked reset determines the starts of these replicas only."""
    envs = to_gymnasium_vector(
        wdjax.make("cartpole")[0], 3, reset=wdjax.ResetPool(2), autoreset_mode="disabled"
    )
    starts = {
        tuple(row) for seed in range(9) for row in envs.reset(seed=3 if seed == 0 else None)[0]
    }
    before = envs.reset(seed=3)[0]
    mask = np.array([True, False, True])
    after = envs.reset(seed=5, options={"reset_mask": mask})[0]
    np.testing.assert_array_equal(after[1], before[1])
    np.testing.assert_array_equal(after, envs.reset(seed=5, options={"reset_mask": mask})[0])
    pool = {tuple(row) for _ in range(9) for row in envs.reset(options={"reset_mask": mask})[0]}
    assert len(pool) <= 2 < len(starts)


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("nxt_step", None, "unknown autoreset_mode 'nxt_step': did you mean 'next_step'?"),
        ("next_step", {"reset_mask": np.ones(2, bool)}, "requires autoreset_mode='disabled'"),
        (
            "disabled",
            {"reset_mask": np.ones(3, bool)},
            "must be a bool array of shape (2,) with at least one True",
        ),
        (
            "disabled",
            {"reset_mask": [True, False]},
            "must be a bool array of shape (2,) with at least one True",
        ),
    ],
)
def test_wrong_modes_and_masks_raise(mode, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        to_gymnasium_vector(wdjax.make("cartpole")[0], 2, autoreset_mode=mode).reset(
            options=options
        )


def climb(envs):
    """Return all outputs of replicas that climb 2, 1 and 1 rungs per step, without timings."""
    outputs = [*envs.reset(seed=0)]
    for _ in range(9):
        *step, infos = envs.step(np.array([2, 1, 1]))
        if isinstance(infos, dict) and "episode" in infos:
            del infos["episode"]["t"]
        outputs += [*step, infos]
    return outputs


WRAPPERS = {
    "flatten": wrappers.FlattenObservation,
    "normalize": wrappers.NormalizeObservation,
    "reward": wrappers.NormalizeReward,
    "rescale": lambda envs: wrappers.RescaleObservation(envs, np.float32(-1), np.float32(1)),
    "dtype": lambda envs: wrappers.DtypeObservation(envs, np.float16),
    "reshape": lambda envs: wrappers.ReshapeObservation(envs, (2, 1)),
    "transform": lambda envs: wrappers.TransformObservation(envs, lambda obs: 2 * obs),
    "clip": lambda envs: wrappers.ClipReward(envs, 0.1, 0.2),
    "statistics": wrappers.RecordEpisodeStatistics,
    "list": wrappers.DictInfoToList,
}


class BoundedLadder(PlainLadder):
    def observation_space(self, params):
        return wdjax.Box(0.0, 9.0, (2,))


@pytest.mark.parametrize("name", WRAPPERS)
def test_vector_wrappers_agree_with_sync_vector_env(name):
    ours, theirs = (WRAPPERS[name](envs) for envs in pair(BoundedLadder(), "next_step"))
    assert_same(climb(ours), climb(theirs))
    assert ours.observation_space == theirs.observation_space


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_episode_statistics_agree_with_the_wrapper(mode):
    envs = to_gymnasium_vector(PlainLadder(), NUM, autoreset_mode=mode)
    recorded = wrappers.RecordEpisodeStatistics(
        to_gymnasium_vector(PlainLadder(), NUM, episode_statistics=False, autoreset_mode=mode)
    )
    for each in (envs, recorded):
        each.reset(seed=0)
    for t in range(12):
        actions = np.arange(NUM) % 2 + 1
        (*_, ends, cuts, infos), (*_, expected) = envs.step(actions), recorded.step(actions)
        assert ("episode" in infos) == ("episode" in expected)
        if "episode" in infos:
            np.testing.assert_allclose(
                infos["episode"]["r"], expected["episode"]["r"], rtol=1e-6, err_msg=str(t)
            )
            np.testing.assert_array_equal(infos["episode"]["l"], expected["episode"]["l"])
            np.testing.assert_array_equal(infos["_episode"], expected["_episode"])
            if mode == "disabled":
                for each in (envs, recorded):
                    each.reset(options={"reset_mask": ends | cuts})


# --- gymnasium.make ---


def test_specs_agree_with_gymnasium():
    register_gymnasium()
    for name in (
        "CartPole-v1",
        "Acrobot-v1",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
        "Pendulum-v1",
    ):
        theirs = gymnasium.make(name)
        names = {"MountainCarContinuous": "continuous_mountain_car", "MountainCar": "mountain_car"}
        ours = gymnasium.make(f"wdjax/{names.get(name[:-3], name[:-3].lower())}")
        for field in ("reward_threshold", "max_episode_steps"):
            assert getattr(ours.spec, field) == getattr(theirs.spec, field), (name, field)
        assert ours.metadata["render_fps"] == theirs.metadata["render_fps"]
    long = gymnasium.make("wdjax/cartpole", episode_length=1_000)
    assert long.spec.max_episode_steps == 1_000
    assert not isinstance(long, gymnasium.wrappers.TimeLimit)  # a TimeLimit would truncate at 500
    envs = gymnasium.make_vec(
        "wdjax/cartpole", num_envs=2, max_episode_steps=3, autoreset_mode="next_step"
    )
    assert envs.unwrapped.env_params.episode_length == envs.spec.max_episode_steps == 3


def test_rgb_array_list_collects_frames():
    register_gymnasium()
    env = gymnasium.make("wdjax/pendulum", render_mode="rgb_array_list")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert [frame.shape for frame in env.render()] == [(480, 640, 3)] * 2


def test_human_render_mode_opens_a_window(monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    register_gymnasium()
    with pytest.warns(UserWarning, match="HumanRendering"):
        env = gymnasium.make("wdjax/cartpole", render_mode="human")
    env.reset(seed=0)
    env.close()
