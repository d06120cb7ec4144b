"""Params of classic control: rejected values, and a parameter with several numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.train import complete_env_params, load_config
from wdjax.train.storage.folder import load_run_config, write_config

# (environment, invalid value, part of the message)
ACROBOT, CAR, CONTINUOUS, PENDULUM = (
    "acrobot",
    "mountain_car",
    "continuous_mountain_car",
    "pendulum",
)
REFUSED = [
    *[
        (ACROBOT, {name: 0.0}, f"{name} = 0.0: must be above 0")
        for name in (
            "LINK_LENGTH_1",
            "LINK_LENGTH_2",
            "LINK_MASS_1",
            "LINK_MASS_2",
            "LINK_MOI",
            "dt",
        )
    ],
    (ACROBOT, {"LINK_COM_POS_1": -0.5}, "LINK_COM_POS_1 = -0.5: must be at least 0"),
    (ACROBOT, {"LINK_COM_POS_2": -0.5}, "LINK_COM_POS_2 = -0.5: must be at least 0"),
    (ACROBOT, {"MAX_VEL_1": 0.0}, "MAX_VEL_1 = 0.0: must be at least 0.1"),
    (ACROBOT, {"MAX_VEL_2": -1.0}, "MAX_VEL_2 = -1.0: must be at least 0.1"),
    (ACROBOT, {"episode_length": 0}, "episode_length = 0: must be above 0"),
    (ACROBOT, {"link_mass_1": 1.0}, "did you mean 'LINK_MASS_1'?"),
    (ACROBOT, {"AVAIL_TORQUE": [1, 2]}, r"AVAIL_TORQUE = \[1, 2\]: must be 3 numbers"),
    (ACROBOT, {"AVAIL_TORQUE": 3}, "AVAIL_TORQUE = 3: must be 3 numbers"),
    (ACROBOT, {"AVAIL_TORQUE": None}, "AVAIL_TORQUE = None: must be 3 numbers"),
    (ACROBOT, {"AVAIL_TORQUE": "abc"}, "AVAIL_TORQUE = 'abc': must be 3 numbers"),
    (ACROBOT, {"AVAIL_TORQUE": [1, 2, "x"]}, "AVAIL_TORQUE = .*must be 3 numbers"),
    (ACROBOT, {"AVAIL_TORQUE": [[1, 2], [3]]}, "AVAIL_TORQUE = .*must be 3 numbers"),
    (
        ACROBOT,
        {"AVAIL_TORQUE": [1, 2, float("nan")]},
        "AVAIL_TORQUE = .*must be 3 numbers within.*not NaN",
    ),
    *[
        (name, changes, words)
        for name in (CAR, CONTINUOUS)
        for changes, words in (
            (
                {"min_position": -0.5},
                "min_position = -0.5.*: must be at most -0.6, the lowest start position",
            ),
            (
                {"max_position": -0.5},
                "max_position = -0.5.*: must be at least -0.4, the highest start position",
            ),
            (
                {"goal_position": 0.7},
                "goal_position = 0.69.*: must be at least -0.4, .* and at most max_position",
            ),
            ({"goal_position": -0.41}, "goal_position = -0.4.*: must be at least -0.4"),
            ({"max_speed": 0.0}, "max_speed = 0.0: must be above 0"),
            ({"episode_length": -1}, "episode_length = -1: must be above 0"),
        )
    ],
    (CONTINUOUS, {"min_action": 1.0}, "min_action = 1.0: must be below max_action = 1.0"),
    *[
        (PENDULUM, {name: 0}, f"{name} = 0.*: must be above 0")
        for name in ("max_torque", "dt", "m", "l")
    ],
    (
        PENDULUM,
        {"max_speed": 0.5},
        "max_speed = 0.5: must be at least 1.0, the largest initial speed",
    ),
    (PENDULUM, {"episode_length": 0}, "episode_length = 0: must be above 0"),
    (PENDULUM, {"g": 9.81}, "known names|did you mean"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_invalid_params_raise(name, changes, words):
    with pytest.raises((ValueError, TypeError), match=words):
        wdjax.make(name, **changes)


def test_params_at_their_limits_are_accepted():
    wdjax.make(ACROBOT, MAX_VEL_1=0.1, LINK_COM_POS_1=0.0)
    for name in (CAR, CONTINUOUS):
        wdjax.make(name, min_position=-0.6, max_position=-0.4, goal_position=-0.4)
    wdjax.make(PENDULUM, max_speed=1.0)


def test_action_spaces_depend_on_params():
    env, params = wdjax.make(CONTINUOUS, min_action=-0.5, max_action=1.5)
    assert env.action_space(params) == wdjax.Box(-0.5, 1.5, (1,))
    env, params = wdjax.make(PENDULUM, max_torque=3.5)
    assert env.action_space(params) == wdjax.Box(-3.5, 3.5, (1,))


@pytest.mark.parametrize(
    "torques",
    [[-2, 0, 2], (-2.0, 0.0, 2.0), np.array([-2, 0, 2]), jnp.array([-2.0, 0.0, 2.0])],
    ids=repr,
)
def test_make_accepts_all_kinds_of_torques(torques):
    _, params = wdjax.make(ACROBOT, AVAIL_TORQUE=torques)
    np.testing.assert_array_equal(params.AVAIL_TORQUE, [-2, 0, 2])
    assert params.AVAIL_TORQUE.dtype == np.float32
    assert isinstance(params.AVAIL_TORQUE, jax.Array) == isinstance(torques, jax.Array)


def test_replicas_may_have_different_torques():
    """All params have a leading axis, one has two axes. Replicas agree with single runs."""
    env, one = wdjax.make(ACROBOT)
    torques = np.array([[-1, 0, 1], [-2, 0, 2], [3, 3, 3]], np.float32)
    many = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (3, *leaf.shape)), one).replace(
        AVAIL_TORQUE=torques
    )
    assert wdjax.make(ACROBOT, AVAIL_TORQUE=torques)[1].AVAIL_TORQUE.shape == (3, 3)
    replicas = wdjax.vectorize(env, 3, params_axis=0)
    _, start = jax.jit(replicas.reset)(jax.random.key(0), many)
    _, after, *_ = jax.jit(replicas.step)(jax.random.key(1), start, jnp.full(3, 2), many)
    for i in range(3):
        state = jax.tree.map(lambda leaf, i=i: leaf[i], start.env_state)
        params = wdjax.make(ACROBOT, AVAIL_TORQUE=torques[i])[1]
        _, alone, *_ = jax.jit(env.step)(jax.random.key(0), state, jnp.int32(2), params)
        np.testing.assert_allclose(
            after.env_state.theta2_dot[i], alone.theta2_dot, rtol=1e-5, atol=1e-6
        )
    assert len(np.unique(np.round(after.env_state.theta2_dot, 1))) == 3


def test_torques_round_trip_through_config_yaml(tmp_path):
    config = complete_env_params(
        load_config("acrobot", **{"env_params.AVAIL_TORQUE": [-2, 0, 2.5]})
    )
    assert config.env_params["AVAIL_TORQUE"] == (-2.0, 0.0, 2.5)
    assert all(type(number) is float for number in config.env_params["AVAIL_TORQUE"])
    write_config(tmp_path, config)
    loaded = complete_env_params(load_run_config(tmp_path))
    assert loaded == config
    assert complete_env_params(load_config("acrobot")).env_params["AVAIL_TORQUE"] == (
        -1.0,
        0.0,
        1.0,
    )


def test_runs_require_one_set_of_torques():
    with pytest.raises(
        ValueError, match=r"env_params.AVAIL_TORQUE = .*3 numbers, shared by all replicas"
    ):
        load_config("acrobot", **{"env_params.AVAIL_TORQUE": [[-2, 0, 2], [-1, 0, 1]]})
    with pytest.raises(
        ValueError, match=r"env_params.gravity = .*one number, shared by all replicas"
    ):
        load_config("acrobot", **{"env_params.gravity": [9.8, 5.0]})
