"""Pendulum: swing up a rod with limited torque and keep it upright.

Source: Doya, "Reinforcement learning in continuous time and space", Neural Computation 12 (2000);
constants, integration and reward as in gymnasium's Pendulum-v1.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require, require_finite, require_positive
from wdjax.env import drawn_by, require_action
from wdjax.envs.classic_control.game import ClassicControl, stack_bounds, wrap_angle
from wdjax.spaces import Box

START_SPEED = 1.0  # rad/s, largest initial speed


class State(struct.PyTreeNode):
    """Angle and speed of a rod that turns about one of its ends."""

    theta: jax.Array  # () float32, rad, counter-clockwise from upright, not wrapped
    theta_dot: jax.Array  # () float32, rad/s, angular velocity
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Physical parameters with gymnasium's names, except `gravity` (gymnasium: `g`)."""

    max_speed: float = 8.0  # rad/s, limit of theta_dot
    max_torque: float = 2.0  # N m, limit of the torque
    dt: float = 0.05  # s, duration of a step
    gravity: float = 10.0  # m/s^2
    m: float = 1.0  # kg, mass of the rod
    l: float = 1.0  # noqa: E741 m, length of the rod
    episode_length: int = 200  # steps, after which the episode is truncated


@dataclasses.dataclass(frozen=True)
class Pendulum(ClassicControl[State]):
    """One agent applies a torque to the rod, Box of shape (1,).

    It observes (cos theta, sin theta, theta_dot).
    """

    default_params: ClassVar[Params] = Params()
    key_explanation: ClassVar[str] = "←: turn clockwise. →: turn counterclockwise"
    scene = drawn_by("wdjax.envs.classic_control.drawing:pendulum_scene")

    def check_params(self, params: Params) -> None:
        require_finite(params)
        require_positive(params, "max_torque", "dt", "m", "l", "episode_length")
        require(
            np.all(params.max_speed >= START_SPEED),
            "max_speed",
            params.max_speed,
            f"at least {START_SPEED}, the largest initial speed",
        )

    def start(self, key: jax.Array) -> State:
        """Start with theta uniform in [-pi, pi) rad and theta_dot uniform in [-1, 1) rad/s."""
        theta, theta_dot = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0)
        return State(jnp.pi * theta, START_SPEED * theta_dot, jnp.int32(0))

    def step(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, jax.Array, dict]:
        """Apply a torque, clipped to the action space, for `dt` seconds.

        Episodes never terminate; they are truncated at the time limit. The reward uses the state
        before the step:

            reward = -(wrap(theta)^2 + 0.1 theta_dot^2 + 0.001 torque^2).
        """
        require_action(self, action, params, owner=Pendulum)
        torque = jnp.clip(action[0], -params.max_torque, params.max_torque)
        reward = -(wrap_angle(state.theta) ** 2 + 0.1 * state.theta_dot**2 + 0.001 * torque**2)
        state = self.dynamics(state, torque, params)
        truncated = state.time >= params.episode_length
        return self.observe(state, params), state, reward, jnp.bool_(False), truncated, {}

    def dynamics(self, state: State, torque: jax.Array, params: Params) -> State:
        """Advance the state by one semi-implicit Euler step of `dt` seconds.

        The angle th uses the new angular velocity w:

            w = clip(w + (3 g / (2 l) sin th + 3 / (m l^2) torque) dt, -max_speed, max_speed),
            th = th + w dt.
        """
        acceleration = (
            3 * params.gravity / (2 * params.l) * jnp.sin(state.theta)
            + 3 / (params.m * params.l**2) * torque
        )
        theta_dot = jnp.clip(
            state.theta_dot + acceleration * params.dt, -params.max_speed, params.max_speed
        )
        return State(state.theta + theta_dot * params.dt, theta_dot, state.time + 1)

    def observe(self, state: State, params: Params) -> jax.Array:
        """Return (cos theta, sin theta, theta_dot), [3] float32."""
        return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot])

    def observation_space(self, params: Params) -> Box:
        high = stack_bounds(1.0, 1.0, params.max_speed)
        return Box(-high, high, (3,))

    def action_space(self, params: Params) -> Box:
        return Box(-params.max_torque, params.max_torque, (1,))
