"""Rules of `wdjax.check_env` for `observes_late`: `advance` and `observe` agree with `step`."""

from typing import Any

import jax
import numpy as np

from wdjax.env import Env, may_observe_late
from wdjax.env_checker.case import (
    RETURNS,
    Case,
    expect,
    explained,
    fail,
    first_difference,
)
from wdjax.env_checker.leaves import different_types, element, structure_of
from wdjax.env_checker.play import NUM_PAIRS, Play, where
from wdjax.env_checker.rules import check_observation
from wdjax.kernels.backend import quick_jit

PLAYED = RETURNS["step"][1:]  # outputs common to step and advance


def advance_returns_what_step_does(case: Case) -> None:
    """Require `advance` to match `step`, and `observe` to match the observation space.

    All outputs of `advance` except the scene must have the structure, shapes and dtypes of `step`.
    The environment must define both methods.
    """
    if not may_observe_late(case.env):
        return
    for name in ("advance", "observe"):
        expect(
            getattr(type(case.env), name) is not getattr(Env, name),
            f"observes_late = True, but {case.name} has no {name}. Implement it, or leave "
            "observes_late False.",
        )
    by_step, by_advance = (
        {name: outputs[name] for name in PLAYED} for _, outputs in (case.step, case.advance)
    )
    expect(
        structure_of(by_step) == structure_of(by_advance),
        "advance returns another structure than step. Return the outputs of step, with a scene "
        "instead of obs.",
    )
    for name, one, other in different_types(by_step, by_advance):
        fail(f"advance returns {name} as {other}, step as {one}. Return the same type.")
    for scene in (case.reset[1]["state"], case.advance[1]["scene"]):
        with explained("observe"):
            obs = jax.eval_shape(case.env.observe, scene, case.params)
        check_observation(case, "observe", obs)


def advance_plays_what_step_does(case: Case, play: Play) -> None:
    """Require `advance` and `observe` to reproduce some steps of `step`.

    Also requires `observe` of the first state of an episode to equal the observation of `reset`.
    """
    if not may_observe_late(case.env):
        return
    t, n = np.unravel_index(
        np.linspace(0, play.time.size - 1, NUM_PAIRS).astype(int), play.time.shape
    )
    some = jax.tree.map(lambda leaf: leaf[t, n], play)

    @quick_jit
    @jax.vmap
    def by_advance(key: jax.Array, state: Any, action: Any) -> tuple[Any, dict[str, Any]]:
        scene, *played = case.env.advance(key, state, action, case.params)
        first, obs = (case.env.observe(each, case.params) for each in (state, scene))
        return first, {"obs": obs, **dict(zip(PLAYED, played, strict=True))}

    first, played = by_advance(some.key, some.state, some.action)
    _compare(case, some, "advance and then observe", played, "step", some.result)
    starts = some.time == 0
    obs = jax.tree.map(lambda leaf: leaf[starts], ({"obs": first}, {"obs": some.obs}))
    _compare(case, some, "observe of the state", obs[0], "reset", obs[1])


def _compare(
    case: Case, some: Play, way: str, actual: dict[str, Any], method: str, expected: dict[str, Any]
) -> None:
    if found := first_difference(case, actual, expected):
        name, index, a, b = found
        fail(
            f"{way} gives {name}{element(index[1:])} = {a} {where(some, method, index[:1])}, but "
            f"{method} gives {b}. "
            "Batches use the first. Make both equal, or leave observes_late False."
        )
