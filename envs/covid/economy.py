"""COVID-19 and the economy: states choose stringency levels, and a federal planner pays subsidies.

This is a proof of concept and not for policy decisions (see docs/environments/covid.md).

Source: Trott, Srinivasa, van der Wal, Haneuse, Zheng, "Building a Foundation for Data-Driven,
Interpretable, and Robust Policy Design using the AI Economist" (2021), arXiv:2108.02904. The rules
follow CovidAndEconomySimulation in salesforce/ai-economist, commit a84d5f3f. A step is a day.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import (
    MANY,
    require,
    require_all,
    require_finite,
    require_integer,
    require_not_negative,
    require_positive,
)
from wdjax.controls import DIGITS, Controls, evenly
from wdjax.env import Env, drawn_by, require_action
from wdjax.envs.covid.calibration import (
    BETA_DELAY,
    NUM_LEVELS,
    Calibration,
    check_calibration,
    load_calibration,
)
from wdjax.envs.covid.model import (
    YEAR,
    Derived,
    Params,
    State,
    between,
    change_of_day,
    derive,
    spread,
    until_vaccines,
    utility,
)
from wdjax.envs.covid.synthetic import synthetic_calibration
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete

Arrays = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class CovidEconomy(Env):
    """States choose stringency levels during a pandemic, and a federal planner subsidizes them.

    The action of a state is Discrete(11): 0 keeps the level, 1 to 10 set it. The action of the
    planner is Discrete(21), a subsidy level that takes effect every `subsidy_interval` days. The
    episode ends after episode_length days.

    The calibration is synthetic unless `calibration_file` is set (see `load_calibration`).
    """

    num_states: int = 51  # number of states (the first agents); the last agent is the planner
    num_subsidy_levels: int = 20  # number of subsidy levels, in addition to none
    calibration_file: str = ""  # path of a JSON calibration; empty: synthetic calibration

    can_truncate: ClassVar[bool] = False
    info_ratios: ClassVar[dict[str, tuple[str, str]]] = {
        "unemployment": ("unemployed", "population")
    }

    def __post_init__(self):
        require_integer("num_states", self.num_states, 1, MANY)
        require_integer("num_subsidy_levels", self.num_subsidy_levels, 1, MANY)
        path = self.calibration_file
        require(isinstance(path, str), "calibration_file", path, "a path as a string", TypeError)

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
        durations = ("episode_length", "cooldown", "subsidy_interval", "delivery_interval")
        require_positive(params, *durations, "state_health_priority", "planner_health_priority")
        require_not_negative(params, "max_subsidy", "vaccines_per_million", "interest", "sick_rate")
        least = (np.log(2) + np.max(params.calibration.unemployment_bias)) / 100
        rules = {
            "episode_length": (
                params.episode_length <= longest,
                f"at most filter_len ({longest} days), "
                "so that no change of level in an episode expires",
            ),
            "risk_aversion": (abs(params.risk_aversion - 1) > 1e-3, "different from 1"),
            "working_share": (
                (params.working_share > least) & (params.working_share <= 1),
                f"above the minimum unemployment {least:.3f} (unemployment_bias) and at most 1",
            ),
        }
        require_all(params, rules)

    def reset(self, key: jax.Array, params: Params) -> tuple[Arrays, State]:
        """Start on day 0; every reset is identical."""
        calibration = params.calibration
        changes = jnp.diff(_padded_levels(calibration, 1), axis=0)  # for each day up to day 0
        ages = jnp.arange(changes.shape[0])[::-1]
        decay = jnp.exp(-ages[:, None] / calibration.conv_lambdas[None])
        past_levels = _padded_levels(calibration, BETA_DELAY)[-BETA_DELAY:].astype(jnp.int8)
        recovered = jnp.asarray(calibration.init_recovered)
        vaccinated = jnp.asarray(calibration.init_vaccinated)
        unemployed = jnp.asarray(calibration.init_unemployed)
        effects = jnp.einsum("dn,dk->nk", changes.astype(decay.dtype), decay, precision="highest")
        state = State(
            jnp.asarray(calibration.init_susceptible),
            jnp.asarray(calibration.init_infected),
            recovered,
            calibration.death_rate * (recovered - vaccinated),
            vaccinated,
            unemployed,
            jnp.asarray(calibration.policy)[-1],
            until=jnp.zeros(self.num_states, jnp.int32),
            effects=effects,
            past_levels=past_levels,
            productivity=jnp.zeros_like(unemployed),
            subsidy_level=jnp.int32(0),
            time=jnp.int32(0),
        )
        return self.observe(state, params), state

    def step(
        self, key: jax.Array, state: State, action: Arrays, params: Params
    ) -> tuple[Arrays, State, Arrays, Arrays, Arrays, Arrays]:
        """Advance by one day: levels and subsidy, virus, unemployment, productivity.

        The reward of a state is w h + (1 - w) e with the health weight w. The health index h is the
        negative cost of deaths, and the economic index e is the utility of productivity. Both are
        rescaled between their bounds. The planner's reward has the same form with sums over all
        states. Subsidies with interest are subtracted from its productivity.
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
        """Apply the levels and the subsidy.

        The action mask is not enforced: a level is always set, but a cooldown starts only when the
        mask allows a change.
        """
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
        """Advance unemployment, productivity and time.

        With the change of level d_t on day t and the filter length F:

            z_k <- z_k exp(-1 / lambda_k) + d_t - exp(-F / lambda_k) d_{t-F},
            U = (softplus(sum_k W_k z_k) + bias) N / 100,
            productivity = max(0, share N - share (sick I + D) - U) wage + subsidy.

        Returns:
            (state, subsidy): the new state, and the subsidies (n,), USD/day.
        """
        calibration, time = params.calibration, before.time + 1
        change, expiring = (
            moved.level - before.level,
            change_of_day(time - calibration.filter_len, calibration),
        )
        decay = jnp.exp(-1 / calibration.conv_lambdas)
        total_decay = jnp.exp(-calibration.filter_len / calibration.conv_lambdas)
        effects = (
            before.effects * decay[None] + change[:, None] - total_decay[None] * expiring[:, None]
        )
        rate = (
            jax.nn.softplus(jnp.sum(calibration.filter_weights * effects, axis=1))
            + calibration.unemployment_bias
        )
        unemployed = rate * calibration.population / 100
        share = params.working_share
        workers = (
            share * calibration.population
            - share * (params.sick_rate * moved.infected + moved.dead)
            - unemployed
        )
        # USD/day
        per_level = calibration.population * (params.max_subsidy / self.num_subsidy_levels) / YEAR
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
        """Return the rewards of the states (n,) and the planner (1,) for one day, float.

        `new_dead` (n,) is in persons and `subsidy` (n,) in USD/day.
        """
        calibration, max_productivity = params.calibration, derived.max_productivity
        cost = calibration.value_of_life / YEAR
        state_indices = (
            between(
                -new_dead * cost / max_productivity,
                calibration.agent_health_index_min,
                calibration.agent_health_index_max,
            ),
            between(
                utility(state.productivity / max_productivity, params.risk_aversion),
                calibration.agent_economic_index_min,
                calibration.agent_economic_index_max,
            ),
        )
        total = jnp.sum(max_productivity)
        net = (jnp.sum(state.productivity) - (1 + params.interest) * jnp.sum(subsidy)) / total
        health, economy = (
            calibration.planner_health_index_min_max,
            calibration.planner_economic_index_min_max,
        )
        planner_indices = (
            between(-jnp.sum(new_dead) * cost / total, health[0], health[1]),
            between(utility(net, params.risk_aversion), economy[0], economy[1]),
        )

        def weigh(weight, index) -> jax.Array:
            return weight * index[0] + (1 - weight) * index[1]

        return {
            "state": weigh(derived.state_weight, state_indices),
            "planner": weigh(derived.planner_weight, planner_indices)[None],
        }

    def observe(self, state: State, params: Params) -> Arrays:
        """Return observations by group, including action masks.

        Each state observes its own features, and the planner observes the features of all states.
        """
        calibration, time = params.calibration, state.time
        persons = (
            state.susceptible,
            state.infected,
            state.recovered,
            state.dead,
            state.vaccinated,
            state.unemployed,
        )
        health = jnp.stack(persons) / calibration.population[None]
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
        return Dict(
            {
                "state": Discrete(NUM_LEVELS + 1).batch(self.num_states),
                "planner": Discrete(self.num_subsidy_levels + 1).batch(1),
            }
        )

    def controls(self, group: str, params: Params) -> Controls:
        """Return controls: digits set the level of a state, or the subsidy of the planner."""
        if group == "planner":
            keys = evenly(DIGITS, self.num_subsidy_levels + 1)
            explanation = f"0 to {max(keys)}: subsidy (set every {params.subsidy_interval} days)"
            return Controls(keys, [0], holds=True, speed=0.25, explanation=explanation)
        keys = {str(level % 10): {0: level} for level in range(1, NUM_LEVELS + 1)}
        explanation = (
            "1 to 9, 0: stringency from open (1) to closed (0 is level 10). k: keep the level"
        )
        return Controls(keys | {"k": {0: 0}}, [0], holds=True, speed=0.25, explanation=explanation)

    scene = drawn_by("wdjax.envs.covid.drawing:map_scene")


def _padded_levels(calibration: Calibration, num: int) -> jax.Array:
    """Return the levels up to day 0, preceded by `num` days of level 1, [num + days, n]."""
    return jnp.pad(jnp.asarray(calibration.policy), ((num, 0), (0, 0)), constant_values=1)


def _with_keep(allowed: jax.Array) -> jax.Array:
    """Prepend action 0, which is always allowed, to a mask."""
    return jnp.pad(allowed, ((0, 0), (1, 0)), constant_values=True).astype(jnp.int32)
