"""Covid-19 and the economy: states set the stringency of their measures, and a federal planner pays subsidies.

A proof of concept, not for policy decisions: docs/environments/covid.md has the card of the original.

Source: Trott, Srinivasa, van der Wal, Haneuse, Zheng, "Building a Foundation for Data-Driven, Interpretable, and Robust
Policy Design using the AI Economist" (2021), arXiv:2108.02904; rules of CovidAndEconomySimulation in
salesforce/ai-economist, commit a84d5f3f. A step is a day. Agents stand in the order states, planner.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import MANY, require, require_finite, require_integer
from wdjax.env import Env, require_action
from wdjax.envs.covid.calibration import (
    BETA_DELAY,
    NUM_LEVELS,
    Calibration,
    check_calibration,
    load_calibration,
)
from wdjax.envs.covid.synthetic import synthetic_calibration
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete

Arrays = dict[str, Any]
YEAR = 365  # days


class State(struct.PyTreeNode):
    """Persons are floats: float32, or float64 where the calibration is."""

    susceptible: jax.Array  # (n,) persons
    infected: jax.Array  # (n,) persons
    recovered: jax.Array  # (n,) persons, those who died or were vaccinated included
    dead: jax.Array  # (n,) persons
    vaccinated: jax.Array  # (n,) persons
    unemployed: jax.Array  # (n,) persons
    level: jax.Array  # (n,) int32, stringency from 1 to 10
    until: jax.Array  # (n,) int32, the time from which on the level may be set
    effects: jax.Array
    """(n, 5) changes of level, each fading at its own pace: what unemployment follows"""
    past_levels: jax.Array  # (29, n) int8, a ring: slot time % 29 holds the level of 28 days ago
    productivity: jax.Array  # (n,) USD a day, subsidies included; 0 at the reset
    subsidy_level: jax.Array  # () int32, from 0 to num_subsidy_levels
    time: jax.Array  # () int32, days since the reset


class Params(struct.PyTreeNode):
    calibration: Calibration  # of the states and the virus
    episode_length: int = 540  # days; the end is part of the game and terminates
    cooldown: int = 28  # days for which a state must keep a level that it has set
    subsidy_interval: int = 90  # days between two choices of the planner
    max_subsidy: float = 20_000.0  # USD per person and year at the highest subsidy level
    vaccines_per_million: float = 3_000.0  # doses per million persons and day
    vaccine_start: int = 296  # the first day on which they may come: 2021-01-12
    delivery_interval: int = 1  # days between two deliveries of vaccines
    risk_aversion: float = 2.0  # eta of the utility of productivity, not 1
    sick_rate: float = 0.1  # of the infected who cannot work
    working_share: float = 0.6  # of the population who would work
    interest: float = 0.03  # on what the planner pays
    state_health_priority: float = 0.3
    """factor on how much health weighs against economy, for states"""
    planner_health_priority: float = 0.45  # likewise for the planner


class Derived(struct.PyTreeNode):
    """What follows from params alone."""

    wage: jax.Array  # () USD per worker and day
    max_productivity: jax.Array  # (n,) USD a day, with the least unemployment and nobody sick
    state_weight: jax.Array  # (n,) of health in a reward; the economy's is 1 - weight
    planner_weight: jax.Array  # ()


@dataclasses.dataclass(frozen=True)
class CovidEconomy(Env):
    """`num_states` states, Discrete(11): 0 keeps the level, 1 .. 10 set it; one planner, Discrete(21): subsidy levels,
    which count every `subsidy_interval` days. The game ends after episode_length days.

    The calibration is synthetic, unless `calibration_file` names a file of one: `load_calibration`.
    """

    num_states: int = 51  # the first agents; the last one is the planner
    num_subsidy_levels: int = 20  # beside none
    calibration_file: str = ""  # JSON; empty: a synthetic calibration

    can_truncate: ClassVar[bool] = False
    info_ratios: ClassVar[dict[str, tuple[str, str]]] = {
        "unemployment": ("unemployed", "population")
    }

    def __post_init__(self):
        require_integer("num_states", self.num_states, 1, MANY)
        require_integer("num_subsidy_levels", self.num_subsidy_levels, 1, MANY)
        if not isinstance(self.calibration_file, str):
            raise TypeError(
                f"calibration_file = {self.calibration_file!r}: must be a path, as a string"
            )

    @property
    def groups(self) -> Mapping[str, int]:
        return {"state": self.num_states, "planner": 1}

    @property
    def default_params(self) -> Params:
        if self.calibration_file:
            return Params(load_calibration(self.calibration_file, self.num_states))
        return Params(synthetic_calibration(self.num_states))

    def check_params(self, params: Params) -> None:
        check_calibration(params.calibration, self.num_states)
        require_finite(params.replace(calibration=None))
        longest = params.calibration.filter_len
        for name in ("episode_length", "cooldown", "subsidy_interval", "delivery_interval"):
            require(np.all(getattr(params, name) > 0), name, getattr(params, name), "above 0")
        require(
            np.all(params.episode_length <= longest),
            "episode_length",
            params.episode_length,
            f"at most filter_len = {longest} days: changes of level within an episode never leave",
        )
        for name in ("max_subsidy", "vaccines_per_million", "interest", "sick_rate"):
            require(np.all(getattr(params, name) >= 0), name, getattr(params, name), "at least 0")
        for name in ("state_health_priority", "planner_health_priority"):
            require(np.all(getattr(params, name) > 0), name, getattr(params, name), "above 0")
        require(
            np.all(abs(params.risk_aversion - 1) > 1e-3),
            "risk_aversion",
            params.risk_aversion,
            "not 1",
        )
        share, bias = params.working_share, np.max(params.calibration.unemployment_bias)
        least = (np.log(2) + bias) / 100
        allowed = f"above the {least:.3f} who never work (unemployment_bias), and at most 1"
        require(np.all((share > least) & (share <= 1)), "working_share", share, allowed)

    def reset(self, key: jax.Array, params: Params) -> tuple[Arrays, State]:
        """Starts on day 0; every start is the same."""
        of = params.calibration
        changes = jnp.diff(_padded_levels(of, 1), axis=0)  # of every day up to day 0
        ages = jnp.arange(changes.shape[0])[::-1]
        fade = jnp.exp(-ages[:, None] / of.conv_lambdas[None])
        lasting = _padded_levels(of, BETA_DELAY)[-BETA_DELAY:].astype(jnp.int8)
        persons = [
            jnp.asarray(getattr(of, f"init_{name}"))
            for name in ("susceptible", "infected", "recovered")
        ]
        vaccinated, unemployed = jnp.asarray(of.init_vaccinated), jnp.asarray(of.init_unemployed)
        effects = jnp.einsum("dn,dk->nk", changes.astype(fade.dtype), fade, precision="highest")
        state = State(
            *persons,
            of.death_rate * (persons[2] - vaccinated),
            vaccinated,
            unemployed,
            jnp.asarray(of.policy)[-1],
            until=jnp.zeros(self.num_states, jnp.int32),
            effects=effects,
            past_levels=lasting,
            productivity=jnp.zeros_like(unemployed),
            subsidy_level=jnp.int32(0),
            time=jnp.int32(0),
        )
        return self.observe(state, params), state

    def step(
        self, key: jax.Array, state: State, action: Arrays, params: Params
    ) -> tuple[Arrays, State, Arrays, Arrays, Arrays, Arrays]:
        """Lets a day pass: levels and subsidy, then the virus, unemployment, productivity.

        Reward of a state: w h + (1 - w) e, with h and e where deaths and the utility of productivity stand between
        their bounds, and w the weight of health; of the planner: likewise of the sums over states, subsidies (with
        interest) subtracted.
        """
        require_action(self, action, params, owner=CovidEconomy)
        over_before = state.time >= params.episode_length
        derived = derive(params)
        moved = self._set_levels(state, action, params)
        moved, new_dead = spread(moved, state.time + 1, params)
        moved, subsidy = self._produce(moved, state, derived, params)
        reward = self.reward(moved, new_dead, subsidy, derived, params)
        moved = jax.tree.map(lambda old, new: jnp.where(over_before, old, new), state, moved)
        reward = jax.tree.map(
            lambda gain: jnp.where(over_before, 0.0, gain).astype(jnp.float32), reward
        )
        over = moved.time >= params.episode_length
        terminated = {group: jnp.full(num, over) for group, num in self.groups.items()}
        truncated = {group: jnp.zeros(num, bool) for group, num in self.groups.items()}
        sums = {
            "deaths": new_dead,
            "subsidy_usd": subsidy,
            "unemployed": moved.unemployed,
            "population": params.calibration.population,
        }
        info = {name: jnp.where(over_before, 0.0, jnp.sum(value)) for name, value in sums.items()}
        return self.observe(moved, params), moved, reward, terminated, truncated, info

    def _set_levels(self, state: State, action: Arrays, params: Params) -> State:
        """Sets levels and subsidy, and the time of the day that begins. The mask is a counsel: a level is set in any
        case, but only in its own time does a choice begin a cooldown."""
        time = state.time + 1
        chosen = action["state"]
        level = jnp.where(chosen > 0, chosen, state.level)
        wait = jnp.where(chosen > 0, params.cooldown, 1)
        until = state.until + jnp.where(time == state.until + 1, wait, 0)
        planned = (time - 1) % params.subsidy_interval == 0
        subsidy_level = jnp.where(planned, action["planner"][0], state.subsidy_level)
        return state.replace(level=level, until=until, subsidy_level=subsidy_level)

    def _produce(
        self, moved: State, before: State, derived: Derived, params: Params
    ) -> tuple[State, jax.Array]:
        """Returns the state after unemployment, productivity and time have gone on, and the subsidies (n,) USD:

        z_k <- z_k exp(-1 / lambda_k) + d_t - exp(-F / lambda_k) d_{t-F},  d_t the change of level,
        U = (softplus(sum_k W_k z_k) + bias) N / 100,
        productivity = max(0, share N - share (sick I + D) - U) wage + subsidy.
        """
        of, time = params.calibration, before.time + 1
        change, leaving = moved.level - before.level, change_of_day(time - of.filter_len, of)
        fade = jnp.exp(-1 / of.conv_lambdas)
        left = jnp.exp(-of.filter_len / of.conv_lambdas)
        effects = before.effects * fade[None] + change[:, None] - left[None] * leaving[:, None]
        rate = jax.nn.softplus(jnp.sum(of.filter_weights * effects, axis=1)) + of.unemployment_bias
        unemployed = rate * of.population / 100
        share = params.working_share
        workers = (
            share * of.population
            - share * (params.sick_rate * moved.infected + moved.dead)
            - unemployed
        )
        # USD a day
        per_level = of.population * (params.max_subsidy / self.num_subsidy_levels) / YEAR
        subsidy = per_level * moved.subsidy_level
        productivity = jnp.maximum(0.0, workers) * derived.wage + subsidy
        slot = jnp.arange(BETA_DELAY) == before.time % BETA_DELAY
        past_levels = jnp.where(slot[:, None], moved.level.astype(jnp.int8), before.past_levels)
        moved = moved.replace(
            effects=effects,
            unemployed=unemployed,
            productivity=productivity,
            past_levels=past_levels,
            time=time,
        )
        return moved, subsidy

    def reward(
        self,
        state: State,
        new_dead: jax.Array,
        subsidy: jax.Array,
        derived: Derived,
        params: Params,
    ) -> dict[str, jax.Array]:
        """Returns the rewards of states (n,) and planner (1,) for a day with so many new dead (n,) and subsidies."""
        of, most = params.calibration, derived.max_productivity
        cost = of.value_of_life / YEAR
        own = (
            between(-new_dead * cost / most, of.agent_health_index_min, of.agent_health_index_max),
            between(
                utility(state.productivity / most, params.risk_aversion),
                of.agent_economic_index_min,
                of.agent_economic_index_max,
            ),
        )
        total = jnp.sum(most)
        net = (jnp.sum(state.productivity) - (1 + params.interest) * jnp.sum(subsidy)) / total
        health, economy = of.planner_health_index_min_max, of.planner_economic_index_min_max
        common = (
            between(-jnp.sum(new_dead) * cost / total, health[0], health[1]),
            between(utility(net, params.risk_aversion), economy[0], economy[1]),
        )

        def weigh(weight, index) -> jax.Array:
            return weight * index[0] + (1 - weight) * index[1]

        return {
            "state": weigh(derived.state_weight, own),
            "planner": weigh(derived.planner_weight, common)[None],
        }

    def observe(self, state: State, params: Params) -> Arrays:
        """Shows each state itself, and the planner all of them; both see the masks of their choices."""
        of, time = params.calibration, state.time
        persons = (
            state.susceptible,
            state.infected,
            state.recovered,
            state.dead,
            state.vaccinated,
            state.unemployed,
        )
        health = jnp.stack(persons) / of.population[None]
        lagged = state.past_levels[time % BETA_DELAY]
        by_state = {
            "productivity": state.productivity / derive(params).max_productivity,
            "lagged_level": lagged / NUM_LEVELS,
            "level": state.level / NUM_LEVELS,
        }
        interval = params.subsidy_interval
        shared = {
            "time": time / params.episode_length,
            "until_subsidy": (interval - time % interval) / interval,
            "subsidy": state.subsidy_level / self.num_subsidy_levels,
            "until_vaccines": until_vaccines(time, params),
        }
        may_set = jnp.broadcast_to((time >= state.until)[:, None], (self.num_states, NUM_LEVELS))
        may_pay = jnp.broadcast_to(time % interval == 0, (1, self.num_subsidy_levels))

        def single(value, num) -> jax.Array:
            return jnp.broadcast_to(value, (num, 1)).astype(jnp.float32)

        return {
            "state": {
                "index": jnp.arange(self.num_states, dtype=jnp.int32),
                "health": health.T.astype(jnp.float32),
                **{name: value[:, None].astype(jnp.float32) for name, value in by_state.items()},
                **{name: single(value, self.num_states) for name, value in shared.items()},
                "action_mask": _with_keep(may_set),
            },
            "planner": {
                "health": health[None].astype(jnp.float32),
                **{name: value[None].astype(jnp.float32) for name, value in by_state.items()},
                **{name: single(value, 1) for name, value in shared.items()},
                "action_mask": _with_keep(may_pay),
            },
        }

    def observation_space(self, params: Params) -> Dict:
        n, one = self.num_states, Box(0.0, 1.0, (1,))
        shared = dict.fromkeys(("time", "until_subsidy", "subsidy", "until_vaccines"), one)
        state = {
            "index": Discrete(n),
            "health": Box(0.0, np.inf, (6,)),
            "productivity": Box(0.0, np.inf, (1,)),
            "lagged_level": one,
            "level": one,
            **shared,
            "action_mask": MultiDiscrete((2,) * (NUM_LEVELS + 1)),
        }
        planner = {
            "health": Box(0.0, np.inf, (6, n)),
            "productivity": Box(0.0, np.inf, (n,)),
            "lagged_level": Box(0.0, 1.0, (n,)),
            "level": Box(0.0, 1.0, (n,)),
            **shared,
            "action_mask": MultiDiscrete((2,) * (self.num_subsidy_levels + 1)),
        }
        return Dict({"state": Dict(state).batch(n), "planner": Dict(planner).batch(1)})

    def action_space(self, params: Params) -> Dict:
        planner = Discrete(self.num_subsidy_levels + 1).batch(1)
        return Dict({"state": Discrete(NUM_LEVELS + 1).batch(self.num_states), "planner": planner})

    def scene(self, states: State, params: Params) -> Any:
        from wdjax.envs.covid.drawing import map_scene

        return map_scene(self, states, params)


def derive(params: Params) -> Derived:
    """Returns wage, greatest productivity and the weights of health,

    w = h a / (1 - a) / (1 + h a / (1 - a)),  a = alpha of the calibration, h = health priority.
    """
    of = params.calibration
    # unemployed at level 1 for ever
    least = (np.log(2.0) + of.unemployment_bias) * of.population / 100
    workforce = jnp.trunc(params.working_share * of.us_population - jnp.sum(least))
    wage = of.gdp_per_capita / (workforce / of.us_population) / YEAR
    most = jnp.maximum(0.0, params.working_share * of.population - least) * wage

    def weight(alpha: Any, priority: Any) -> Any:
        odds = priority * alpha / (1 - alpha)
        return odds / (1 + odds)

    state_weight = weight(of.agent_alpha, params.state_health_priority)
    return Derived(
        wage, most, state_weight, weight(of.planner_alpha, params.planner_health_priority)
    )


def spread(state: State, time: jax.Array, params: Params) -> tuple[State, jax.Array]:
    """Lets the virus spread for a day, the level of 29 days ago deciding how fast, and vaccines come.

        new = beta (S / N) I (1 - frac),  beta = intercept + slope level_{t-29},  frac = min(1, dose / S),
        dS = -new - vac,  dI = new - gamma I,  dR = gamma I + vac,  dV = vac = min(dose, S),  dD = rate gamma I.

    Deaths are summed up day by day: as differences of R, which is large, they would cost float32 its digits.

    Args:
        state: that of yesterday, but for the levels and the subsidy.
        time: () the day that begins, from 1.

    Returns:
        (the state with new numbers of persons, (n,) who died on this day).
    """
    of = params.calibration
    interval = params.delivery_interval
    amount = jnp.floor(interval * of.population / 1e6 * params.vaccines_per_million)
    dose = jnp.where((time >= params.vaccine_start) & (time % interval == 0), amount, 0.0)
    beta = of.beta_intercept + of.beta_slope * state.past_levels[(time - 1) % BETA_DELAY]
    fraction = jnp.minimum(1.0, dose / (state.susceptible + 1e-10))
    vaccinated = jnp.minimum(dose, state.susceptible)
    infected = beta * (state.susceptible / of.population) * state.infected * (1 - fraction)
    removed = of.gamma * state.infected
    dead = of.death_rate * removed
    state = state.replace(
        susceptible=jnp.maximum(0.0, state.susceptible - infected - vaccinated),
        infected=jnp.maximum(0.0, state.infected + infected - removed),
        recovered=state.recovered + removed + vaccinated,
        dead=state.dead + dead,
        vaccinated=state.vaccinated + vaccinated,
    )
    return state, dead


def utility(share: jax.Array, risk_aversion: jax.Array) -> jax.Array:
    """Returns c = (1 + (y^(1 - eta) - 1) / (1 - eta)) / 365 of a share y of the greatest productivity, clipped to .1 to
    3: isoelastic, and 1 / 365 at the whole."""
    exponent = 1 - risk_aversion
    return (1 + jnp.expm1(exponent * jnp.log(jnp.clip(share, 0.1, 3.0))) / exponent) / YEAR


def between(value: jax.Array, low: Any, high: Any) -> jax.Array:
    """Returns where a value stands between its bounds, 0 to 1, and beyond where it is outside of them."""
    return (value - low) / (high - low + 1e-10)


def until_vaccines(time: jax.Array, params: Params) -> jax.Array:
    """Returns a share of the delivery interval m that is left until vaccines come, 1 long before the first of them.

    As in the original, until the first day f it is divided by m twice.
    """
    interval, following = params.delivery_interval, time + 1
    first = -(-params.vaccine_start // interval) * interval
    early = jnp.minimum(1.0, (first - following) / interval)
    return jnp.where(following <= first, early, interval - following % interval) / interval


def change_of_day(day: jax.Array, calibration: Calibration) -> jax.Array:
    """Returns the changes of level (n,) on a day up to day 0, 0 before the first day that the calibration has."""
    policy = jnp.asarray(calibration.policy)
    row = day + policy.shape[0] - 1
    before = jnp.where(row > 0, policy[jnp.maximum(row - 1, 0)], 1)
    return jnp.where(row >= 0, policy[jnp.maximum(row, 0)] - before, 0)


def _padded_levels(calibration: Calibration, num: int) -> jax.Array:
    """Returns the levels up to day 0 with `num` days of level 1 before them, [num + days, n]."""
    return jnp.pad(jnp.asarray(calibration.policy), ((num, 0), (0, 0)), constant_values=1)


def _with_keep(allowed: jax.Array) -> jax.Array:
    """Returns a mask with the first choice, which is always allowed, before the others."""
    return jnp.pad(allowed, ((0, 0), (1, 0)), constant_values=True).astype(jnp.int32)
