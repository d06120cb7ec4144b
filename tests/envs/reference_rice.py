"""RICE-N in NumPy float64, region by region in loops.

Written from the rules in spec/climate.md, in the order of the paper's CPU class.
"""

import numpy as np


class ReferenceRice:
    """One replica. Attributes have the names of the rules."""

    def __init__(self, p, n, negotiation=False, levels=10):
        """Start from parameters `p`, a mapping or params with the names of rice_regions.yaml."""
        self.p = {name: np.asarray(value, np.float64) for name, value in p.items()}
        self.n, self.negotiation, self.levels = n, negotiation, levels
        self.t = self.k = 0
        self.T, self.M = self.p["T_0"].copy(), self.p["M_0"].copy()
        self.K, self.L, self.A, self.sigma = (
            self.p[x].copy() for x in ("K_0", "L_0", "A_0", "sigma_0")
        )
        zeros, square = np.zeros(n), np.zeros((n, n))
        for name in (
            "D",
            "s",
            "mu",
            "export",
            "theta1",
            "cost",
            "Y",
            "Q",
            "I",
            "C",
            "U",
            "W",
            "reward",
            "mu_min",
        ):
            setattr(self, name, zeros.copy())
        for name in ("tau", "promised", "requested", "decisions"):
            setattr(self, name, square.copy())
        self.F_ex = self.E_land = self.damage = self.depreciation = 0.0
        self.first_T, self.sum_Q = self.T[0], 0.0

    def step(self, heads):
        """Return (reward [n], done) after the heads, [n, H] whole numbers."""
        self.t += 1
        stage = self.t % 3 if self.negotiation else 0
        if stage == 1:
            self.propose(heads)
        elif stage == 2:
            self.evaluate(heads)
        else:
            self.k += 1
            self.activity(heads)
        return self.reward.copy(), self.k == 20

    def propose(self, heads):
        base, n = 3 + 2 * self.n, self.n
        for i in range(n):
            for j in range(n):
                self.promised[i, j] = heads[i, base + 2 * j] / self.levels
                self.requested[i, j] = heads[i, base + 2 * j + 1] / self.levels
        self.reward = np.zeros(n)

    def evaluate(self, heads):
        base, n = 3 + 4 * self.n, self.n
        for i in range(n):
            for j in range(n):
                self.decisions[i, j] = 0 if i == j else heads[i, base + j]
        for i in range(n):
            bound = 0.0
            for j in range(n):
                bound = max(bound, self.promised[i, j] * self.decisions[j, i])
                bound = max(bound, self.requested[j, i] * self.decisions[i, j])
            self.mu_min[i] = bound
        self.reward = np.zeros(n)

    def activity(self, heads):
        p, n, q, dt = self.p, self.n, self.k - 1, self.p["step_years"]
        rates = heads / self.levels
        self.s, self.mu, self.export = rates[:, 0], rates[:, 1], rates[:, 2]
        tau_new, bid = rates[:, 3 : 3 + n], rates[:, 3 + n : 3 + 2 * n]

        self.F_ex = p["f_0"] + min(p["f_1"] - p["f_0"], (p["f_1"] - p["f_0"]) / p["t_f"] * q)
        self.E_land = p["E_land_0"] * (1 - p["delta_E_land"]) ** q / n
        self.theta1 = p["p_b"] / (1000 * p["theta_2"]) * (1 - p["delta_pb"]) ** q * self.sigma
        self.damage = 1 / (1 + p["a_1"] * self.T[0] + p["a_2"] * self.T[0] ** p["a_3"])
        self.cost = self.theta1 * self.mu ** p["theta_2"]
        self.Y = self.A * self.K ** p["gamma"] * (self.L / 1000) ** (1 - p["gamma"])
        self.Q = self.damage * (1 - self.cost) * self.Y
        self.I = self.s * self.Q
        debts = self.D * (1 + p["balance_interest_rate"])

        X = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                X[i, j] = 0 if i == j else bid[i, j] * self.Q[i]
            if X[i].sum() > self.Q[i]:
                X[i] = X[i] / X[i].sum() * self.Q[i]
            X[i] = X[i] * (1 + min(0, max(-1, p["debt_multiplier"] * debts[i] / p["K_0"][i])))
        sold = np.zeros(n)
        for j in range(n):
            cap = min(self.export[j] * self.Q[j], self.Q[j] - self.I[j])
            sold[j] = min(X[:, j].sum(), cap)
            if X[:, j].sum() > cap:
                X[:, j] = X[:, j] / X[:, j].sum() * cap

        power, utility_power = p["armington_lambda"], 1 - p["alpha"]
        for i in range(n):
            foreign = sum((X[i, j] * (1 - self.tau[i, j])) ** power for j in range(n))
            domestic = max(0.0, self.Q[i] - self.I[i] - sold[i])
            total = p["dom_pref"] * domestic**power + p["for_pref"] / (n - 1) * foreign
            self.C[i] = total ** (1 / power)
            people = self.L[i] / 1000
            self.U[i] = people * ((self.C[i] / people + 1) ** utility_power - 1) / utility_power
            self.W[i] = self.U[i] / (1 + p["rho"]) ** (dt * self.k)
            self.D[i] = debts[i] + dt * (X[:, i].sum() - X[i].sum())
        self.reward = self.U.copy()

        forcing = p["F_2x"] * np.log2(self.M[0] / p["M_AT_1750"]) + self.F_ex
        emissions = sum(
            self.sigma[i] * (1 - self.mu[i]) * self.Y[i] + self.E_land for i in range(n)
        )
        self.T, self.M = (
            p["phi_T"] @ self.T + p["b_T"] * forcing,
            p["phi_M"] @ self.M + p["b_M"] * emissions,
        )
        self.depreciation = (1 - p["delta_K"]) ** dt
        self.K = self.depreciation * self.K + dt * self.I
        self.L = self.L * ((1 + p["L_a"]) / (1 + self.L)) ** p["l_g"]
        self.A = self.A * (
            np.exp(p["tfp_growth_floor"]) + p["g_A"] * np.exp(-p["delta_A"] * dt * q)
        )
        self.sigma = self.sigma * np.exp(-p["g_sigma"] * (1 - p["delta_sigma"]) ** (dt * q) * dt)
        self.tau = tau_new
        self.sum_Q += self.Q.sum()

    def indices(self):
        """Return (climate index, economic index), rounded to two decimals as by the authors."""
        climate = (self.T[0] - self.first_T - 7.006738662719727) / (
            1.2506777048110962 - 7.006738662719727
        )
        return round(climate, 2), round(
            (self.sum_Q - 606.57275390625) / (9673.5322265625 - 606.57275390625), 2
        )

    def mask(self):
        """Return the mask, [n, sum of head sizes]."""
        heads = 3 + 2 * self.n
        # 2 n heads of size 10 and n of size 2
        size = self.levels * heads + (22 * self.n if self.negotiation else 0)
        mask = np.ones((self.n, size), int)
        for i in range(self.n if self.negotiation else 0):
            for level in range(self.levels):
                mask[i, self.levels + level] = int(level >= round(self.levels * self.mu_min[i]))
        return mask

    def features(self):
        """Return the features of 27 regions, [n, 1043], with negotiation [n, 1207]."""
        rows = []
        for i in range(self.n):
            row = [float(i == j) for j in range(self.n)]
            row += [*(self.T / 10), *(self.M / 1e4), self.F_ex, self.E_land, self.t / 100]
            row += [self.t % 3] if self.negotiation else []
            row += [
                *(self.K / 1e4),
                *([self.depreciation] * self.n),
                *(self.L / 1e4),
                *(self.Q / 1e3),
            ]
            row += [
                *(self.I / 1e3),
                *(self.C / 1e3),
                *self.s,
                *self.mu,
                *self.export,
                *(self.D / 1e3),
            ]
            row += [rate / 100 for tariffs in self.tau for rate in tariffs]
            row += [
                self.A[i] / 100,
                self.sigma[i] / 0.1,
                self.theta1[i],
                self.damage,
                self.cost[i],
                self.Y[i] / 1e3,
            ]
            row += [self.U[i], self.W[i], self.reward[i]]
            if self.negotiation:
                row += [self.mu_min[i]]
                for matrix in (self.promised, self.requested, self.decisions):
                    row += [*matrix[i], *matrix[:, i]]
            rows.append(row)
        return np.array(rows)
