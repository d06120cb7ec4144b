"""covid_economy in plain NumPy float64 and Python, one replica and one state at a time.

Written from the rules, without code of wdjax.envs.covid. The calibration is a dict of its fields.
Unemployment is a sum over the last 600 days, not the recursion of the environment.
"""

import dataclasses
import math

import numpy as np

FILTER_DAYS = 600
DELAY = 29


@dataclasses.dataclass(frozen=True)
class Rules:
    episode_length: int = 540
    cooldown: int = 28
    subsidy_interval: int = 90
    num_subsidy_levels: int = 20
    max_subsidy: float = 20_000.0
    vaccines_per_million: float = 3_000.0
    vaccine_start: int = 296
    delivery_interval: int = 1
    risk_aversion: float = 2.0
    sick_rate: float = 0.1
    working_share: float = 0.6
    interest: float = 0.03
    state_health_priority: float = 0.3
    planner_health_priority: float = 0.45


class Economy:
    """One episode. `step` advances a day; the attributes are the state."""

    def __init__(self, calibration, rules=Rules()):
        self.of = of = {name: np.asarray(value, np.float64) for name, value in calibration.items()}
        self.rules = rules
        self.n = len(of["population"])
        self.susceptible, self.infected, self.recovered, self.vaccinated, self.unemployed = (
            of[f"init_{name}"].copy()
            for name in ("susceptible", "infected", "recovered", "vaccinated", "unemployed")
        )
        self.dead = of["death_rate"] * self.recovered
        # levels of all past days; level 1 before the first
        self.levels = [list(of["policy"][:, i]) for i in range(self.n)]
        self.until = [0] * self.n
        self.productivity = np.zeros(self.n)
        self.subsidy_level, self.time = 0, 0
        least = [
            (math.log(2) + of["unemployment_bias"][i]) / 100 * of["population"][i]
            for i in range(self.n)
        ]
        workforce = math.trunc(rules.working_share * of["us_population"] - sum(least))
        self.wage = of["gdp_per_capita"] / (workforce / of["us_population"]) / 365
        self.most = [
            max(0.0, rules.working_share * of["population"][i] - least[i]) * self.wage
            for i in range(self.n)
        ]

    @property
    def level(self):
        return [levels[-1] for levels in self.levels]

    def level_ago(self, i, days):
        levels = self.levels[i]
        return levels[-1 - days] if days < len(levels) else 1.0

    def step(self, actions, subsidy_action):
        """Return (rewards of the states [n], reward of the planner)."""
        of, rules = self.of, self.rules
        t = self.time + 1
        if (t - 1) % rules.subsidy_interval == 0:
            self.subsidy_level = subsidy_action
        deaths, subsidies, rewards = [], [], []
        for i in range(self.n):
            lagged = self.level_ago(i, DELAY - 1)  # before this day's level is appended
            self.levels[i].append(actions[i] if actions[i] > 0 else self.levels[i][-1])
            if t == self.until[i] + 1:
                self.until[i] += rules.cooldown if actions[i] > 0 else 1
            people = of["population"][i]
            subsidy = (
                self.subsidy_level / rules.num_subsidy_levels * people * rules.max_subsidy / 365
            )
            deaths.append(self.spread(i, t, lagged))
            self.unemployed[i] = self.unemployment(i) * people / 100
            share = rules.working_share
            sick = share * (rules.sick_rate * self.infected[i] + self.dead[i])
            work = max(0.0, share * people - sick - self.unemployed[i]) * self.wage
            self.productivity[i] = work + subsidy
            subsidies.append(subsidy)
            cost = deaths[i] * of["value_of_life"] / 365
            rewards.append(
                self.reward(
                    of["agent_alpha"][i],
                    rules.state_health_priority,
                    -cost / self.most[i],
                    self.productivity[i] / self.most[i],
                    (of["agent_health_index_min"][i], of["agent_health_index_max"][i]),
                    (of["agent_economic_index_min"][i], of["agent_economic_index_max"][i]),
                )
            )
        total = sum(self.most)
        planner = self.reward(
            of["planner_alpha"],
            rules.planner_health_priority,
            -sum(deaths) * of["value_of_life"] / 365 / total,
            (sum(self.productivity) - (1 + rules.interest) * sum(subsidies)) / total,
            of["planner_health_index_min_max"],
            of["planner_economic_index_min_max"],
        )
        self.time = t
        return np.array(rewards), planner

    def spread(self, i, t, lagged):
        """Advance the epidemic in state i. Return the new deaths."""
        of, rules = self.of, self.rules
        people = of["population"][i]
        dose = 0.0
        if t >= rules.vaccine_start and t % rules.delivery_interval == 0:
            dose = math.floor(rules.delivery_interval * people / 1e6 * rules.vaccines_per_million)
        beta = of["beta_intercept"][i] + of["beta_slope"][i] * lagged
        susceptible, infected = self.susceptible[i], self.infected[i]
        fraction = min(1.0, dose / (susceptible + 1e-10))
        vaccinated = min(dose, susceptible)
        d_susceptible = -beta * (susceptible / people) * infected * (1 - fraction) - vaccinated
        d_recovered = of["gamma"] * infected + vaccinated
        self.susceptible[i] = max(0.0, susceptible + d_susceptible)
        self.infected[i] = max(0.0, infected - d_susceptible - d_recovered)
        self.recovered[i] = max(0.0, self.recovered[i] + d_recovered)
        self.vaccinated[i] = max(0.0, self.vaccinated[i] + vaccinated)
        before, self.dead[i] = (
            self.dead[i],
            of["death_rate"] * (self.recovered[i] - self.vaccinated[i]),
        )
        return self.dead[i] - before

    def unemployment(self, i):
        levels = np.array([1.0, *self.levels[i]])
        changes = np.diff(levels)[::-1][:FILTER_DAYS]  # today first
        effects = np.exp(-np.arange(len(changes)) / self.of["conv_lambdas"][:, None]) @ changes
        return (
            math.log1p(math.exp(float(self.of["filter_weights"][i] @ effects)))
            + self.of["unemployment_bias"][i]
        )

    def reward(self, alpha, priority, health, share, health_bounds, economic_bounds):
        odds = priority * alpha / (1 - alpha)
        weight, eta = odds / (1 + odds), self.rules.risk_aversion
        clipped = min(max(share, 0.1), 3.0)
        utility = (1 + (clipped ** (1 - eta) - 1) / (1 - eta)) / 365

        def norm(value, bounds):
            return (value - bounds[0]) / (bounds[1] - bounds[0] + 1e-10)

        return weight * norm(health, health_bounds) + (1 - weight) * norm(utility, economic_bounds)

    def masks(self):
        """Return (may each state set its level, may the planner set the subsidy)."""
        return [
            self.time >= until for until in self.until
        ], self.time % self.rules.subsidy_interval == 0

    def observe(self):
        """Return (rows of the states [n, n + 13], row of the planner [9 n + 4])."""
        rules, n, t = self.rules, self.n, self.time
        m = rules.delivery_interval
        first, following = -(-rules.vaccine_start // m) * m, t + 1
        left = min(1, (first - following) / m) if following <= first else m - following % m
        shared = [
            t / rules.episode_length,
            (rules.subsidy_interval - t % rules.subsidy_interval) / rules.subsidy_interval,
            self.subsidy_level / rules.num_subsidy_levels,
            left / m,
        ]
        persons = [
            self.susceptible,
            self.infected,
            self.recovered,
            self.dead,
            self.vaccinated,
            self.unemployed,
        ]
        health = np.array(
            [[group[i] / self.of["population"][i] for i in range(n)] for group in persons]
        )
        made = self.productivity / np.array(self.most)
        lagged = np.array([self.level_ago(i, DELAY - 1) for i in range(n)]) / 10
        level = np.array(self.level) / 10
        states = [
            [*np.eye(n)[i], *health[:, i], made[i], lagged[i], level[i], *shared] for i in range(n)
        ]
        return np.array(states), np.array([*health.ravel(), *made, *lagged, *level, *shared])
