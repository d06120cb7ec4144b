"""Whole episodes of covid_economy: how policies do, and whether a side would do better with a constant choice."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require
from wdjax.envs.covid.calibration import NUM_LEVELS
from wdjax.envs.covid.economy import CovidEconomy, Params, State

Policy = Callable[[Any], jax.Array]  # what a group observes, leaves [n, ...] -> its actions [n]


def play_episode(
    env: CovidEconomy, params: Params, act: Callable[[Any, Any], Any]
) -> tuple[State, dict[str, Any]]:
    """Plays one episode.

    Args:
        env: the environment.
        params: its params, with a concrete episode_length, T.
        act: (obs, state) -> action.

    Returns:
        (states, rewards) after every step, leaves [T, ...].
    """
    key = jax.random.key(0)  # which the rules do not use

    def step(carry: tuple[Any, State], _: None) -> tuple[tuple[Any, State], tuple[State, Any]]:
        obs, state = carry
        obs, state, reward, *_ = env.step(key, state, act(obs, state), params)
        return (obs, state), (state, reward)

    return jax.lax.scan(step, env.reset(key, params), length=int(params.episode_length))[1]


def play_levels(env: CovidEconomy, params: Params, levels: Any) -> tuple[State, dict[str, Any]]:
    """Plays an episode in which levels are given, [T, n] as from `load_policy`, without subsidies; the last of them
    stays where the episode is longer. Returns what `play_episode` does."""
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
    """Returns of an episode, those of all states summed up, and how they change where one side makes a constant
    choice, all states together, while the other side plays on as it does."""

    states: jax.Array  # () of all states, nobody deviating
    planner: jax.Array  # ()
    states_by_level: jax.Array  # (11,) of all states, where they always choose 0 (keep), 1 .. 10
    planner_by_subsidy: jax.Array
    """(num_subsidy_levels + 1,) of the planner, where it always chooses that subsidy"""

    @property
    def states_gain(self) -> jax.Array:
        """() what the best constant level adds, as a share of the states' return; below 0: it takes away."""
        return (jnp.max(self.states_by_level) - self.states) / jnp.abs(self.states)

    @property
    def planner_gain(self) -> jax.Array:
        """() likewise for the planner."""
        return (jnp.max(self.planner_by_subsidy) - self.planner) / jnp.abs(self.planner)


def find_deviations(
    env: CovidEconomy, params: Params, states: Policy, planner: Policy
) -> Deviations:
    """Plays an episode with two policies, and one for every constant choice of a side against the other's policy."""
    num_levels, num_subsidies = NUM_LEVELS + 1, env.num_subsidy_levels + 1

    def own(num) -> jax.Array:
        return jnp.full(num, -1)

    level = jnp.concatenate([own(1), jnp.arange(num_levels), own(num_subsidies)])
    subsidy = jnp.concatenate([own(1), own(num_levels), jnp.arange(num_subsidies)])

    def returns(level: jax.Array, subsidy: jax.Array) -> tuple[jax.Array, jax.Array]:
        def act(obs: Any, state: State) -> dict[str, jax.Array]:
            return {
                "state": jnp.where(level < 0, states(obs["state"]), level),
                "planner": jnp.where(subsidy < 0, planner(obs["planner"]), subsidy),
            }

        reward = play_episode(env, params, act)[1]
        return jnp.sum(reward["state"]), jnp.sum(reward["planner"])

    of_states, of_planner = jax.jit(jax.vmap(returns))(level, subsidy)
    return Deviations(
        of_states[0], of_planner[0], of_states[1 : num_levels + 1], of_planner[num_levels + 1 :]
    )
