"""What drawings of all families need of the states before the one that they draw."""

from typing import Any

import jax
import numpy as np


def since_reset(state: Any, history: Any) -> Any:
    """Returns the states up to this one, without those from before the last reset: leaves [K, ...] of NumPy, K >= 1.

    Args:
        state: one state with a field `time`, steps since the reset; arrays of NumPy or JAX.
        history: the states before it, oldest first, leaves with a leading [H]; None: there are none.
    """
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[None], state)
    if history is None:
        return one
    states = jax.tree.map(lambda old, new: np.concatenate([np.asarray(old), new]), history, one)
    breaks = np.flatnonzero(np.diff(states.time) <= 0)
    first = breaks[-1] + 1 if len(breaks) else 0
    return jax.tree.map(lambda leaf: leaf[first:], states)
