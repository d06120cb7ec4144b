"""The equations of RICE-N, one activity step of 5 years at a time: production, trade, consumption, climate, growth.

Source: Zhang et al., "AI for Global Climate Cooperation", arXiv:2208.07004; numbers in brackets are its equations.
Where it and the authors' CPU class (mila-iqia/climate-cooperation-competition, 148ed857) differ, the class is followed.
Arrays are [n], a number for each region, and [n, n] with a row for the acting region; q counts activity steps from 0.
Money is trillions of US dollars, carbon GtC in the reservoirs and GtCO2 where it is emitted.
"""

from typing import Any

import jax
import jax.numpy as jnp


def external_forcing(q: jax.Array, params: Any) -> jax.Array:
    """Returns the forcing by other gases than CO2, W/m2: f_0 + min(f_1 - f_0, (f_1 - f_0) q / t_f)."""
    rise = params.f_1 - params.f_0
    return params.f_0 + jnp.minimum(rise, rise / params.t_f * q)


def land_emissions(q: jax.Array, num_regions: int, params: Any) -> jax.Array:
    """Returns a region's share of the emissions by land use, GtCO2 a year: E_land_0 (1 - delta_E_land)^q / n."""
    return params.E_land_0 * (1 - params.delta_E_land) ** q / num_regions


def abatement_price(q: jax.Array, intensity: jax.Array, params: Any) -> jax.Array:
    """Returns theta_1 (37), [n]: what it costs to emit nothing, as a share of production."""
    return params.p_b / (1000 * params.theta_2) * (1 - params.delta_pb) ** q * intensity


def damage_factor(temperature: jax.Array, params: Any) -> jax.Array:
    """Returns what warming leaves of production: 1 / (1 + a_1 T + a_2 T^a_3), T of the atmosphere, temperature [2]."""
    warming = jnp.maximum(temperature[0], 0)  # colder than 1750 does no damage
    return 1 / (1 + params.a_1 * warming + params.a_2 * power_of(warming, params.a_3))


def production(
    technology: jax.Array, capital: jax.Array, labor: jax.Array, params: Any
) -> jax.Array:
    """Returns Y = A K^gamma (L / 1000)^(1 - gamma) (40), [n], before damages and abatement."""
    return technology * power_of(capital, params.gamma) * (labor / 1000) ** (1 - params.gamma)


def trade(
    bids: jax.Array,
    export_limit: jax.Array,
    output: jax.Array,
    left: jax.Array,
    balance: jax.Array,
    params: Any,
) -> tuple[jax.Array, jax.Array]:
    """Returns who buys how much from whom, and what is left at home.

    A region bids for shares of its own output Q, together at most all of it (52); debts cut its bids by the factor
    1 + clip(10 D / K_0, -1, 0) (53, 54); nobody exports more than min(p Q, Q - I) (55, 56).

    Args:
        bids: [n, n], row i: what i would buy from j, as a share of i's output; those to itself do not count.
        export_limit: p [n], the largest share of its output that a region sells.
        output, left, balance: Q, Q - I and D with its interest, [n].

    Returns:
        (imports [n, n], i's from j; domestic [n]: Q - I - exports, exactly 0 where the limit of exports is Q - I).
    """
    others = 1 - jnp.eye(len(output), dtype=output.dtype)
    wanted = bids * output[:, None] * others
    funds = 1 + jnp.clip(params.debt_multiplier * balance / params.K_0, -1, 0)
    wanted = wanted * (shrink(jnp.sum(wanted, axis=1), output) * funds)[:, None]
    demand, limit = jnp.sum(wanted, axis=0), jnp.minimum(export_limit * output, left)
    # as left less the sum of what is sold it would be rounding noise in the place of 0, whose root is consumed
    domestic = jnp.maximum(left - jnp.minimum(demand, limit), 0)
    return wanted * shrink(demand, limit)[None], domestic


def shrink(total: jax.Array, limit: jax.Array) -> jax.Array:
    """Returns the factors [n] that bring totals down to their limits: 1 where they are not above."""
    above = total > limit
    return jnp.where(above, limit / jnp.where(above, total, 1), 1)


def consumption(
    domestic: jax.Array, imports: jax.Array, tariffs: jax.Array, params: Any
) -> jax.Array:
    """Returns C = (d domestic^l + f / (n - 1) sum_j (imports_ij (1 - tariff_ij))^l)^(1 / l) (25), [n]; of the tariffs'
    revenue nobody has anything."""
    power = params.armington_lambda
    foreign = jnp.sum(power_of(imports * (1 - tariffs), power), axis=1) / (len(domestic) - 1)
    return power_of(
        params.dom_pref * power_of(domestic, power) + params.for_pref * foreign, 1 / power
    )


@jax.custom_jvp
def power_of(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Return base ** exponent. Where its derivative is infinite, at base 0 and exponents below 1, it counts as 0."""
    return base**exponent


@power_of.defjvp
def power_of_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    """Return the power and p x ** (p - 1) dx + x ** p log(x) dp."""
    (base, exponent), (base_tangent, exponent_tangent) = primals, tangents
    zero, steep = base == 0, (base == 0) & (exponent < 1)
    power, slope = base**exponent, exponent * jnp.where(steep, 1, base) ** (exponent - 1)
    log = jnp.log(jnp.where(zero, 1, base))
    return power, jnp.where(steep, 0, slope) * base_tangent + power * log * exponent_tangent


def utility(labor: jax.Array, consumed: jax.Array, params: Any) -> jax.Array:
    """Returns U = l ((C / l + 1)^(1 - alpha) - 1) / (1 - alpha), l = L / 1000, [n]; where alpha is 1, l log(C / l + 1).

    By expm1 and log1p, as what is consumed per head may be little.
    """
    people, power = labor / 1000, 1 - params.alpha
    log = jnp.log1p(consumed / people)
    return people * jnp.where(
        power == 0, log, jnp.expm1(power * log) / jnp.where(power == 0, 1, power)
    )


def warm(temperature: jax.Array, carbon: jax.Array, forcing: jax.Array, params: Any) -> jax.Array:
    """Returns the new temperature [2]: Phi_T T + b_T F, F = F_2x log2(M_AT / M_1750) + external forcing (34)."""
    forcing = params.F_2x * jnp.log2(carbon[0] / params.M_AT_1750) + forcing
    return mix(params.phi_T, temperature) + params.b_T * forcing


def emit(carbon: jax.Array, emissions: jax.Array, params: Any) -> jax.Array:
    """Returns the new carbon [3]: Phi_M M + b_M E (35); E: of all regions, GtCO2 a year, ()."""
    return mix(params.phi_M, carbon) + params.b_M * emissions


def mix(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """Returns a small product without a matrix unit, which would round its inputs."""
    return jnp.sum(matrix * vector[None], axis=1)


def grow_labor(labor: jax.Array, params: Any) -> jax.Array:
    """Returns L ((1 + L_a) / (1 + L))^l_g (38), millions, [n]."""
    return labor * ((1 + params.L_a) / (1 + labor)) ** params.l_g


def grow_technology(technology: jax.Array, q: jax.Array, params: Any) -> jax.Array:
    """Returns A (e^0.0033 + g_A e^(-delta_A dt q)) (39), [n]."""
    growth = params.g_A * jnp.exp(-params.delta_A * params.step_years * q)
    return technology * (jnp.exp(params.tfp_growth_floor) + growth)


def lower_intensity(intensity: jax.Array, q: jax.Array, params: Any) -> jax.Array:
    """Returns sigma exp(-g_sigma (1 - delta_sigma)^(dt q) dt) (41), GtCO2 per trillion, [n]."""
    years = params.step_years
    return intensity * jnp.exp(-params.g_sigma * (1 - params.delta_sigma) ** (years * q) * years)
