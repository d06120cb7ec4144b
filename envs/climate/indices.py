"""The two indices by which the published competition scores a world, 0 and 1 at its two extremes.

The extremes are those of the published 27 regions: all income saved and nothing abated (climate 0, economy 1), and
nothing saved and all emissions abated (climate 1, economy 0). Where a calibration, or an episode's length, is another,
the indices are the same lines in the same units, and may leave [0, 1]. The authors round them to two decimals.
"""

import jax

# degC: how much the atmosphere warms; trillion USD: the sum of gross output over activity steps and regions
WARMEST, COOLEST = 7.006738662719727, 1.2506777048110962
RICHEST, POOREST = 9673.5322265625, 606.57275390625


def climate_index(warming: jax.Array) -> jax.Array:
    """Returns (warming - warmest) / (coolest - warmest) of the last less the first temperature of the atmosphere."""
    return (warming - WARMEST) / (COOLEST - WARMEST)


def economic_index(output: jax.Array) -> jax.Array:
    """Returns (output - poorest) / (richest - poorest) of the sum of Q over activity steps and regions."""
    return (output - POOREST) / (RICHEST - POOREST)


def index_gains(cooling: jax.Array, output: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns what one activity step adds to (climate, economic) index; those of nothing at all are at their `START`.

    Args:
        cooling: old less new temperature of the atmosphere, degC.
        output: sum of Q over regions, trillion USD.
    """
    return cooling / (WARMEST - COOLEST), output / (RICHEST - POOREST)


START = climate_index(0.0), economic_index(0.0)
