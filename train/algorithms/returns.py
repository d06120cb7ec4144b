"""Returns and advantages of a rollout."""

from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.train.state import Policy, PolicyState, Rollout, Rows
from wdjax.train.state.aliases import Carry, Fields, Observation
from wdjax.train.state.decayed import decayed_sums
from wdjax.vector import when_any


class Experience(struct.PyTreeNode):
    """A policy's transitions in a rollout, leaves [T, N, n, ...], for transforms and `gae`."""

    rows: Rows  # the transitions
    reward: jax.Array  # to learn from
    valid: jax.Array  # bool, transitions to learn from
    over: jax.Array  # [T, N] bool, an episode ended in this step
    gamma: jax.Array  # () or [T, N, n]
    gae_lambda: jax.Array  # () or [T, N, n]
    last_obs: Observation  # [N, n, ...], after the last step

    @property
    def value(self) -> jax.Array:
        """float32, V(obs) under the parameters that acted."""
        return cast(jax.Array, self.rows.value)

    @property
    def ends(self) -> jax.Array:
        """bool, broadcasts to [T, N, n]: the next transition belongs to another episode."""
        return self.rows.ends(self.over)


def experience(
    policy: Policy, state: PolicyState, rollout: Rollout, gamma: jax.Array, gae_lambda: jax.Array
) -> Experience:
    """Return a policy's transitions in a rollout, with values of final observations at truncations.

    Args:
        policy: static part of the policy.
        state: its state before the update, for the values.
        rollout: the rollout.
        gamma: () discount.
        gae_lambda: () lambda of generalized advantage estimation.
    """
    rows = rollout.rows[policy.name]
    if rows.truncated is not None and rows.next_obs is not None and rows.final_value is None:
        final = final_value(policy, state, None, rows.next_obs, rows.truncated & rows.live)
        rows = rows.replace(final_value=final, next_obs=None)
    last_obs = rollout.last_obs[policy.name]
    return Experience(rows, rows.reward, rows.learned, rollout.over, gamma, gae_lambda, last_obs)


def final_value(
    policy: Policy, state: PolicyState, carry: Carry, final_obs: Observation, truncated: jax.Array
) -> jax.Array:
    """Return V(final obs) of truncated agents, 0 elsewhere.

    The values are not computed if no agent is truncated.

    Args:
        policy: static part of the policy.
        state: its state.
        carry: carry of a recurrent policy before the reset.
        final_obs: leaves [N, n, ...] of one step, or [T, N, n, ...] of all steps.
        truncated: bool, [N, n] or [T, N, n], as the result.
    """

    def evaluate(
        current: jax.Array, state: PolicyState, obs: Observation, carry: Carry, truncated: jax.Array
    ) -> jax.Array:
        return jnp.where(truncated, policy.algorithm.value(policy, state, obs, carry), current)

    nothing = jnp.zeros(truncated.shape, jnp.float32)
    return when_any(truncated, evaluate, nothing, state, final_obs, carry, truncated)


def final_fields(
    policy: Policy,
    state: PolicyState,
    carry: Carry,
    final_obs: Observation,
    truncated: jax.Array | None,
) -> Fields:
    """Return the fields of Rows for the values of truncated agents, see `Algorithm.end_of_step`.

    Observations of feed-forward policies are evaluated after the rollout, for all steps at once.
    """
    if truncated is None:
        return {}
    if carry is None:
        return {"next_obs": final_obs}
    return {"final_value": final_value(policy, state, carry, final_obs, truncated)}


def next_value(policy: Policy, state: PolicyState, rollout: Rollout, data: Experience) -> jax.Array:
    """Return V of the observation after each transition, [T, N, n].

    Where an episode ended, this is the final observation of the episode.

    Args:
        policy: static part of the policy.
        state: its state before the update.
        rollout: the rollout.
        data: the policy's transitions in it, from `experience`.
    """
    last_value = policy.algorithm.value(
        policy, state, data.last_obs, rollout.last_carry[policy.name]
    )
    return value_after(data, last_value)


def value_after(data: Experience, last_value: jax.Array) -> jax.Array:
    """Return the value of the observation after each transition, [T, N, n].

    Where an episode ended, this is the final observation of the episode.

    Args:
        data: transitions with `rows.value`, and `rows.final_value` if an episode can be truncated.
        last_value: [N, n], value of the observation after the last step.
    """
    value_tp1 = jnp.concatenate([data.value[1:], last_value[None]])
    if data.rows.final_value is None:  # every end is a termination, after which the value is 0
        return value_tp1
    return jnp.where(data.ends, data.rows.final_value, value_tp1)


def gae(
    reward_t: jax.Array,
    value_t: jax.Array,
    next_value_t: jax.Array,
    terminated_t: jax.Array,
    over_t: jax.Array,
    gamma: jax.Array,
    gae_lambda: jax.Array,
    sums: Callable = decayed_sums,
) -> tuple[jax.Array, jax.Array]:
    """Return generalized advantage estimates and value targets.

        delta_t = r_t + gamma (1 - terminated_t) V(next_obs_t) - V(obs_t)
        A_t     = delta_t + gamma lambda (1 - terminated_t) (1 - over_t) A_{t+1}

    Args:
        reward_t: [T, ...] float32, for the action at time t.
        value_t: [T, ...] V(obs_t).
        next_value_t: [T, ...] V of the observation after the action, the final one of an episode.
        terminated_t: [T, ...] bool, the agent's episode has terminated by step t.
        over_t: bool, broadcasts to [T, ...]: transition t + 1 belongs to another episode.
        gamma: () discount, or [T, ...] from each transition to the next.
        gae_lambda: () or [T, ...], between 0 (one step) and 1 (the return until the end of the
            episode or of the rollout, where it bootstraps).
        sums: `decayed_sums`, or an engine's equivalent.

    Returns:
        (advantage_t, return_t), both [T, ...], with return_t = advantage_t + value_t.

    Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage
    Estimation" (2016), equation 16.
    """
    goes_on = 1.0 - terminated_t.astype(jnp.float32)
    delta_t = reward_t + gamma * goes_on * next_value_t - value_t
    decay_t = gamma * gae_lambda * goes_on * (1.0 - over_t.astype(jnp.float32))
    advantage_t = sums(delta_t, decay_t)
    return advantage_t, advantage_t + value_t
