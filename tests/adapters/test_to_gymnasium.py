"""A wdjax environment as a gymnasium.Env: gymnasium's own checks, the same numbers as wdjax's
steps, and refusals."""

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
    """What gymnasium thinks of spaces that its own games have too: bounds at infinity, and
    actions beyond [-1, 1]."""
    spaces = (env.observation_space, env.action_space)
    boxes = [space for space in spaces if isinstance(space, gymnasium.spaces.Box)]
    found = {"minimum value is -infinity" for box in boxes if np.isinf(box.low).any()}
    found |= {"maximum value is infinity" for box in boxes if np.isinf(box.high).any()}
    actions = env.action_space
    if isinstance(actions, gymnasium.spaces.Box) and (np.abs(actions.high) > 1).any():
        found.add("recommend using a symmetric and normalized space")
    return found


@pytest.mark.parametrize("name", SINGLE)
def test_gymnasiums_own_check_passes(name):
    """Made by gymnasium, so that its check sees the render modes and closing too."""
    assert f"wdjax/{name}" in register_gymnasium()
    env = gymnasium.make(f"wdjax/{name}").unwrapped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    expected = unavoidable_warnings(env)
    said = [str(warning.message) for warning in caught]
    assert len(said) == len(expected), said
    assert all(any(words in line for line in said) for words in expected), said


@pytest.mark.filterwarnings("ignore:.*after the end")  # where the rules are the same, too
@pytest.mark.parametrize("name", [*SINGLE, *TOYS])
def test_steps_are_those_of_the_environment(name):
    """Seed -> NumPy's generator -> the episode's key -> a key for the reset, and one for every
    step."""
    env, params = make(name)
    theirs = to_gymnasium(env, params)
    rng, _ = np_random(7)
    reset_key, key = jax.random.split(jax.random.key(int(rng.integers(2**31))))
    seen, state = jax.jit(env.reset)(reset_key, params)
    obs, _ = theirs.reset(seed=7)
    theirs.action_space.seed(0)
    step = jax.jit(env.step)
    for _ in range(8):
        assert obs in theirs.observation_space
        jax.tree.map(np.testing.assert_array_equal, obs, jax.device_get(seen))
        action = theirs.action_space.sample()
        step_key, key = jax.random.split(key)
        own_action = action if isinstance(action, np.ndarray) else np.int32(action)
        seen, state, *rest, own_info = step(step_key, state, own_action, params)
        obs, *results, info = theirs.step(action)
        assert results == [leaf.item() for leaf in rest]
        assert [type(result) for result in results] == [float, bool, bool]
        info.pop("action_mask", None)
        assert info == {name: value.item() for name, value in own_info.items()}


def play(env, num_steps=4, seed=None):
    """Returns what a walk gives, with the same actions every time; `seed` is for the reset."""
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(1)
    steps = [obs["place"]]
    for _ in range(num_steps):
        obs, reward, *_ = env.step(env.action_space.sample())
        steps.append(np.append(obs["place"], reward))
    return np.concatenate(steps)


def test_a_seed_makes_this_episode_and_the_next():
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


def test_a_dict_keeps_its_mask_and_info_gives_it_too():
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
        # left, until it is forbidden
        mask = info["action_mask"] if forbidden else np.array([1, 0, 0], np.int8)
        action = env.action_space.sample(mask)
        assert mask[action]
        obs, *_, info = env.step(action)
    assert forbidden


def test_options_change_params_from_then_on():
    env = to_gymnasium(*wdjax.make("cartpole", masscart=2.0))
    env.reset(seed=0)
    before = env.step(1)[0]
    compiled = advance._cache_size()
    env.reset(seed=0, options={"params": {"force_mag": 20.0}})
    assert (env.env_params.force_mag, env.env_params.masscart) == (20.0, 2.0)
    after = env.step(1)[0]
    # The cart starts near rest, so that its speed after one push is nearly the force times tau /
    # mass.
    assert after[1] == pytest.approx(2 * before[1], rel=0.1)
    assert advance._cache_size() == compiled  # params are arguments: no second program
    env.reset(seed=0)
    np.testing.assert_array_equal(after, env.step(1)[0])


def test_spaces_follow_params():
    env = to_gymnasium(Walk())
    before = env.action_space
    env.reset(options={"params": {"episode_length": 9}})
    assert env.action_space is before  # it keeps its own seed
    env.reset(options={"params": {"reach": 3.5}})
    assert env.action_space == gymnasium.spaces.Box(-3.5, 3.5, (1,), np.float32)
    env.step(np.array([3.2], np.float32))
    assert to_gymnasium(*make("walk", reach=0.5)).action_space.high == 0.5


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"params": {"lenght": 1.0}},
            ValueError,
            "unknown parameter of CartPole 'lenght': did you mean 'length'?",
        ),
        ({"params": {"length": -1.0}}, ValueError, "length = -1.0: must be above 0"),
        ({"params": {"length": "long"}}, TypeError, "length = 'long': must be a number"),
        ({"params": 3}, TypeError, "options['params'] = 3: must be a dict"),
        ({"parms": {}}, ValueError, "unknown option of reset 'parms': did you mean 'params'?"),
        ([1], TypeError, "options = [1]: must be a dict or None"),
    ],
)
def test_wrong_options_are_refused(options, error, words):
    env = to_gymnasium(*wdjax.make("cartpole"))
    with pytest.raises(error, match=re.escape(words)):
        env.reset(options=options)


@pytest.mark.parametrize(
    ("name", "action", "words"),
    [
        ("cartpole", 2, "action = 2: must be in Discrete(2)"),
        ("cartpole", -1, "action = -1: must be in Discrete(2)"),
        ("cartpole", 0.0, "action = 0.0: must be in Discrete(2)"),
        ("cartpole", [1], "action = [1]: must be in Discrete(2)"),
        ("cartpole", "left", "action = 'left': must be in Discrete(2)"),
        ("cartpole", None, "action = None: must be in Discrete(2)"),
        ("walk", [2.5], "action = [2.5]: must be in Box(-2.0, 2.0, (1,), float32). Clip actions"),
        ("walk", [np.nan], "action = [nan]: must be in Box(-2.0, 2.0, (1,), float32)"),
        ("walk", 1.0, "action = 1.0: must be in Box(-2.0, 2.0, (1,), float32)"),
        ("walk", np.zeros((3, 4)), "action = an array of shape (3, 4): must be in Box"),
    ],
)
def test_wrong_actions_are_refused(name, action, words):
    env = to_gymnasium(*make(name))
    env.reset()
    with pytest.raises(ValueError, match=re.escape(words)):
        env.step(action)


@pytest.mark.parametrize("action", [1, np.int64(1), np.array(1), np.uint8(1)])
def test_actions_may_be_any_whole_number(action):
    env = to_gymnasium(*wdjax.make("cartpole"))
    env.reset(seed=0)
    assert env.step(action)[0][1] > 0.1  # pushed to the right


@pytest.mark.parametrize("action", [[0.5], np.array([0.5]), np.array([1])])
def test_actions_of_a_box_may_be_any_numbers(action):
    env = to_gymnasium(Walk())
    env.reset(seed=0)
    assert env.step(action)[0].dtype == np.float32


def test_a_reset_comes_first():
    env = to_gymnasium(*wdjax.make("cartpole"), render_mode="rgb_array")
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"step\(\) before the first reset"):
        env.step(0)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"render\(\) before the first reset"):
        env.render()


def test_a_step_after_the_end_warns_once_and_stays_ended():
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


def test_a_time_limit_truncates():
    env = to_gymnasium(*wdjax.make("cartpole", episode_length=3))
    env.reset(seed=0)
    assert [env.step(action)[2:4] for action in (0, 1, 0)] == [
        (False, False),
        (False, False),
        (False, True),
    ]


def test_arrays_belong_to_the_caller():
    env, twin = (to_gymnasium(*wdjax.make("cartpole")) for _ in range(2))
    (obs, _), _ = env.reset(seed=0), twin.reset(seed=0)
    for action in (0, 1, 1):
        obs += 5.0
        obs = env.step(action)[0]
        np.testing.assert_array_equal(obs, twin.step(action)[0])


def test_pictures():
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


def test_gymnasium_makes_them_by_name():
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


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            "tag_continuous",
            ValueError,
            "has groups of agents (tagger, runner): gymnasium supports a single agent",
        ),
        (("cartpole",), TypeError, "env = 'cartpole': must be a wdjax.Env"),
        (
            (Walk(), Line().default_params),
            TypeError,
            "params is a toy_contract.LineParams: must be a Params of Walk",
        ),
        (
            (Walk(), None, "human"),
            ValueError,
            "unknown render_mode 'human': known names: rgb_array",
        ),
    ],
)
def test_what_cannot_be_translated_is_refused(arguments, error, words):
    arguments = wdjax.make(arguments) if isinstance(arguments, str) else arguments
    with pytest.raises(error, match=re.escape(words)):
        to_gymnasium(*arguments)


class EverySpace(Walk):
    """Sees one value of every kind of space."""

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


def test_every_kind_of_space():
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


def test_actions_of_a_dict():
    """A game of two hands: the names must be there, and every part inside its space."""

    class Hands(Walk):
        def action_space(self, params):
            return wdjax.Dict({"left": wdjax.Discrete(3), "right": wdjax.Box(-1.0, 1.0, (2,))})

        def step(self, key, state, action, params):
            return super().step(key, state, action["right"] * action["left"], params)

    env = to_gymnasium(Hands())
    env.reset(seed=0)
    refused = functools.partial(pytest.raises, ValueError)
    with refused(match=re.escape("action = {'left': 1}: must be a dict of left, right")):
        env.step({"left": 1})
    with refused(match=re.escape("action['left'] = 3: must be in Discrete(3)")):
        env.step({"left": 3, "right": [0.0, 0.0]})
    env.step(env.action_space.sample())


def test_a_forked_process_is_refused(monkeypatch):
    to_gymnasium(*wdjax.make("cartpole"))
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with pytest.raises(
        RuntimeError, match=r"jax does not work in a forked process.*'context': 'spawn'"
    ):
        to_gymnasium(*wdjax.make("cartpole"))


ASYNC = """
import sys, gymnasium, wdjax
if __name__ == "__main__":
    wdjax.adapters.register_gymnasium()
    kwargs = {"vector_kwargs": {"context": sys.argv[1]}}
    envs = gymnasium.make_vec("wdjax/cartpole", num_envs=2, vectorization_mode="async", **kwargs)
    print(envs.reset(seed=0)[0].shape)
    envs.close()
"""


@pytest.mark.slow
def test_async_vectorization_spawns_and_does_not_hang_after_a_fork(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(ASYNC)
    fork, spawn = (
        subprocess.run(
            [sys.executable, script, context], capture_output=True, text=True, timeout=240
        )
        for context in ("fork", "spawn")
    )
    assert fork.returncode != 0
    assert "jax does not work in a forked process" in fork.stderr
    assert spawn.stdout.splitlines()[-1] == "(2, 4)", spawn.stderr
