"""What actions mean: levels and angles in the plane, steps on the grid. The games and their scripts stand on it."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require

Arrays = dict[str, jax.Array]  # by group, each with a leading agent axis

# Actions on the grid: 0 stay, 1 x+1, 2 x-1, 3 y+1, 4 y-1.
X_STEPS = np.array([0, 1, -1, 0, 0], np.int32)
Y_STEPS = np.array([0, 0, 0, 1, -1], np.int32)


def require_pairs(num_agents: int) -> None:
    """Raises ValueError for more agents than have pairs, who sees or tags whom, that int32 counts."""
    require(
        num_agents**2 < 2**31,
        "number of agents",
        num_agents,
        "at most 46340: their pairs are counted in int32",
    )


def wrap(angle: jax.Array) -> jax.Array:
    """Returns an angle modulo 2 pi."""
    return jnp.mod(angle, jnp.float32(2 * math.pi))


def level(index: jax.Array, low: jax.Array, high: jax.Array, num_levels: int) -> jax.Array:
    """Returns the value of an action index: 0 for index 0, else level index - 1 of `num_levels` from low to high.

    Where low = -high, the levels are exact negatives of each other, so that a turn and its opposite cancel.
    """
    steps = max(num_levels - 1, 1)
    part = (2 * (index - 1) - steps) / steps  # from -1 to 1
    return jnp.where(index == 0, 0.0, 0.5 * (high + low) + 0.5 * (high - low) * part)
