"""A calibration made by formulas, for any number of states: of the same shape as the published one, and no data in it.

All is done on the host in float64. Its numbers are of the size of real ones, and mean nothing.
"""

import functools
from typing import Any

import numpy as np

from wdjax.checks import MANY, require_integer
from wdjax.envs.covid.calibration import (
    BETA_DELAY,
    NUM_LEVELS,
    START_INDEX,
    Calibration,
    make_calibration,
)

PRIMES = (2, 3, 5, 7, 11, 13, 19, 23)
LAMBDAS = np.array([30.0, 60.0, 120.0, 240.0, 480.0])  # days
WEIGHTS = np.array([-1.2, -0.3, 0.6, 0.8, 0.8])  # per level
RUN_DAYS = 284  # over which the two runs that give the bounds take means


def synthetic_calibration(num_states: int, seed: int = 0) -> Calibration:
    """Makes a calibration for n states.

    What differs between states i = 0 .. n - 1 is spread evenly, by u_k(i) = frac((i + 1 + 1000 seed) sqrt(p_k)) for the
    primes p: population, first infections, reproduction numbers at the levels 1 and 10, unemployment at level 1 and how
    it follows the level, weight of health, and the level of day 0. The bounds of health and economy are means over two
    runs, as in the published calibration.

    Args:
        num_states: n, at least 1.
        seed: at least 0.

    Returns:
        the calibration: the same numbers for the same arguments.
    """
    require_integer("num_states", num_states, 1, MANY)
    require_integer("seed", seed, 0)
    return make_calibration(**_make(num_states, seed))


@functools.lru_cache(maxsize=32)
def _make(n: int, seed: int) -> dict[str, Any]:
    u = [np.modf((np.arange(n) + 1 + 1000 * seed) * np.sqrt(prime))[0] for prime in PRIMES]
    population = np.floor(np.exp(_between(np.log(6e5), np.log(3e7), u[0])))
    infected = np.floor(population * 10 ** _between(-4, -3, u[1]))
    recovered = np.floor(infected / 2)
    gamma = 1 / 14
    # reproduction at the levels 1 and 10
    lowest, highest = _between(1.4, 2.4, u[2]), _between(0.2, 0.8, u[3])
    slope = -gamma * (lowest - highest) / 9
    ago = np.arange(START_INDEX, -1, -1)[:, None]  # days before day 0
    last = 4 + np.floor(3 * u[7])
    policy = np.maximum(np.where(ago <= 75, 2, 1), last - np.floor(np.maximum(0, ago - 5) / 3))
    fields = {
        "population": population,
        "us_population": population.sum(),
        "gdp_per_capita": 65_000,
        "value_of_life": 1e7,
        "gamma": gamma,
        "death_rate": 0.02,
        "beta_slope": _rounded(slope),
        "beta_intercept": _rounded(gamma * lowest - slope),
        "filter_len": 600,
        "conv_lambdas": LAMBDAS,
        "filter_weights": _rounded(_between(0.7, 1.4, u[5])[:, None] * WEIGHTS),
        "unemployment_bias": _rounded(_between(2, 4.5, u[4])),
        "agent_alpha": _rounded(_between(0.65, 0.85, u[6])),
        "planner_alpha": 0.75,
        "init_susceptible": population - infected - recovered,
        "init_infected": infected,
        "init_recovered": recovered,
        "init_vaccinated": np.zeros(n),
        "policy": policy,
    }
    effects, rate = _unemployment(fields)
    fields["init_unemployed"] = np.floor(rate * population / 100)
    return fields | _bounds(fields, effects)


def _between(low: float, high: float, u: np.ndarray) -> np.ndarray:
    return low + (high - low) * u


def _rounded(value: np.ndarray) -> np.ndarray:
    """To float32, and to the decimals with which a file has it."""
    return np.asarray(value, np.float32).astype(str).astype(np.float64)


def _unemployment(fields: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (effects of the levels up to day 0, [n, 5]; the unemployed then, [n] % of the population)."""
    policy = fields["policy"].astype(np.float64)
    changes = np.diff(policy, axis=0, prepend=np.ones((1, policy.shape[1])))
    ages = np.arange(len(policy))[::-1, None]
    effects = np.einsum("dn,dk->nk", changes, np.exp(-ages / LAMBDAS))
    return effects, _rate(fields, effects)


def _rate(fields: dict[str, Any], effects: np.ndarray) -> np.ndarray:
    response = np.sum(fields["filter_weights"] * effects, axis=-1)
    return np.logaddexp(response, 0) + fields["unemployment_bias"]


def _bounds(fields: dict[str, Any], effects: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the bounds of health and economy: means over RUN_DAYS of two runs, without subsidy and vaccines, in which
    all states set level 1 (the least health, the best economy) or the highest one on day 1."""
    n, population = len(fields["population"]), fields["population"]
    level = np.array([[1.0], [NUM_LEVELS]])  # [2, 1]: the runs, side by side
    least = (np.log(2) + fields["unemployment_bias"]) * population / 100
    workforce = np.trunc(0.6 * fields["us_population"] - least.sum())
    wage = fields["gdp_per_capita"] / (workforce / fields["us_population"]) / 365
    most = (0.6 * population - least) * wage
    susceptible, infected, recovered = (
        np.broadcast_to(fields[f"init_{name}"], (2, n))
        for name in ("susceptible", "infected", "recovered")
    )
    effects = np.broadcast_to(effects, (2, *effects.shape))
    change, old = level - fields["policy"][-1], fields["policy"]
    indices = []
    for day in range(1, RUN_DAYS + 1):
        lagged = old[day - 1 - BETA_DELAY] if day <= BETA_DELAY else level
        beta = fields["beta_intercept"] + fields["beta_slope"] * lagged
        new = beta * susceptible / population * infected
        removed = fields["gamma"] * infected
        susceptible, infected = (
            np.maximum(0, susceptible - new),
            np.maximum(0, infected + new - removed),
        )
        recovered = recovered + removed
        effects = effects * np.exp(-1 / LAMBDAS) + change[..., None] * (day == 1)
        idle = 0.6 * (0.1 * infected + 0.02 * recovered) + _rate(fields, effects) * population / 100
        made = np.maximum(0, 0.6 * population - idle) * wage
        deaths, total = 0.02 * removed * 1e7 / 365, most.sum()
        indices.append(
            (
                -deaths / most,
                _utility(made / most),
                -deaths.sum(1) / total,
                _utility(made.sum(1) / total),
            )
        )
    health, economy, health_of_all, economy_of_all = (
        np.mean(rows, axis=0) for rows in zip(*indices, strict=True)
    )
    bounds = {
        "agent_health_index_min": health[0],
        "agent_health_index_max": health[1],
        "agent_economic_index_min": economy[1],
        "agent_economic_index_max": economy[0],
        "planner_health_index_min_max": health_of_all,
        "planner_economic_index_min_max": economy_of_all[::-1],
    }
    return {name: _rounded(value) for name, value in bounds.items()}


def _utility(share: np.ndarray) -> np.ndarray:
    """The utility of a share of the greatest productivity, a day, for risk aversion 2."""
    return (2 - 1 / np.clip(share, 0.1, 3)) / 365
