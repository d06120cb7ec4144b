"""RICE-N: regions of the world decide what they save, abate and trade while the planet warms, with or without treaties.

Source: Zhang, Williams, Phade, Srinivasa, Zhang, Gupta, Bengio, Zheng, "AI for Global Climate Cooperation: Modeling
Global Climate Negotiations, Agreements, and Long-Term Cooperation in RICE-N" (2022), arXiv:2208.07004, and the authors'
CPU class (mila-iqia/climate-cooperation-competition, commit 148ed857, BSD-3-Clause), which is followed where they
differ. The equations of one activity step are in economy.py. Everything is deterministic.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import MANY, require, require_bool, require_finite, require_integer
from wdjax.env import Env, require_action
from wdjax.envs.climate import economy
from wdjax.envs.climate.calibration import published
from wdjax.envs.climate.indices import START, index_gains
from wdjax.spaces import Box, Dict, MultiDiscrete

Arrays = dict[str, jax.Array]
REGION = "region"
ACTIVITIES = 20  # of 5 years, 2015 to 2115
INDICES = ("climate_index", "economic_index")
STAGES = 3  # of an activity step where regions negotiate: proposal, evaluation, activity


class Treaty(struct.PyTreeNode):
    """What was said in the last proposal and evaluation; row: who spoke, column: to whom. float, like State."""

    promised: jax.Array  # (n, n), in [0, 1]: mitigation rate that i offers j
    requested: jax.Array  # (n, n), in [0, 1]: mitigation rate that i asks of j
    decisions: jax.Array  # (n, n), 0 or 1: whether i accepts what j proposed to it
    floor: jax.Array
    """mu_min (n,), in [0, 1]: the lowest mitigation rate that i may choose until the next evaluation"""


class State(struct.PyTreeNode):
    """The world, and what the n regions did last; rates are shares in [0, 1]. float: float32, or float64 where
    `jax_enable_x64` is on. Everything after `balance` is 0 until the first activity step."""

    temperature: jax.Array  # T (2,), degC above 1750: atmosphere, lower ocean
    carbon: jax.Array  # M (3,), GtC: atmosphere, upper ocean, lower ocean
    capital: jax.Array  # K (n,), trillion USD
    labor: jax.Array  # L (n,), million people
    technology: jax.Array  # A (n,)
    intensity: jax.Array  # sigma (n,), GtCO2 per trillion USD
    balance: jax.Array  # D (n,), trillion USD, of trade; those of all regions sum up to 0
    forcing: jax.Array  # F_ex (), W/m2, by other gases than CO2
    land_emissions: jax.Array  # E_land (), GtCO2 a year, the share of one region
    damages: jax.Array  # (), what warming left of production, in (0, 1]
    saving: jax.Array  # s (n,), rate of gross output
    mitigation: jax.Array  # mu (n,), rate of emissions
    export_limit: jax.Array  # p (n,), rate of gross output
    tariffs: jax.Array
    """tau (n, n), rate of i on imports from j; in force from the next activity step on"""
    abatement_price: jax.Array  # theta_1 (n,), share of production
    abatement_cost: jax.Array  # (n,), share of production
    production: jax.Array  # Y (n,), trillion USD a year
    output: jax.Array  # Q (n,), trillion USD a year, less damages and abatement
    investment: jax.Array  # I (n,), trillion USD a year
    consumption: jax.Array  # C (n,), trillion USD a year
    utility: jax.Array  # U (n,)
    welfare: jax.Array  # W (n,), utility discounted by rho
    reward: jax.Array  # (n,), of the last step
    treaty: Treaty | None  # None without negotiation
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """The calibration; the numbers are those of rice_regions.yaml."""

    # of each region, (n,)
    A_0: jax.Array  # technology at first
    K_0: jax.Array  # capital at first, trillion USD
    L_0: jax.Array  # labor at first, million people
    L_a: jax.Array  # labor in the end, million people
    l_g: jax.Array  # how fast labor gets there
    g_A: jax.Array  # growth of technology at first
    delta_A: jax.Array  # decline of that growth, 1/year
    sigma_0: jax.Array  # carbon intensity at first, GtCO2 per trillion USD
    # climate
    T_0: jax.Array  # (2,) degC at first
    M_0: jax.Array  # (3,) GtC at first
    phi_T: jax.Array  # (2, 2) temperature to temperature
    b_T: jax.Array  # (2,) forcing to temperature, degC m2/W
    phi_M: jax.Array  # (3, 3) carbon to carbon
    b_M: jax.Array  # (3,) emissions to carbon, GtC year/GtCO2
    M_AT_1750: float  # GtC in the atmosphere in 1750
    F_2x: float  # W/m2 when it has doubled
    f_0: float  # W/m2 of other gases at first
    f_1: float  # W/m2 of other gases in the end
    t_f: float  # activity steps until then
    E_land_0: float  # GtCO2 a year by land use at first, of the world
    delta_E_land: float  # decline of that in an activity step
    a_1: float  # damage 1 / (1 + a_1 T + a_2 T^a_3), 1/degC
    a_2: float  # likewise
    a_3: float  # likewise
    # economy
    p_b: float  # backstop price, USD per ton of CO2
    delta_pb: float  # its decline in an activity step
    theta_2: float  # exponent of the cost of abatement
    gamma: float  # elasticity of capital
    delta_K: float  # depreciation of capital, 1/year
    tfp_growth_floor: float  # growth of technology in an activity step in the end
    g_sigma: float  # decline of carbon intensity, 1/year
    delta_sigma: float  # decline of that decline, 1/year
    alpha: float  # relative risk aversion
    rho: float  # discount of welfare, 1/year; welfare is observed, and pays nobody
    armington_lambda: float  # exponent of goods in consumption
    dom_pref: float  # share of domestic goods in consumption
    for_pref: float  # share of the goods of all others together
    balance_interest_rate: float  # in an activity step
    debt_multiplier: float  # how debts lower bids
    step_years: float  # years of an activity step
    # game
    carbon_price: float = 0.0
    """utility that a region pays for a GtCO2 a year of its own; 0: as published"""
    output_bonus: float = 0.0
    """utility that it gets for a trillion USD a year of its own output; 0: as published"""
    episode_length: int = ACTIVITIES  # steps; the end is part of the game and terminates


COLUMNS = ("A_0", "K_0", "L_0", "L_a", "l_g", "g_A", "delta_A", "sigma_0")
POSITIVE = (
    "A_0",
    "K_0",
    "L_0",
    "M_0",
    "M_AT_1750",
    "t_f",
    "theta_2",
    "armington_lambda",
    "step_years",
)
NOT_NEGATIVE = (
    "L_a",
    "sigma_0",
    "phi_M",
    "b_M",
    "E_land_0",
    "a_1",
    "a_2",
    "a_3",
    "p_b",
    "alpha",
    "rho",
    "dom_pref",
    "for_pref",
    "balance_interest_rate",
    "debt_multiplier",
)
SHARES = ("delta_E_land", "delta_pb", "delta_K", "delta_sigma", "gamma")


def save(env: "Rice", state: State, params: Params, key: jax.Array) -> jax.Array:
    """Saves as much as the action space has, and does nothing else: [n, heads]."""
    return jnp.zeros((env.num_regions, len(env.nvec)), jnp.int32).at[:, 0].set(env.levels - 1)


def mitigate(env: "Rice", state: State, params: Params, key: jax.Array) -> jax.Array:
    """Abates as much as the action space has, and does nothing else: [n, heads]."""
    return jnp.zeros((env.num_regions, len(env.nvec)), jnp.int32).at[:, 1].set(env.levels - 1)


@dataclasses.dataclass(frozen=True)
class Rice(Env):
    """`num_regions` regions for 20 activity steps of 5 years, 2015 to 2115; with negotiation each has two steps before.

    Actions are rates, head / levels: saving, mitigation, export limit, n tariffs, n bids for imports; with negotiation
    then for every target (promise, request), and n decisions on what others proposed, 1 to accept. `step` takes the
    level `levels`, the rate 1, too, which the action space does not have. A region is paid its utility U, and
    where there are prices pays for its emissions, or is paid for its output.
    """

    num_regions: int = 27
    """the first of the published ones, or as many as the calibration given has"""
    negotiation: bool = False  # whether proposals and evaluations stand before each activity
    levels: int = 10  # of a rate

    can_truncate: ClassVar[bool] = False
    cheap_reset: ClassVar[bool] = True
    frames_per_second: ClassVar[int] = 4
    trail: ClassVar[int] = STAGES * ACTIVITIES
    scripts: ClassVar[dict[str, tuple[str, Callable]]] = {
        "save": (REGION, save),
        "mitigate": (REGION, mitigate),
    }

    def __post_init__(self):
        require_integer("num_regions", self.num_regions, 2, MANY)
        require_bool("negotiation", self.negotiation)
        require_integer("levels", self.levels, 2, MANY)

    @property
    def groups(self) -> Mapping[str, int]:
        return {REGION: self.num_regions}

    @property
    def nvec(self) -> tuple[int, ...]:
        """Sizes of the heads of an action."""
        n, levels = self.num_regions, self.levels
        return (levels,) * (3 + 2 * n) + (
            (levels,) * (2 * n) + (2,) * n if self.negotiation else ()
        )

    @property
    def default_params(self) -> Params:
        """The published calibration, in 64 bits where `jax_enable_x64` is on; NaN for regions that it does not have."""
        dtype, n, found = np.dtype(jnp.result_type(float)), self.num_regions, dict(published())
        missing = [np.nan] * max(0, n - found.pop("num_regions"))
        found |= {name: found[name][:n] + missing for name in COLUMNS}
        # (`make` casts a Python float to 32 bits)
        number = np.float64 if dtype == np.float64 else float
        numbers = {
            name: np.array(value, dtype) if isinstance(value, list) else number(value)
            for name, value in found.items()
        }
        length = ACTIVITIES * (STAGES if self.negotiation else 1)
        return Params(
            **numbers, carbon_price=number(0.0), output_bonus=number(0.0), episode_length=length
        )

    def check_params(self, params: Params) -> None:
        defaults = self.default_params
        for field in dataclasses.fields(params):
            shape, found = (
                np.shape(getattr(defaults, field.name)),
                np.shape(getattr(params, field.name)),
            )
            words = (
                f"numbers in the shape {shape}"
                + f", one for each region: num_regions = {self.num_regions}"
                * (field.name in COLUMNS)
            )
            require(
                found[len(found) - len(shape) :] == shape,
                field.name,
                getattr(params, field.name),
                words,
            )
        for name in COLUMNS:
            words = f"given and finite: the published calibration has {published()['num_regions']} regions"
            require(np.all(np.isfinite(getattr(params, name))), name, getattr(params, name), words)
        require_finite(params)
        for names, fits, words in (
            (POSITIVE, lambda value: value > 0, "above 0"),
            (NOT_NEGATIVE, lambda value: value >= 0, "at least 0"),
            (SHARES, lambda value: (value >= 0) & (value <= 1), "from 0 to 1"),
        ):
            for name in names:
                require(np.all(fits(getattr(params, name))), name, getattr(params, name), words)
        price = np.asarray(params.p_b / (1000 * params.theta_2))[..., None] * params.sigma_0
        require(
            np.all(price <= 1),
            "p_b",
            params.p_b,
            "low enough that to emit nothing costs no more than all output: "
            "p_b sigma_0 / (1000 theta_2) <= 1 in each region",
        )
        length, stages = params.episode_length, STAGES if self.negotiation else 1
        require(np.all(length > 0), "episode_length", length, "above 0")
        require(
            np.all(length % stages == 0),
            "episode_length",
            length,
            "a multiple of 3 with negotiation",
        )

    def reset(self, key: jax.Array, params: Params) -> tuple[dict[str, Arrays], State]:
        """Returns the world of 2015, always the same."""
        n, dtype = self.num_regions, jnp.result_type(float)
        zero, zeros, square = jnp.zeros((), dtype), jnp.zeros(n, dtype), jnp.zeros((n, n), dtype)
        temperature, carbon = jnp.asarray(params.T_0, dtype), jnp.asarray(params.M_0, dtype)
        stocks = (
            jnp.asarray(value, dtype)
            for value in (params.K_0, params.L_0, params.A_0, params.sigma_0)
        )
        capital, labor, technology, intensity = stocks
        state = State(
            temperature,
            carbon,
            capital,
            labor,
            technology,
            intensity,
            balance=zeros,
            forcing=zero,
            land_emissions=zero,
            damages=zero,
            saving=zeros,
            mitigation=zeros,
            export_limit=zeros,
            tariffs=square,
            abatement_price=zeros,
            abatement_cost=zeros,
            production=zeros,
            output=zeros,
            investment=zeros,
            consumption=zeros,
            utility=zeros,
            welfare=zeros,
            reward=zeros,
            time=jnp.int32(0),
            treaty=Treaty(square, square, square, zeros) if self.negotiation else None,
        )
        return self.observe(state, params), state

    def step(
        self, key: jax.Array, state: State, action: Arrays, params: Params
    ) -> tuple[dict[str, Arrays], State, Arrays, Arrays, Arrays, Arrays]:
        """Makes one activity step, or with negotiation one of proposal, evaluation, activity in turn.

        Reward of an activity step: U - carbon_price * own emissions + output_bonus * own output; else 0. The info sums
        up to the two indices of the world.
        """
        require_action(self, action, params, owner=Rice)
        over_before = self.is_over(state, params)
        heads = action[REGION]
        if self.negotiation:
            stages = (self.propose, self.evaluate, self.act)
            moved = jax.lax.switch(state.time % STAGES, stages, state, heads, params)
            acts = ~over_before & (state.time % STAGES == STAGES - 1)
        else:
            moved, acts = self.act(state, heads, params), ~over_before
        moved = moved.replace(time=state.time + 1)
        gains = index_gains(state.temperature[0] - moved.temperature[0], jnp.sum(moved.output))
        start = jnp.where(self.activity(state) == 0, 1, 0)
        info = {
            name: jnp.where(acts, gain + start * constant, 0)
            for name, gain, constant in zip(INDICES, gains, START, strict=True)
        }
        reward = jnp.where(over_before, 0, moved.reward).astype(jnp.float32)
        state = jax.tree.map(lambda old, new: jnp.where(over_before, old, new), state, moved)
        terminated = jnp.full(self.num_regions, self.is_over(state, params))
        truncated = jnp.zeros(self.num_regions, bool)
        return (
            self.observe(state, params),
            state,
            {REGION: reward},
            {REGION: terminated},
            {REGION: truncated},
            info,
        )

    def propose(self, state: State, heads: jax.Array, params: Params) -> State:
        """Everybody promises a mitigation rate to everybody, and requests one: no other rule looks at these."""
        n = self.num_regions
        pairs = self.rates(heads[:, 3 + 2 * n : 3 + 4 * n], state).reshape(n, n, 2)
        treaty = state.treaty.replace(promised=pairs[..., 0], requested=pairs[..., 1])
        return state.replace(treaty=treaty, reward=jnp.zeros_like(state.reward))

    def evaluate(self, state: State, heads: jax.Array, params: Params) -> State:
        """Everybody accepts or refuses what each other one proposed, both halves together.

        mu_min_i = max_j of promised_ij where j accepted, and of requested_ji where i accepted: the mask of mitigation
        until the next evaluation.
        """
        n, treaty = self.num_regions, state.treaty
        others = ~jnp.eye(n, dtype=bool)
        decisions = ((heads[:, 3 + 4 * n :] > 0) & others).astype(state.reward.dtype)
        agreed = jnp.maximum(treaty.promised * decisions.T, treaty.requested.T * decisions)
        treaty = treaty.replace(decisions=decisions, floor=jnp.max(agreed, axis=1))
        return state.replace(treaty=treaty, reward=jnp.zeros_like(state.reward))

    def act(self, state: State, heads: jax.Array, params: Params) -> State:
        """Five years, each equation of economy.py on the state before them. Tariffs count from the next time on."""
        n, q = self.num_regions, self.activity(state)
        rates, years = self.rates(heads[:, : 3 + 2 * n], state), params.step_years
        saving, mitigation, export_limit = rates[:, 0], rates[:, 1], rates[:, 2]
        forcing, land = economy.external_forcing(q, params), economy.land_emissions(q, n, params)

        price = economy.abatement_price(q, state.intensity, params)
        cost, damages = (
            price * mitigation**params.theta_2,
            economy.damage_factor(state.temperature, params),
        )
        production = economy.production(state.technology, state.capital, state.labor, params)
        output = damages * (1 - cost) * production
        investment = saving * output

        balance = state.balance * (1 + params.balance_interest_rate)
        # to the bit p Q where p and s sum up to 1
        left = self.rates(self.levels - heads[:, 0], state) * output
        imports, domestic = economy.trade(
            rates[:, 3 + n :], export_limit, output, left, balance, params
        )
        consumed = economy.consumption(domestic, imports, state.tariffs, params)
        utility = economy.utility(state.labor, consumed, params)
        welfare = utility / (1 + params.rho) ** (years * (q + 1))

        emitted = state.intensity * (1 - mitigation) * production
        reward = utility - params.carbon_price * emitted + params.output_bonus * output
        return state.replace(
            temperature=economy.warm(state.temperature, state.carbon, forcing, params),
            carbon=economy.emit(state.carbon, jnp.sum(emitted + land), params),
            capital=(1 - params.delta_K) ** years * state.capital + years * investment,
            labor=economy.grow_labor(state.labor, params),
            technology=economy.grow_technology(state.technology, q, params),
            intensity=economy.lower_intensity(state.intensity, q, params),
            balance=balance + years * (jnp.sum(imports, axis=0) - jnp.sum(imports, axis=1)),
            forcing=forcing,
            land_emissions=land,
            damages=damages,
            saving=saving,
            mitigation=mitigation,
            export_limit=export_limit,
            tariffs=rates[:, 3 : 3 + n],
            abatement_price=price,
            abatement_cost=cost,
            production=production,
            output=output,
            investment=investment,
            consumption=consumed,
            utility=utility,
            welfare=welfare,
            reward=reward,
        )

    def activity(self, state: State) -> jax.Array:
        """Returns how many activity steps have been made."""
        return state.time // (STAGES if self.negotiation else 1)

    def rates(self, heads: jax.Array, state: State) -> jax.Array:
        """Returns the rates that heads stand for."""
        return heads.astype(state.capital.dtype) / self.levels

    def is_over(self, state: State, params: Params) -> jax.Array:
        return state.time >= params.episode_length

    def observe(self, state: State, params: Params) -> dict[str, Arrays]:
        """Rows [n, 1043] of 27 regions (1207 with negotiation) in the authors' order and scales, and the masks."""
        n, treaty = self.num_regions, state.treaty
        stage = [state.time % STAGES] if self.negotiation else []
        depreciation = jnp.full(
            n, jnp.where(self.activity(state) > 0, (1 - params.delta_K) ** params.step_years, 0)
        )
        world = [
            state.temperature / 10,
            state.carbon / 1e4,
            jnp.stack([state.forcing, state.land_emissions, state.time / 100, *stage]),
        ]
        everybody = [
            state.capital / 1e4,
            depreciation,
            state.labor / 1e4,
            state.output / 1e3,
            state.investment / 1e3,
            state.consumption / 1e3,
            state.saving,
            state.mitigation,
            state.export_limit,
            state.balance / 1e3,
            state.tariffs.reshape(-1) / 100,
        ]
        own = [
            state.technology / 100,
            state.intensity / 0.1,
            state.abatement_price,
            jnp.full(n, state.damages),
            state.abatement_cost,
            state.production / 1e3,
            state.utility,
            state.welfare,
            state.reward,
        ]
        shared = jnp.concatenate([*world, *everybody])
        parts = [jnp.eye(n), jnp.broadcast_to(shared, (n, len(shared))), jnp.stack(own, axis=1)]
        if treaty is not None:
            said = (treaty.promised, treaty.requested, treaty.decisions)
            parts += [
                treaty.floor[:, None],
                *(part for matrix in said for part in (matrix, matrix.T)),
            ]
        features = jnp.concatenate(parts, axis=1).astype(jnp.float32)
        return {REGION: {"features": features, "action_mask": self.action_mask(state)}}

    def action_mask(self, state: State) -> jax.Array:
        """Returns [n, sum(nvec)] int8: 1, but 0 for mitigation below what was agreed."""
        mask = jnp.ones((self.num_regions, sum(self.nvec)), jnp.int8)
        if state.treaty is None:
            return mask
        lowest = jnp.round(self.levels * state.treaty.floor)
        allowed = jnp.arange(self.levels)[None] >= lowest[:, None]
        return mask.at[:, self.levels : 2 * self.levels].set(allowed.astype(jnp.int8))

    def observation_space(self, params: Params) -> Dict:
        n = self.num_regions
        size = n + 8 + 10 * n + n * n + 9 + (2 + 6 * n if self.negotiation else 0)
        mask = Box(0, 1, (sum(self.nvec),), jnp.int8)
        return Dict({REGION: Dict({"features": Box(shape=(size,)), "action_mask": mask}).batch(n)})

    def action_space(self, params: Params) -> Dict:
        return Dict({REGION: MultiDiscrete(self.nvec).batch(self.num_regions)})

    def scene(self, states: State, params: Params) -> Any:
        from wdjax.envs.climate.drawing import world_scene

        return world_scene(self, states, params)
