"""MountainCar: an underpowered car in a valley must build up momentum to reach the goal.

Source: Moore, "Efficient memory-based learning for robot control", PhD thesis, Cambridge (1990);
constants and integration as in gymnasium's MountainCar-v0.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require_all, require_finite, require_positive
from wdjax.env import drawn_by
from wdjax.envs.classic_control.game import ClassicControl, stack_bounds
from wdjax.spaces import Box, Discrete

FIRST_START, LAST_START = -0.6, -0.4  # m, range of initial positions


class State(struct.PyTreeNode):
    """Position and velocity of a car on a track with the height profile sin(3 position)."""

    position: jax.Array  # () float32, m, horizontal position
    velocity: jax.Array  # () float32, m/step, horizontal velocity
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Physical parameters with gymnasium's names; the unit of time is one step."""

    min_position: float = -1.2  # m, position of the wall
    max_position: float = 0.6  # m, upper limit of the position
    max_speed: float = 0.07  # m/step, limit of the velocity
    goal_position: float = 0.5  # m, position of the goal
    goal_velocity: float = 0.0  # m/step, minimum velocity at the goal
    force: float = 0.001  # m/step^2, acceleration of a push
    gravity: float = 0.0025  # m/step^2, acceleration where the track is steepest
    episode_length: int = 200  # steps, after which the episode is truncated


@dataclasses.dataclass(frozen=True)
class MountainCar(ClassicControl[State]):
    """One agent pushes the car left, not at all, or right, Discrete(3).

    It observes (position, velocity).
    """

    default_params: ClassVar[Params] = Params()
    reward_threshold: ClassVar[float | None] = -110.0
    scene = drawn_by("wdjax.envs.classic_control.drawing:mountain_car_scene")

    def check_params(self, params: Any) -> None:
        """Raise ValueError if a value is invalid or the track excludes the starts or the goal."""
        require_finite(params)
        low, high, goal = params.min_position, params.max_position, params.goal_position
        first, last = np.float32(FIRST_START), np.float32(LAST_START)
        highest = f"at least {LAST_START}, the highest start position"
        rules = {
            "min_position": (low <= first, f"at most {FIRST_START}, the lowest start position"),
            "max_position": (high >= last, highest),
            "goal_position": (
                (goal >= last) & (goal <= high),
                f"{highest}, and at most max_position",
            ),
        }
        require_all(params, rules)
        require_positive(params, "max_speed", "episode_length")

    def start(self, key: jax.Array) -> State:
        """Start at rest in the valley, with the position uniform in [-0.6, -0.4) m."""
        position = jax.random.uniform(key, (), jnp.float32, FIRST_START, LAST_START)
        return State(position, jnp.float32(0), jnp.int32(0))

    def dynamics(self, state: State, action: jax.Array, params: Any) -> State:
        """Push the car to the left (0), not at all (1) or to the right (2) for one step."""
        return roll(state, (action - 1) * params.force, params)

    def is_over(self, state: State, params: Any) -> jax.Array:
        """Return whether the car has reached the goal with at least `goal_velocity`."""
        return (state.position >= params.goal_position) & (state.velocity >= params.goal_velocity)

    def reward(self, action: jax.Array, over_before: jax.Array, terminated: jax.Array) -> jax.Array:
        """Return -1 per step, including the step that reaches the goal."""
        return jnp.where(over_before, 0.0, -1.0).astype(jnp.float32)

    def observe(self, state: State, params: Any) -> jax.Array:
        """Return (position, velocity), [2] float32."""
        return jnp.stack([state.position, state.velocity])

    def observation_space(self, params: Any) -> Box:
        low = stack_bounds(params.min_position, -params.max_speed)
        return Box(low, stack_bounds(params.max_position, params.max_speed), (2,))

    def action_space(self, params: Params) -> Discrete:
        return Discrete(3)


def roll(state: State, push: jax.Array, params: Any) -> State:
    """Advance the car by one step under an acceleration `push`.

    The position p uses the new velocity v, and the wall at min_position stops the car:

        v = clip(v + push - g cos(3 p), -max_speed, max_speed),
        p = clip(p + v, min_position, max_position).
    """
    velocity = state.velocity + push - params.gravity * jnp.cos(3 * state.position)
    velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
    position = jnp.clip(state.position + velocity, params.min_position, params.max_position)
    at_wall = (position == params.min_position) & (velocity < 0)
    return State(position, jnp.where(at_wall, 0.0, velocity), state.time + 1)
