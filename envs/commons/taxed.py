"""Tragedy of the commons: harvesters fish a shared stock, and a planner taxes each fish.

The environment is small enough to be solved exactly (`exact.py`). The planner sets the tax in
council steps: the first step, and every (`fishing_days` + 1)-th step after it. In the steps
between, the harvesters fish under that tax. An action mask leaves each group a single action when
it is not its turn.

Sources: Gordon, "The Economic Theory of a Common-Property Resource: The Fishery" (1954), and
Schaefer, "Some Aspects of the Dynamics of Populations Important to the Management of Commercial
Marine Fisheries" (1954), in whole fish; Pigou, "The Economics of Welfare" (1920), part II,
chapter 9, for the tax.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import MANY, require, require_finite, require_integer, require_not_negative
from wdjax.controls import DIGITS, Controls, evenly
from wdjax.env import Env, drawn_by, require_action
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete

Arrays = dict[str, Any]

MAX_CAPACITY = 1_000  # with MAX_GROWTH, keeps the growth products within int32
MAX_GROWTH = 1_000


class State(struct.PyTreeNode):
    """Fish stock, tax level and last catch."""

    stock: jax.Array  # () int32, fish in the sea
    level: jax.Array  # () int32, tax level in force
    catch: jax.Array  # (num_harvesters,) int32, fish caught by each harvester in the last step
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Stock dynamics, prices and schedule."""

    capacity: int = 60  # fish, carrying capacity of the sea
    growth_percent: int = 40  # % per day, growth rate of a small stock
    inflow: int = 1  # fish per day that enter from elsewhere
    start: int = 30  # fish at the reset
    cost: float = 0.15  # coins, cost of a catch of 1 fish per day; c fish cost c^2 times as much
    tax_step: float = 0.45  # coins per fish between two tax levels (a fish sells for 1 coin)
    highest_level: int = 3  # highest tax level that the planner may set; 0: no tax
    fishing_days: int = 4  # fishing steps between two council steps
    episode_length: int = 60  # steps, after which all agents terminate


@dataclasses.dataclass(frozen=True)
class TaxedCommons(Env):
    """Harvesters fish a shared stock, and a planner taxes the catch.

    In council steps, the planner chooses the tax level, Discrete(num_levels). In all other steps,
    each harvester chooses its catch, Discrete(max_catch + 1).
    """

    num_harvesters: int = 4
    """number of harvesters (the first agents); the last agent is the planner"""
    max_catch: int = 3  # fish, largest catch of a harvester per day
    num_levels: int = 4  # number of tax levels: 0, tax_step, 2 tax_step, ...

    can_truncate: ClassVar[bool] = False
    cheap_reset: ClassVar[bool] = True
    frames_per_second: ClassVar[int] = 5
    info_ratios: ClassVar[Mapping[str, tuple[str, str]]] = {
        "mean_stock": ("stock", "days"),
        "mean_tax": ("tax", "days"),
    }

    def __post_init__(self):
        require_integer("num_harvesters", self.num_harvesters, 1, MANY)
        require_integer("max_catch", self.max_catch, 1, MANY)
        require_integer("num_levels", self.num_levels, 1, MANY)

    @property
    def groups(self) -> Mapping[str, int]:
        return {"harvester": self.num_harvesters, "planner": 1}

    @property
    def default_params(self) -> Params:
        return Params(highest_level=min(3, self.num_levels - 1))

    def check_params(self, params: Params) -> None:
        require_finite(params)
        ranges = {
            "capacity": (1, MAX_CAPACITY),
            "growth_percent": (0, MAX_GROWTH),
            "inflow": (0, MAX_CAPACITY),
            "highest_level": (0, self.num_levels - 1),
            "fishing_days": (1, 2**30),
            "episode_length": (1, 2**31 - 1),
        }
        for name, (low, high) in ranges.items():
            value = getattr(params, name)
            require(np.all((value >= low) & (value <= high)), name, value, f"from {low} to {high}")
        is_start = (params.start >= 0) & (params.start <= params.capacity)
        require(np.all(is_start), "start", params.start, "from 0 to capacity")
        require_not_negative(params, "cost", "tax_step")

    def reset(self, key: jax.Array, params: Params) -> tuple[Arrays, State]:
        """Start with `start` fish and no tax, in a council step."""
        no_catch = jnp.zeros(self.num_harvesters, jnp.int32)
        state = State(jnp.asarray(params.start, jnp.int32), jnp.int32(0), no_catch, jnp.int32(0))
        return self.observe(state, params), state

    def step(
        self, key: jax.Array, state: State, action: Arrays, params: Params
    ) -> tuple[Arrays, State, Arrays, Arrays, Arrays, Arrays]:
        """Set the tax in a council step, or let the harvesters fish in any other step.

        Reward: each harvester receives its profit of the day (`rewards`), and the planner the sum
        of all profits. Council steps have reward 0.
        """
        require_action(self, action, params, owner=TaxedCommons)
        over_before = state.time >= params.episode_length
        sits = self.sits(state.time, params)
        moved = self.dynamics(state, action, params, sits)
        state = jax.tree.map(lambda old, new: jnp.where(over_before, old, new), state, moved)
        earned = jnp.where(over_before | sits, 0.0, self.rewards(moved, params))
        reward = {"harvester": earned, "planner": jnp.sum(earned)[None]}
        terminated = self.by_group(state.time >= params.episode_length)
        info = self.statistics(state, params, over_before, sits)
        return (
            self.observe(state, params),
            state,
            reward,
            terminated,
            self.by_group(jnp.bool_(False)),
            info,
        )

    def sits(self, time: jax.Array, params: Params) -> jax.Array:
        """Return whether `time` is a council step, in which the planner sets the tax."""
        return time % (params.fishing_days + 1) == 0

    def dynamics(self, state: State, action: Arrays, params: Params, sits: jax.Array) -> State:
        """Advance the stock and the tax level by one step.

        A council step sets the tax level (at most highest_level) and leaves the stock unchanged. In
        a fishing step, the stock s is spread evenly over n fishing grounds, one per harvester, and
        the fish x that are left grow logistically up to the capacity S:

            c_i = min(a_i, floor(s / n)),   x = s - sum_i c_i,
            s' = min(S, x + inflow + round(growth x (1 - x / S))).

        All quantities are whole fish (halves round up), computed exactly in integers.
        """
        catch = jnp.where(
            sits, 0, jnp.minimum(action["harvester"], state.stock // self.num_harvesters)
        )
        left = state.stock - jnp.sum(catch, dtype=jnp.int32)
        growth = params.growth_percent * left * (params.capacity - left)  # times 100 S
        born = (growth + 50 * params.capacity) // (100 * params.capacity)
        stock = jnp.where(
            sits, state.stock, jnp.minimum(params.capacity, left + params.inflow + born)
        )
        level = jnp.where(
            sits, jnp.minimum(action["planner"][0], params.highest_level), state.level
        )
        return State(stock, level, catch.astype(jnp.int32), state.time + 1)

    def rewards(self, state: State, params: Params) -> jax.Array:
        """Return each harvester's profit of the last day, (num_harvesters,) float32, coins.

        With catch c and tax tau, the profit is:

            r_i = c_i - cost c_i^2 - tau c_i + tau sum_j c_j / n.

        The terms are the sales at 1 coin per fish, a quadratic cost, the tax, and an equal share of
        the total tax. All tax is returned, so the sum of all rewards (the welfare) is
        sum_i c_i - cost c_i^2 at any tax.
        """
        catch, tax = state.catch.astype(jnp.float32), params.tax_step * state.level
        return catch - params.cost * catch**2 - tax * catch + tax * jnp.mean(catch)

    def statistics(
        self, state: State, params: Params, over_before: jax.Array, sits: jax.Array
    ) -> Arrays:
        """Return the catch [fish], stock [fish], tax [coins] and day count of this step.

        All are 0 in council steps. `info_ratios` turns stock and tax into means over fishing days.
        """
        day = jnp.where(over_before | sits, 0.0, 1.0).astype(jnp.float32)
        tax = params.tax_step * state.level
        catch = day * jnp.sum(state.catch, dtype=jnp.int32)
        return {"catch": catch, "stock": day * state.stock, "tax": day * tax, "days": day}

    def observe(self, state: State, params: Params) -> Arrays:
        """Return observations by group, each with the features `seen` and an `action_mask`.

        All agents observe the same features, (num_in_group, 3 + num_levels) float32: s / S, t / T,
        the fraction of the season that has passed, and the tax level as one-hot.
        """
        season = params.fishing_days + 1
        scalars = jnp.stack(
            [
                state.stock / params.capacity,
                state.time / params.episode_length,
                (state.time % season) / season,
            ]
        )
        features = jnp.concatenate([scalars, jax.nn.one_hot(state.level, self.num_levels)]).astype(
            jnp.float32
        )
        masks = self.masks(state, params)
        return {
            group: {
                "seen": jnp.tile(features, (size, 1)),
                "action_mask": jnp.tile(masks[group], (size, 1)),
            }
            for group, size in self.groups.items()
        }

    def masks(self, state: State, params: Params) -> Arrays:
        """Return the action mask of one agent of each group, [num_actions] int32.

        A harvester may catch up to its share of the stock in fishing steps, and 0 in council steps.
        The planner may set a tax up to highest_level in council steps; in other steps, only the
        level in force is allowed.
        """
        sits = self.sits(state.time, params)
        most = jnp.where(sits, 0, state.stock // self.num_harvesters)
        levels = jnp.arange(self.num_levels)
        tax = jnp.where(sits, levels <= params.highest_level, levels == state.level)
        return {
            "harvester": (jnp.arange(self.max_catch + 1) <= most).astype(jnp.int32),
            "planner": tax.astype(jnp.int32),
        }

    def by_group(self, flag: jax.Array) -> Arrays:
        """Broadcast a scalar flag to all agents, by group."""
        return {group: jnp.full(size, flag) for group, size in self.groups.items()}

    def observation_space(self, params: Params) -> Dict:
        def space(choices: int) -> Dict:
            return Dict(
                {
                    "seen": Box(0.0, 1.0, (3 + self.num_levels,)),
                    "action_mask": MultiDiscrete((2,) * choices),
                }
            )

        harvester, planner = space(self.max_catch + 1), space(self.num_levels)
        return Dict(
            {"harvester": harvester.batch(self.num_harvesters), "planner": planner.batch(1)}
        )

    def action_space(self, params: Params) -> Dict:
        harvester, planner = Discrete(self.max_catch + 1), Discrete(self.num_levels)
        return Dict(
            {"harvester": harvester.batch(self.num_harvesters), "planner": planner.batch(1)}
        )

    def controls(self, group: str, params: Params) -> Controls:
        """Return controls: digits set the catch of a harvester, or the tax of the planner."""
        top, what = (
            (self.num_levels - 1, "tax level, set in council steps")
            if group == "planner"
            else (self.max_catch, "fish to catch per day")
        )
        keys = evenly(DIGITS, top + 1)
        explanation = f"0 to {max(keys)}: {what} (0 to {top})"
        return Controls(keys, [0], holds=True, speed=0.2, explanation=explanation)

    scene = drawn_by("wdjax.envs.commons.drawing:commons_scene")
