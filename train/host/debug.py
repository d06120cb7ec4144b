"""Slow checks of a run, by `--debug`.

* Before the run: `wdjax.check_env` of the environment.
* In the run: random keys that are used twice (jax_debug_key_reuse), and assertions in the code of
  the environment, which are not compiled without --debug:

        jax.experimental.checkify.debug_check(state.speed >= 0, "speed is {}", state.speed)

  Assertions in `reset` are not checked, since it runs in a `cond`.
* After bad numbers (learner/bad_numbers.py): the operation that creates the first NaN, with its
  line, found by repeating the update. jax_debug_nans would report metrics, which are NaN where
  there is nothing to report.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
import optax
from jax.experimental import checkify

from wdjax.checks import require
from wdjax.train.devices.packing import Packed
from wdjax.train.host.failures import FailedCheckError
from wdjax.train.host.programs import Program
from wdjax.train.learner.learner import Learner, learn, run_up_to
from wdjax.train.rollout.scan import rollout
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import PolicyState, TrainState, current_hypers

_LIBRARIES = tuple(str(Path(str(library.__file__)).parent) for library in (jax, flax, optax))

_LEARNING = str(Path(__file__).parents[1])  # a NaN created there has an earlier cause


def compile_checked(learner: Learner, most: int) -> Program:
    """Return a program of up to `most` updates that compiles when first called.

    It raises FailedCheckError if a check fails.
    """
    require(jax.process_count() == 1, "debug", True, "False in a run of several processes")
    chunk = functools.partial(run_up_to, learner.setup, most)
    program = jax.jit(checkify.checkify(chunk, errors=checkify.user_checks))

    def call(state: TrainState, num_updates: np.int32) -> tuple[TrainState, Packed]:
        try:
            with jax.debug_key_reuse(True):
                failed, result = program(state, num_updates)
        except jax.errors.KeyReuseError as error:
            raise FailedCheckError(f"a random key is used twice: {error}") from error
        if failed.get():
            raise FailedCheckError(f"an assertion of the environment failed: {failed.get()}")
        return result

    return call


def nan_origin(setup: Setup, state: TrainState) -> str:
    """Return the operation that creates the first NaN in the next update, with its line."""

    # as `learner.update_share`, without metrics, which may contain 0 / 0
    def learned(state: TrainState) -> dict[str, PolicyState]:
        rollout_key, update_key, _ = jax.random.split(state.key, 3)
        hypers = current_hypers(setup.config, state)
        after, played = rollout(setup, state, rollout_key)
        return learn(setup, after, hypers, played, update_key)[0].policies

    with jax.debug_key_reuse(True):  # also disables kernels, in which operations have no line
        failed, _ = jax.jit(checkify.checkify(learned, errors=checkify.nan_checks))(state)
    error = failed.get_exception()
    if error is None:
        return "no operation creates a NaN: values grow until they overflow to infinity"
    return f"{str(error).rstrip('.')}{place_of(error.traceback_info.frames)}"


def place_of(frames: Sequence[Any]) -> str:
    """Return the line of user code that created a value, from frames of a call, innermost first."""
    own = [frame for frame in frames if not frame.file_name.startswith(_LIBRARIES)]
    if not own:
        return ""
    place = f", at {own[0].file_name}:{own[0].line_num} ({own[0].function_name})"
    if not own[0].file_name.startswith(_LEARNING):
        return place
    return f"{place}: inside wdjax, from values that grew too large. Try a lower learning_rate"
