"""A tragedy of the commons with a planner: harvesters fish a shared stock, a council taxes each fish now and then.

Small enough to be solved exactly (`exact.py`). Its first step, and every one after `fishing_days` more, is the
council's, in which it sets a tax; in the days between the harvesters fish under that tax. So the two act at different
times, and each has a mask that leaves it one action where it is not its turn.

Sources: Gordon, "The Economic Theory of a Common-Property Resource: The Fishery" (1954), and Schaefer, "Some Aspects of
the Dynamics of Populations Important to the Management of Commercial Marine Fisheries" (1954), in whole fish; Pigou,
"The Economics of Welfare" (1920), part II, chapter 9, for the tax.
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
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete

Arrays = dict[str, Any]

MAX_CAPACITY = 1_000  # with MAX_GROWTH, products of the growth stay within int32
MAX_GROWTH = 1_000


class State(struct.PyTreeNode):
    stock: jax.Array  # () int32, fish in the sea
    level: jax.Array  # () int32, of the tax that is in force
    catch: jax.Array  # (num_harvesters,) int32, fish that each caught in the last step
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    capacity: int = 60  # fish that the sea feeds
    growth_percent: int = 40  # of the stock that a day adds where it is small, in percent
    inflow: int = 1  # fish that come from elsewhere in a day
    start: int = 30  # fish at the reset
    cost: float = 0.15  # of catching a fish in a day, for 1; n fish cost n^2 times as much [coins]
    tax_step: float = 0.45  # between two levels of the tax [coins per fish; a fish is sold for 1]
    highest_level: int = 3  # of the tax that the council may set; 0: there is never a tax
    fishing_days: int = 4  # steps between two of the council's
    episode_length: int = 60  # steps; the end is part of the game and terminates


@dataclasses.dataclass(frozen=True)
class TaxedCommons(Env):
    """`num_harvesters` harvesters choose a catch, Discrete(max_catch + 1); the planner a tax, Discrete(num_levels)."""

    num_harvesters: int = 4  # the first agents; the last one is the planner
    max_catch: int = 3  # fish that a harvester lands in a day
    num_levels: int = 4  # of the tax: 0, tax_step, 2 tax_step ...

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
        within = np.all((params.start >= 0) & (params.start <= params.capacity))
        require(within, "start", params.start, "from 0 to capacity")
        for name in ("cost", "tax_step"):
            require(np.all(getattr(params, name) >= 0), name, getattr(params, name), "at least 0")

    def reset(self, key: jax.Array, params: Params) -> tuple[Arrays, State]:
        """Fills the sea with `start` fish. There is no tax, and the council sits."""
        nothing = jnp.zeros(self.num_harvesters, jnp.int32)
        state = State(jnp.asarray(params.start, jnp.int32), jnp.int32(0), nothing, jnp.int32(0))
        return self.observe(state, params), state

    def step(
        self, key: jax.Array, state: State, action: Arrays, params: Params
    ) -> tuple[Arrays, State, Arrays, Arrays, Arrays, Arrays]:
        """The council sets a tax, or the harvesters fish under the one in force; after `episode_length` nothing.

        Reward (`rewards`): a harvester's of its day; the planner's is the sum of all harvesters'.
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
        """Returns whether a step is the council's: the first, and each after `fishing_days` others."""
        return time % (params.fishing_days + 1) == 0

    def dynamics(self, state: State, action: Arrays, params: Params, sits: jax.Array) -> State:
        """In a step of the council, the level that it asks for (at most highest_level); the sea waits. On another day
        everybody fishes on a ground of its own, one of n that the stock is spread over, and what is left grows,

            c_i = min(a_i, floor(s / n)),   x = s - sum_i c_i,
            s' = min(S, x + inflow + round(growth x (1 - x / S))),

        in whole fish, halves rounded up: exact in integers.
        """
        catch = jnp.where(
            sits, 0, jnp.minimum(action["harvester"], state.stock // self.num_harvesters)
        )
        left = state.stock - jnp.sum(catch, dtype=jnp.int32)
        born = params.growth_percent * left * (params.capacity - left)  # times 100 S
        grown = (born + 50 * params.capacity) // (100 * params.capacity)
        stock = jnp.where(
            sits, state.stock, jnp.minimum(params.capacity, left + params.inflow + grown)
        )
        level = jnp.where(
            sits, jnp.minimum(action["planner"][0], params.highest_level), state.level
        )
        return State(stock, level, catch.astype(jnp.int32), state.time + 1)

    def rewards(self, state: State, params: Params) -> jax.Array:
        """Returns what the last day's catch c of each harvester earns it at the tax tau, (num_harvesters,) [coins]:

            r_i = c_i - cost c_i^2 - tau c_i + tau sum_j c_j / n,

        a fish for a coin, a cost that grows, the tax, and a share of what all have paid. The shares return the whole
        tax: the sum of all rewards, the welfare, is sum_i c_i - cost c_i^2 at any tax.
        """
        catch, tax = state.catch.astype(jnp.float32), params.tax_step * state.level
        return catch - params.cost * catch**2 - tax * catch + tax * jnp.mean(catch)

    def statistics(
        self, state: State, params: Params, over_before: jax.Array, sits: jax.Array
    ) -> Arrays:
        """Returns the fish caught, and for means over fishing days (`info_ratios`) stock [fish] and tax [coins]."""
        day = jnp.where(over_before | sits, 0.0, 1.0).astype(jnp.float32)
        tax = params.tax_step * state.level
        catch = day * jnp.sum(state.catch, dtype=jnp.int32)
        return {"catch": catch, "stock": day * state.stock, "tax": day * tax, "days": day}

    def observe(self, state: State, params: Params) -> Arrays:
        """Everybody sees (s / S, t / T, the day of the season in [0, 1), the tax's level one-hot)."""
        season = params.fishing_days + 1
        numbers = jnp.stack(
            [
                state.stock / params.capacity,
                state.time / params.episode_length,
                (state.time % season) / season,
            ]
        )
        seen = jnp.concatenate([numbers, jax.nn.one_hot(state.level, self.num_levels)]).astype(
            jnp.float32
        )
        masks = self.masks(state, params)
        return {
            group: {
                "seen": jnp.tile(seen, (size, 1)),
                "action_mask": jnp.tile(masks[group], (size, 1)),
            }
            for group, size in self.groups.items()
        }

    def masks(self, state: State, params: Params) -> Arrays:
        """Returns what one agent of each group may do now, int32: a harvester, on fishing days, catches up to its
        share of the stock, else 0; the planner sets a tax when the council sits, else the one in force."""
        sits = self.sits(state.time, params)
        most = jnp.where(sits, 0, state.stock // self.num_harvesters)
        levels = jnp.arange(self.num_levels)
        tax = jnp.where(sits, levels <= params.highest_level, levels == state.level)
        return {
            "harvester": (jnp.arange(self.max_catch + 1) <= most).astype(jnp.int32),
            "planner": tax.astype(jnp.int32),
        }

    def by_group(self, flag: jax.Array) -> Arrays:
        """Returns a flag () of all agents by group."""
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

    def scene(self, states: State, params: Params) -> Any:
        from wdjax.envs.commons.drawing import commons_scene

        return commons_scene(self, states, params)
