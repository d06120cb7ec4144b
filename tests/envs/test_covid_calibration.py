"""Calibrations of covid_economy: golden numbers, files, and errors."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from shared_data import shared

import wdjax
from wdjax.envs.covid import load_calibration, load_policy, synthetic_calibration
from wdjax.train import complete_env_params, load_config


def as_file(calibration, days_after=3):
    """Return the content of a calibration file, in which levels continue after day 0."""
    names = [field.name for field in dataclasses.fields(calibration)]
    data = {name: getattr(calibration, name).tolist() for name in names}
    levels = np.array(data.pop("policy"))
    levels = np.concatenate([levels, np.repeat(levels[-1:], days_after, axis=0)])
    digits = ["".join(str(level) for level in column) for column in levels.T]
    constant = {"start_index": 81, "num_stringency_levels": 10, "beta_delay": 29}
    return {**data, **constant, "policy_digits_per_state": digits}


def written(tmp_path, data):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(data))
    return path


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_golden_calibration_of_five_states():
    with jax.enable_x64(True):
        of = synthetic_calibration(5)
    assert of.population.dtype == np.float64
    np.testing.assert_array_equal(of.population, [3033106, 15332892, 1550209, 7836586, 792306])
    np.testing.assert_array_equal(of.policy[-1], [6, 5, 5, 4, 6])
    assert of.init_unemployed.sum() == 2074693
    np.testing.assert_allclose(
        of.planner_health_index_min_max, [-0.008435485, -8.108282e-5], rtol=1e-7
    )
    np.testing.assert_allclose(
        of.planner_economic_index_min_max, [0.0022421195, 0.0027064814], rtol=1e-7
    )


def test_levels_rise_before_day_0():
    """With final level 6: 1, then 2 from 75 days before, then one more every three days.

    The last change is 5 days before day 0.
    """
    policy = synthetic_calibration(5).policy[:, 0]
    assert policy.shape == (82,)
    assert policy[81 - 76] == 1
    assert policy[81 - 75] == 2
    ago = np.array([17, 16, 14, 13, 11, 10, 8, 7, 0])
    np.testing.assert_array_equal(policy[81 - ago], [2, 3, 3, 4, 4, 5, 5, 6, 6])


def test_calibration_depends_on_the_seed():
    same(synthetic_calibration(3, seed=1), synthetic_calibration(3, seed=1))
    assert (
        synthetic_calibration(3, seed=1).population != synthetic_calibration(3).population
    ).all()
    assert synthetic_calibration(3).population.dtype == np.float32


def test_calibration_round_trips_through_a_file(tmp_path):
    with jax.enable_x64(True):
        of = synthetic_calibration(4)
        path = written(tmp_path, as_file(of))
        same(load_calibration(path, 4), of)
    assert load_policy(path).shape == (4, 4)
    env, params = wdjax.make("covid_economy", num_states=4, calibration_file=str(path))
    same(params.calibration, synthetic_calibration(4))
    assert env.calibration_file == str(path)


def test_shared_file_equals_the_synthetic_calibration():
    with jax.enable_x64(True):
        same(load_calibration(shared("covid", "synthetic_5.json"), 5), synthetic_calibration(5))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "population",
            [1e6, 2e6, 3e6],
            r"shape of population = \(3,\): must be of shape \(2,\), for num_states = 2",
        ),
        ("population", [1e6, -1.0], "population = .*: must be above 0"),
        ("population", None, "population = None: must be a list of numbers"),
        ("gamma", float("nan"), "gamma = nan: must be finite"),
        ("gamma", [0.1], "gamma = .*: must be a number"),
        (
            "filter_weights",
            [[1, 2, 3, 4, 5]],
            r"shape of filter_weights = \(1, 5\): must be of shape \(2, 5\)",
        ),
        (
            "filter_weights",
            [[1, 2, 3, 4, 5], [1]],
            "filter_weights = .*: must be a list of equally long lists",
        ),
        ("conv_lambdas", [30, 60, 120, 0, 480], "conv_lambdas = .*: must be above 0"),
        ("agent_alpha", [0.5, 1.0], "agent_alpha = .*: must be above 0 and below 1"),
        ("planner_alpha", 0.0, "planner_alpha = 0.0: must be above 0 and below 1"),
        ("death_rate", 1.5, "death_rate = 1.5: must be between 0 and 1"),
        ("unemployment_bias", [-1.0, 2.0], "unemployment_bias = .*: must be a percentage"),
        (
            "agent_health_index_max",
            [-1.0, -1.0],
            "agent_health_index_max = .*: must be above agent_health_index_min",
        ),
        (
            "planner_economic_index_min_max",
            [0.003, 0.002],
            "planner_economic_index_min_max = .*: must be a minimum",
        ),
        (
            "init_infected",
            [1e12, 1.0],
            "init_infected = .*: must be at least 0 persons and at most the population",
        ),
        ("init_unemployed", [-1.0, 1.0], "init_unemployed = .*: must be at least 0 persons"),
        (
            "us_population",
            1000.0,
            "us_population = 1000.0: must be at least the population of all states",
        ),
        ("beta_delay", 14, "beta_delay = 14: must be 29"),
        ("num_stringency_levels", 5, "num_stringency_levels = 5: must be 10"),
        ("filter_len", 60, "filter_len = 60: must be at least the 82 days"),
        (
            "start_index",
            85,
            "start_index = 85: must be an index into policy_digits_per_state, 0 to 84",
        ),
        (
            "policy_digits_per_state",
            ["12", "1"],
            "policy_digits_per_state = .*: must be a list of strings of equal",
        ),
        (
            "policy_digits_per_state",
            ["1" * 85, "1" * 84 + "0"],
            "policy_digits_per_state = .*: must be a list",
        ),
        ("policy_digits_per_state", ["1" * 85] * 3, "shape of policy_digits_per_state"),
    ],
)
def test_invalid_values_in_a_file_raise(tmp_path, key, value, message):
    path = written(tmp_path, {**as_file(synthetic_calibration(2)), key: value})
    with pytest.raises(ValueError, match=f"calibration.json: {message}"):
        load_calibration(path, 2)


def test_malformed_files_raise(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"calibration_file = .*: must be JSON"):
        load_calibration(path, 2)
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"calibration_file = .*: must be a JSON object"):
        load_calibration(path, 2)
    data = as_file(synthetic_calibration(2))
    with pytest.raises(ValueError, match=r"agent_alpha = None: must be among the keys"):
        load_calibration(
            written(
                tmp_path, {name: value for name, value in data.items() if name != "agent_alpha"}
            ),
            2,
        )


def test_path_as_calibration_raises():
    with pytest.raises(
        TypeError, match=r"calibration = 'a.json': must be a Calibration .* calibration_file"
    ):
        wdjax.make("covid_economy", num_states=2, calibration="a.json")


def test_config_contains_the_file_but_not_its_numbers():
    config = complete_env_params(load_config("covid_small"))
    assert "calibration" not in config.env_params
    assert config.env_params["calibration_file"] == ""
    calibration = synthetic_calibration(5)
    with pytest.raises(
        TypeError,
        match=r"env_params.calibration: must be a number, text or a list, not a Calibration",
    ):
        load_config("covid_small", **{"env_params.calibration": calibration})
