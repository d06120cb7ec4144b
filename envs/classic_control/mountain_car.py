"""MountainCar: a car in a valley, too weak for the slope, must swing itself up to the goal.

Source: Moore, "Efficient memory-based learning for robot control", PhD thesis, Cambridge (1990); constants and
integration as in gymnasium's MountainCar-v0.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require, require_finite
from wdjax.env import require_action
from wdjax.envs.classic_control.game import ClassicControl, StepResult, hold_where, stack_bounds
from wdjax.spaces import Box, Discrete

FIRST_START, LAST_START = -0.6, -0.4  # positions


class State(struct.PyTreeNode):
    """A car on a track whose height is that of sin(3 position)."""

    position: jax.Array  # () float32, m, along the horizontal
    velocity: jax.Array  # () float32, m a step
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Physics under gymnasium's names; one step is the unit of time."""

    min_position: float = -1.2  # m, of the wall
    max_position: float = 0.6  # m
    max_speed: float = 0.07  # m a step
    goal_position: float = 0.5  # m
    goal_velocity: float = 0.0  # m a step, the least at the goal
    force: float = 0.001  # m a step^2, of the engine
    gravity: float = 0.0025  # m a step^2, where the track is steepest
    episode_length: int = 200  # steps, then truncated


@dataclasses.dataclass(frozen=True)
class MountainCar(ClassicControl):
    """One agent, Discrete(3) actions (push left, none, push right), observation (position, velocity)."""

    default_params: ClassVar[Params] = Params()
    reward_threshold: ClassVar[float | None] = -110.0
    drawing: ClassVar[str] = "mountain_car"

    def check_params(self, params: Any) -> None:
        """Raises ValueError where a track has no room for the starts or the goal, or nothing could move on it."""
        require_finite(params)
        low, high, goal = params.min_position, params.max_position, params.goal_position
        first, last = np.float32(FIRST_START), np.float32(LAST_START)
        require(
            np.all(low <= first), "min_position", low, f"at most {FIRST_START}, where starts begin"
        )
        require(
            np.all(high >= last), "max_position", high, f"at least {LAST_START}, where starts end"
        )
        allowed = f"at least {LAST_START}, where starts end, and at most max_position"
        require(np.all((goal >= last) & (goal <= high)), "goal_position", goal, allowed)
        require(np.all(params.max_speed > 0), "max_speed", params.max_speed, "above 0")
        require(
            np.all(params.episode_length > 0), "episode_length", params.episode_length, "above 0"
        )

    def reset(self, key: jax.Array, params: Any) -> tuple[jax.Array, State]:
        """Starts at rest in the valley: the position uniform in [-0.6, -0.4)."""
        position = jax.random.uniform(key, (), jnp.float32, FIRST_START, LAST_START)
        state = State(position, jnp.float32(0), jnp.int32(0))
        return observe(state), state

    def step(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> StepResult[State]:
        """Pushes the car once; the reward is -1 a step, that of the arrival included."""
        require_action(self, action, params, owner=MountainCar)
        arrived_before = has_arrived(state, params)
        state = hold_where(arrived_before, state, roll(state, (action - 1) * params.force, params))
        terminated = has_arrived(state, params)
        truncated = (state.time >= params.episode_length) & ~terminated
        reward = jnp.where(arrived_before, 0.0, -1.0).astype(jnp.float32)
        return observe(state), state, reward, terminated, truncated, {}

    def observation_space(self, params: Any) -> Box:
        low = stack_bounds(params.min_position, -params.max_speed)
        return Box(low, stack_bounds(params.max_position, params.max_speed), (2,))

    def action_space(self, params: Params) -> Discrete:
        return Discrete(3)


def roll(state: State, push: jax.Array, params: Any) -> State:
    """One step under an acceleration `push`, with the new velocity; the wall at min_position stops the car:

    v = clip(v + push - g cos(3 p), -max_speed, max_speed),  p = clip(p + v, min_position, max_position).
    """
    velocity = state.velocity + push - params.gravity * jnp.cos(3 * state.position)
    velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
    position = jnp.clip(state.position + velocity, params.min_position, params.max_position)
    at_wall = (position == params.min_position) & (velocity < 0)
    return State(position, jnp.where(at_wall, 0.0, velocity), state.time + 1)


def has_arrived(state: State, params: Any) -> jax.Array:
    """Returns whether the car is at the goal or beyond, and as fast as is asked: a bool scalar."""
    return (state.position >= params.goal_position) & (state.velocity >= params.goal_velocity)


def observe(state: State) -> jax.Array:
    """Returns (position, velocity), [2] float32."""
    return jnp.stack([state.position, state.velocity])
