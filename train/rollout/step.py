"""One step of all replicas: every policy acts, the game advances, and what follows is noted in rows."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.spaces import Box
from wdjax.train.rollout.opponents import OVERRIDES, VALID, Acting, with_opponents
from wdjax.train.state.agents import from_groups, gather, gather_observation, scatter, to_groups
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.rows import Rows
from wdjax.vector import select


@dataclasses.dataclass(frozen=True)
class StepInputs:
    """What is the same in all steps of a rollout."""

    setup: Setup
    players: Mapping[str, Any]
    """by policy, what it has learned: a PolicyState, or what `Algorithm.before_rollout` has made of it"""
    hypers: Mapping[str, Hypers]
    """of each policy; schedules read off"""
    env_params: Any
    opponents: Mapping[str, Acting] = dataclasses.field(default_factory=dict)
    """of policies that have a pool"""


def play_step(given: StepInputs, carry: tuple, env_key: Any, draws: Mapping[str, jax.Array]) -> tuple:
    """One step of all replicas, the body of the scan.

    Args:
        carry: (replicas, obs, live) as in TrainState, and what each policy carries from step to step.
        env_key: [num_blocks], the environment's, or what `VectorEnv.draw_keys` drew from it.
        draws: by policy, [num_blocks] keys, or what else its actions are drawn by (`sample_blocks`).

    Returns:
        (carry, (rows by policy, episodes)), see Rollout.
    """
    replicas, obs, live, carries = carry
    drafts, carries = choose_actions(given, obs, carries, draws, env_state=replicas.env_state)
    return advance(given, (replicas, obs, live, carries), drafts, env_key)


def choose_actions(
    given: StepInputs, obs: Mapping[str, Any], carries: Mapping[str, Any], draws: Mapping[str, jax.Array],
    call: Callable[..., tuple] = lambda act, *arguments: act(*arguments), env_state: Any = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:  # fmt: skip
    """Let every policy act. Return (drafts by policy: obs, action and notes, carries).

    Args:
        draws: by policy, what its actions are drawn by (`sample_blocks`).
        call: how a policy's `Algorithm.act` is called.
        env_state: states of the environment [N, ...], for opponents that are scripts.
    """
    drafts, carries_after = {}, {}
    for name, policy in given.setup.policies.items():
        seen = gather_observation(policy.assignment, obs)
        situation = (env_state, given.env_params)
        act = with_opponents(policy.algorithm.act, given.opponents.get(name), given.setup.env, situation)
        inputs = (policy, given.players[name], carries[name], seen, draws[name], given.hypers[name])
        action, notes, carries_after[name] = call(act, *inputs)
        drafts[name] = {"obs": seen, "action": action, **notes}
    return drafts, carries_after


def advance(
    given: StepInputs, carry: tuple, drafts: Mapping[str, dict[str, Any]], key: Any
) -> tuple:
    """What follows from the actions of all policies, `drafts` of `choose_actions`; see play_step.

    Args:
        carry: as play_step has it, but for what the policies carry: that of `choose_actions`.
        key: of the environment, [num_blocks], or what `VectorEnv.draw_keys` drew from it.
    """
    setup, (replicas, obs, live, carries) = given.setup, carry
    keeps_state = "global_state" in setup.keeps
    global_state = setup.context.global_state(replicas.env_state, obs, given.env_params) if keeps_state else None
    actions = to_spaces(setup, drafts)
    next_obs, replicas, reward, terminated, truncated, info = step_by_group(given, key, replicas, actions)
    over = info["over"]
    rows = {}
    for name, policy in setup.policies.items():
        if not policy.config.trainable:
            continue
        own_live, draft = gather(policy.assignment, live), dict(drafts[name])
        draft.pop(OVERRIDES, None)
        valid = draft.pop(VALID, None)
        cut = gather(policy.assignment, truncated) if setup.env.can_truncate else None
        now_cut = None if cut is None else cut & own_live  # it stays truncated
        final_obs = gather_observation(policy.assignment, info["final_obs"])
        rows[name] = Rows(
            **draft,
            reward=gather(policy.assignment, reward),
            terminated=gather(policy.assignment, terminated),
            truncated=cut,
            live=own_live if valid is None else own_live & valid,
            **(who_decides(policy, draft["obs"], final_obs, cut) if policy.decisions_only else {}),
            **policy.algorithm.end_of_step(policy, given.players[name], carries[name], final_obs, now_cut),
        )
    returns = {
        name: gather(policy.assignment, info["episode_return"]).sum(axis=1) for name, policy in setup.policies.items()
    }
    ended = jax.tree.map(jnp.logical_or, terminated, truncated) if setup.env.can_truncate else terminated
    live = jax.tree.map(lambda flag: ~flag | over[:, None], ended)
    num_envs = setup.replicas.num_envs
    starts = {name: policy.algorithm.init_carry(policy, num_envs) for name, policy in setup.policies.items()}
    carries = select(over, starts, carries)
    final_state = None
    if setup.replicas.with_final_state:
        final_state = setup.context.global_state(info["final_state"], info["final_obs"], given.env_params)
    kept = (global_state, final_state)
    carry = (replicas, next_obs, live, carries)
    return carry, (rows, (over, returns, info["episode_length"], info["episode_info"], *kept))


def who_decides(policy: Policy, obs: Any, final_obs: Any, truncated: jax.Array | None) -> dict[str, jax.Array]:
    """Returns the fields of Rows that say who had a choice, and where something truncates who would have one next."""
    decides = {"decides": policy.decides(obs)}
    return decides if truncated is None else {**decides, "final_decides": policy.decides(final_obs)}


def to_spaces(setup: Setup, drafts: Mapping[str, dict[str, Any]]) -> dict[str, jax.Array]:
    """Return the actions that the environment receives, by policy [N, n, ...]."""
    inside = {name: policy.distribution.to_space(drafts[name]["action"]) for name, policy in setup.policies.items()}
    for name, assignment in setup.assignments.items():  # discrete actions are inside their space anyway
        if isinstance(assignment.action_space, Box):
            inside[name] = assignment.action_space.clip(inside[name])
        for replicas, action in drafts[name].get(OVERRIDES, ()):
            inside[name] = select(replicas, action.astype(inside[name].dtype), inside[name])
    return inside


def step_by_group(given: StepInputs, keys: Any, replicas: Any, actions: Mapping[str, jax.Array]) -> tuple:
    """`VectorEnv.step` with actions by policy, of `to_spaces`, and all that it returns by group ([N, n_group, ...])."""
    setup = given.setup
    action = from_groups(setup.env, scatter(setup.assignments, actions))
    step = setup.replicas.step_with_keys if isinstance(keys, tuple) else setup.replicas.step
    obs, replicas, *flags, info = step(keys, replicas, action, given.env_params)
    by_group = {name: to_groups(setup.env, info[name]) for name in ("final_obs", "episode_return")}
    reward, terminated, truncated = (to_groups(setup.env, flag) for flag in flags)
    return to_groups(setup.env, obs), replicas, reward, terminated, truncated, {**info, **by_group}
