"""Programs of several updates, compiled from the shapes of a state."""

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.train.devices import state_shardings
from wdjax.train.learner import Learner, init, run
from wdjax.train.state import TrainState


def abstract_state(learner: Learner) -> TrainState:
    """Returns the shapes and dtypes of a learner's state, and where it lies."""
    # not learner.init: the shapes need no checkpoint of another run, which may be gone
    state = jax.eval_shape(functools.partial(init, learner.setup), jax.random.key(0))
    place = state_shardings(learner.setup.num_devices) or jnp.zeros(()).sharding  # where jax.default_device says

    def put(place: jax.sharding.Sharding, part: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), part)

    return jax.tree.map(put, place, state)


def compile_chunk(learner: Learner, state: TrainState, num_updates: int) -> tuple[Callable, float]:
    """Compiles `num_updates` updates into one program that donates its state. Returns (program, seconds)."""
    return finish_chunk(*lower_chunk(learner, state, num_updates))


def compile_and_init(
    learner: Learner, like: TrainState, key: jax.Array, num_updates: int
) -> tuple[TrainState, Callable, float]:
    """Draws a run's first state and compiles `num_updates` updates, on a GPU at the same time: each takes seconds.

    Args:
        like: `abstract_state` of the learner.

    Returns:
        (state, program, seconds): learner.init(key), and what `compile_chunk` returns.
    """
    lowered = lower_chunk(learner, like, num_updates)  # here: JAX's settings may be this thread's own
    # all processes compile in the same order; and for a CPU, XLA compiles on all of its cores anyway
    if jax.process_count() > 1 or jax.default_backend() == "cpu":
        return learner.init(key), *finish_chunk(*lowered)
    with ThreadPoolExecutor(1) as thread:  # what ends init early waits for it: a compilation cannot be stopped
        compiled = thread.submit(finish_chunk, *lowered)
        return learner.init(key), *compiled.result()


def lower_chunk(learner: Learner, state: TrainState, num_updates: int) -> tuple[jax.stages.Lowered, float]:
    """Traces `num_updates` updates of states like this one. Returns (what there is to compile, seconds)."""
    start = time.perf_counter()
    chunk = jax.jit(functools.partial(run, learner.setup, num_updates=num_updates), donate_argnums=0)
    return chunk.lower(state), time.perf_counter() - start


def finish_chunk(lowered: jax.stages.Lowered, seconds: float) -> tuple[Callable, float]:
    """Compiles what `lower_chunk` returned. Returns (program, seconds of both)."""
    start = time.perf_counter()
    return lowered.compile(), seconds + time.perf_counter() - start
