"""RICE-N: an integrated assessment model of regional economies, trade, negotiation and climate.

Source: Zhang, Williams, Phade, Srinivasa, Zhang, Gupta, Bengio, Zheng, "AI for Global Climate
Cooperation: Modeling Global Climate Negotiations, Agreements, and Long-Term Cooperation in RICE-N"
(2022), arXiv:2208.07004, and the authors' CPU class (mila-iqia/climate-cooperation-competition,
commit 148ed857, BSD-3-Clause). Where they differ, the code follows the class. economy.py contains
the equations of an activity step. The environment is deterministic.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import MANY, require, require_bool, require_integer
from wdjax.controls import DIGITS, Controls, evenly
from wdjax.env import Env, drawn_by, require_action
from wdjax.envs.climate import economy
from wdjax.envs.climate.calibration import published
from wdjax.envs.climate.state import (
    ACTIVITIES,
    COLUMNS,
    Params,
    State,
    Treaty,
    check_ranges,
    check_shapes,
)
from wdjax.spaces import Box, Dict, MultiDiscrete

Arrays = dict[str, jax.Array]
REGION = "region"
INDICES = ("climate_index", "economic_index")
STAGES = 3  # env steps per activity step with negotiation: proposal, evaluation, activity


def save(env: "Rice", state: State, params: Params, key: jax.Array) -> jax.Array:
    """Save at the highest rate in every region; all other action heads are 0.

    Returns:
        The action, [num_regions, heads] int32.
    """
    return jnp.zeros((env.num_regions, len(env.nvec)), jnp.int32).at[:, 0].set(env.levels - 1)


def mitigate(env: "Rice", state: State, params: Params, key: jax.Array) -> jax.Array:
    """Mitigate at the highest rate in every region; all other action heads are 0.

    Returns:
        The action, [num_regions, heads] int32.
    """
    return jnp.zeros((env.num_regions, len(env.nvec)), jnp.int32).at[:, 1].set(env.levels - 1)


@dataclasses.dataclass(frozen=True)
class Rice(Env):
    """Regions save, abate emissions and trade over 20 activity steps of 5 years, 2015 to 2115.

    With negotiation, a proposal step and an evaluation step precede each activity step.

    The action heads are integers; a rate is head / levels. The heads are saving, mitigation, export
    limit, n tariffs and n import bids. Negotiation adds a promise and a request for each region,
    and n decisions on the proposals of others (1 accepts). `step` also accepts the head `levels`
    (rate 1), which the action space excludes.

    The reward is the utility U. A nonzero `carbon_price` charges emissions and a nonzero
    `output_bonus` rewards output.
    """

    num_regions: int = 27
    """number of regions: the first ones of the published calibration, or all of a custom one"""
    negotiation: bool = False
    """whether a proposal and an evaluation step precede each activity step"""
    levels: int = 10  # number of levels of a rate

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
        """Number of choices of each action head."""
        n, levels = self.num_regions, self.levels
        return (levels,) * (3 + 2 * n) + (
            (levels,) * (2 * n) + (2,) * n if self.negotiation else ()
        )

    @property
    def default_params(self) -> Params:
        """The published calibration of the first num_regions regions.

        If num_regions is larger than the number of published regions, the values of the others are
        NaN, and `check_params` requires numbers for them. Numbers are float32, or float64 if
        `jax_enable_x64` is set.
        """
        dtype, n, fields = np.dtype(jnp.result_type(float)), self.num_regions, dict(published())
        missing = [np.nan] * max(0, n - fields.pop("num_regions"))
        fields |= {name: fields[name][:n] + missing for name in COLUMNS}
        # `make` casts Python floats to float32
        number = np.float64 if dtype == np.float64 else float
        numbers: dict[str, Any] = {
            name: np.array(value, dtype) if isinstance(value, list) else number(value)
            for name, value in fields.items()
        }
        return Params(
            **numbers,
            carbon_price=number(0.0),
            output_bonus=number(0.0),
            episode_length=ACTIVITIES * (STAGES if self.negotiation else 1),
        )

    def check_params(self, params: Params) -> None:
        check_shapes(params, self.default_params)
        check_ranges(params, f"The published calibration has {published()['num_regions']} regions")
        steps = params.episode_length
        is_whole = not self.negotiation or np.all(steps % STAGES == 0)
        require(is_whole, "episode_length", steps, "a multiple of 3 with negotiation")

    def reset(self, key: jax.Array, params: Params) -> tuple[dict[str, Arrays], State]:
        """Return the state of 2015; every reset is identical."""
        n, dtype = self.num_regions, jnp.result_type(float)
        zero, zeros, square = jnp.zeros((), dtype), jnp.zeros(n, dtype), jnp.zeros((n, n), dtype)
        temperature, carbon = jnp.asarray(params.T_0, dtype), jnp.asarray(params.M_0, dtype)
        capital, labor, technology, intensity = (
            jnp.asarray(value, dtype)
            for value in (params.K_0, params.L_0, params.A_0, params.sigma_0)
        )
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
        """Run an activity step, or with negotiation the next of proposal, evaluation and activity.

        The reward of an activity step is U - carbon_price * own emissions + output_bonus * own
        output. Proposal and evaluation steps have reward 0. Summed over an episode, `info` gives
        the climate and the economic index.
        """
        require_action(self, action, params, owner=Rice)
        over_before = self.is_over(state, params)
        heads = action[REGION]
        if self.negotiation:
            moved = jax.lax.switch(
                state.time % STAGES, (self.propose, self.evaluate, self.act), state, heads, params
            )
            acts = ~over_before & (state.time % STAGES == STAGES - 1)
        else:
            moved, acts = self.act(state, heads, params), ~over_before
        moved = moved.replace(time=state.time + 1)
        gains = economy.index_gains(
            state.temperature[0] - moved.temperature[0], jnp.sum(moved.output)
        )
        start = jnp.where(self.activity(state) == 0, 1, 0)
        info = {
            name: jnp.where(acts, gain + start * constant, 0)
            for name, gain, constant in zip(INDICES, gains, economy.START, strict=True)
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
        """Record the mitigation rates that each region promises to and requests from the others.

        Only `evaluate` uses them.
        """
        n = self.num_regions
        pairs = self.rates(heads[:, 3 + 2 * n : 3 + 4 * n], state).reshape(n, n, 2)
        treaty = cast(Treaty, state.treaty)
        treaty = treaty.replace(promised=pairs[..., 0], requested=pairs[..., 1])
        return state.replace(treaty=treaty, reward=jnp.zeros_like(state.reward))

    def evaluate(self, state: State, heads: jax.Array, params: Params) -> State:
        """Accept or reject the proposals of all other regions, promise and request together.

        The action mask enforces the agreed mitigation rate until the next evaluation:

            mu_min_i = max_j of promised_ij where j accepted, and of requested_ji where i accepted.
        """
        n, treaty = self.num_regions, cast(Treaty, state.treaty)
        others = ~jnp.eye(n, dtype=bool)
        decisions = ((heads[:, 3 + 4 * n :] > 0) & others).astype(state.reward.dtype)
        agreed = jnp.maximum(treaty.promised * decisions.T, treaty.requested.T * decisions)
        treaty = treaty.replace(decisions=decisions, floor=jnp.max(agreed, axis=1))
        return state.replace(treaty=treaty, reward=jnp.zeros_like(state.reward))

    def act(self, state: State, heads: jax.Array, params: Params) -> State:
        """Advance climate and economy by one activity step with the equations of economy.py.

        All equations use the state before the step. Tariffs apply from the next activity step on.
        """
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
        # computed from levels - head so that it equals p Q exactly if p + s = 1
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
        """Return the number of completed activity steps."""
        return state.time // (STAGES if self.negotiation else 1)

    def rates(self, heads: jax.Array, state: State) -> jax.Array:
        """Convert action heads to rates."""
        return heads.astype(state.capital.dtype) / self.levels

    def is_over(self, state: State, params: Params) -> jax.Array:
        """Return whether the episode has ended: a bool scalar."""
        return state.time >= params.episode_length

    def observe(self, state: State, params: Params) -> dict[str, Arrays]:
        """Return features and action masks of all regions.

        For n = 27 regions, `features` is [27, 1043] float32, or [27, 1207] with negotiation. It has
        the order and scales of the original implementation. `action_mask` is [n, sum(nvec)] int8.
        """
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
        regions = [
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
        private = [
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
        shared = jnp.concatenate([*world, *regions])
        parts = [jnp.eye(n), jnp.broadcast_to(shared, (n, len(shared))), jnp.stack(private, axis=1)]
        if treaty is not None:
            proposals = (treaty.promised, treaty.requested, treaty.decisions)
            parts += [
                treaty.floor[:, None],
                *(part for matrix in proposals for part in (matrix, matrix.T)),
            ]
        features = jnp.concatenate(parts, axis=1).astype(jnp.float32)
        return {REGION: {"features": features, "action_mask": self.action_mask(state)}}

    def action_mask(self, state: State) -> jax.Array:
        """Return [n, sum(nvec)] int8: 0 for mitigation levels below the agreed rate, else 1."""
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

    def controls(self, group: str, params: Params) -> Controls:
        """Return controls: digits set the saving rate, and the letters below them mitigation."""
        n, heads = self.num_regions, len(self.nvec)
        saving, mitigation = evenly(DIGITS, self.levels), evenly("qwertyuiop", self.levels, 1)
        keys, share = saving | mitigation, f"0 to {100 - 100 // self.levels} % of the"
        explanation = (
            f"0 to {[*saving][-1]}: save {share} output. "
            f"q to {[*mitigation][-1]}: avoid {share} emissions"
        )
        if self.negotiation:
            keys |= {key: dict.fromkeys(range(heads - n, heads), i) for i, key in enumerate("za")}
            explanation += ". a: accept all proposals. z: accept none"
        idle = [self.levels // 5, *[0] * (heads - 1)]
        return Controls(keys, idle, holds=True, speed=0.25, explanation=explanation)

    scene = drawn_by("wdjax.envs.climate.drawing:world_scene")
