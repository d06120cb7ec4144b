"""ContinuousMountainCar: MountainCar with a continuous force and a cost for using it.

Source: Moore, "Efficient memory-based learning for robot control", PhD thesis, Cambridge (1990);
constants, integration and reward as in gymnasium's MountainCarContinuous-v0.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require
from wdjax.envs.classic_control.mountain_car import MountainCar, State, roll
from wdjax.spaces import Box

GOAL_REWARD, FUEL_COST = 100.0, 0.1


class Params(struct.PyTreeNode):
    """Physical parameters with gymnasium's names; the unit of time is one step."""

    min_action: float = -1.0  # lower limit of the action
    max_action: float = 1.0  # upper limit of the action
    min_position: float = -1.2  # m, position of the wall
    max_position: float = 0.6  # m, upper limit of the position
    max_speed: float = 0.07  # m/step, limit of the velocity
    goal_position: float = 0.45  # m, position of the goal
    goal_velocity: float = 0.0  # m/step, minimum velocity at the goal
    power: float = 0.0015  # m/step^2, acceleration at action 1
    gravity: float = 0.0025  # m/step^2, acceleration where the track is steepest
    episode_length: int = 999  # steps, after which the episode is truncated


@dataclasses.dataclass(frozen=True)
class ContinuousMountainCar(MountainCar):
    """One agent accelerates the car of MountainCar with a continuous force, Box of shape (1,).

    It observes (position, velocity).
    """

    default_params: ClassVar[Params] = Params()  # type: ignore[assignment]  # of another class than in the base
    reward_threshold: ClassVar[float | None] = 90.0

    def check_params(self, params: Params) -> None:
        super().check_params(params)
        require(
            np.all(params.min_action < params.max_action),
            "min_action",
            params.min_action,
            f"below max_action = {params.max_action}",
        )

    def dynamics(self, state: State, action: jax.Array, params: Params) -> State:
        """Accelerate the car for one step by the action, clipped to the action space."""
        force = jnp.clip(action[0], params.min_action, params.max_action)
        return roll(state, force * params.power, params)

    def reward(self, action: jax.Array, over_before: jax.Array, terminated: jax.Array) -> jax.Array:
        """Return 100 [arrived] - 0.1 action^2, with the unclipped action."""
        reward = jnp.where(terminated, GOAL_REWARD, 0.0) - FUEL_COST * action[0] ** 2
        return jnp.where(over_before, 0.0, reward)

    def action_space(self, params: Params) -> Box:  # type: ignore[override]  # the base is discrete
        return Box(params.min_action, params.max_action, (1,))
