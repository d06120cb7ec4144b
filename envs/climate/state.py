"""State and params of RICE-N, and the allowed values of the params."""

import dataclasses

import jax
import numpy as np
from flax import struct

from wdjax.checks import (
    require,
    require_each,
    require_finite,
    require_not_negative,
    require_positive,
)

ACTIVITIES = 20  # activity steps of 5 years, 2015 to 2115
# params with one number per region
COLUMNS = ("A_0", "K_0", "L_0", "L_a", "l_g", "g_A", "delta_A", "sigma_0")


class Treaty(struct.PyTreeNode):
    """Last proposals and evaluations, with floats of the same precision as State.

    Rows are the regions that propose or evaluate; columns are their counterparts.
    """

    promised: jax.Array  # (n, n) float in [0, 1], mitigation rate that region i promises to j
    requested: jax.Array  # (n, n) float in [0, 1], mitigation rate that region i requests from j
    decisions: jax.Array  # (n, n) float, 1 if region i accepts the proposal of j, else 0
    floor: jax.Array
    """mu_min (n,) float in [0, 1], lowest allowed mitigation rate until the next evaluation"""


class State(struct.PyTreeNode):
    """Climate, economy and last actions of the n regions.

    Floats are float32, or float64 if `jax_enable_x64` is set. All fields after `balance` are 0
    until the first activity step.
    """

    temperature: jax.Array  # T (2,) float, degC above 1750: atmosphere, lower ocean
    carbon: jax.Array  # M (3,) float, GtC: atmosphere, upper ocean, lower ocean
    capital: jax.Array  # K (n,) float, trillion USD
    labor: jax.Array  # L (n,) float, million people
    technology: jax.Array  # A (n,) float, total factor productivity
    intensity: jax.Array  # sigma (n,) float, GtCO2 per trillion USD
    balance: jax.Array  # D (n,) float, trillion USD, trade balance; sums to 0 over regions
    forcing: jax.Array  # F_ex () float, W/m2, radiative forcing of non-CO2 gases
    land_emissions: jax.Array  # E_land () float, GtCO2/year, land-use emissions per region
    damages: jax.Array  # () float in (0, 1], share of production left after climate damages
    saving: jax.Array  # s (n,) float in [0, 1], share of gross output
    mitigation: jax.Array  # mu (n,) float in [0, 1], share of emissions abated
    export_limit: jax.Array  # p (n,) float in [0, 1], share of gross output
    tariffs: jax.Array
    """tau (n, n) float in [0, 1], tariff of region i on imports from j, in force from the next
    activity step on"""
    abatement_price: jax.Array
    """theta_1 (n,) float, cost of full abatement as a share of production"""
    abatement_cost: jax.Array  # (n,) float, abatement cost as a share of production
    production: jax.Array  # Y (n,) float, trillion USD/year, before damages and abatement
    output: jax.Array  # Q (n,) float, trillion USD/year, gross output after damages and abatement
    investment: jax.Array  # I (n,) float, trillion USD/year
    consumption: jax.Array  # C (n,) float, trillion USD/year
    utility: jax.Array  # U (n,) float
    welfare: jax.Array  # W (n,) float, utility discounted with rate rho
    reward: jax.Array  # (n,) float, reward of the last step
    treaty: Treaty | None  # Treaty, last proposals and evaluations; None without negotiation
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Calibration of regions, climate and economy; the defaults are in rice_regions.yaml."""

    # regions, (n,) each
    A_0: jax.Array  # (n,) initial technology (total factor productivity)
    K_0: jax.Array  # (n,) trillion USD, initial capital
    L_0: jax.Array  # (n,) million people, initial labor
    L_a: jax.Array  # (n,) million people, asymptotic labor
    l_g: jax.Array  # (n,) convergence exponent of labor per activity step
    g_A: jax.Array  # (n,) initial growth rate of technology per activity step
    delta_A: jax.Array  # (n,) 1/year, decline of the growth rate of technology
    sigma_0: jax.Array  # (n,) GtCO2 per trillion USD, initial carbon intensity
    # climate
    T_0: jax.Array  # (2,) degC, initial temperature of atmosphere and lower ocean
    M_0: jax.Array  # (3,) GtC, initial carbon in atmosphere, upper and lower ocean
    phi_T: jax.Array  # (2, 2) transfer matrix of temperature
    b_T: jax.Array  # (2,) degC m2/W, effect of forcing on temperature
    phi_M: jax.Array  # (3, 3) transfer matrix of carbon
    b_M: jax.Array  # (3,) GtC year/GtCO2, effect of emissions on carbon
    M_AT_1750: float  # GtC, carbon in the atmosphere in 1750
    F_2x: float  # W/m2, forcing at twice the atmospheric carbon of 1750
    f_0: float  # W/m2, initial forcing of non-CO2 gases
    f_1: float  # W/m2, final forcing of non-CO2 gases
    t_f: float  # activity steps until the final forcing of non-CO2 gases
    E_land_0: float  # GtCO2/year, initial land-use emissions of the world
    delta_E_land: float  # decline of land-use emissions per activity step
    a_1: float  # 1/degC, coefficient of the damages 1 / (1 + a_1 T + a_2 T^a_3)
    a_2: float  # degC^-a_3, coefficient of the damages
    a_3: float  # exponent of the damages
    # economy
    p_b: float  # USD per ton of CO2, backstop price
    delta_pb: float  # decline of the backstop price per activity step
    theta_2: float  # exponent of the abatement cost
    gamma: float  # capital elasticity of production
    delta_K: float  # 1/year, depreciation rate of capital
    tfp_growth_floor: float  # long-run growth rate of technology per activity step
    g_sigma: float  # 1/year, initial decline of carbon intensity
    delta_sigma: float  # 1/year, slowdown of the decline of carbon intensity
    alpha: float  # relative risk aversion (elasticity of marginal utility)
    rho: float  # 1/year, discount rate of welfare (observed, but not part of the reward)
    armington_lambda: float  # exponent of the Armington aggregate of goods
    dom_pref: float  # weight of domestic goods in consumption
    for_pref: float  # weight of foreign goods in consumption, all regions together
    balance_interest_rate: float  # interest rate of trade balances per activity step
    debt_multiplier: float  # strength with which debt reduces import bids
    step_years: float  # years, length of an activity step
    # reward and schedule
    carbon_price: float = 0.0
    """utility per GtCO2/year, charged for a region's own emissions; 0: as published"""
    output_bonus: float = 0.0
    """utility per trillion USD/year, paid for a region's own gross output; 0: as published"""
    episode_length: int = ACTIVITIES  # env steps, after which all agents terminate


def check_shapes(params: Params, defaults: Params) -> None:
    """Raise ValueError unless each field has the shape of its default, after any batch axes."""
    for field in dataclasses.fields(params):
        value, expected = getattr(params, field.name), np.shape(getattr(defaults, field.name))
        allowed = f"numbers of shape {expected}"
        if field.name in COLUMNS:
            allowed += f", one per region (num_regions = {expected[0]})"
        fits = np.shape(value)[np.ndim(value) - len(expected) :] == expected
        require(fits, field.name, value, allowed)


def check_ranges(params: Params, hint: str) -> None:
    """Raise ValueError unless all numbers are in their range; `hint` explains missing ones."""
    require_each(params, COLUMNS, np.isfinite, f"set to finite numbers. {hint}")
    require_finite(params)
    require_positive(params, "A_0", "K_0", "L_0", "M_0", "M_AT_1750", "t_f", "theta_2")
    require_positive(params, "armington_lambda", "step_years", "episode_length")
    require_not_negative(params, "L_a", "sigma_0", "phi_M", "b_M", "E_land_0", "a_1", "a_2", "a_3")
    require_not_negative(params, "p_b", "alpha", "rho", "dom_pref", "for_pref")
    require_not_negative(params, "balance_interest_rate", "debt_multiplier")
    shares = ("delta_E_land", "delta_pb", "delta_K", "delta_sigma", "gamma")
    require_each(params, shares, lambda value: (value >= 0) & (value <= 1), "from 0 to 1")
    price = np.asarray(params.p_b / (1000 * params.theta_2))[..., None] * params.sigma_0
    allowed = "small enough that full abatement costs at most all output"
    formula = "p_b sigma_0 / (1000 theta_2) <= 1 in each region"
    require(np.all(price <= 1), "p_b", params.p_b, f"{allowed}: {formula}")
