"""`to_gymnasium`: gymnasium's check, agreement with wdjax's steps, seeds, options and errors."""

import functools
import os
import re
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest
from toy_contract import Line
from toy_walk import Walk

import wdjax
from wdjax.adapters import register_gymnasium, to_gymnasium
from wdjax.adapters._translate import advance

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.utils.seeding import np_random  # noqa: E402

SINGLE = [name for name in wdjax.list_envs() if not wdjax.make(name)[0].groups]
TOYS = {"line": Line, "walk": Walk}


def make(name, **changes):
    if name in TOYS:
        env = TOYS[name]()
        return env, env.default_params.replace(**changes)
    return wdjax.make(name, **changes)


def unavoidable_warnings(env):
    """Return warnings about infinite bounds and actions beyond [-1, 1], which are intended."""
    spaces = (env.observation_space, env.action_space)
    boxes = [space for space in spaces if isinstance(space, gymnasium.spaces.Box)]
    expected = {"minimum value is -infinity" for box in boxes if np.isinf(box.low).any()}
    expected |= {"maximum value is infinity" for box in boxes if np.isinf(box.high).any()}
    actions = env.action_space
    if isinstance(actions, gymnasium.spaces.Box) and (np.abs(actions.high) > 1).any():
        expected.add("recommend using a symmetric and normalized space")
    return expected


@pytest.mark.parametrize("name", SINGLE)
def test_gymnasium_check_env_passes(name):
    """gymnasium.make creates them, so that render modes and closing are checked too."""
    assert f"wdjax/{name}" in register_gymnasium()
    env = gymnasium.make(f"wdjax/{name}").unwrapped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    expected = unavoidable_warnings(env)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == len(expected), messages
    assert all(any(part in line for line in messages) for part in expected), messages


@pytest.mark.filterwarnings("ignore:.*after the end")  # the rules also apply after the end
@pytest.mark.parametrize("name", [*SINGLE, *TOYS])
def test_steps_agree_with_the_environment(name):
    """A NumPy generator of the seed gives the key of an episode, split for its reset and steps."""
    env, params = make(name)
    theirs = to_gymnasium(env, params)
    rng, _ = np_random(7)
    reset_key, key = jax.random.split(jax.random.key(int(rng.integers(2**31))))
    expected_obs, state = jax.jit(env.reset)(reset_key, params)
    obs, _ = theirs.reset(seed=7)
    theirs.action_space.seed(0)
    step = jax.jit(env.step)
    for _ in range(8):
        assert obs in theirs.observation_space
        jax.tree.map(np.testing.assert_array_equal, obs, jax.device_get(expected_obs))
        action = theirs.action_space.sample()
        step_key, key = jax.random.split(key)
        own_action = action if isinstance(action, np.ndarray) else np.int32(action)
        expected_obs, state, *rest, own_info = step(step_key, state, own_action, params)
        obs, *results, info = theirs.step(action)
        assert results == [leaf.item() for leaf in rest]
        assert [type(result) for result in results] == [float, bool, bool]
        info.pop("action_mask", None)
        assert info == {name: value.item() for name, value in own_info.items()}


def play(env, num_steps=4, seed=None):
    """Return the outputs of an episode with fixed actions. `seed` is passed to the reset."""
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(1)
    steps = [obs["place"]]
    for _ in range(num_steps):
        obs, reward, *_ = env.step(env.action_space.sample())
        steps.append(np.append(obs["place"], reward))
    return np.concatenate(steps)


def test_seed_determines_this_and_later_episodes():
    env, other = (to_gymnasium(*make("line", reach=9.0)) for _ in range(2))
    episodes = [play(env, seed=3), play(env), play(env)]
    assert not np.array_equal(episodes[0], episodes[1])
    np.testing.assert_array_equal(episodes, [play(other, seed=3), play(other), play(other)])
    np.testing.assert_array_equal(episodes[0], play(env, seed=3))
    assert not np.array_equal(episodes[0], play(env, seed=4))
    np.testing.assert_array_equal(
        episodes[0], play(to_gymnasium(env.wdjax_env, env.env_params, seed=3))
    )
    unseeded = [play(to_gymnasium(env.wdjax_env, env.env_params)) for _ in range(2)]
    assert not np.array_equal(*unseeded)


def test_action_mask_is_in_the_observation_and_in_info():
    env = to_gymnasium(*make("line", reach=9.0))
    assert env.observation_space["action_mask"] == gymnasium.spaces.Box(0, 1, (3,), np.int8)
    obs, info = env.reset(seed=0)
    forbidden = 0
    for _ in range(12):
        assert obs in env.observation_space
        assert info["action_mask"].dtype == np.int8
        np.testing.assert_array_equal(info["action_mask"], obs["action_mask"])
        np.testing.assert_array_equal(info["action_mask"], [obs["place"][0] > -2, 1, 1])
        forbidden += info["action_mask"][0] == 0
        # left, until it is illegal
        mask = info["action_mask"] if forbidden else np.array([1, 0, 0], np.int8)
        action = env.action_space.sample(mask)
        assert mask[action]
        obs, *_, info = env.step(action)
    assert forbidden


def test_reset_options_change_params():
    env = to_gymnasium(*wdjax.make("cartpole", masscart=2.0))
    env.reset(seed=0)
    before = env.step(1)[0]
    compiled = advance._cache_size()
    env.reset(seed=0, options={"params": {"force_mag": 20.0}})
    assert (env.env_params.force_mag, env.env_params.masscart) == (20.0, 2.0)
    after = env.step(1)[0]
    # The cart starts near rest, so its speed after one push is about force * tau / mass.
    assert after[1] == pytest.approx(2 * before[1], rel=0.1)
    assert advance._cache_size() == compiled  # params are arguments: no recompilation
    env.reset(seed=0)
    np.testing.assert_array_equal(after, env.step(1)[0])


def test_spaces_follow_params():
    env = to_gymnasium(Walk())
    before = env.action_space
    env.reset(options={"params": {"episode_length": 9}})
    assert env.action_space is before  # the space keeps its seed
    env.reset(options={"params": {"reach": 3.5}})
    assert env.action_space == gymnasium.spaces.Box(-3.5, 3.5, (1,), np.float32)
    env.step(np.array([3.2], np.float32))
    assert to_gymnasium(*make("walk", reach=0.5)).action_space.high == 0.5


@pytest.mark.parametrize("action", [1, np.int64(1), np.array(1), np.uint8(1)])
def test_whole_numbers_of_all_types_are_actions(action):
    env = to_gymnasium(*wdjax.make("cartpole"))
    env.reset(seed=0)
    assert env.step(action)[0][1] > 0.1  # pushed to the right


@pytest.mark.parametrize("action", [[0.5], np.array([0.5]), np.array([1])])
def test_numbers_of_all_types_are_box_actions(action):
    env = to_gymnasium(Walk())
    env.reset(seed=0)
    assert env.step(action)[0].dtype == np.float32


def test_step_and_render_before_reset_raise():
    env = to_gymnasium(*wdjax.make("cartpole"), render_mode="rgb_array")
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"step\(\) before the first reset"):
        env.step(0)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"render\(\) before the first reset"):
        env.render()


def test_step_after_the_end_warns_once():
    env = to_gymnasium(*wdjax.make("cartpole"))
    env.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while not env.step(1)[2]:
            pass
    with pytest.warns(UserWarning, match=r"step\(\) after the end of the episode"):
        assert env.step(1)[1:4] == (0.0, True, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert env.step(1)[1:4] == (0.0, True, False)
        env.reset()
        assert env.step(1)[1:4] == (1.0, False, False)


def test_time_limit_truncates():
    env = to_gymnasium(*wdjax.make("cartpole", episode_length=3))
    env.reset(seed=0)
    assert [env.step(action)[2:4] for action in (0, 1, 0)] == [
        (False, False),
        (False, False),
        (False, True),
    ]


def test_returned_arrays_may_be_changed():
    env, twin = (to_gymnasium(*wdjax.make("cartpole")) for _ in range(2))
    (obs, _), _ = env.reset(seed=0), twin.reset(seed=0)
    for action in (0, 1, 1):
        obs += 5.0
        obs = env.step(action)[0]
        np.testing.assert_array_equal(obs, twin.step(action)[0])


def test_render_returns_pictures():
    env = to_gymnasium(*wdjax.make("cartpole"), render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    assert (first.shape, first.dtype) == ((480, 640, 3), np.uint8)
    env.step(1)
    assert not np.array_equal(first, env.render())
    silent = to_gymnasium(*wdjax.make("cartpole"))
    silent.reset()
    with pytest.warns(UserWarning, match="make the environment with render_mode='rgb_array'"):
        assert silent.render() is None


def test_gymnasium_make_accepts_registered_names():
    ids = register_gymnasium()
    assert ids == register_gymnasium() == [f"wdjax/{name}" for name in SINGLE]
    env = gymnasium.make("wdjax/cartpole", length=0.7, render_mode="rgb_array", seed=5)
    assert env.unwrapped.env_params.length == np.float32(0.7)
    assert (env.spec.id, env.render_mode) == ("wdjax/cartpole", "rgb_array")
    np.testing.assert_array_equal(env.reset()[0], gymnasium.make("wdjax/cartpole").reset(seed=5)[0])
    with pytest.raises(ValueError, match="'lenght': did you mean 'length'"):
        gymnasium.make("wdjax/cartpole", lenght=0.7)
    envs = gymnasium.make_vec("wdjax/cartpole", num_envs=3, episode_length=4)
    assert (envs.num_envs, envs.env_params.episode_length) == (3, 4)


class EverySpace(Walk):
    """Observes one value of every kind of space."""

    def observe(self, state, params):
        numbers = {"level": np.int32(3), "levels": np.full(2, 1, np.int32)}
        return {
            "numbers": numbers,
            "scalar": state.place,
            "picture": np.full((2, 2), 200, np.uint8),
            "pair": numbers["levels"],
        }

    def observation_space(self, params):
        return wdjax.Dict(
            {
                "numbers": wdjax.Dict(
                    {"level": wdjax.Discrete(4), "levels": wdjax.MultiDiscrete((2, 3))}
                ),
                "scalar": wdjax.Box(),
                "picture": wdjax.Box(-np.inf, np.inf, (2, 2), np.uint8),
                "pair": wdjax.Discrete(5).batch(2),
            }
        )


def test_all_kinds_of_spaces_are_converted():
    env = to_gymnasium(EverySpace())
    spaces = gymnasium.spaces
    assert env.observation_space == spaces.Dict(
        {
            "numbers": spaces.Dict(
                {"level": spaces.Discrete(4), "levels": spaces.MultiDiscrete([2, 3])}
            ),
            "scalar": spaces.Box(-np.inf, np.inf, (), np.float32),
            "picture": spaces.Box(0, 255, (2, 2), np.uint8),
            "pair": spaces.MultiDiscrete([5, 5]),
        }
    )
    obs, _ = env.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium.utils.passive_env_checker.check_obs(obs, env.observation_space, "reset")


def test_dict_actions_are_checked():
    """Names must be complete, and every part must be in its space."""

    class Hands(Walk):
        def action_space(self, params):
            return wdjax.Dict({"left": wdjax.Discrete(3), "right": wdjax.Box(-1.0, 1.0, (2,))})

        def step(self, key, state, action, params):
            return super().step(key, state, action["right"] * action["left"], params)

    env = to_gymnasium(Hands())
    env.reset(seed=0)
    raises = functools.partial(pytest.raises, ValueError)
    with raises(match=re.escape("action = {'left': 1}: must be a dict of left, right")):
        env.step({"left": 1})
    with raises(match=re.escape("action['left'] = 3: must be in Discrete(3)")):
        env.step({"left": 3, "right": [0.0, 0.0]})
    env.step(env.action_space.sample())


def test_forked_processes_raise(monkeypatch):
    to_gymnasium(*wdjax.make("cartpole"))
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with pytest.raises(
        RuntimeError, match=r"jax does not work in a forked process.*'context': 'spawn'"
    ):
        to_gymnasium(*wdjax.make("cartpole"))


ASYNC = """
import gymnasium, wdjax

def start(context):
    kwargs = {"vectorization_mode": "async", "vector_kwargs": {"context": context}}
    envs = gymnasium.make_vec("wdjax/cartpole", num_envs=2, **kwargs)
    print(envs.reset(seed=0)[0].shape, flush=True)
    envs.close()

if __name__ == "__main__":
    wdjax.adapters.register_gymnasium()
    start("spawn")
    start("fork")
"""


@pytest.mark.slow
def test_async_vectorization_spawns_and_does_not_hang_after_a_fork(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(ASYNC)
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.stdout.splitlines() == ["(2, 4)"], result.stderr  # only spawned processes
    assert result.returncode != 0
    assert "jax does not work in a forked process" in result.stderr
