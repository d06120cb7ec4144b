"""CartPole: balance a pole on a cart by pushing the cart left or right.

Source: Barto, Sutton, Anderson, "Neuronlike adaptive elements that can solve difficult learning
control problems", IEEE SMC-13 (1983); constants and integration as in gymnasium's CartPole-v1.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require_finite, require_positive
from wdjax.controls import Controls
from wdjax.env import drawn_by
from wdjax.envs.classic_control.game import ClassicControl
from wdjax.spaces import Box, Discrete


class State(struct.PyTreeNode):
    """Position and angle of a cart on a track with a pole hinged on it."""

    x: jax.Array  # () float32, m, position of the cart
    x_dot: jax.Array  # () float32, m/s, velocity of the cart
    theta: jax.Array  # () float32, rad, angle of the pole from upright
    theta_dot: jax.Array  # () float32, rad/s, angular velocity of the pole
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Physical parameters with gymnasium's names."""

    gravity: float = 9.8  # m/s^2
    masscart: float = 1.0  # kg, mass of the cart
    masspole: float = 0.1  # kg, mass of the pole
    length: float = 0.5  # m, half the length of the pole
    force_mag: float = 10.0  # N, force of a push
    tau: float = 0.02  # s, duration of a step
    theta_threshold_radians: float = 12 * 2 * np.pi / 360  # rad, terminates if |theta| exceeds it
    x_threshold: float = 2.4  # m, terminates if |x| exceeds it
    episode_length: int = 500  # steps, after which the episode is truncated

    @property
    def total_mass(self) -> float:
        return self.masspole + self.masscart

    @property
    def polemass_length(self) -> float:
        return self.masspole * self.length


@dataclasses.dataclass(frozen=True)
class CartPole(ClassicControl[State]):
    """One agent pushes the cart left or right, Discrete(2).

    It observes (x, x_dot, theta, theta_dot).
    """

    default_params: ClassVar[Params] = Params()
    reward_threshold: ClassVar[float | None] = 475.0
    frames_per_second: ClassVar[int] = 50
    scene = drawn_by("wdjax.envs.classic_control.drawing:cartpole_scene")

    def check_params(self, params: Params) -> None:
        require_finite(params)
        require_positive(
            params,
            "masscart",
            "masspole",
            "length",
            "tau",
            "theta_threshold_radians",
            "x_threshold",
            "episode_length",
        )

    def start(self, key: jax.Array) -> State:
        """Start near rest, with each state variable uniform in [-0.05, 0.05)."""
        x, x_dot, theta, theta_dot = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return State(x, x_dot, theta, theta_dot, jnp.int32(0))

    def dynamics(self, state: State, action: jax.Array, params: Params) -> State:
        """Push the cart for `tau` seconds, one explicit Euler step.

        With force F, angular velocity w, pole mass mp, total mass M and ml = mp l:

            s = (F + ml w^2 sin th) / M,
            alpha = (g sin th - s cos th) / (l (4/3 - mp cos^2 th / M)),
            a = s - ml alpha cos th / M.
        """
        force = jnp.where(jnp.asarray(action) == 1, params.force_mag, -params.force_mag)
        cos, sin = jnp.cos(state.theta), jnp.sin(state.theta)
        push = (force + params.polemass_length * state.theta_dot**2 * sin) / params.total_mass
        theta_acc = (params.gravity * sin - cos * push) / (
            params.length * (4.0 / 3.0 - params.masspole * cos**2 / params.total_mass)
        )
        x_acc = push - params.polemass_length * theta_acc * cos / params.total_mass
        return State(
            x=state.x + params.tau * state.x_dot,
            x_dot=state.x_dot + params.tau * x_acc,
            theta=state.theta + params.tau * state.theta_dot,
            theta_dot=state.theta_dot + params.tau * theta_acc,
            time=state.time + 1,
        )

    def is_over(self, state: State, params: Params) -> jax.Array:
        """Return whether the cart or the pole has exceeded its threshold, |x| or |theta|."""
        return (jnp.abs(state.x) > params.x_threshold) | (
            jnp.abs(state.theta) > params.theta_threshold_radians
        )

    def reward(self, action: jax.Array, over_before: jax.Array, terminated: jax.Array) -> jax.Array:
        """Return 1 per step, including the step in which the episode terminates."""
        return jnp.where(over_before, 0.0, 1.0).astype(jnp.float32)

    def observe(self, state: State, params: Params) -> jax.Array:
        """Return (x, x_dot, theta, theta_dot), [4] float32."""
        return jnp.stack([state.x, state.x_dot, state.theta, state.theta_dot])

    def observation_space(self, params: Params) -> Box:
        high = np.array([np.inf, np.inf, np.inf, np.inf], np.float32)
        return Box(-high, high, (4,))

    def action_space(self, params: Params) -> Discrete:
        return Discrete(2)

    def controls(self, group: str, params: Params) -> Controls:
        """Return the default controls, slow enough for a person."""
        return dataclasses.replace(super().controls(group, params), speed=0.2)
