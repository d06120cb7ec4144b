"""`--debug`: slow checks of a run, for when something is wrong with it.

* Before it: `wdjax.check_env` of its environment.
* In it: no random key is used twice (jax_debug_key_reuse), and what the environment's own code asserts,

        jax.experimental.checkify.debug_check(state.speed >= 0, "speed is {}", state.speed)

  which without --debug is not even compiled (asserts in `reset` are looked at by nobody: it runs under a `cond`).
* At its end by bad numbers (learner/bad_numbers.py): the operation, with its line, that makes the first NaN, found by
  doing the bad update again. jax_debug_nans would not do: metrics are NaN where there was nothing to report.
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
from wdjax.train.host.failures import FailedCheckError
from wdjax.train.host.programs import Program
from wdjax.train.learner.learner import Learner, learn, run_up_to
from wdjax.train.rollout.scan import rollout
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import TrainState, current_hypers

_LIBRARIES = tuple(str(Path(library.__file__).parent) for library in (jax, flax, optax))

_LEARNING = str(Path(__file__).parents[1])  # what is made there comes of what was learned before


def compile_checked(learner: Learner, most: int) -> Program:
    """Returns a program of up to `most` updates, which compiles when first called and raises FailedCheckError."""
    require(jax.process_count() == 1, "debug", True, "False in a run of several processes")
    chunk = functools.partial(run_up_to, learner.setup, most)
    program = jax.jit(checkify.checkify(chunk, errors=checkify.user_checks))

    def call(state: TrainState, num_updates: np.int32) -> Any:
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
    """Returns what makes the first NaN in the next update of a state, with its place in the code."""

    def learned(
        state: TrainState,
    ) -> Any:  # as `learner.update_share`, without metrics: 0 / 0 may stand there
        rollout_key, update_key, _ = jax.random.split(state.key, 3)
        hypers = current_hypers(setup.config, state)
        after, played = rollout(setup, state, rollout_key)
        return learn(setup, after, hypers, played, update_key)[0].policies

    with jax.debug_key_reuse(
        True
    ):  # and so without kernels, in which nothing has a place in the code
        failed, _ = jax.jit(checkify.checkify(learned, errors=checkify.nan_checks))(state)
    error = failed.get_exception()
    if error is None:
        return "no operation creates a NaN: values grow until they overflow to infinity"
    return f"{str(error).rstrip('.')}{place_of(error.traceback_info.frames)}"


def place_of(frames: Sequence[Any]) -> str:
    """Returns where something was made, in words, from the frames of the call, innermost first."""
    own = [frame for frame in frames if not frame.file_name.startswith(_LIBRARIES)]
    if not own:
        return ""
    place = f", at {own[0].file_name}:{own[0].line_num} ({own[0].function_name})"
    words = ": inside wdjax, from values that grew too large. Try a lower learning_rate"
    return place + words if own[0].file_name.startswith(_LEARNING) else place
