"""Train several seeds of one configuration as one program, and time it."""

import functools
import time
from collections.abc import Mapping

import jax
import numpy as np

from wdjax.train import Learner, TrainState
from wdjax.train.host.programs import compile_for


def train_together(
    learner: Learner, keys: jax.Array
) -> tuple[TrainState, Mapping[str, np.ndarray], float, float]:
    """Train one run per key, all in one vmapped program.

    Args:
        learner: learner of the runs.
        keys: [seeds] keys.

    Returns:
        (trained states [seeds, ...], metrics [seeds, num_updates], seconds of compilation, seconds
        of training).
    """
    states = jax.block_until_ready(jax.vmap(learner.init)(keys))
    run = functools.partial(learner.run, num_updates=learner.config.num_updates)
    start = time.perf_counter()
    program = compile_for(jax.jit(jax.vmap(run)).lower(states), learner.setup, alone=False)
    compiled = time.perf_counter()
    states, metrics = jax.block_until_ready(program(states))
    trained = time.perf_counter()
    return states, jax.device_get(metrics), compiled - start, trained - compiled
