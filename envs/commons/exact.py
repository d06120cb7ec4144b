"""The exact solution of taxed_commons in NumPy: what harvesters do, what a tax policy is worth, and the best one.

A harvester looks no further than its day: nobody owns tomorrow's fish (Gordon, 1954). What it then earns by one more
fish does not depend on what the others catch, so that its best catch is dominant, and its profile the only equilibrium:

    c(s, tau) = argmax_{c <= min(max_catch, floor(s / n))}  c (1 - tau (1 - 1 / n)) - cost c^2.

As it depends on today's stock and tax alone, and on no later one, the planner's problem is a decision process of
stock and time, which backward induction solves over all tax policies that may look at anything.
"""

import dataclasses

import numpy as np

from wdjax.envs.commons.taxed import Params, TaxedCommons


@dataclasses.dataclass(frozen=True)
class Solution:
    """What a tax policy is worth."""

    value: np.ndarray
    """[T + 1, S + 1, levels] float64: welfare from a step on, by the stock and the level in force before it"""
    level: np.ndarray
    """[T, S + 1] int64: what the planner sets in steps of the council; 0 in others"""

    def welfare(self, params: Params) -> float:
        """Returns the welfare of an episode."""
        return float(self.value[0, int(params.start), 0])


def gain(env: TaxedCommons, params: Params, level: int) -> np.ndarray:
    """Returns what each catch of its own earns a harvester at a tax, without its share of what the others pay,
    [max_catch + 1] float64 [coins]."""
    catch, tax = np.arange(env.max_catch + 1), float(params.tax_step) * level
    return catch * (1.0 - tax * (1.0 - 1.0 / env.num_harvesters)) - float(params.cost) * catch**2


def best_catch(env: TaxedCommons, params: Params) -> np.ndarray:
    """Returns the dominant catch by stock and level, [S + 1, levels] int64: the least of several."""
    most = np.minimum(env.max_catch, np.arange(int(params.capacity) + 1) // env.num_harvesters)
    allowed = np.arange(env.max_catch + 1) <= most[:, None]
    gains = [
        np.where(allowed, gain(env, params, level), -np.inf) for level in range(env.num_levels)
    ]
    return np.stack([np.argmax(np.round(of_level, 9), axis=1) for of_level in gains], axis=1)


def next_stock(params: Params, left: np.ndarray) -> np.ndarray:
    """Returns the stock that grows from what the fishing left, both int64."""
    capacity, left = int(params.capacity), np.asarray(left, np.int64)
    born = (int(params.growth_percent) * left * (capacity - left) + 50 * capacity) // (
        100 * capacity
    )
    return np.minimum(capacity, left + int(params.inflow) + born)


def evaluate(env: TaxedCommons, params: Params, level: np.ndarray | None = None) -> Solution:
    """Returns what a tax policy is worth, [T, S + 1] levels by time and stock; None: the best one, found on the way.

    Where several levels are best it takes the lowest.
    """
    catch, num = best_catch(env, params), env.num_harvesters
    stock = np.arange(int(params.capacity) + 1)
    welfare = num * (catch - float(params.cost) * catch**2)
    after = next_stock(params, stock[:, None] - num * catch)
    length, season = int(params.episode_length), int(params.fishing_days) + 1
    value = np.zeros((length + 1, len(stock), env.num_levels))
    levels = np.zeros((length, len(stock)), int)
    for t in reversed(range(length)):
        later = value[t + 1]
        if t % season:
            value[t] = welfare + later[after, np.arange(env.num_levels)]
            continue
        # what rounding makes differ, does not
        possible = np.round(later[:, : int(params.highest_level) + 1], 9)
        levels[t] = np.argmax(possible, axis=1) if level is None else level[t]
        value[t] = later[stock, levels[t]][:, None]
    return Solution(value, levels)


def without_tax(env: TaxedCommons, params: Params) -> Solution:
    """Returns the equilibrium where nobody plans: the tax is 0 for ever."""
    return evaluate(env, params.replace(highest_level=0))


def best_policy(env: TaxedCommons, params: Params) -> Solution:
    """Returns the planner's optimum."""
    return evaluate(env, params)
