"""`check_env`: validates that an environment fulfils the contract of wdjax.Env."""

import math
import numbers
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from wdjax.arguments import cast_params
from wdjax.checks import require, require_integer
from wdjax.env import Env
from wdjax.env_checker import declarations, joins, late, play, programs, rules
from wdjax.env_checker.case import Case, EnvCheckError

__all__ = ["CONTRACT", "CONTRACT_OF_PLAY", "EnvCheckError", "check_env"]

# Rules on declarations and on traced outputs that must hold before a learner traces anything.
DECLARED = (rules.groups_are_counts, rules.spaces_fit_the_groups, rules.masks_fit_the_actions)
RETURNED = (
    rules.reset_observes_what_the_space_says,
    programs.functions_are_traceable,
    rules.step_observes_what_the_space_says,
    rules.step_keeps_the_structure_of_the_state,
    rules.rewards_and_ends_are_per_agent,
    joins.present_flags_are_per_agent,
    rules.info_holds_scalars,
    declarations.ratios_are_of_sums_in_info,
)
# All rules without random play, ordered so that causes are reported before their consequences.
CONTRACT = (
    rules.env_is_a_value,  # a frozen, hashable dataclass, equal to its copy
    rules.params_are_frozen_numbers,
    rules.groups_are_counts,
    rules.spaces_fit_the_groups,
    rules.masks_fit_the_actions,
    rules.state_is_a_frozen_dataclass,
    rules.reset_observes_what_the_space_says,
    # no Python branches or NumPy on traced values; the right number of outputs
    programs.functions_are_traceable,
    programs.nothing_calls_the_host,
    rules.step_observes_what_the_space_says,
    rules.step_keeps_the_structure_of_the_state,
    rules.rewards_and_ends_are_per_agent,
    joins.present_flags_are_per_agent,
    rules.info_holds_scalars,
    declarations.ratios_are_of_sums_in_info,
    late.advance_returns_what_step_does,
    declarations.scripts_are_named_with_their_groups,
    declarations.scripts_act_for_their_groups,
    declarations.observations_split_into_others_and_own,
    programs.nothing_leaks,
    programs.no_key_is_used_twice,
    programs.same_inputs_give_the_same,
    programs.steps_compile_once,
    programs.params_can_be_batched,
)
CONTRACT_OF_PLAY = (
    play.numbers_are_finite,
    play.observations_are_in_their_space,
    play.masks_allow_a_choice,
    play.ends_keep_to_the_contract,
    joins.joining_keeps_to_the_contract,
    play.clocks_run_to_the_end,
    play.ended_agents_have_no_effect,
    late.advance_plays_what_step_does,
    play.twin_agrees,
)


def check_env(
    env: Env | str,
    params: Any = None,
    twin: Callable | None = None,
    num_steps: int = 10_000,
    seed: int = 0,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> None:
    """Check that an environment fulfils the contract of `wdjax.Env`.

    Calls `reset` and `step` under jit, vmap and scan, and plays `num_steps` random steps in 10
    replicas. A replica is reset after its episode, sometimes a few steps late. Actions are sampled
    from the action space, within the action masks. Warns about statistics that training reports as
    `user/NAME` because their names collide with built-in metrics.

    Args:
        env: the environment, or the name of a registered one.
        params: environment params of one replica; None uses `env.default_params`.
        twin: reference step in NumPy, `twin(key, state, action, params) -> (obs, state, reward,
            terminated, truncated)`, optionally with `info` as a sixth value. It is called with
            NumPy arrays (and a jax key) for each step of the first replica (num_steps / 10), from
            the environment's own state.
        num_steps: env steps of random play, at least 1.
        seed: seed of the keys and actions.
        rtol: relative tolerance of floats, compared with the twin and between a batch and a single
            replica. Integers and flags must be equal.
        atol: absolute tolerance of the same comparisons.

    Raises:
        EnvCheckError: for the first broken rule, with the remedy; a ValueError.
        TypeError: for an argument of the wrong type.
        ValueError: for an argument with an invalid value.

    Exceptions raised by the environment itself are not changed, except jax tracing errors.
    """
    case = _make_case(env, params, twin, num_steps, seed, rtol, atol)
    for check in CONTRACT:
        check(case)
    for warning in declarations.moved_statistics(case):
        warnings.warn(warning, stacklevel=2)
    for piece in play.random_play(case):
        for check_play in CONTRACT_OF_PLAY:
            check_play(case, piece)


def require_rules(env: Env, params: Any, contract: Iterable[Callable[[Case], None]]) -> Case:
    """Check `DECLARED` or `RETURNED`, which compile nothing; errors name the environment.

    Returns:
        The case, with the shapes that the checks have traced.
    """
    case = Case(env, params, None, num_steps=1, seed=0, rtol=0.0, atol=0.0)
    try:
        for rule in contract:
            rule(case)
    except EnvCheckError as error:
        raise EnvCheckError(f"{case.name}: {error}") from error.__cause__
    return case


def _make_case(
    env: Any, params: Any, twin: Any, num_steps: int, seed: int, rtol: float, atol: float
) -> Case:
    if isinstance(env, str):
        from wdjax.envs import make

        env = make(env)[0]
    require(
        isinstance(env, Env),
        "env",
        env,
        "a wdjax.Env instance, or the name of a registered environment",
        TypeError,
    )
    require(
        twin is None or callable(twin),
        "twin",
        twin,
        "a function with the arguments of step, or None",
        TypeError,
    )
    require_integer("num_steps", num_steps, 1)
    require_integer("seed", seed, 0)
    for name, value in (("rtol", rtol), ("atol", atol)):
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        require(is_number, name, value, "a number", TypeError)
        require(0 <= value < math.inf, name, value, "at least 0, and finite")
    defaults = env.default_params
    params = defaults if params is None else params
    require(
        type(params) is type(defaults),
        "params",
        params,
        f"of type {type(defaults).__name__}, like default_params",
        TypeError,
    )
    if rules.is_frozen_pytree(defaults):  # else a rule of the contract fails
        params = cast_params(params, defaults)
    return Case(env, params, twin, num_steps, seed, rtol, atol)
