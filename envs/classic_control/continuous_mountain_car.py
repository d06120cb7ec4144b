"""ContinuousMountainCar: the car in the valley with an engine of any strength, which costs what it burns.

Source: Moore, "Efficient memory-based learning for robot control", PhD thesis, Cambridge (1990); constants, integration
and reward as in gymnasium's MountainCarContinuous-v0.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require
from wdjax.env import Env
from wdjax.envs.classic_control import mountain_car as track
from wdjax.envs.classic_control.mountain_car import State
from wdjax.spaces import Box

GOAL_REWARD, FUEL_COST = 100.0, 0.1


@struct.dataclass
class Params:
    """Physics under gymnasium's names; one step is the unit of time."""

    min_action: float = -1.0
    max_action: float = 1.0
    min_position: float = -1.2  # m, of the wall
    max_position: float = 0.6  # m
    max_speed: float = 0.07  # m a step
    goal_position: float = 0.45  # m
    goal_velocity: float = 0.0  # m a step, the least at the goal
    power: float = 0.0015  # m a step^2, of the engine at action 1
    gravity: float = 0.0025  # m a step^2, where the track is steepest
    episode_length: int = 999  # steps, then truncated


@dataclasses.dataclass(frozen=True)
class ContinuousMountainCar(Env):
    """One agent, Box actions of shape (1,) (the push), observation (position, velocity)."""

    can_truncate: ClassVar[bool] = True
    cheap_reset: ClassVar[bool] = True

    @property
    def default_params(self) -> Params:
        return Params()

    def check_params(self, params: Params) -> None:
        track.check_track(params)
        allowed = f"below max_action = {params.max_action}"
        require(np.all(params.min_action < params.max_action), "min_action", params.min_action, allowed)

    def reset(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        """Starts at rest in the valley: the position uniform in [-0.6, -0.4)."""
        state = track.start(key)
        return track.observe(state), state

    def step(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
        """Pushes the car once, by the action clipped to its space. The action as it came is what costs:

            reward = 100 [arrived] - 0.1 action^2.
        """
        arrived_before = track.has_arrived(state, params)
        push = action[0]
        force = jnp.clip(push, params.min_action, params.max_action)
        moved = track.roll(state, force * params.power, params)
        state = jax.tree.map(lambda old, new: jnp.where(arrived_before, old, new), state, moved)
        state = state.replace(time=moved.time)
        terminated = track.has_arrived(state, params)
        truncated = (state.time >= params.episode_length) & ~terminated
        reward = jnp.where(terminated, GOAL_REWARD, 0.0) - FUEL_COST * push**2
        reward = jnp.where(arrived_before, 0.0, reward)
        return track.observe(state), state, reward, terminated, truncated, {}

    def observation_space(self, params: Params) -> Box:
        return track.track_space(params)

    def action_space(self, params: Params) -> Box:
        return Box(params.min_action, params.max_action, (1,))

    def draw(self, axes: Any, state: State, params: Params, history: Any = None) -> None:
        from wdjax.envs.classic_control.drawing import draw_mountain_car

        draw_mountain_car(axes, state, params)
