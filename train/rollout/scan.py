"""Rollouts: policies act in all replicas for `rollout_length` steps, in one scan.

`play_step` is the body of the scan: policies act, replicas advance, and the transitions are
collected.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import chex
import jax
import jax.numpy as jnp

from wdjax.checks import did_you_mean, require
from wdjax.spaces import Box
from wdjax.train.devices.blocks import step_keys
from wdjax.train.devices.collectives import num_shards
from wdjax.train.rollout.opponents import (
    OVERRIDES,
    VALID,
    Acting,
    act_with_opponents,
    begin,
)
from wdjax.train.state.actors import require_carry
from wdjax.train.state.agents import (
    from_groups,
    gather,
    gather_observation,
    next_active,
    present_agents,
    scatter,
    to_groups,
)
from wdjax.train.state.aliases import ActingState, Carry, EnvParams, EnvState, Fields, Observation
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.rows import STORED, Rollout, Rows
from wdjax.train.state.state import TrainState, current_env_params, current_hypers
from wdjax.vector import VectorState, select

Draft: TypeAlias = dict[str, Any]
"""fields of `Rows` that are known before the step, and the notes of `act_with_opponents`"""


@dataclasses.dataclass(frozen=True)
class StepInputs:
    """Inputs that are constant during a rollout."""

    setup: Setup
    players: Mapping[str, ActingState]
    """by policy: PolicyState, or the result of `Algorithm.before_rollout`"""
    hypers: Mapping[str, Hypers]
    """by policy, with schedules evaluated"""
    env_params: EnvParams
    opponents: Mapping[str, Acting] = dataclasses.field(default_factory=dict)
    """by policy with an opponent pool"""


def rollout(setup: Setup, state: TrainState, key: jax.Array) -> tuple[TrainState, Rollout]:
    """Step every replica `rollout_length` times. Return the state after them and the rollout."""
    config = setup.config
    hypers = current_hypers(config, state)
    env_params = current_env_params(config, state.env_params, state.num_updates)
    state = state.replace(env_params=env_params)
    keys = step_keys(
        key, config.rollout_length, 1 + len(setup.policies), config.blocks // num_shards()
    )
    state, acting = begin(setup, state, hypers, key)
    first_carry = {name: memory.carry for name, memory in state.memory.items()}
    carry = (state.replicas, state.obs, state.live, first_carry)
    given = StepInputs(setup, state.policies, hypers, state.env_params, acting)
    (replicas, obs, live, carries), (rows, episodes) = setup.engine.rollout(
        play_by_scan, given, carry, keys
    )
    last_obs = {
        name: gather_observation(policy.assignment, obs) for name, policy in setup.policies.items()
    }
    memory = {name: old.replace(carry=carries[name]) for name, old in state.memory.items()}
    state = state.replace(replicas=replicas, obs=obs, live=live, memory=memory)
    last_state = None
    if "global_state" in setup.keeps:
        last_state = setup.context.global_state(replicas.env_state, obs, state.env_params)
    played = Rollout(rows, first_carry, carries, last_obs, *episodes)
    played = played.replace(last_global_state=last_state)
    return state, jax.tree.map(lambda leaf: leaf, played)  # sort every dict, as the scan does


def play_by_scan(given: StepInputs, carry: tuple, keys: jax.Array) -> tuple[tuple, tuple]:
    """Scan `play_step` over a rollout.

    Args:
        given: constant inputs.
        carry: as for `play_step`.
        keys: [T, 1 + policies, num_blocks].

    Returns:
        (carry, (rows by policy, episodes)), leaves [T, N, ...].
    """
    setup, given = given.setup, with_acting_states(given)

    def step(carry: tuple, drawn: tuple) -> tuple[tuple, tuple]:
        return play_step(given, carry, *drawn)

    drawn = setup.engine.draw(setup, given.opponents, keys)
    return setup.engine.scan_steps(step, carry, drawn, setup.config.rollout_unroll)


def with_acting_states(given: StepInputs) -> StepInputs:
    """Return the inputs with the states that policies and opponents act with in all steps."""
    players = {
        name: own.algorithm.before_rollout(own, given.players[name])
        for name, own in given.setup.policies.items()
    }
    opponents = {
        name: _prepared(given.setup.policies[name], own) for name, own in given.opponents.items()
    }
    return dataclasses.replace(given, players=players, opponents=opponents)


def _prepared(policy: Policy, acting: Acting) -> Acting:
    """Return opponents with acting states for all steps, see `Engine.prepare`."""
    if acting.networks is None:
        return acting
    prepare = functools.partial(policy.engine.prepare, policy)
    return acting.replace(networks=jax.vmap(prepare)(acting.networks))


def play_step(
    given: StepInputs, carry: tuple, env_key: chex.ArrayTree, draws: Mapping[str, jax.Array]
) -> tuple:
    """Step all replicas once: the body of the scan over a rollout.

    Args:
        given: constant inputs.
        carry: (replicas, obs, live) as in TrainState, and the carry of each policy.
        env_key: [num_blocks] keys of the environment, or the result of `VectorEnv.draw_keys`.
        draws: by policy, [num_blocks] keys or uniform numbers (`sample_blocks`).

    Returns:
        (carry, (rows by policy, episodes)), as in Rollout.
    """
    replicas, obs, live, carries = carry
    drafts, carries = choose_actions(given, obs, carries, draws, env_state=replicas.env_state)
    return advance(given, (replicas, obs, live, carries), drafts, env_key)


def choose_actions(
    given: StepInputs,
    obs: Mapping[str, Observation],
    carries: Mapping[str, Carry],
    draws: Mapping[str, jax.Array],
    call: Callable[..., tuple] = lambda act, *arguments: act(*arguments),
    env_state: EnvState = None,
) -> tuple[dict[str, Draft], dict[str, Carry]]:
    """Let every policy act.

    Args:
        given: constant inputs.
        obs: observations by group.
        carries: by policy.
        draws: by policy, [num_blocks] keys or uniform numbers (`sample_blocks`).
        call: called with `Algorithm.act` and its arguments.
        env_state: environment states [N, ...], for opponents that are scripts.

    Returns:
        (drafts by policy, carries by policy). A draft contains the fields of Rows that are known
        before the step: obs, action and the notes of `act`.
    """
    drafts, carries_after = {}, {}
    for name, policy in given.setup.policies.items():
        seen = gather_observation(policy.assignment, obs)
        act, env, situation = policy.algorithm.act, given.setup.env, (env_state, given.env_params)
        if name in given.opponents:
            act = functools.partial(act_with_opponents, act, given.opponents[name], env, situation)
        inputs = (policy, given.players[name], carries[name], seen, draws[name], given.hypers[name])
        action, notes, carries_after[name] = call(act, *inputs)
        require_carry(policy, "act", carries[name], carries_after[name])
        drafts[name] = {"obs": seen, "action": action, **notes}
    return drafts, carries_after


def advance(
    given: StepInputs, carry: tuple, drafts: Mapping[str, Draft], key: chex.ArrayTree
) -> tuple:
    """Advance all replicas by the actions of all policies.

    Args:
        given: constant inputs.
        carry: as for `play_step`, with the carries returned by `choose_actions`.
        drafts: from `choose_actions`.
        key: [num_blocks] keys of the environment, or the result of `VectorEnv.draw_keys`.

    Returns:
        As `play_step`.
    """
    setup, (replicas, obs, live, carries) = given.setup, carry
    global_state = final_state = None
    if "global_state" in setup.keeps:
        global_state = setup.context.global_state(replicas.env_state, obs, given.env_params)
    actions = to_spaces(setup, drafts)
    next_obs, replicas, reward, terminated, truncated, info = step_by_group(
        given, key, replicas, actions
    )
    over, outcome = info["over"], (reward, terminated, truncated, info["final_obs"])
    rows = {
        name: transitions(policy, given.players[name], carries[name], live, drafts[name], outcome)
        for name, policy in setup.policies.items()
        if policy.config.trainable
    }
    returns = {
        name: gather(policy.assignment, info["episode_return"]).sum(axis=1)
        for name, policy in setup.policies.items()
    }
    ended = (
        jax.tree.map(jnp.logical_or, terminated, truncated)
        if setup.env.can_truncate
        else terminated
    )
    live_after = jax.tree.map(lambda flag: ~flag | over[:, None], ended)
    num_envs = setup.replicas.num_envs
    starts = {
        name: policy.algorithm.init_carry(policy, num_envs)
        for name, policy in setup.policies.items()
    }
    carries = select(over, starts, carries)
    present = present_agents(setup.env, replicas.env_state, given.env_params)
    if present is not None:
        live_after, joined = next_active(present, live, live_after)
        rows, carries = begin_anew(setup, joined, over, drafts, rows, starts, carries)
    if setup.replicas.with_final_state:
        final_state = setup.context.global_state(
            info["final_state"], info["final_obs"], given.env_params
        )
    kept = (global_state, final_state)
    carry = (replicas, next_obs, live_after, carries)
    return carry, (rows, (over, returns, info["episode_length"], info["episode_info"], *kept))


def begin_anew(
    setup: Setup,
    joined: Mapping[str, jax.Array],
    over: jax.Array,
    drafts: Mapping[str, Draft],
    rows: Mapping[str, Rows],
    starts: Mapping[str, Carry],
    carries: Mapping[str, Carry],
) -> tuple[dict[str, Rows], dict[str, Carry]]:
    """Return (transitions with `joined`, carries), so that agents that joined start anew.

    Args:
        setup: static part of the run.
        joined: agents that are active from the next step on, by group.
        over: [N] bool, the episode of the replica ended in this step.
        drafts: from `choose_actions`.
        rows: transitions by trainable policy.
        starts: carries at the start of an episode, by policy.
        carries: after the step, by policy.
    """
    joins = {name: gather(own, joined) for name, own in setup.assignments.items()}
    carries = {name: select(joins[name], starts[name], own) for name, own in carries.items()}
    counted = {name: ~over[:, None] & drafts[name].get(VALID, True) for name in rows}
    rows = {name: row.replace(joined=joins[name] & counted[name]) for name, row in rows.items()}
    return rows, carries


def transitions(
    policy: Policy,
    player: ActingState,
    carry: Carry,
    live: Mapping[str, jax.Array],
    draft: Draft,
    outcome: tuple,
) -> Rows:
    """Return the transitions of a policy in one step, leaves [N, n, ...].

    Args:
        policy: static part of the policy.
        player: its acting state.
        carry: its carry, as returned by `choose_actions`.
        live: active agents before the step, by group.
        draft: from `choose_actions`.
        outcome: (reward, terminated, truncated, observation before any reset) after the step, by
            group.
    """
    reward, terminated, truncated, final_obs = outcome
    agents, draft = policy.assignment, dict(draft)
    own_live = gather(agents, live)
    draft.pop(OVERRIDES, None)
    valid = draft.pop(VALID, None)
    cut = gather(agents, truncated) if policy.context.env.can_truncate else None
    now_cut = None if cut is None else cut & own_live  # truncated in this step
    own_final_obs = gather_observation(agents, final_obs)
    last = policy.algorithm.end_of_step(policy, player, carry, own_final_obs, now_cut)
    require_stored(policy, draft, last)
    return Rows(
        **draft,
        **last,
        reward=gather(agents, reward),
        terminated=gather(agents, terminated),
        truncated=cut,
        live=own_live if valid is None else own_live & valid,
        **who_decides(policy, draft["obs"], own_final_obs, cut),
    )


def require_stored(policy: Policy, draft: Draft, last: Fields) -> None:
    """Raise ValueError for fields that an algorithm may not store in a transition.

    Args:
        policy: static part of the policy.
        draft: obs, action, and the fields that `act` returned.
        last: the fields that `end_of_step` returned.
    """
    noted = draft.keys() - {"obs", "action"}
    returned = {"act": (noted, STORED), "end_of_step": (last.keys(), set(STORED) - noted)}
    for function, (names, allowed) in returned.items():
        for name in sorted(names - set(allowed)):
            fields = f"one of {', '.join(sorted(allowed))}; {did_you_mean(name, allowed)}"
            require(False, f"policies.{policy.name}: a field from {function}", name, fields)


def who_decides(
    policy: Policy, obs: Observation, final_obs: Observation, truncated: jax.Array | None
) -> dict[str, jax.Array]:
    """Return the fields of Rows for `decisions_only`: whether the mask allows several actions."""
    if not policy.decisions_only:
        return {}
    decides = {"decides": policy.decides(obs)}
    return decides if truncated is None else {**decides, "final_decides": policy.decides(final_obs)}


def to_spaces(setup: Setup, drafts: Mapping[str, Draft]) -> dict[str, jax.Array]:
    """Return the actions that the environment receives, by policy [N, n, ...]."""
    inside = {
        name: policy.distribution.to_space(drafts[name]["action"])
        for name, policy in setup.policies.items()
    }
    for name, assignment in setup.assignments.items():  # discrete actions are always in their space
        if isinstance(assignment.action_space, Box):
            inside[name] = assignment.action_space.clip(inside[name])
        for replicas, action in drafts[name].get(OVERRIDES, ()):
            inside[name] = select(replicas, action.astype(inside[name].dtype), inside[name])
    return inside


def step_by_group(
    given: StepInputs,
    keys: chex.ArrayTree,
    replicas: VectorState,
    actions: Mapping[str, jax.Array],
) -> tuple:
    """Call `VectorEnv.step` with actions by policy. Return its results by group, [N, n, ...]."""
    setup = given.setup
    action = from_groups(setup.env, scatter(setup.assignments, actions))
    obs, replicas, *flags, info = setup.engine.step(setup, keys, replicas, action, given.env_params)
    by_group = {name: to_groups(setup.env, info[name]) for name in ("final_obs", "episode_return")}
    reward, terminated, truncated = (to_groups(setup.env, flag) for flag in flags)
    return to_groups(setup.env, obs), replicas, reward, terminated, truncated, {**info, **by_group}
