"""Calibration of the states and the virus: reading and validation."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import struct

from wdjax.checks import require, require_all, require_each, require_positive
from wdjax.files import read_text

NUM_LEVELS = 10  # stringency levels 1 to 10
BETA_DELAY = 29  # days until a stringency level affects the transmission rate
NUM_FILTERS = 5  # exponential filters of the unemployment model
START_INDEX = 81  # days from 2020-01-01 (first day of the policies) to 2020-03-22 (day 0)


class Calibration(struct.PyTreeNode):
    """Parameters of n states and the virus, and the state of the world on day 0.

    Floats are float32, or float64 if `jax_enable_x64` was set when the calibration was created.
    """

    population: Any  # (n,) float, persons
    us_population: Any  # () float, persons
    gdp_per_capita: Any  # () float, USD/year
    value_of_life: Any  # () float, USD
    gamma: Any  # () float, 1/day, removal rate of the infected (recovery or death)
    death_rate: Any  # () float, deaths per removed person
    beta_slope: Any  # (n,) float, 1/day per level, slope of the transmission rate
    beta_intercept: Any  # (n,) float, 1/day, intercept of the transmission rate
    filter_len: Any  # () int32, days that a change of level affects unemployment
    conv_lambdas: Any  # (5,) float, days, decay times of the unemployment filters
    filter_weights: Any  # (n, 5) float, per level, weights of the unemployment filters
    unemployment_bias: Any  # (n,) float, % of the population
    agent_alpha: Any  # (n,) float in (0, 1), health weight of each state
    planner_alpha: Any  # () float in (0, 1), health weight of the planner
    agent_health_index_min: Any
    """(n,) float, lower bound of -(deaths per day) * value of life / (365 pmax)"""
    agent_health_index_max: Any
    """(n,) float, upper bound of -(deaths per day) * value of life / (365 pmax)"""
    agent_economic_index_min: Any  # (n,) float, lower bound of the daily utility of productivity
    agent_economic_index_max: Any  # (n,) float, upper bound of the daily utility of productivity
    planner_health_index_min_max: Any  # (2,) float, bounds of the health index of all states
    planner_economic_index_min_max: Any  # (2,) float, bounds of the economic index of all states
    init_susceptible: Any  # (n,) float, persons on day 0
    init_infected: Any  # (n,) float, persons on day 0
    init_recovered: Any  # (n,) float, persons on day 0, including the dead
    init_unemployed: Any  # (n,) float, persons on day 0
    init_vaccinated: Any  # (n,) float, persons on day 0
    policy: Any
    """(days, n) int32, levels of all days up to day 0 (the last row); earlier days have level 1"""


_SHAPES = {
    "us_population": (),
    "gdp_per_capita": (),
    "value_of_life": (),
    "gamma": (),
    "death_rate": (),
    "filter_len": (),
    "planner_alpha": (),
    "conv_lambdas": (NUM_FILTERS,),
    "filter_weights": ("n", NUM_FILTERS),
    "planner_health_index_min_max": (2,),
    "planner_economic_index_min_max": (2,),
    "policy": ("days", "n"),
}
_KINDS = ("a number", "a list of numbers", "a list of equally long lists of numbers")  # by ndim
_ABOVE_0 = (
    "population",
    "us_population",
    "gdp_per_capita",
    "value_of_life",
    "gamma",
    "conv_lambdas",
    "filter_len",
)
_COUNTS = (
    "init_susceptible",
    "init_infected",
    "init_recovered",
    "init_unemployed",
    "init_vaccinated",
)
_MOST_OF_N = 1.001  # tolerance, because files round populations and counts separately


def make_calibration(**fields: Any) -> Calibration:
    """Create a calibration of NumPy arrays.

    `policy` and `filter_len` are int32. All other fields are float32, or float64 if jax_enable_x64
    is set.
    """
    # not in the stubs of jax
    floats = np.float64 if jax.config.jax_enable_x64 else np.float32  # type: ignore[attr-defined]
    kinds = dict.fromkeys(("policy", "filter_len"), np.int32)
    return Calibration(
        **{name: np.asarray(value, kinds.get(name, floats)) for name, value in fields.items()}
    )


def load_calibration(path: str | os.PathLike, num_states: int = 51) -> Calibration:
    """Read a calibration from a JSON file (docs/environments/covid.md documents the layout).

    Args:
        path: path of the file.
        num_states: required number of states n.

    Returns:
        The validated calibration.

    Raises:
        ValueError: if the file is not valid JSON, lacks a key, or has an invalid value. The message
            names the key.
    """
    data = _read(path)
    try:
        names = [field.name for field in dataclasses.fields(Calibration) if field.name != "policy"]
        for name in (
            *names,
            "policy_digits_per_state",
            "start_index",
            "num_stringency_levels",
            "beta_delay",
        ):
            require(name in data, name, None, "among the keys of the file")
        for name, value in (("num_stringency_levels", NUM_LEVELS), ("beta_delay", BETA_DELAY)):
            require(
                data[name] == value, name, data[name], f"{value}, the only value the rules support"
            )
        fields = {name: _numbers(name, data[name]) for name in names}
        levels = _levels(data)
        start = data["start_index"]
        require(
            isinstance(start, int) and 0 <= start < len(levels),
            "start_index",
            start,
            f"an index into policy_digits_per_state, 0 to {len(levels) - 1}",
        )
        calibration = make_calibration(**fields, policy=levels[: start + 1])
        check_calibration(calibration, num_states)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None
    return calibration


def load_policy(path: str | os.PathLike) -> np.ndarray:
    """Read the historical stringency levels from a calibration file, [T, n] int32.

    The rows are the levels of steps 1, 2, ... up to the last day in the file. As in the original
    implementation, step t uses the level of day t - 1.

    Args:
        path: path of the file.

    Returns:
        The levels.

    Raises:
        ValueError: as in `load_calibration`.
    """
    data = _read(path)
    for name in ("policy_digits_per_state", "start_index"):
        require(name in data, name, None, f"among the keys of {os.fspath(path)}")
    return _levels(data)[int(data["start_index"]) :]


def _read(path: str | os.PathLike) -> dict[str, Any]:
    path = Path(path).expanduser()
    require(path.is_file(), "calibration_file", str(path), "an existing file")
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"calibration_file = {str(path)!r}: must be JSON ({error})") from None
    require(
        isinstance(data, dict),
        "calibration_file",
        str(path),
        "a JSON object with the keys of a calibration",
    )
    return data


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        array = np.array(value)
    except ValueError:  # rows of unequal length
        array = np.array(None)
    axes = len(_SHAPES.get(name, ("n",)))
    require(array.dtype.kind in "iuf" and array.ndim == axes, name, value, _KINDS[axes])
    return array.astype(np.float64)


def _levels(data: dict[str, Any]) -> np.ndarray:
    """Return the stringency levels of a file, [days, n] int32."""
    name, rows = "policy_digits_per_state", data["policy_digits_per_state"]
    allowed = "a list of strings of equal length, with one digit from 1 to 9 per day"
    is_strings = (
        isinstance(rows, list)
        and len(rows) > 0
        and all(isinstance(row, str) and row.isascii() for row in rows)
    )
    require(is_strings and len({len(row) for row in rows}) == 1, name, rows, allowed)
    require(all(row.isdigit() and "0" not in row for row in rows), name, rows, allowed)
    return np.array([[int(digit) for digit in row] for row in rows], np.int32).T


def check_calibration(calibration: Any, num_states: int) -> None:
    """Check a calibration of `num_states` states. Its arrays may have leading batch axes.

    Raises:
        TypeError: if it is not a Calibration.
        ValueError: for a wrong shape or a value out of range. The message names the key.
    """
    require(
        isinstance(calibration, Calibration),
        "calibration",
        calibration,
        "a Calibration (see load_calibration and synthetic_calibration). "
        "Pass a path as calibration_file",
        TypeError,
    )
    _check_shapes(calibration, num_states)
    _check_ranges(calibration)


def _check_ranges(calibration: Calibration) -> None:
    most, bias = calibration.population * _MOST_OF_N, calibration.unemployment_bias
    counted = calibration.init_susceptible + calibration.init_infected + calibration.init_recovered
    days = np.shape(calibration.policy)[-2]
    require_positive(calibration, *_ABOVE_0)
    require_each(
        calibration,
        ("agent_alpha", "planner_alpha"),
        lambda value: (value > 0) & (value < 1),
        "above 0 and below 1",
    )
    require_each(
        calibration,
        _COUNTS,
        lambda value: (value >= 0) & (value <= most),
        "at least 0 persons and at most the population",
    )
    require_each(
        calibration,
        ("planner_health_index_min_max", "planner_economic_index_min_max"),
        lambda value: value[..., 1] > value[..., 0],
        "a minimum and a larger maximum",
    )
    rules = {
        "gamma": (calibration.gamma <= 1, "at most 1 per day"),
        "death_rate": (
            (calibration.death_rate >= 0) & (calibration.death_rate <= 1),
            "between 0 and 1",
        ),
        "unemployment_bias": (
            (bias >= 0) & (bias < 100),
            "a percentage of at least 0 and below 100",
        ),
        "filter_len": (
            calibration.filter_len >= days,
            f"at least the {days} days of policy_digits_per_state up to start_index",
        ),
        "agent_health_index_max": (
            calibration.agent_health_index_max > calibration.agent_health_index_min,
            "above agent_health_index_min",
        ),
        "agent_economic_index_max": (
            calibration.agent_economic_index_max > calibration.agent_economic_index_min,
            "above agent_economic_index_min",
        ),
        "init_susceptible": (
            counted <= most,
            "at most the population minus init_infected and init_recovered",
        ),
        "us_population": (
            calibration.us_population >= np.sum(calibration.population, axis=-1) / _MOST_OF_N,
            "at least the population of all states together",
        ),
    }
    require_all(calibration, rules)


def _check_shapes(calibration: Calibration, num_states: int) -> None:
    """Raise ValueError for a wrong shape, a number that is not finite, or an unknown level."""
    for field in dataclasses.fields(calibration):
        name, value = field.name, getattr(calibration, field.name)
        shape = tuple(num_states if axis == "n" else axis for axis in _SHAPES.get(name, ("n",)))
        actual = np.shape(value)[len(np.shape(value)) - len(shape) :] if shape else ()
        key = "policy_digits_per_state" if name == "policy" else name
        fits = len(actual) == len(shape) and all(
            b in ("days", a) for a, b in zip(actual, shape, strict=True)
        )
        allowed = f"of shape {shape}".replace("'", "") + f", for num_states = {num_states}"
        require(fits, f"shape of {key}", np.shape(value), allowed)
        require(np.all(np.isfinite(value)), name, value, "finite")
    policy, allowed = calibration.policy, f"levels from 1 to {NUM_LEVELS}"
    is_level = np.all((policy >= 1) & (policy <= NUM_LEVELS))
    require(is_level, "policy_digits_per_state", policy, allowed)
