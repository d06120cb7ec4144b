"""Rules of `wdjax.check_env` for agents that join an episode (`Env.present`)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.branches import all_agents
from wdjax.env import Env
from wdjax.env_checker.case import Case, fail
from wdjax.env_checker.leaves import as_numpy, element, find
from wdjax.env_checker.rules import check_per_agent


def present_flags_are_per_agent(case: Case) -> None:
    """Require `present` to return a bool for every agent."""
    if case.present is not None:
        check_per_agent(case, "present", "flags", case.present, "bool")


def of_joining(
    env: Env, params: Any, state: Any, state_after: Any, before: tuple[Any, Any], after: tuple
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return (`Play.joins`, `Play.ended` and `Play.cut`) of one step of N replicas.

    In a slot that another agent joins, the flags of the agent before no longer count.

    Args:
        env: environment that agents join.
        params: environment params of one replica.
        state: states before the step, leaves [N, ...].
        state_after: states after the step.
        before: (terminated, truncated) before the step.
        after: (terminated, truncated) after the step.
    """
    present = jax.vmap(env.present, (0, None))
    was_present, is_present = present(state, params), present(state_after, params)
    ended, ended_after = (jax.tree.map(jnp.logical_or, *flags) for flags in (before, after))
    is_over = all_agents(ended)
    active = jax.tree.map(lambda flags, ended: flags & ~ended, was_present, ended)

    def stays(flags: jax.Array, is_present: jax.Array, ended: jax.Array) -> jax.Array:
        over = is_over.reshape(is_over.shape + (1,) * (flags.ndim - 1))
        return flags & ~(is_present & ~ended & ~over)

    before = tuple(jax.tree.map(stays, flags, is_present, ended_after) for flags in before)
    return (active, is_present), before


def joining_keeps_to_the_contract(case: Case, play: Any) -> None:
    """Require empty slots without rewards and ends, and agents that leave by one of the flags."""
    if play.joins is None:
        return
    names = ("terminated", "truncated")
    ends = [jax.tree.map(as_numpy, play.result[name]) for name in names]
    flags = jax.tree.leaves(jax.tree.map(np.logical_or, *ends))
    over = np.all([leaf.reshape(*leaf.shape[:2], -1).all(axis=2) for leaf in flags], axis=0)
    for group in case.by_group(play.ended):
        active, present, ended, cut, left, cut_off, reward = (
            as_numpy(case.by_group(flags)[group])
            for flags in (*play.joins, *ends, play.ended, play.cut, play.result["reward"])
        )
        place = f"[{group!r}]" if group else ""
        absent = ~active & ~left & ~cut_off
        waits = absent & ~over.reshape(over.shape + (1,) * (absent.ndim - 2))
        faults = (
            (~active & (reward != 0), "reward", "is not 0 in an empty slot", "Set it to 0"),
            (waits & ended, names[0], "is true before an agent joins", "Set it to false"),
            (waits & cut, names[1], "is true before an agent joins", "Set it to false"),
            (
                active & ~present & ~ended & ~cut,
                "present",
                "becomes false although the agent has not left",
                "Terminate or truncate the agent in this step",
            ),
        )
        for wrong, name, fault, remedy in faults:
            if index := find(wrong):
                moment = f"in step {int(play.time[index[:2]]) + 1} of an episode"
                fail(f"{name}{place}{element(index[2:])} {fault} {moment}. {remedy}.")
