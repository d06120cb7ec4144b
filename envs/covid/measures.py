"""Evaluation of covid_economy policies over whole episodes.

`find_deviations` also measures how much a group would gain from a constant action.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require
from wdjax.envs.covid.calibration import NUM_LEVELS
from wdjax.envs.covid.economy import CovidEconomy, Params, State

Policy = Callable[[Any], jax.Array]  # observations of a group, leaves [n, ...] -> actions [n]


def play_episode(
    env: CovidEconomy, params: Params, act: Callable[[Any, Any], Any]
) -> tuple[State, dict[str, Any]]:
    """Run one episode.

    Args:
        env: the environment.
        params: its params, with a concrete episode_length T.
        act: policy of all agents, (obs, state) -> action.

    Returns:
        (states, rewards): states after each step and rewards of each step, leaves [T, ...].
    """
    key = jax.random.key(0)  # unused: the environment is deterministic

    def step(carry: tuple[Any, State], _: object) -> tuple[tuple[Any, State], tuple[State, Any]]:
        obs, state = carry
        obs, state, reward, *_ = env.step(key, state, act(obs, state), params)
        return (obs, state), (state, reward)

    return jax.lax.scan(step, env.reset(key, params), length=int(params.episode_length))[1]


def play_levels(env: CovidEconomy, params: Params, levels: Any) -> tuple[State, dict[str, Any]]:
    """Run one episode with given stringency levels and no subsidies.

    Args:
        env: the environment.
        params: its params, with a concrete episode_length.
        levels: [T, n] int, levels by step, for example from `load_policy`. The last row repeats if
            the episode is longer.

    Returns:
        (states, rewards), as returned by `play_episode`.
    """
    require(
        np.ndim(levels) == 2 and np.shape(levels)[1] == env.num_states,
        "shape of levels",
        np.shape(levels),
        f"(T, {env.num_states})",
    )
    levels = jnp.asarray(levels, jnp.int32)

    def act(obs: Any, state: State) -> dict[str, jax.Array]:
        return {
            "state": levels[jnp.minimum(state.time, len(levels) - 1)],
            "planner": jnp.zeros(1, jnp.int32),
        }

    return play_episode(env, params, act)


class Deviations(struct.PyTreeNode):
    """Episode returns with trained policies, and with one group switched to a constant action.

    The other group keeps its policy. Returns of states are summed over all states, which deviate
    together.
    """

    states: jax.Array  # () float, return of all states without deviation
    planner: jax.Array  # () float, return of the planner without deviation
    states_by_level: jax.Array
    """(11,) float, return of all states if they always choose 0 (keep), 1, ..., 10"""
    planner_by_subsidy: jax.Array
    """(num_subsidy_levels + 1,) float, return of the planner if it always chooses this level"""

    @property
    def states_gain(self) -> jax.Array:
        """() relative gain in the states' return from the best constant level; negative: a loss."""
        return (jnp.max(self.states_by_level) - self.states) / jnp.abs(self.states)

    @property
    def planner_gain(self) -> jax.Array:
        """() relative gain in the planner's return from the best constant subsidy level."""
        return (jnp.max(self.planner_by_subsidy) - self.planner) / jnp.abs(self.planner)


def find_deviations(
    env: CovidEconomy, params: Params, states: Policy, planner: Policy
) -> Deviations:
    """Evaluate two policies, and every constant action of one group against the other's policy.

    Args:
        env: the environment.
        params: its params, with a concrete episode_length.
        states: policy of the states.
        planner: policy of the planner.

    Returns:
        The episode returns.
    """
    num_levels, num_subsidies = NUM_LEVELS + 1, env.num_subsidy_levels + 1

    none = jnp.full(1 + num_levels + num_subsidies, -1)  # -1: no deviation
    level = none.at[1 : num_levels + 1].set(jnp.arange(num_levels))
    subsidy = none.at[num_levels + 1 :].set(jnp.arange(num_subsidies))

    def returns(level: jax.Array, subsidy: jax.Array) -> tuple[jax.Array, jax.Array]:
        def act(obs: Any, state: State) -> dict[str, jax.Array]:
            return {
                "state": jnp.where(level < 0, states(obs["state"]), level),
                "planner": jnp.where(subsidy < 0, planner(obs["planner"]), subsidy),
            }

        reward = play_episode(env, params, act)[1]
        return jnp.sum(reward["state"]), jnp.sum(reward["planner"])

    state_returns, planner_returns = jax.jit(jax.vmap(returns))(level, subsidy)
    return Deviations(
        state_returns[0],
        planner_returns[0],
        state_returns[1 : num_levels + 1],
        planner_returns[num_levels + 1 :],
    )
