"""taxed_commons in plain Python, one fish and one harvester at a time.

Written from the rules, without code of wdjax.envs.commons.
"""

import dataclasses
import fractions
import math


@dataclasses.dataclass(frozen=True)
class Rules:
    """The parameters, with the names of `wdjax.make`."""

    num_harvesters: int = 4
    max_catch: int = 3
    num_levels: int = 4
    capacity: int = 60
    growth_percent: int = 40
    inflow: int = 1
    start: int = 30
    cost: float = 0.15
    tax_step: float = 0.45
    highest_level: int = 3
    fishing_days: int = 4
    episode_length: int = 60


class Game:
    """One replica."""

    def __init__(self, rules):
        self.rules = rules
        self.stock, self.level, self.time = rules.start, 0, 0

    def sits(self):
        return self.time % (self.rules.fishing_days + 1) == 0

    def step(self, asked, level):
        """Return (rewards of the harvesters, reward of the planner)."""
        rules, num = self.rules, self.rules.num_harvesters
        if self.time >= rules.episode_length:
            return [0.0] * num, 0.0
        sits = self.sits()
        self.time += 1
        if sits:
            self.level = min(level, rules.highest_level)
            return [0.0] * num, 0.0
        catches = [min(fish, self.stock // num) for fish in asked]
        tax = rules.tax_step * self.level
        purse = sum(tax * fish for fish in catches)
        rewards = [fish - rules.cost * fish**2 - tax * fish + purse / num for fish in catches]
        self.stock = self.grown(self.stock - sum(catches))
        return rewards, sum(rewards)

    def grown(self, left):
        """Return the stock after a day that left `left` fish."""
        rate = fractions.Fraction(self.rules.growth_percent, 100)
        born = rate * left * (1 - fractions.Fraction(left, self.rules.capacity))
        return min(
            self.rules.capacity,
            left + self.rules.inflow + math.floor(born + fractions.Fraction(1, 2)),
        )

    def masks(self):
        """Return (mask of a harvester, mask of the planner)."""
        rules = self.rules
        if self.sits():
            return [1] + [0] * rules.max_catch, [
                int(i <= rules.highest_level) for i in range(rules.num_levels)
            ]
        share = self.stock // rules.num_harvesters
        return [int(fish <= share) for fish in range(rules.max_catch + 1)], [
            int(i == self.level) for i in range(rules.num_levels)
        ]

    def seen(self):
        rules, season = self.rules, self.rules.fishing_days + 1
        one_hot = [float(i == self.level) for i in range(rules.num_levels)]
        return [
            self.stock / rules.capacity,
            self.time / rules.episode_length,
            self.time % season / season,
            *one_hot,
        ]
