"""Exact solution of taxed_commons in NumPy: equilibrium catch, value of a tax policy, optimal tax.

Harvesters maximize their profit of the current day, since no harvester owns tomorrow's fish
(Gordon, 1954). The marginal profit of a fish does not depend on the catches of the others, so the
best catch is a dominant strategy and yields the unique equilibrium:

    c(s, tau) = argmax_{c <= min(max_catch, floor(s / n))}  c (1 - tau (1 - 1 / n)) - cost c^2.

This catch depends only on the current stock and tax. The planner's problem is therefore a Markov
decision process over stock and time. Backward induction finds its optimum over all tax policies,
including those that depend on the history.
"""

import dataclasses

import numpy as np

from wdjax.envs.commons.taxed import Params, TaxedCommons


@dataclasses.dataclass(frozen=True)
class Solution:
    """Value of a tax policy, and its tax levels."""

    value: np.ndarray
    """[T + 1, S + 1, levels] float64, welfare-to-go by step, stock and tax level before the step"""
    level: np.ndarray
    """[T, S + 1] int64, tax level set in council steps by step and stock; 0 in other steps"""

    def welfare(self, params: Params) -> float:
        """Return the welfare of an episode that starts with `start` fish."""
        return float(self.value[0, int(params.start), 0])


def gain(env: TaxedCommons, params: Params, level: int) -> np.ndarray:
    """Return a harvester's profit for each catch at a tax level, [max_catch + 1] float64, coins.

    The profit excludes its share of the tax that the other harvesters pay.
    """
    catch, tax = np.arange(env.max_catch + 1), float(params.tax_step) * level
    return catch * (1.0 - tax * (1.0 - 1.0 / env.num_harvesters)) - float(params.cost) * catch**2


def best_catch(env: TaxedCommons, params: Params) -> np.ndarray:
    """Return the dominant catch by stock and tax level, [S + 1, levels] int64.

    Ties go to the smallest catch.
    """
    most = np.minimum(env.max_catch, np.arange(int(params.capacity) + 1) // env.num_harvesters)
    allowed = np.arange(env.max_catch + 1) <= most[:, None]
    gains = [
        np.where(allowed, gain(env, params, level), -np.inf) for level in range(env.num_levels)
    ]
    return np.stack([np.argmax(np.round(profit, 9), axis=1) for profit in gains], axis=1)


def next_stock(params: Params, left: np.ndarray) -> np.ndarray:
    """Return the stock after growth, given the fish left after the catch, both int64."""
    capacity, left = int(params.capacity), np.asarray(left, np.int64)
    born = (int(params.growth_percent) * left * (capacity - left) + 50 * capacity) // (
        100 * capacity
    )
    return np.minimum(capacity, left + int(params.inflow) + born)


def evaluate(env: TaxedCommons, params: Params, level: np.ndarray | None = None) -> Solution:
    """Evaluate a tax policy, or find the optimal one, by backward induction.

    Args:
        env: the environment.
        params: its parameters.
        level: [T, S + 1] int, tax level by step and stock; None: the optimal level, where ties go
            to the lowest.

    Returns:
        The value of the policy and its levels.
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
        # round so that ties do not depend on floating-point error
        possible = np.round(later[:, : int(params.highest_level) + 1], 9)
        levels[t] = np.argmax(possible, axis=1) if level is None else level[t]
        value[t] = later[stock, levels[t]][:, None]
    return Solution(value, levels)


def without_tax(env: TaxedCommons, params: Params) -> Solution:
    """Return the solution without a planner: the tax is always 0."""
    return evaluate(env, params.replace(highest_level=0))


def best_policy(env: TaxedCommons, params: Params) -> Solution:
    """Return the planner's optimum."""
    return evaluate(env, params)
