"""Equations of one RICE-N activity step (5 years): production, trade, consumption, climate, growth.

Source: Zhang et al., "AI for Global Climate Cooperation", arXiv:2208.07004; numbers in parentheses
are its equations. Where the paper differs from the authors' CPU class
(mila-iqia/climate-cooperation-competition, 148ed857), the code follows the class.

Arrays are [n], one value per region, or [n, n] with one row per acting region. q is the index of
the activity step, from 0. Money is in trillion USD. Carbon is in GtC in the reservoirs and
emissions are in GtCO2.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp


def external_forcing(q: jax.Array, params: Any) -> jax.Array:
    """Return the radiative forcing of non-CO2 gases, W/m2.

    The forcing rises linearly from f_0 to f_1 over t_f activity steps and then stays constant. In
    activity step q, from 0, it is:

        F_ex = f_0 + min(f_1 - f_0, (f_1 - f_0) q / t_f).
    """
    rise = params.f_1 - params.f_0
    return params.f_0 + jnp.minimum(rise, rise / params.t_f * q)


def land_emissions(q: jax.Array, num_regions: int, params: Any) -> jax.Array:
    """Return land-use emissions per region, GtCO2/year: E_land_0 (1 - delta_E_land)^q / n."""
    return params.E_land_0 * (1 - params.delta_E_land) ** q / num_regions


def abatement_price(q: jax.Array, intensity: jax.Array, params: Any) -> jax.Array:
    """Return theta_1 (37), [n]: the cost of full abatement as a share of production."""
    return params.p_b / (1000 * params.theta_2) * (1 - params.delta_pb) ** q * intensity


def damage_factor(temperature: jax.Array, params: Any) -> jax.Array:
    """Return the share of production left after climate damages: 1 / (1 + a_1 T + a_2 T^a_3).

    `temperature` [2] contains the atmosphere and the lower ocean; T is the atmosphere.
    """
    warming = jnp.maximum(temperature[0], 0)  # no damages below the temperature of 1750
    return 1 / (1 + params.a_1 * warming + params.a_2 * power_of(warming, params.a_3))


def production(
    technology: jax.Array, capital: jax.Array, labor: jax.Array, params: Any
) -> jax.Array:
    """Return Y = A K^gamma (L / 1000)^(1 - gamma) (40), [n], before damages and abatement."""
    return technology * power_of(capital, params.gamma) * (labor / 1000) ** (1 - params.gamma)


def trade(
    bids: jax.Array,
    export_limit: jax.Array,
    output: jax.Array,
    left: jax.Array,
    balance: jax.Array,
    params: Any,
) -> tuple[jax.Array, jax.Array]:
    """Compute imports between all regions and the goods left for domestic consumption.

    A region's bids are limited in total to its gross output Q (52). Debt scales its bids by
    1 + clip(10 D / K_0, -1, 0) (53, 54). Exports are limited to min(p Q, Q - I) (55, 56).

    Args:
        bids: [n, n], desired imports of region i from region j as a share of i's output. The
            diagonal is ignored.
        export_limit: p [n], largest share of its output that a region exports.
        output: Q [n], gross output.
        left: Q - I [n], output after investment.
        balance: D [n], trade balance including interest.
        params: the parameters.

    Returns:
        (imports [n, n], of region i from region j; domestic [n], Q - I - exports, exactly 0 if the
        export limit is Q - I and binds).
    """
    others = 1 - jnp.eye(len(output), dtype=output.dtype)
    wanted = bids * output[:, None] * others
    funds = 1 + jnp.clip(params.debt_multiplier * balance / params.K_0, -1, 0)
    wanted = wanted * (shrink(jnp.sum(wanted, axis=1), output) * funds)[:, None]
    demand, limit = jnp.sum(wanted, axis=0), jnp.minimum(export_limit * output, left)
    # Subtracting the scaled imports would leave rounding noise instead of 0, amplified by the root
    # in `consumption`.
    domestic = jnp.maximum(left - jnp.minimum(demand, limit), 0)
    return wanted * shrink(demand, limit)[None], domestic


def shrink(total: jax.Array, limit: jax.Array) -> jax.Array:
    """Return the factors [n] that scale totals down to their limits, at most 1."""
    above = total > limit
    return jnp.where(above, limit / jnp.where(above, total, 1), 1)


def consumption(
    domestic: jax.Array, imports: jax.Array, tariffs: jax.Array, params: Any
) -> jax.Array:
    """Return the Armington aggregate of domestic and foreign goods (25), [n].

    With l = armington_lambda, d = dom_pref and f = for_pref:

        C = (d domestic^l + f / (n - 1) sum_j (imports_ij (1 - tariff_ij))^l)^(1 / l).

    Tariff revenue is not redistributed.
    """
    power = params.armington_lambda
    foreign = jnp.sum(power_of(imports * (1 - tariffs), power), axis=1) / (len(domestic) - 1)
    return power_of(
        params.dom_pref * power_of(domestic, power) + params.for_pref * foreign, 1 / power
    )


@jax.custom_jvp
def power_of(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Return base ** exponent, with derivative 0 where it is infinite (base 0, exponent < 1)."""
    return base**exponent


@power_of.defjvp
def power_of_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    """Return the power and its tangent p x ** (p - 1) dx + x ** p log(x) dp."""
    (base, exponent), (base_tangent, exponent_tangent) = primals, tangents
    zero, steep = base == 0, (base == 0) & (exponent < 1)
    power, slope = base**exponent, exponent * jnp.where(steep, 1, base) ** (exponent - 1)
    log = jnp.log(jnp.where(zero, 1, base))
    return power, jnp.where(steep, 0, slope) * base_tangent + power * log * exponent_tangent


def utility(labor: jax.Array, consumed: jax.Array, params: Any) -> jax.Array:
    """Return the utility of consumption, [n].

    With the population l = L / 1000 in billions:

        U = l ((C / l + 1)^(1 - alpha) - 1) / (1 - alpha),  or l log(C / l + 1) for alpha = 1.

    expm1 and log1p keep precision for small consumption per capita.
    """
    people, power = labor / 1000, 1 - params.alpha
    log = jnp.log1p(consumed / people)
    return people * jnp.where(
        power == 0, log, jnp.expm1(power * log) / jnp.where(power == 0, 1, power)
    )


def warm(temperature: jax.Array, carbon: jax.Array, forcing: jax.Array, params: Any) -> jax.Array:
    """Return the next temperature [2], degC (34).

    With F = F_2x log2(M_AT / M_1750) + external forcing, it is Phi_T T + b_T F.
    """
    forcing = params.F_2x * jnp.log2(carbon[0] / params.M_AT_1750) + forcing
    return mix(params.phi_T, temperature) + params.b_T * forcing


def emit(carbon: jax.Array, emissions: jax.Array, params: Any) -> jax.Array:
    """Return the next carbon masses [3], GtC: Phi_M M + b_M E (35).

    E () is the sum of the emissions of all regions, GtCO2/year.
    """
    return mix(params.phi_M, carbon) + params.b_M * emissions


def mix(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """Return matrix @ vector without a matrix unit, which would round the inputs."""
    return jnp.sum(matrix * vector[None], axis=1)


def grow_labor(labor: jax.Array, params: Any) -> jax.Array:
    """Return the next labor L ((1 + L_a) / (1 + L))^l_g (38), million people, [n]."""
    return labor * ((1 + params.L_a) / (1 + labor)) ** params.l_g


def grow_technology(technology: jax.Array, q: jax.Array, params: Any) -> jax.Array:
    """Return the next technology A (e^0.0033 + g_A e^(-delta_A dt q)) (39), [n]."""
    growth = params.g_A * jnp.exp(-params.delta_A * params.step_years * q)
    return technology * (jnp.exp(params.tfp_growth_floor) + growth)


def lower_intensity(intensity: jax.Array, q: jax.Array, params: Any) -> jax.Array:
    """Return the next carbon intensity (41), GtCO2 per trillion USD, [n].

    It is sigma exp(-g_sigma (1 - delta_sigma)^(dt q) dt).
    """
    years = params.step_years
    return intensity * jnp.exp(-params.g_sigma * (1 - params.delta_sigma) ** (years * q) * years)


# Indices of the AI for Global Climate Cooperation competition. Both are linear. Two extreme
# policies of the published 27 regions define 0 and 1: saving all income without abatement
# (climate 0, economy 1), and abating all emissions without saving (climate 1, economy 0). The
# indices may leave [0, 1] for other calibrations or episode lengths. The authors round them to two
# decimals.
Number = TypeVar("Number", float, jax.Array)
# degC, warming of the atmosphere; trillion USD, gross output summed over activity steps and regions
WARMEST, COOLEST = 7.006738662719727, 1.2506777048110962
RICHEST, POOREST = 9673.5322265625, 606.57275390625


def climate_index(warming: Number) -> Number:
    """Return the climate index (warming - WARMEST) / (COOLEST - WARMEST).

    `warming` is the last minus the first temperature of the atmosphere, degC. WARMEST and COOLEST
    are its values under the two extreme policies.
    """
    return (warming - WARMEST) / (COOLEST - WARMEST)


def economic_index(output: Number) -> Number:
    """Return the economic index (output - POOREST) / (RICHEST - POOREST).

    `output` is the gross output Q summed over activity steps and regions, trillion USD. POOREST and
    RICHEST are its values under the two extreme policies.
    """
    return (output - POOREST) / (RICHEST - POOREST)


def index_gains(cooling: jax.Array, output: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return how much one activity step adds to the climate and the economic index.

    The final indices are `START` plus the contributions of all activity steps.

    Args:
        cooling: previous minus new temperature of the atmosphere, degC.
        output: gross output Q summed over regions, trillion USD.

    Returns:
        (climate, economic) contributions, () each.
    """
    return cooling / (WARMEST - COOLEST), output / (RICHEST - POOREST)


START = climate_index(0.0), economic_index(0.0)
