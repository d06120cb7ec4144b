"""Returns and advantages: the one implementation for every algorithm."""

from typing import Any

import jax
import jax.numpy as jnp

from wdjax.train.devices.moments import masked_mean
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy
from wdjax.train.state.rows import Rows
from wdjax.train.state.state import PolicyState
from wdjax.vector import when_any


def final_value(policy: Policy, state: PolicyState, carry: Any, final_obs: Any, truncated: jax.Array) -> jax.Array:
    """Returns V(final obs) of the agents that a time limit cut off, 0 elsewhere; free where there are none.

    Args:
        carry: what a recurrent policy carried out of the step, before the reset.
        final_obs: [N, n, ...] of one step, or [T, N, n, ...] of all; so is the value.
        truncated: bool, likewise.
    """

    def evaluate(current: jax.Array, state: PolicyState, obs: Any, carry: Any, truncated: jax.Array) -> jax.Array:
        return jnp.where(truncated, policy.apply(state, obs, carry)[1], current)

    nothing = jnp.zeros(truncated.shape, jnp.float32)
    return when_any(truncated, evaluate, nothing, state, final_obs, carry, truncated)


def next_values(rows: Rows, last_value: jax.Array, over: jax.Array) -> jax.Array:
    """Returns [T, N, n] V of the observation after each row: of the final one where the agent's episode ended.

    Args:
        last_value: [N, n] V of the observations after the last row.
        over: [T, N] bool.
    """
    value_tp1 = jnp.concatenate([rows.value[1:], last_value[None]])
    if rows.final_value is None:  # every end is a termination: what follows is worth nothing
        return value_tp1
    return jnp.where(rows.ends(over), rows.final_value, value_tp1)


def next_decides(rows: Rows, last_decides: jax.Array, over: jax.Array) -> jax.Array:
    """Returns [T, N, n] bool: the observation after each row leaves its agent a choice; that of `next_values`.

    Args:
        rows: with `decides`.
        last_decides: [N, n] bool, of the observations after the last row.
        over: [T, N] bool.
    """
    after = jnp.concatenate([rows.decides[1:], last_decides[None]])
    return after if rows.final_decides is None else jnp.where(rows.ends(over), rows.final_decides, after)


def by_decision(rows: Rows, hypers: Hypers, decides_next: jax.Array) -> tuple[Rows, Hypers]:
    """Returns (rows, hypers with a gamma and a lambda for each row, [T, N, n]), of which `gae` makes the returns of an
    agent that decides now and then: the discount counts its decisions, and not steps.

    What is paid until its next decision belongs to the last one, undiscounted. With d_t, the observation after row t
    leaves a choice, and goes_on_t, the game has not ended, the return c_t and the advantage of row t are

        c_t = r_t + goes_on_t (gamma ((1 - lambda) V_{t+1} + lambda c_{t+1}) if d_t else c_{t+1}),    A_t = c_t - V_t.

    As c_{t+1} = V_{t+1} + A_{t+1}, both cases are one step of `gae`,

        A_t = r_t + gamma_t goes_on_t V_{t+1} - V_t + gamma_t lambda_t goes_on_t A_{t+1},

    with (gamma_t, lambda_t) = (gamma, lambda) where d_t and (1, 1) elsewhere, where V_{t+1} cancels. V is not learned
    where nothing is decided: there it is put at 0, so that what a network makes of it leaves no rounding behind. If
    every row decides, this is plain `gae`.

    What follows the last row of a rollout, or a truncation, is only known as c_{t+1} = V of the observation after it.
    If that leaves a choice, a decision lies between, and V is discounted. If not, then V stands for the rest of what
    belongs to the last decision and for all that follows, discounted inside of it: it is added as it is. Whether the
    row before decides does not matter. Such a V is a guess (metric undecided_ends).

    Args:
        rows: with `decides` and `value`.
        decides_next: of `next_decides`.

    Source: Sutton, Precup, Singh, "Between MDPs and Semi-MDPs" (1999), section 3.2, with rewards that are not
    discounted between decisions and a discount of gamma for each.
    """
    gamma, gae_lambda = (jnp.where(decides_next, number, 1.0) for number in (hypers.gamma, hypers.gae_lambda))
    rows = rows.replace(value=jnp.where(rows.decides, rows.value, 0.0))
    return rows, hypers.replace(gamma=gamma, gae_lambda=gae_lambda)


def undecided_ends(rows: Rows, decides_next: jax.Array, over: jax.Array) -> jax.Array:
    """Returns the share () of those places at which a return goes over to V, after the last row and after truncations,
    where nothing is decided; 0 if there are none.

    Args:
        rows, decides_next, over: as for `by_decision` and `next_decides`.
    """
    cut = jnp.broadcast_to(rows.ends(over), rows.live.shape).at[-1].set(True)
    return masked_mean(1.0 - decides_next, rows.live & ~rows.terminated & cut)


UNROLL = 16  # steps of a rollout in one turn of a loop, at most


def gae(
    reward_t: jax.Array, value_t: jax.Array, next_value_t: jax.Array, terminated_t: jax.Array, over_t: jax.Array,
    gamma: jax.Array, gae_lambda: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Compute generalized advantage estimates and returns over a rollout.

        delta_t = r_t + gamma (1 - terminated_t) V(next_obs_t) - V(obs_t)
        A_t     = delta_t + gamma lambda (1 - terminated_t) (1 - over_t) A_{t+1}

    Args:
        reward_t: [T, ...] float32, reward for the action at time t.
        value_t: [T, ...] V(obs_t).
        next_value_t: [T, ...] V of the observation after the action; the final observation if the episode ended.
        terminated_t: [T, ...] bool, the agent terminated by step t: values after it are 0.
        over_t: bool, broadcasts to [T, ...]: step t + 1 belongs to another episode, because the replica was reset
            after step t or this agent was truncated.
        gamma: () discount; or [T, ...], the discount between each step and the next.
        gae_lambda: () from 0 (one-step return) to 1 (full return, bootstrapped at its end); or [T, ...].

    Returns:
        (advantage_t, return_t), both [T, ...], with return_t = advantage_t + value_t.

    Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation" (2016),
    equation 16.
    """
    goes_on = 1.0 - terminated_t.astype(jnp.float32)
    delta_t = reward_t + gamma * goes_on * next_value_t - value_t
    decay_t = gamma * gae_lambda * goes_on * (1.0 - over_t.astype(jnp.float32))

    def backwards(advantage_tp1: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, decay = row
        advantage = delta + decay * advantage_tp1
        return advantage, advantage

    # unrolled, because a step is a few additions, and on a GPU a turn of the loop costs as much as thousands of them;
    # a single turn, and steps beside whole ones, XLA would fuse into all that reads them, which takes it seconds
    num_steps = len(delta_t)
    num_turns = max(2, -(-num_steps // UNROLL))
    unroll = -(-num_steps // num_turns)
    after = [(0, num_turns * unroll - num_steps)] + [(0, 0)] * (delta_t.ndim - 1)
    rows = jnp.pad(delta_t, after), jnp.pad(decay_t, after)
    _, advantage_t = jax.lax.scan(backwards, jnp.zeros_like(delta_t[0]), rows, reverse=True, unroll=unroll)
    advantage_t = advantage_t[:num_steps]
    return advantage_t, advantage_t + value_t
