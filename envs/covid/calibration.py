"""The numbers of the states and of the virus: a pytree of arrays, read from a file and checked."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import struct

from wdjax.checks import require
from wdjax.files import read_text

NUM_LEVELS = 10  # of stringency, from 1
BETA_DELAY = 29  # days until a level changes the transmission
NUM_FILTERS = 5
START_INDEX = 81  # days between the first day of the policies, 2020-01-01, and day 0, 2020-03-22


class Calibration(struct.PyTreeNode):
    """What is known of n states on day 0; float32, or float64 where `jax_enable_x64` was set when it was made."""

    population: Any  # (n,) persons
    us_population: Any  # () persons
    gdp_per_capita: Any  # () USD a year
    value_of_life: Any  # () USD
    gamma: Any  # () 1/day, how fast the infected are removed: they recover or die
    death_rate: Any  # () dead per removed
    beta_slope: Any  # (n,) 1/day per level, of the transmission
    beta_intercept: Any  # (n,) 1/day
    filter_len: Any  # () days, int32: how long a change of level bears on unemployment
    conv_lambdas: Any  # (5,) days, over which its effects fade
    filter_weights: Any  # (n, 5) of these effects, per level
    unemployment_bias: Any  # (n,) % of the population
    agent_alpha: Any  # (n,) weight of health in a state's choices, above 0 and below 1
    planner_alpha: Any  # () likewise of the planner
    agent_health_index_min: Any  # (n,) of -deaths a day * value of life / (365 pmax)
    agent_health_index_max: Any  # (n,)
    agent_economic_index_min: Any  # (n,) of the utility of productivity, a day
    agent_economic_index_max: Any  # (n,)
    planner_health_index_min_max: Any  # (2,) of the sums over states
    planner_economic_index_min_max: Any  # (2,)
    init_susceptible: Any  # (n,) persons, on day 0; so are the next four
    init_infected: Any  # (n,)
    init_recovered: Any  # (n,) dead included
    init_unemployed: Any  # (n,)
    init_vaccinated: Any  # (n,)
    policy: Any
    """(days, n) int32, levels of every day up to day 0, which is the last row; level 1 before the first"""


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
_AXES = ("one", "in a list", "in a list of lists of equal lengths")
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
_MOST_OF_N = 1.001  # populations and counts in a file are rounded apart


def make_calibration(**fields: Any) -> Calibration:
    """Returns a calibration of numbers, NumPy arrays in the precision that jax now has."""
    floats = np.float64 if jax.config.jax_enable_x64 else np.float32
    kinds = dict.fromkeys(("policy", "filter_len"), np.int32)
    return Calibration(
        **{name: np.asarray(value, kinds.get(name, floats)) for name, value in fields.items()}
    )


def load_calibration(path: str | os.PathLike, num_states: int = 51) -> Calibration:
    """Reads a calibration from a JSON file; docs/environments/covid.md has its layout.

    Args:
        path: of the file.
        num_states: n, the states that it must have.

    Returns:
        the calibration, checked.

    Raises:
        ValueError: naming the key, for a file that is none, lacks a key, or whose numbers make no sense.
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
            require(data[name] == value, name, data[name], f"{value}: the rules are written for it")
        fields = {name: _numbers(name, data[name]) for name in names}
        levels = _levels(data)
        start = data["start_index"]
        known = isinstance(start, int) and 0 <= start < len(levels)
        require(
            known, "start_index", start, f"a day of policy_digits_per_state, 0 to {len(levels) - 1}"
        )
        calibration = make_calibration(**fields, policy=levels[: start + 1])
        check_calibration(calibration, num_states)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None
    return calibration


def load_policy(path: str | os.PathLike) -> np.ndarray:
    """Returns the levels that were in force in truth, for the steps 1, 2 and so on as far as the file has them: [T, n]
    int32. As in the original, step t has that of day t - 1.

    Raises ValueError as `load_calibration` does.
    """
    data = _read(path)
    for name in ("policy_digits_per_state", "start_index"):
        require(name in data, name, None, f"among the keys of {os.fspath(path)}")
    return _levels(data)[int(data["start_index"]) :]


def _read(path: str | os.PathLike) -> dict[str, Any]:
    path = Path(path).expanduser()
    require(path.is_file(), "calibration_file", str(path), "a file that is there")
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"calibration_file = {str(path)!r}: must be JSON ({error})") from None
    require(
        isinstance(data, dict),
        "calibration_file",
        str(path),
        "an object of JSON, with the keys of a calibration",
    )
    return data


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        array = np.array(value)
    except ValueError:  # rows of unequal lengths
        array = np.array(None)
    axes = len(_SHAPES.get(name, ("n",)))
    require(
        array.dtype.kind in "iuf" and array.ndim == axes, name, value, "numbers, " + _AXES[axes]
    )
    return array.astype(np.float64)


def _levels(data: dict[str, Any]) -> np.ndarray:
    """Returns the levels of a file, [days, n] int32."""
    name, rows = "policy_digits_per_state", data["policy_digits_per_state"]
    words = "a list of strings of equal lengths, a digit 1 to 9 for every day"
    texts = (
        isinstance(rows, list)
        and len(rows) > 0
        and all(isinstance(row, str) and row.isascii() for row in rows)
    )
    require(texts and len({len(row) for row in rows}) == 1, name, rows, words)
    require(all(row.isdigit() and "0" not in row for row in rows), name, rows, words)
    return np.array([[int(digit) for digit in row] for row in rows], np.int32).T


def check_calibration(calibration: Any, num_states: int) -> None:
    """Raises ValueError or TypeError, naming the key, where a calibration of n states makes no sense.

    Leading axes, as of a batch of calibrations, are allowed.
    """
    if not isinstance(calibration, Calibration):
        words = "a Calibration (load_calibration, synthetic_calibration); a path is named by calibration_file"
        raise TypeError(f"calibration = {calibration!r:.80}: must be {words}")
    values = {
        field.name: getattr(calibration, field.name) for field in dataclasses.fields(calibration)
    }
    for name, value in values.items():
        shape = tuple(num_states if axis == "n" else axis for axis in _SHAPES.get(name, ("n",)))
        found = np.shape(value)[len(np.shape(value)) - len(shape) :] if shape else ()
        key = "policy_digits_per_state" if name == "policy" else name
        fits = len(found) == len(shape) and all(
            b in ("days", a) for a, b in zip(found, shape, strict=True)
        )
        words = f"of shape {shape}".replace("'", "") + f", for num_states = {num_states}"
        require(fits, f"shape of {key}", np.shape(value), words)
        require(np.all(np.isfinite(value)), name, value, "finite")
    for name in _ABOVE_0:
        require(np.all(values[name] > 0), name, values[name], "above 0")
    require(np.all(calibration.gamma <= 1), "gamma", calibration.gamma, "at most 1, a day")
    rate, bias = calibration.death_rate, calibration.unemployment_bias
    require(np.all((rate >= 0) & (rate <= 1)), "death_rate", rate, "between 0 and 1")
    require(
        np.all((bias >= 0) & (bias < 100)),
        "unemployment_bias",
        bias,
        "a percentage of at least 0 and below 100",
    )
    for name in ("agent_alpha", "planner_alpha"):
        require(
            np.all((values[name] > 0) & (values[name] < 1)),
            name,
            values[name],
            "above 0 and below 1",
        )
    policy = calibration.policy
    require(
        np.all((policy >= 1) & (policy <= NUM_LEVELS)),
        "policy_digits_per_state",
        policy,
        "levels from 1 on",
    )
    days = np.shape(policy)[-2]
    longest = f"at least the {days} days of policy_digits_per_state up to start_index"
    require(np.all(calibration.filter_len >= days), "filter_len", calibration.filter_len, longest)
    _check_bounds(values)
    _check_counts(values)


def _check_bounds(values: dict[str, Any]) -> None:
    for index in ("health", "economic"):
        low, high = (values[f"agent_{index}_index_{end}"] for end in ("min", "max"))
        require(
            np.all(high > low), f"agent_{index}_index_max", high, f"above agent_{index}_index_min"
        )
        name = f"planner_{index}_index_min_max"
        require(
            np.all(values[name][..., 1] > values[name][..., 0]),
            name,
            values[name],
            "a minimum, a greater maximum",
        )


def _check_counts(values: dict[str, Any]) -> None:
    most = values["population"] * _MOST_OF_N
    for name in _COUNTS:
        fits = np.all((values[name] >= 0) & (values[name] <= most))
        require(fits, name, values[name], "at least 0 persons and at most the population")
    total = sum(values[name] for name in ("init_susceptible", "init_infected", "init_recovered"))
    require(
        np.all(total <= most),
        "init_susceptible",
        values["init_susceptible"],
        "at most the population less init_infected and init_recovered",
    )
    least = np.sum(values["population"], axis=-1) / _MOST_OF_N
    require(
        np.all(values["us_population"] >= least),
        "us_population",
        values["us_population"],
        "at least all states'",
    )
