"""Programs of several updates, compiled from the shapes of a state."""

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from wdjax.train.devices import state_shardings
from wdjax.train.learner import Learner, init, run
from wdjax.train.state import TrainState


def abstract_state(learner: Learner) -> TrainState:
    """Returns the shapes and dtypes of a learner's state, and where it lies."""
    # not learner.init: the shapes need no checkpoint of another run, which may be gone
    state = jax.eval_shape(functools.partial(init, learner.setup), jax.random.key(0))
    place = state_shardings(learner.setup.num_devices) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def put(place: jax.sharding.Sharding, part: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), part)

    return jax.tree.map(put, place, state)


def compile_chunk(learner: Learner, state: TrainState, num_updates: int) -> tuple[Callable, float]:
    """Compiles `num_updates` updates into one program that donates its state. Returns (program, seconds)."""
    start = time.perf_counter()
    return lower_chunk(learner, state, num_updates).compile(), time.perf_counter() - start


def compile_and_init(learner: Learner, key: jax.Array, num_updates: int) -> tuple[TrainState, Callable, float]:
    """Draws a run's first state and compiles `num_updates` updates, on a GPU at the same time: each takes seconds.

    Returns:
        (state, program, seconds): learner.init(key), and what `compile_chunk` returns.
    """
    start = time.perf_counter()
    chunk = lower_chunk(learner, abstract_state(learner), num_updates)  # here: JAX's settings may be this thread's own
    # all processes compile in the same order; and for a CPU, XLA compiles on all of its cores anyway
    if jax.process_count() > 1 or jax.default_backend() == "cpu":
        return learner.init(key), chunk.compile(), time.perf_counter() - start
    with ThreadPoolExecutor(1) as thread:
        program = thread.submit(chunk.compile)
        state = learner.init(key)
        return state, program.result(), time.perf_counter() - start


def lower_chunk(learner: Learner, state: TrainState, num_updates: int) -> jax.stages.Lowered:
    """Traces `num_updates` updates of states like this one."""
    return jax.jit(functools.partial(run, learner.setup, num_updates=num_updates), donate_argnums=0).lower(state)
