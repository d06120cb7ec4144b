"""State, params and equations of covid_economy: the virus and the utility of productivity.

Source: see economy.py, which contains the rules of the environment.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.envs.covid.calibration import BETA_DELAY, Calibration

YEAR = 365  # days


class State(struct.PyTreeNode):
    """Epidemic and economy of n states; floats have the precision of the calibration."""

    susceptible: jax.Array  # (n,) float, persons
    infected: jax.Array  # (n,) float, persons
    recovered: jax.Array  # (n,) float, persons, including the dead and the vaccinated
    dead: jax.Array  # (n,) float, persons
    vaccinated: jax.Array  # (n,) float, persons
    unemployed: jax.Array  # (n,) float, persons
    level: jax.Array  # (n,) int32, stringency level from 1 to 10
    until: jax.Array  # (n,) int32, days, time from which the level may be changed
    effects: jax.Array
    """(n, 5) float, changes of level filtered by five exponential decays, the input of the
    unemployment model"""
    past_levels: jax.Array  # (29, n) int8, ring buffer; slot time % 29 is the level of 28 days ago
    productivity: jax.Array  # (n,) float, USD/day, including subsidies; 0 at the reset
    subsidy_level: jax.Array  # () int32, from 0 to num_subsidy_levels
    time: jax.Array  # () int32, days since the reset


class Params(struct.PyTreeNode):
    """Calibration, schedules and rewards."""

    calibration: Calibration  # parameters of the states and the virus
    episode_length: int = 540  # days, after which all agents terminate
    cooldown: int = 28  # days for which a state must keep a new level
    subsidy_interval: int = 90  # days between two decisions of the planner
    max_subsidy: float = 20_000.0  # USD per person and year at the highest subsidy level
    vaccines_per_million: float = 3_000.0  # doses per million persons and day
    vaccine_start: int = 296  # first day of vaccine deliveries (default: 2021-01-12)
    delivery_interval: int = 1  # days between two vaccine deliveries
    risk_aversion: float = 2.0  # eta in the utility of productivity, must not be 1
    sick_rate: float = 0.1  # share of the infected unable to work
    working_share: float = 0.6  # share of the population in the workforce
    interest: float = 0.03  # interest rate on subsidies, paid by the planner
    state_health_priority: float = 0.3  # factor on the odds of health against economy, for states
    planner_health_priority: float = 0.45
    """factor on the odds of health against economy, for the planner"""


class Derived(struct.PyTreeNode):
    """Quantities derived from the params."""

    wage: jax.Array  # () float, USD per worker and day
    max_productivity: jax.Array  # (n,) float, USD/day, at minimal unemployment and no infections
    state_weight: jax.Array  # (n,) float, health weight in a reward; the economy has 1 - weight
    planner_weight: jax.Array  # () float, health weight in the planner's reward


def derive(params: Params) -> Derived:
    """Compute the wage, the maximum productivity and the health weights.

    With alpha a of the calibration and health priority h, the health weight is:

        w = h a / (1 - a) / (1 + h a / (1 - a)).
    """
    calibration = params.calibration
    # unemployed persons if the level is always 1
    least = (np.log(2.0) + calibration.unemployment_bias) * calibration.population / 100
    workforce = jnp.trunc(params.working_share * calibration.us_population - jnp.sum(least))
    wage = calibration.gdp_per_capita / (workforce / calibration.us_population) / YEAR
    most = jnp.maximum(0.0, params.working_share * calibration.population - least) * wage

    def weight(alpha: Any, priority: Any) -> Any:
        odds = priority * alpha / (1 - alpha)
        return odds / (1 + odds)

    state_weight = weight(calibration.agent_alpha, params.state_health_priority)
    return Derived(
        wage, most, state_weight, weight(calibration.planner_alpha, params.planner_health_priority)
    )


def spread(state: State, time: jax.Array, params: Params) -> tuple[State, jax.Array]:
    """Advance the SIR model by one day, with vaccinations.

    The transmission rate beta depends on the level of 29 days ago:

        new = beta (S / N) I (1 - frac),  beta = intercept + slope level_{t-29},
        frac = min(1, dose / S),
        dS = -new - vac,  dI = new - gamma I,  dR = gamma I + vac,
        dV = vac = min(dose, S),  dD = rate gamma I.

    Deaths are summed day by day. Differences of R, which is large, would lose precision in float32.

    Args:
        state: the state of the previous day, with the levels and the subsidy of this day.
        time: () int, this day, from 1.
        params: the parameters.

    Returns:
        (state, new_dead): the state with updated numbers of persons, and the deaths (n,).
    """
    calibration = params.calibration
    interval = params.delivery_interval
    amount = jnp.floor(interval * calibration.population / 1e6 * params.vaccines_per_million)
    dose = jnp.where((time >= params.vaccine_start) & (time % interval == 0), amount, 0.0)
    beta = (
        calibration.beta_intercept
        + calibration.beta_slope * state.past_levels[(time - 1) % BETA_DELAY]
    )
    fraction = jnp.minimum(1.0, dose / (state.susceptible + 1e-10))
    vaccinated = jnp.minimum(dose, state.susceptible)
    infected = beta * (state.susceptible / calibration.population) * state.infected * (1 - fraction)
    removed = calibration.gamma * state.infected
    dead = calibration.death_rate * removed
    state = state.replace(
        susceptible=jnp.maximum(0.0, state.susceptible - infected - vaccinated),
        infected=jnp.maximum(0.0, state.infected + infected - removed),
        recovered=state.recovered + removed + vaccinated,
        dead=state.dead + dead,
        vaccinated=state.vaccinated + vaccinated,
    )
    return state, dead


def utility(share: jax.Array, risk_aversion: float | jax.Array) -> jax.Array:
    """Return the daily isoelastic utility of a share y of the maximum productivity.

    With y clipped to [0.1, 3]:

        c = (1 + (y^(1 - eta) - 1) / (1 - eta)) / 365,

    which is 1 / 365 at y = 1.
    """
    exponent = 1 - risk_aversion
    return (1 + jnp.expm1(exponent * jnp.log(jnp.clip(share, 0.1, 3.0))) / exponent) / YEAR


def between(value: jax.Array, low: Any, high: Any) -> jax.Array:
    """Rescale a value linearly from [low, high] to [0, 1], without clipping."""
    return (value - low) / (high - low + 1e-10)


def until_vaccines(time: jax.Array, params: Params) -> jax.Array:
    """Return the time until the next vaccine delivery as a share of the delivery interval.

    As in the original implementation, the time until the first delivery is divided by the interval
    twice and is at most 1 / interval.
    """
    interval, following = params.delivery_interval, time + 1
    first = -(-params.vaccine_start // interval) * interval
    early = jnp.minimum(1.0, (first - following) / interval)
    return jnp.where(following <= first, early, interval - following % interval) / interval


def change_of_day(day: jax.Array, calibration: Calibration) -> jax.Array:
    """Return the changes of level (n,) on a day up to day 0; 0 before the calibration starts."""
    policy = jnp.asarray(calibration.policy)
    row = day + policy.shape[0] - 1
    before = jnp.where(row > 0, policy[jnp.maximum(row - 1, 0)], 1)
    return jnp.where(row >= 0, policy[jnp.maximum(row, 0)] - before, 0)
