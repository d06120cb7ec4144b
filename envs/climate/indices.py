"""Climate index and economic index of the AI for Global Climate Cooperation competition.

Both indices are linear. Two extreme policies of the published 27 regions define 0 and 1: saving all
income without abatement (climate 0, economy 1), and abating all emissions without saving
(climate 1, economy 0). The indices may leave [0, 1] for other calibrations or episode lengths. The
authors round them to two decimals.
"""

from typing import TypeVar

import jax

Number = TypeVar("Number", float, jax.Array)
# degC, warming of the atmosphere; trillion USD, gross output summed over activity steps and regions
WARMEST, COOLEST = 7.006738662719727, 1.2506777048110962
RICHEST, POOREST = 9673.5322265625, 606.57275390625


def climate_index(warming: Number) -> Number:
    """Return the climate index (warming - WARMEST) / (COOLEST - WARMEST).

    `warming` is the last minus the first temperature of the atmosphere, degC. WARMEST and COOLEST
    are its values under the two extreme policies (see the module docstring).
    """
    return (warming - WARMEST) / (COOLEST - WARMEST)


def economic_index(output: Number) -> Number:
    """Return the economic index (output - POOREST) / (RICHEST - POOREST).

    `output` is the gross output Q summed over activity steps and regions, trillion USD. POOREST and
    RICHEST are its values under the two extreme policies (see the module docstring).
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
