"""Sums over the agents of a team: transitions of whole replicas, and the sum of Q values."""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import cast

import jax
import jax.numpy as jnp

from wdjax.train.learning import (
    Batch,
    Evaluation,
    Experience,
    Policy,
    PolicyState,
    Rollout,
    Team,
    TrainConfig,
    gae,
)


def names_of_team(policy: Policy, run: TrainConfig) -> list[str]:
    """Return the policies of the team of a policy, in order; only its own name without a team."""
    teams = [team.policies for team in run.teams.values() if policy.name in team.policies]
    own = teams[0] if teams else [policy.name]
    return [name for name in policy.context.assignments if name in own]


def sum_over_agents(values: Mapping[str, jax.Array], active: Mapping[str, jax.Array]) -> jax.Array:
    """Return the sum over the active agents of all policies, [T, N, 1].

    Args:
        values: by policy, [T, N, n].
        active: by policy, [T, N, n] bool.
    """
    sums = [jnp.sum(own, 2, keepdims=True, where=active[name]) for name, own in values.items()]
    return jnp.sum(jnp.stack(sums), axis=0)


def team_targets(
    data: Mapping[str, Experience],
    following: Mapping[str, jax.Array],
    over: jax.Array,
    sums: Callable,
) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the values of a team and its lambda return, [T, N, 1] each.

    Args:
        data: transitions by policy; the discount and lambda of the first one count.
        following: by policy, [T, N, n], values after each transition.
        over: [T, N] bool, an episode ended in this step.
        sums: the engine's `decayed_sums`.
    """
    active = {name: own.rows.live for name, own in data.items()}
    total = functools.partial(sum_over_agents, active=active)
    after = {name: own.rows.active_next for name, own in data.items()}
    first, value = next(iter(data.values())), total({n: own.value for n, own in data.items()})
    target = gae(
        total({name: own.reward for name, own in data.items()}),
        value,
        sum_over_agents(following, after),
        sum_over_agents(after, after) == 0,
        over[..., None],
        first.gamma,
        first.gae_lambda,
        sums=sums,
    )[1]
    return value, target


def team_batch(
    team: Team,
    data: Mapping[str, Experience],
    rollout: Rollout,
    value: jax.Array,
    target: jax.Array,
) -> Batch:
    """Return a batch in which a transition is a step of a replica, leaves [T, N, 1, ...].

    Its `obs` are (obs, action, active, joined or None) by policy, leaves [T, N, 1, n, ...].

    Args:
        team: static part of the team.
        data: transitions by policy.
        rollout: the rollout.
        value: [T, N, 1].
        target: [T, N, 1].
    """
    parts = operator.attrgetter("obs", "action", "live", "joined")
    rows = {name: parts(own.rows) for name, own in data.items()}
    active = {name: own.rows.live for name, own in data.items()}
    valid = sum_over_agents(active, active) > 0
    steps = jax.tree.map(lambda leaf: leaf[:, :, None], rows)
    batch = Batch.of_values(steps, value, target, valid)
    if not team.first.is_recurrent:
        return batch
    carry = {name: rollout.first_carry[name] for name in data}
    return batch.in_sequences(rollout.over, jax.tree.map(lambda leaf: leaf[:, None], carry))


def team_value(
    chosen: Callable[..., jax.Array],
    policies: Mapping[str, Policy],
    states: Mapping[str, PolicyState],
    _: Policy,
    joint: PolicyState,
    batch: Batch,
) -> Evaluation:
    """Return the sum of Q(obs, action) over all active agents, [B]; [T, M] if recurrent.

    Args:
        chosen: chosen(policy, state, obs, action, carry, restart) -> Q(obs, action), see `PQN`.
        policies: policies of the team by name.
        states: their states, for their normalizers.
        joint: the parameters being trained, by policy.
        batch: from `team_batch`, flat.
    """
    total = jnp.zeros_like(batch.value)
    for name, (obs, action, active, joined) in batch.obs.items():
        state = states[name].replace(params=joint.params[name])
        shape, carry, restart = action.shape, None, None
        if batch.carry is not None:  # [T, M, n, ...] to [T, M * n, ...]
            merge = lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:])  # noqa: E731
            obs, action = jax.tree.map(merge, (obs, action))
            carry = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch.carry[name])
            restart = jnp.repeat(cast(jax.Array, batch.restart), shape[-1], axis=1)
            if joined is not None:
                begins = merge(joined)
                restart |= jnp.concatenate([jnp.zeros_like(begins[:1]), begins[:-1]])
        q = chosen(policies[name], state, obs, action, carry, restart).reshape(shape)
        total += jnp.sum(q, axis=-1, where=active)
    return Evaluation(value=total)
