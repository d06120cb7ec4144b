"""CartPole: balance a pole on a cart by pushing left or right.

Source: Barto, Sutton, Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems",
IEEE SMC-13 (1983); constants and integration as in gymnasium's CartPole-v1.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require, require_finite
from wdjax.env import require_action
from wdjax.envs.classic_control.game import ClassicControl, StepResult, hold_where
from wdjax.spaces import Box, Discrete


class State(struct.PyTreeNode):
    """A cart on a track and a pole on it."""

    x: jax.Array  # () float32, m, of the cart
    x_dot: jax.Array  # () float32, m/s
    theta: jax.Array  # () float32, rad, of the pole from upright
    theta_dot: jax.Array  # () float32, rad/s
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Physics under gymnasium's names."""

    gravity: float = 9.8  # m/s^2
    masscart: float = 1.0  # kg
    masspole: float = 0.1  # kg
    length: float = 0.5  # m, half of the pole
    force_mag: float = 10.0  # N
    tau: float = 0.02  # s, one step
    theta_threshold_radians: float = 12 * 2 * np.pi / 360  # rad, beyond it the pole has fallen
    x_threshold: float = 2.4  # m, beyond it the cart has left the track
    episode_length: int = 500  # steps, then truncated

    @property
    def total_mass(self) -> float:
        return self.masspole + self.masscart

    @property
    def polemass_length(self) -> float:
        return self.masspole * self.length


@dataclasses.dataclass(frozen=True)
class CartPole(ClassicControl):
    """One agent, Discrete(2) actions (push left, push right), observation (x, x_dot, theta, theta_dot)."""

    default_params: ClassVar[Params] = Params()
    reward_threshold: ClassVar[float | None] = 475.0
    frames_per_second: ClassVar[int] = 50
    drawing: ClassVar[str] = "cartpole"

    def check_params(self, params: Params) -> None:
        require_finite(params)
        for name in (
            "masscart",
            "masspole",
            "length",
            "tau",
            "theta_threshold_radians",
            "x_threshold",
        ):
            require(np.all(getattr(params, name) > 0), name, getattr(params, name), "above 0")
        require(
            np.all(params.episode_length > 0), "episode_length", params.episode_length, "above 0"
        )

    def reset(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        """Starts near rest: every number uniform in [-0.05, 0.05)."""
        x, x_dot, theta, theta_dot = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        state = State(x, x_dot, theta, theta_dot, jnp.int32(0))
        return observe(state), state

    def step(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> StepResult[State]:
        """Pushes the cart once; the reward is 1 a step, that of the fall included."""
        require_action(self, action, params, owner=CartPole)
        fallen_before = has_fallen(state, params)
        state = hold_where(fallen_before, state, dynamics(state, action, params))
        terminated = has_fallen(state, params)
        truncated = (state.time >= params.episode_length) & ~terminated
        reward = jnp.where(fallen_before, 0.0, 1.0).astype(jnp.float32)
        return observe(state), state, reward, terminated, truncated, {}

    def observation_space(self, params: Params) -> Box:
        high = np.array([np.inf, np.inf, np.inf, np.inf], np.float32)
        return Box(-high, high, (4,))

    def action_space(self, params: Params) -> Discrete:
        return Discrete(2)


def dynamics(state: State, action: jax.Array, params: Params) -> State:
    """One explicit Euler step of `tau` seconds:

    s = (F + ml w^2 sin th) / M,  alpha = (g sin th - s cos th) / (l (4/3 - mp cos^2 th / M)),
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


def has_fallen(state: State, params: Params) -> jax.Array:
    """Returns whether the cart is off the track or the pole beyond its angle: a bool scalar."""
    return (jnp.abs(state.x) > params.x_threshold) | (
        jnp.abs(state.theta) > params.theta_threshold_radians
    )


def observe(state: State) -> jax.Array:
    """Returns (x, x_dot, theta, theta_dot), [4] float32."""
    return jnp.stack([state.x, state.x_dot, state.theta, state.theta_dot])
