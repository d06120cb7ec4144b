"""`make`, `register` and `list_envs`: accepted arguments and errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_walk import Walk

import wdjax
import wdjax.envs

CONTINUOUS_ARGUMENTS = {
    "num_taggers": 2,
    "num_runners": 3,
    "grid_length": 20.0,
    "episode_length": 500,
    "starting_location_x": np.arange(5.0),
    "starting_location_y": np.arange(5.0),
    "starting_directions": np.zeros(5),
    "max_speed": 1.5,
    "skill_level_runner": 0.9,
    "skill_level_tagger": 1.2,
    "max_acceleration": 0.1,
    "min_acceleration": -0.1,
    "max_turn": 2.356,
    "min_turn": -2.356,
    "num_acceleration_levels": 20,
    "num_turn_levels": 20,
    "edge_hit_penalty": -0.5,
    "use_full_observation": False,
    "num_other_agents_observed": 5,
    "tagging_distance": 0.02,
    "tag_reward_for_tagger": 10.0,
    "step_penalty_for_tagger": -0.1,
    "tag_penalty_for_runner": -10.0,
    "step_reward_for_runner": 0.1,
    "end_of_game_reward_for_runner": 2.0,
    "runner_exits_game_after_tagged": False,
}
GRIDWORLD_ARGUMENTS = {
    "num_taggers": 4,
    "grid_length": 100,
    "episode_length": 50,
    "starting_location_x": np.arange(5),
    "starting_location_y": np.arange(5),
    "wall_hit_penalty": 0.2,
    "tag_reward_for_tagger": 5.0,
    "tag_penalty_for_runner": 5.0,
    "step_cost_for_tagger": 0.02,
    "use_full_observation": False,
}
CARTPOLE_ARGUMENTS = {
    "gravity": 9.0,
    "masscart": 2.0,
    "masspole": 0.2,
    "length": 0.6,
    "force_mag": 9.0,
    "tau": 0.01,
    "theta_threshold_radians": 0.3,
    "x_threshold": 2.0,
    "episode_length": 200,
}
EVERY_ARGUMENT = {
    "tag_continuous": CONTINUOUS_ARGUMENTS,
    "tag_gridworld": GRIDWORLD_ARGUMENTS,
    "cartpole": CARTPOLE_ARGUMENTS,
}
TAG_DEFAULTS = {
    "num_taggers": 1,
    "num_runners": 10,
    "grid_length": 10.0,
    "episode_length": 100,
    "starting_location_x": None,
    "starting_location_y": None,
    "starting_directions": None,
    "max_speed": 1.0,
    "skill_level_runner": 1.0,
    "skill_level_tagger": 1.0,
    "max_acceleration": 1.0,
    "min_acceleration": -1.0,
    "max_turn": np.pi / 2,
    "min_turn": -np.pi / 2,
    "num_acceleration_levels": 10,
    "num_turn_levels": 10,
    "edge_hit_penalty": 0.0,
    "use_full_observation": True,
    "num_other_agents_observed": 2,
    "tagging_distance": 0.01,
    "tag_reward_for_tagger": 1.0,
    "step_penalty_for_tagger": 0.0,
    "tag_penalty_for_runner": -1.0,
    "step_reward_for_runner": 0.0,
    "end_of_game_reward_for_runner": 1.0,
    "runner_exits_game_after_tagged": True,
}
GRID_DEFAULTS = {
    "num_taggers": 10,
    "grid_length": 10,
    "episode_length": 100,
    "starting_location_x": None,
    "starting_location_y": None,
    "wall_hit_penalty": 0.1,
    "tag_reward_for_tagger": 10.0,
    "tag_penalty_for_runner": 2.0,
    "step_cost_for_tagger": 0.01,
    "use_full_observation": True,
    "random_start": False,
}


def value_of(env, params, name):
    static = {field.name for field in dataclasses.fields(env)}
    return getattr(env if name in static else params, name)


@pytest.mark.parametrize(
    ("name", "argument"), [(n, a) for n, arguments in EVERY_ARGUMENT.items() for a in arguments]
)
def test_make_stores_every_argument(name, argument):
    sizes = {
        key: EVERY_ARGUMENT[name][key]
        for key in ("num_taggers", "num_runners")
        if key in EVERY_ARGUMENT[name]
    }
    pair = {"starting_location_x", "starting_location_y"}
    chosen = pair if argument in pair else {argument}
    env, params = wdjax.make(
        name, **sizes, **{key: EVERY_ARGUMENT[name][key] for key in chosen - set(sizes)}
    )
    np.testing.assert_allclose(
        value_of(env, params, argument), EVERY_ARGUMENT[name][argument], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "defaults"), [("tag_continuous", TAG_DEFAULTS), ("tag_gridworld", GRID_DEFAULTS)]
)
def test_make_uses_the_documented_defaults(name, defaults):
    env, params = wdjax.make(name)
    for key, value in defaults.items():
        if value is None:
            assert value_of(env, params, key) is None
        else:
            np.testing.assert_allclose(value_of(env, params, key), value, rtol=1e-6)


@pytest.mark.parametrize("name", wdjax.list_envs())
def test_params_are_32_bit_numpy_numbers(name):
    _, params = wdjax.make(name)
    for leaf in jax.tree.leaves(params):
        assert leaf.dtype in (np.float32, np.int32, np.bool_)
        assert not isinstance(leaf, jax.Array)  # no array is put on a device


@pytest.mark.parametrize(
    "value",
    [
        2,
        np.int64(2),
        np.float64(2),
        np.float32(2),
        np.array(2.0),
        jnp.float32(2),
        jnp.array(2),
        2.0,
    ],
    ids=repr,
)
def test_make_accepts_all_kinds_of_numbers(value):
    _, params = wdjax.make("tag_continuous", max_speed=value)
    assert params.max_speed == 2
    assert params.max_speed.dtype == np.float32


def test_make_accepts_all_kinds_of_arrays():
    expected = np.array([1, 2, 3], np.float32)
    for x in ([1, 2, 3], (1.0, 2.0, 3.0), np.array([1, 2, 3]), jnp.array([1.0, 2.0, 3.0])):
        _, params = wdjax.make(
            "tag_continuous", num_runners=2, starting_location_x=x, starting_location_y=x
        )
        np.testing.assert_array_equal(params.starting_location_x, expected)
        assert params.starting_location_x.dtype == np.float32
    assert isinstance(params.starting_location_x, jax.Array)  # arrays on a device stay there


def test_static_sizes_may_be_numpy_integers():
    env, _ = wdjax.make("tag_continuous", num_taggers=np.int64(3))
    assert env == wdjax.make("tag_continuous", num_taggers=3)[0]
    assert hash(env) == hash(wdjax.make("tag_continuous", num_taggers=3)[0])


# (environment, arguments, error, parts of its message: the field, its value, the allowed values)
TAG, GRID, POLE = "tag_continuous", "tag_gridworld", "cartpole"
MALFORMED = [
    (TAG, {"num_tagers": 3}, ValueError, ["num_tagers", "did you mean 'num_taggers'?"]),
    (TAG, {"max_sped": 3}, ValueError, ["max_sped", "did you mean 'max_speed'?"]),
    (TAG, {"seed": 3}, ValueError, ["unknown parameter of TagContinuous 'seed'"]),
    (TAG, {"env_backend": "cpu"}, ValueError, ["'env_backend'"]),
    (GRID, {"num_runners": 2}, ValueError, ["unknown parameter of TagGridworld 'num_runners'"]),
    (POLE, {"mass_pole": 0.2}, ValueError, ["did you mean 'masspole'?"]),
    (TAG, {"num_taggers": 0}, ValueError, ["num_taggers = 0", "at least 1"]),
    (TAG, {"num_runners": -1}, ValueError, ["num_runners = -1", "at least 1"]),
    (TAG, {"num_taggers": 2.0}, TypeError, ["num_taggers = 2.0", "whole number"]),
    (TAG, {"num_taggers": "2"}, TypeError, ["num_taggers = '2'", "whole number"]),
    (TAG, {"num_runners": True}, TypeError, ["num_runners = True", "whole number"]),
    (TAG, {"num_runners": None}, TypeError, ["num_runners = None", "whole number"]),
    (TAG, {"num_runners": np.array(3)}, TypeError, ["num_runners", "whole number"]),
    (
        TAG,
        {"num_acceleration_levels": -1},
        ValueError,
        ["num_acceleration_levels = -1", "at least 0"],
    ),
    (TAG, {"num_turn_levels": 3.5}, TypeError, ["num_turn_levels = 3.5", "whole number"]),
    (
        TAG,
        {"num_other_agents_observed": 12, "use_full_observation": False},
        ValueError,
        ["num_other_agents_observed = 12", "at most 11"],
    ),
    (
        TAG,
        {"num_other_agents_observed": 0},
        ValueError,
        ["num_other_agents_observed = 0", "at least 1"],
    ),
    (
        TAG,
        {"use_full_observation": "no"},
        TypeError,
        ["use_full_observation = 'no'", "True or False"],
    ),
    (
        TAG,
        {"runner_exits_game_after_tagged": 2},
        TypeError,
        ["runner_exits_game_after_tagged = 2", "True or False"],
    ),
    (TAG, {"grid_length": 0.0}, ValueError, ["grid_length", "0.0", "above 0"]),
    (TAG, {"grid_length": "10"}, TypeError, ["grid_length = '10'", "a number"]),
    (TAG, {"grid_length": None}, TypeError, ["grid_length = None", "a number"]),
    (TAG, {"episode_length": 0}, ValueError, ["episode_length", "0", "above 0"]),
    (TAG, {"episode_length": 10.0}, TypeError, ["episode_length = 10.0", "a whole number"]),
    (TAG, {"episode_length": 2**32 + 5}, ValueError, ["episode_length = 4294967301", "int32"]),
    (TAG, {"max_speed": -1}, ValueError, ["max_speed", "-1.0", "above 0"]),
    (TAG, {"max_speed": float("nan")}, ValueError, ["max_speed = nan", "not NaN"]),
    (TAG, {"max_speed": 1e39}, ValueError, ["max_speed = 1e+39", "float32"]),
    (TAG, {"max_speed": 1j}, TypeError, ["max_speed = 1j", "a number"]),
    (TAG, {"max_speed": False}, TypeError, ["max_speed = False", "a number"]),
    (TAG, {"skill_level_tagger": 0}, ValueError, ["skill_level_tagger", "above 0"]),
    (TAG, {"edge_hit_penalty": 0.1}, ValueError, ["edge_hit_penalty", "0.1", "at most 0"]),
    (TAG, {"step_penalty_for_tagger": 0.1}, ValueError, ["step_penalty_for_tagger", "at most 0"]),
    (TAG, {"tag_penalty_for_runner": 1.0}, ValueError, ["tag_penalty_for_runner", "at most 0"]),
    (TAG, {"tag_reward_for_tagger": -1.0}, ValueError, ["tag_reward_for_tagger", "at least 0"]),
    (TAG, {"step_reward_for_runner": -1.0}, ValueError, ["step_reward_for_runner", "at least 0"]),
    (
        TAG,
        {"end_of_game_reward_for_runner": -1.0},
        ValueError,
        ["end_of_game_reward_for_runner", "at least 0"],
    ),
    (TAG, {"tagging_distance": 1.5}, ValueError, ["tagging_distance", "1.5", "between 0 and 1"]),
    (TAG, {"tagging_distance": -0.1}, ValueError, ["tagging_distance", "between 0 and 1"]),
    (TAG, {"min_turn": 2.0, "max_turn": 1.0}, ValueError, ["min_turn", "2.0", "at most max_turn"]),
    (TAG, {"min_acceleration": 2.0}, ValueError, ["min_acceleration", "at most max_acceleration"]),
    (TAG, {"starting_location_x": np.ones(11)}, ValueError, ["starting_location_y", "together"]),
    (TAG, {"starting_location_y": np.ones(11)}, ValueError, ["starting_location_y", "together"]),
    (
        TAG,
        {"starting_location_x": np.ones(3), "starting_location_y": np.ones(3)},
        ValueError,
        ["starting_location_x", "11 numbers"],
    ),
    (
        TAG,
        {"starting_location_x": 10.5 * np.ones(11), "starting_location_y": np.ones(11)},
        ValueError,
        ["starting_location_x", "between 0 and grid_length"],
    ),
    (
        TAG,
        {"starting_location_x": np.ones(11), "starting_location_y": -np.ones(11)},
        ValueError,
        ["starting_location_y", "between 0 and grid_length"],
    ),
    (TAG, {"starting_directions": np.zeros(2)}, ValueError, ["starting_directions", "11 numbers"]),
    (TAG, {"starting_directions": ["north"] * 11}, TypeError, ["starting_directions", "numbers"]),
    (TAG, {"starting_directions": np.full(11, np.nan)}, ValueError, ["starting_directions", "NaN"]),
    (GRID, {"num_taggers": 0}, ValueError, ["num_taggers = 0", "at least 1"]),
    (GRID, {"random_start": 1}, TypeError, ["random_start = 1", "True or False"]),
    (GRID, {"grid_length": 0}, ValueError, ["grid_length", "at least 1"]),
    (GRID, {"grid_length": 1, "random_start": True}, ValueError, ["grid_length", "at least 2"]),
    (GRID, {"grid_length": 5.0}, TypeError, ["grid_length = 5.0", "whole number"]),
    (GRID, {"wall_hit_penalty": -0.1}, ValueError, ["wall_hit_penalty", "at least 0"]),
    (GRID, {"starting_location_x": [1] * 11}, ValueError, ["starting_location_y", "together"]),
    (
        GRID,
        {"starting_location_x": [1] * 11, "starting_location_y": [11] * 11},
        ValueError,
        ["starting_location_y", "whole cells from 0 to grid_length"],
    ),
    (
        GRID,
        {"starting_location_x": [0.5] * 11, "starting_location_y": [1] * 11},
        ValueError,
        ["starting_location_x", "whole cells"],
    ),
    (
        GRID,
        {"starting_location_x": [1] * 11, "starting_location_y": [1] * 11, "random_start": True},
        ValueError,
        ["starting_location_x", "None if random_start is true"],
    ),
    (POLE, {"masspole": 0.0}, ValueError, ["masspole", "above 0"]),
    (POLE, {"tau": -0.02}, ValueError, ["tau", "above 0"]),
    (POLE, {"episode_length": -5}, ValueError, ["episode_length", "-5", "above 0"]),
    (POLE, {"gravity": "moon"}, TypeError, ["gravity = 'moon'", "a number"]),
    (POLE, {"gravity": [1.0, [2.0]]}, TypeError, ["gravity = [1.0, [2.0]]", "a number"]),
    (POLE, {"gravity": float("inf")}, ValueError, ["gravity = inf", "finite"]),
    (TAG, {"grid_length": float("inf")}, ValueError, ["grid_length = inf", "finite"]),
    (
        TAG,
        {"tag_penalty_for_runner": -float("inf")},
        ValueError,
        ["tag_penalty_for_runner = -inf", "finite"],
    ),
    (
        GRID,
        {"tag_reward_for_tagger": float("inf")},
        ValueError,
        ["tag_reward_for_tagger = inf", "finite"],
    ),
    (GRID, {"grid_length": 60_000}, ValueError, ["grid_length = 60000", "at most 32767"]),
    ("pendulum", {"max_torque": float("inf")}, ValueError, ["max_torque = inf", "finite"]),
    ("mountain_car", {"force": float("inf")}, ValueError, ["force = inf", "finite"]),
    (
        "continuous_mountain_car",
        {"max_action": float("inf")},
        ValueError,
        ["max_action = inf", "finite"],
    ),
    (
        "acrobot",
        {"AVAIL_TORQUE": (-1, 0, float("inf"))},
        ValueError,
        ["AVAIL_TORQUE = [-1.0, 0.0, inf]", "finite"],
    ),
    ("acrobot", {"dt": 701.0}, ValueError, ["dt = 701.0", "at most 1 s"]),
    ("acrobot", {"gravity": -1e4}, ValueError, ["gravity = -10000.0", "between -1000 and 1000"]),
    (POLE, {"force_mag": 3e38}, ValueError, ["force_mag = 3", "between -1e+18 and 1e+18"]),
    ("cartpol", {}, ValueError, ["unknown environment 'cartpol'", "did you mean 'cartpole'?"]),
    ("tag_continous", {}, ValueError, ["did you mean 'tag_continuous'?"]),
    ("zzzzz", {}, ValueError, ["known names:", "tag_gridworld"]),
    (7, {}, TypeError, ["environment 7", "must be a string"]),
    (None, {}, TypeError, ["environment None", "must be a string"]),
]


@pytest.mark.parametrize(
    ("name", "arguments", "error", "parts"), MALFORMED, ids=lambda value: str(value)[:60]
)
def test_malformed_arguments_raise(name, arguments, error, parts):
    with pytest.raises(error) as caught:
        wdjax.make(name, **arguments)
    for part in parts:
        assert part in str(caught.value)


def test_list_envs_is_sorted():
    names = wdjax.list_envs()
    assert names == sorted(names)
    assert {"cartpole", "tag_continuous", "tag_gridworld"} <= set(names)


@pytest.mark.usefixtures("registry")
def test_registered_classes_may_be_registered_again():
    wdjax.register("walk", Walk)
    assert "walk" in wdjax.list_envs()
    env, params = wdjax.make("walk", reach=3)
    assert env == Walk()
    assert (params.reach, params.episode_length) == (3, 6)
    redefined = type(
        "Walk", (Walk,), {"__module__": Walk.__module__, "__qualname__": Walk.__qualname__}
    )
    # registering again is allowed: running a notebook cell twice creates the class anew
    wdjax.register("walk", redefined)
    assert type(wdjax.make("walk")[0]) is redefined
    wdjax.register("walk", Walk)
    with pytest.raises(ValueError, match="did you mean 'reach'"):
        wdjax.make("walk", reech=3)


@pytest.mark.usefixtures("registry")
def test_registered_instances_set_the_defaults_of_make():
    """Static fields are defaults of `make`. A field that is not an argument keeps its value."""

    @dataclasses.dataclass(frozen=True)
    class Named(Walk):
        legs: int = 2
        tune: str = dataclasses.field(default="", metadata={"argument": False})

    wdjax.register("walk", Named(legs=4, tune="la"))
    wdjax.register("walk", Named(legs=4, tune="la"))
    assert wdjax.make("walk") == (Named(legs=4, tune="la"), wdjax.make("walk")[1])
    env, params = wdjax.make("walk", legs=6, reach=3)
    assert env == Named(legs=6, tune="la")
    assert params.reach == 3
    assert wdjax.envs.env_class("walk") is Named
    with pytest.raises(ValueError, match="unknown parameter of Named 'tune'"):
        wdjax.make("walk", tune="lo")
    with pytest.raises(ValueError, match="unknown parameter of Named 'legz': did you mean 'legs'"):
        wdjax.make("walk", legz=3)
    with pytest.raises(ValueError, match="must be a name that is not in use"):
        wdjax.register("walk", Named(legs=5, tune="la"))
    wdjax.register("walk", Named(legs=5, tune="la"), replace=True)
    assert wdjax.make("walk")[0].legs == 5


@pytest.mark.usefixtures("registry")
def test_register_rejects_names_in_use_and_other_values():
    with pytest.raises(ValueError, match=r"name = 'cartpole': must be a name that is not in use"):
        wdjax.register("cartpole", Walk)
    for bad in (dict, "walk", None):
        with pytest.raises(TypeError, match=r"must be a subclass of wdjax\.Env"):
            wdjax.register("other", bad)
    assert "other" not in wdjax.list_envs()

    @dataclasses.dataclass(frozen=True)
    class Legged(Walk):
        legs: int

    with pytest.raises(
        TypeError, match=r"Legged\.legs has no default. Add a default, or register an instance"
    ):
        wdjax.register("other", Legged)
    wdjax.register("other", Legged(4))
    assert wdjax.make("other")[0] == Legged(4)
    with pytest.raises(TypeError, match="name"):
        wdjax.register(3, Walk)


def test_rows_of_unequal_lengths_are_refused_by_name():
    with pytest.raises(
        ValueError, match=r"K_0 = \[\[1.0\], \[1.0, 2.0\]\]: must be numbers in the"
    ):
        wdjax.make("rice", K_0=[[1.0], [1.0, 2.0]])
