"""Acrobot: swing up a two-link arm with a torque at the joint between the links.

Source: Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse
coding", NIPS (1995); equations of Sutton, Barto, "Reinforcement learning: an introduction" (the
"book" dynamics); constants and integration as in gymnasium's Acrobot-v1.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import (
    require,
    require_each,
    require_finite,
    require_not_negative,
    require_positive,
)
from wdjax.env import drawn_by
from wdjax.envs.classic_control.game import ClassicControl, stack_bounds, wrap_angle
from wdjax.spaces import Box, Discrete

START = 0.1  # rad and rad/s, largest absolute value of each initial angle and speed
LARGE = 1_000.0  # largest absolute value of each parameter; integration squares speeds


class State(struct.PyTreeNode):
    """Angles and speeds of two links: the first pivots on a fixed joint, the second on its end."""

    theta1: jax.Array  # () float32, rad, first link from hanging down, in [-pi, pi]
    theta2: jax.Array  # () float32, rad, second link relative to the first, in [-pi, pi]
    theta1_dot: jax.Array  # () float32, rad/s, angular speed of the first joint
    theta2_dot: jax.Array  # () float32, rad/s, angular speed of the second joint
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Physical parameters with gymnasium's names."""

    LINK_LENGTH_1: float = 1.0  # m, length of the first link
    LINK_LENGTH_2: float = 1.0  # m, length of the second link, used only for drawing
    LINK_MASS_1: float = 1.0  # kg, mass of the first link
    LINK_MASS_2: float = 1.0  # kg, mass of the second link
    LINK_COM_POS_1: float = 0.5  # m, distance from the first joint to the link's center of mass
    LINK_COM_POS_2: float = 0.5  # m, distance from the second joint to the link's center of mass
    LINK_MOI: float = 1.0  # kg m^2, moment of inertia of each link
    MAX_VEL_1: float = 4 * np.pi  # rad/s, limit of theta1_dot
    MAX_VEL_2: float = 9 * np.pi  # rad/s, limit of theta2_dot
    AVAIL_TORQUE: tuple[float, float, float] = (-1.0, 0.0, 1.0)  # N m, torque of each action
    dt: float = 0.2  # s, duration of a step
    gravity: float = 9.8  # m/s^2
    episode_length: int = 500  # steps, after which the episode is truncated


@dataclasses.dataclass(frozen=True)
class Acrobot(ClassicControl[State]):
    """One agent chooses one of three torques, Discrete(3).

    It observes the cosine and sine of both angles and both angular speeds.
    """

    default_params: ClassVar[Params] = Params()
    reward_threshold: ClassVar[float | None] = -100.0
    frames_per_second: ClassVar[int] = 15
    key_explanation: ClassVar[str] = "←: turn the lower link clockwise. →: counterclockwise"
    scene = drawn_by("wdjax.envs.classic_control.drawing:acrobot_scene")

    def check_params(self, params: Params) -> None:
        require_finite(params)
        require_each(
            params,
            [name for name in vars(params) if name != "episode_length"],
            lambda value: np.abs(value) <= LARGE,
            f"between {-LARGE:g} and {LARGE:g}",
        )
        require_positive(
            params,
            "LINK_LENGTH_1",
            "LINK_LENGTH_2",
            "LINK_MASS_1",
            "LINK_MASS_2",
            "LINK_MOI",
            "dt",
            "episode_length",
        )
        require(
            np.all(params.dt <= 1),
            "dt",
            params.dt,
            "at most 1 s, because integration squares speeds",
        )
        require_not_negative(params, "LINK_COM_POS_1", "LINK_COM_POS_2")
        require_each(
            params,
            ("MAX_VEL_1", "MAX_VEL_2"),
            lambda value: value >= np.float32(START),
            f"at least {START}, the largest initial speed",
        )

    def start(self, key: jax.Array) -> State:
        """Start hanging and near rest: angles [rad] and speeds [rad/s] uniform in [-0.1, 0.1)."""
        theta1, theta2, theta1_dot, theta2_dot = jax.random.uniform(
            key, (4,), jnp.float32, -START, START
        )
        return State(theta1, theta2, theta1_dot, theta2_dot, jnp.int32(0))

    def dynamics(self, state: State, action: jax.Array, params: Params) -> State:
        """Apply a constant torque for `dt` seconds, one step of the classical Runge-Kutta method.

        The new state is:

            s + dt/6 (k1 + 2 k2 + 2 k3 + k4),
            k1 = f(s),  k2 = f(s + dt/2 k1),  k3 = f(s + dt/2 k2),  k4 = f(s + dt k3).

        Afterwards, angles are wrapped and speeds are clipped.
        """
        low, middle, high = (params.AVAIL_TORQUE[i] for i in range(3))
        torque = jnp.where(action == 0, low, jnp.where(action == 1, middle, high))
        dt = params.dt
        start = (state.theta1, state.theta2, state.theta1_dot, state.theta2_dot)
        k1 = derivatives(*start, torque=torque, params=params)
        k2 = derivatives(
            *[s + dt / 2 * k for s, k in zip(start, k1, strict=True)], torque=torque, params=params
        )
        k3 = derivatives(
            *[s + dt / 2 * k for s, k in zip(start, k2, strict=True)], torque=torque, params=params
        )
        k4 = derivatives(
            *[s + dt * k for s, k in zip(start, k3, strict=True)], torque=torque, params=params
        )
        theta1, theta2, theta1_dot, theta2_dot = (
            s + dt / 6 * (a + 2 * b + 2 * c + d)
            for s, a, b, c, d in zip(start, k1, k2, k3, k4, strict=True)
        )
        return State(
            theta1=wrap_angle(theta1),
            theta2=wrap_angle(theta2),
            theta1_dot=jnp.clip(theta1_dot, -params.MAX_VEL_1, params.MAX_VEL_1),
            theta2_dot=jnp.clip(theta2_dot, -params.MAX_VEL_2, params.MAX_VEL_2),
            time=state.time + 1,
        )

    def is_over(self, state: State, params: Params) -> jax.Array:
        """Return whether the tip is above the goal height: -cos th1 - cos(th1 + th2) > 1.

        For links of equal length, the tip is then more than one link length above the fixed joint.
        The condition does not depend on the lengths.
        """
        return -jnp.cos(state.theta1) - jnp.cos(state.theta1 + state.theta2) > 1.0

    def reward(self, action: jax.Array, over_before: jax.Array, terminated: jax.Array) -> jax.Array:
        """Return -1 per step, and 0 for the step that reaches the goal height."""
        return jnp.where(terminated, 0.0, -1.0).astype(jnp.float32)

    def observe(self, state: State, params: Params) -> jax.Array:
        """Return the observation [6] float32.

        The features are (cos theta1, sin theta1, cos theta2, sin theta2, theta1_dot, theta2_dot).
        """
        theta1, theta2 = state.theta1, state.theta2
        cos_sin = [jnp.cos(theta1), jnp.sin(theta1), jnp.cos(theta2), jnp.sin(theta2)]
        return jnp.stack([*cos_sin, state.theta1_dot, state.theta2_dot])

    def observation_space(self, params: Params) -> Box:
        high = stack_bounds(1.0, 1.0, 1.0, 1.0, params.MAX_VEL_1, params.MAX_VEL_2)
        return Box(-high, high, (6,))

    def action_space(self, params: Params) -> Discrete:
        return Discrete(3)


def derivatives(
    theta1: jax.Array,
    theta2: jax.Array,
    w1: jax.Array,
    w2: jax.Array,
    *,
    torque: jax.Array,
    params: Params,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the time derivatives of (theta1, theta2, w1, w2), with w1 and w2 the angular speeds.

    The equations of motion are:

        d1 = m1 lc1^2 + m2 (l1^2 + lc2^2 + 2 l1 lc2 cos th2) + 2 I,
        d2 = m2 (lc2^2 + l1 lc2 cos th2) + I,
        phi2 = m2 lc2 g sin(th1 + th2),
        phi1 = -m2 l1 lc2 w2 (w2 + 2 w1) sin th2 + (m1 lc1 + m2 l1) g sin th1 + phi2,
        w2' = (torque + d2/d1 phi1 - m2 l1 lc2 w1^2 sin th2 - phi2) / (m2 lc2^2 + I - d2^2/d1),
        w1' = -(d2 w2' + phi1) / d1.
    """
    m1, m2, l1 = params.LINK_MASS_1, params.LINK_MASS_2, params.LINK_LENGTH_1
    lc1, lc2, inertia, g = (
        params.LINK_COM_POS_1,
        params.LINK_COM_POS_2,
        params.LINK_MOI,
        params.gravity,
    )
    cos2, sin2 = jnp.cos(theta2), jnp.sin(theta2)
    d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + 2 * inertia
    d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + inertia
    phi2 = m2 * lc2 * g * jnp.sin(theta1 + theta2)
    phi1 = (
        -m2 * l1 * lc2 * w2 * (w2 + 2 * w1) * sin2
        + (m1 * lc1 + m2 * l1) * g * jnp.sin(theta1)
        + phi2
    )
    w2_dot = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * w1**2 * sin2 - phi2) / (
        m2 * lc2**2 + inertia - d2**2 / d1
    )
    w1_dot = -(d2 * w2_dot + phi1) / d1
    return w1, w2, w1_dot, w2_dot
