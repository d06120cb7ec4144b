"""Drawings of classic control (`Env.scene`), to scale in meters."""

from typing import Any

import numpy as np

from wdjax.drawing import DISC, SQUARE, Lines, Mark, Scene, Shapes, Text

# m, for drawing only: the dynamics treat cart and car as points
CART_WIDTH, CART_HEIGHT, WHEEL = 0.5, 0.22, 0.07
CAR_LENGTH, CAR_HEIGHT, CAR_WHEEL = 0.14, 0.05, 0.022
# m, as drawn by gymnasium: the dynamics depend only on the shape of the slope
HILL_BASE, HILL_HEIGHT = 0.55, 0.45
CAR = np.array([[-0.5, 0.0], [0.5, 0.0], [0.5, 0.6], [0.3, 1.0], [-0.3, 1.0], [-0.5, 0.6]]) * [
    CAR_LENGTH,
    CAR_HEIGHT,
]
ARROW = np.array(
    [[-1, 0.03], [0.4, 0.03], [0.4, 0.12], [1, 0], [0.4, -0.12], [0.4, -0.03], [-1, -0.03]]
)


def cartpole_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the CartPole scene: the track, the cart, the pole and the termination limits."""
    x, theta = _column(states.x), _column(states.theta)
    limit, tilt = float(params.x_threshold), float(params.theta_threshold_radians)
    pole = 2 * float(params.length)  # `length` is half the pole
    pivot = 2 * WHEEL + CART_HEIGHT
    low, high = -0.35 * pole, pivot + 1.25 * pole
    signs = np.array([-1.0, 1.0])
    tips, tops = x + signs * pole * np.sin(tilt), np.full((1, 2), pivot + pole * np.cos(tilt))
    limits = _segments(np.stack([signs * limit] * 2, axis=-1)[None], np.array([low, high]))
    tilts = _segments(
        np.stack(np.broadcast_arrays(x, tips), axis=-1),
        np.stack(np.broadcast_arrays(pivot, tops), axis=-1),
    )
    end = limit + 0.4
    marks = [
        Lines([[-end, 0.0], [end, 0.0]], "ink", 1.2),
        Lines(limits, "magenta", 1.2, dashed=True),
        Text(
            [-limit + 0.03, limit - 0.03], high - 0.08 * pole, [" limit", ""], "magenta", 10, "left"
        ),
        Text([limit - 0.03], high - 0.08 * pole, ["limit "], "magenta", 10, "right"),
        Lines(tilts, "magenta", 1.2, dashed=True),
        Text(
            tips,
            tops + 0.09 * pole,
            [f"{sign * np.degrees(tilt):+.3g}°" for sign in signs],
            "magenta",
            10,
        ),
        Shapes(x + CART_WIDTH / 4 * signs, WHEEL, DISC, WHEEL, color="ink"),
        Shapes(x + CART_WIDTH / 4 * signs, WHEEL, DISC, 0.55 * WHEEL, color="paper"),
        Shapes(
            x,
            2 * WHEEL + CART_HEIGHT / 2,
            SQUARE,
            (CART_WIDTH / 2, CART_HEIGHT / 2),
            color="ink",
            group="agent",
        ),
        _rod(x, pivot, x + pole * np.sin(theta), pivot + pole * np.cos(theta), 4),
        *_joint(x, pivot, 0.05 * pole**0.5),
    ]
    fallen = (np.abs(x) > limit) | (np.abs(theta) > tilt)
    status = ["fallen" if is_fallen else "balanced" for is_fallen in fallen[:, 0]]
    return _scene(
        marks,
        states,
        params,
        status,
        (-end, low, end, high),
        "position on the track [m]",
        "height [m]",
    )


def acrobot_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the Acrobot scene: the two links, their joints and the goal height of the tip."""
    theta1, theta2 = _column(states.theta1), _column(states.theta2)
    length1, length2 = float(params.LINK_LENGTH_1), float(params.LINK_LENGTH_2)
    elbow = length1 * np.sin(theta1), -length1 * np.cos(theta1)
    tip = elbow[0] + length2 * np.sin(theta1 + theta2), elbow[1] - length2 * np.cos(theta1 + theta2)
    reach = length1 + length2
    marks: list[Mark] = [Shapes([0.0], [0.0], DISC, reach, color="faint", stroke=1.0)]
    if np.isclose(length1, length2):  # otherwise the goal is not a height
        marks += [
            Lines([[-1.12 * reach, length1], [1.12 * reach, length1]], "green", 1.2, dashed=True),
            Text([-1.08 * reach], length1 + 0.05 * reach, ["goal"], "green", 10, "left"),
        ]
    marks += [
        _rod(np.zeros_like(theta1), 0.0, *elbow, 6, "ink"),
        _rod(*elbow, *tip, 6),
        *_joint(0.0, 0.0, 0.035 * reach),
        *_joint(*elbow, 0.035 * reach),
        Shapes(*tip, DISC, 0.04 * reach, color="magenta", edge=True, group="agent", trail=True),
    ]
    is_up = -np.cos(theta1) - np.cos(theta1 + theta2) > 1
    status = [
        "swung up" if up else f"tip at {y:+.2f} m"
        for up, y in zip(is_up[:, 0], tip[1][:, 0], strict=True)
    ]
    return _scene(
        marks,
        states,
        params,
        status,
        _around(1.12 * reach),
        "position [m]",
        "height above the fixed joint [m]",
    )


def mountain_car_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the MountainCar scene: track, wall, goal, and the car with its velocity arrow."""
    position, velocity = _column(states.position), _column(states.velocity)
    # the position is the middle of the car, so its ends need extra room
    goal, room = float(params.goal_position), 0.6 * CAR_LENGTH
    low, high = float(params.min_position) - room, float(params.max_position) + room
    track, pole = np.linspace(low, high, 100), hill(goal) + 0.3
    slope, speed = (
        np.arctan(3 * HILL_HEIGHT * np.cos(3 * position)),
        velocity / float(params.max_speed),
    )
    sin, cos = np.sin(slope), np.cos(slope)
    sides = 0.3 * CAR_LENGTH * np.array([-1.0, 1.0])
    wheels = (
        position + sides * cos - CAR_WHEEL * sin,
        hill(position) + sides * sin + CAR_WHEEL * cos,
    )
    ground = np.concatenate([[[low, 0.0]], np.stack([track, hill(track)], axis=-1), [[high, 0.0]]])
    shown = np.where(
        np.abs(speed) > 0.15, 0.1 * speed, np.nan
    )  # a shorter arrow would show only its head
    up = 1.2 * CAR_WHEEL
    marks = [
        Shapes([0.0], [0.0], ground, color="faint", opacity=0.6),
        Lines(ground[1:-1], "ink", 1.5),
        Lines([[low, hill(low)], [low, hill(low) + 0.35]], "magenta", 3),
        Text([low + 0.02], hill(low) + 0.33, ["wall"], "magenta", 10, "left"),
        Lines([[goal, hill(goal)], [goal, pole]], "green", 1.5),
        Shapes([goal], [pole], np.array([[0.0, 0.0], [0.0, -0.1], [-0.12, -0.05]]), color="green"),
        Text([goal], pole + 0.05, ["goal"], "green", 10),
        Shapes(
            position - up * sin, hill(position) + up * cos, CAR, 1.0, slope, "blue", group="agent"
        ),
        Shapes(*wheels, DISC, CAR_WHEEL, color="ink"),
        Shapes(*wheels, DISC, 0.5 * CAR_WHEEL, color="paper"),
        Shapes(
            position - 0.14 * sin, hill(position) + 0.14 * cos, ARROW, (shown, 0.1), slope, "blue"
        ),
    ]
    arrived = (position >= goal) & (velocity >= float(params.goal_velocity))
    status = [
        "arrived" if has_arrived else f"velocity {v:+.3f} m/step"
        for has_arrived, v in zip(arrived[:, 0], velocity[:, 0], strict=True)
    ]
    return _scene(
        marks,
        states,
        params,
        status,
        (low - 0.06, 0.0, high + 0.06, 1.45),
        "position [m]",
        "height [m]",
    )


def hill(position: Any) -> Any:
    """Return the height of the track [m]."""
    return HILL_BASE + HILL_HEIGHT * np.sin(3 * position)


def pendulum_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the Pendulum scene: the rod, its pivot and the upright target."""
    theta, length = _column(states.theta), float(params.l)
    tip = -length * np.sin(theta), length * np.cos(theta)
    marks = [
        Shapes([0.0], [0.0], DISC, length, color="faint", stroke=1.0),
        Lines([[0.0, 0.0], [0.0, length]], "green", 1.5, dashed=True),
        Text([0.0], 1.1 * length, ["upright"], "green", 10),
        _rod(np.zeros_like(theta), 0.0, *tip, 8),
        *_joint(0.0, 0.0, 0.045 * length),
        Shapes(*tip, DISC, 0.03 * length, color="blue", group="agent", trail=True),
    ]
    angle_error = np.abs(np.degrees((theta[:, 0] + np.pi) % (2 * np.pi) - np.pi))
    status = [
        f"{angle:.0f}° from upright, {speed:+.1f} rad/s"
        for angle, speed in zip(angle_error, states.theta_dot, strict=True)
    ]
    return _scene(
        marks,
        states,
        params,
        status,
        _around(1.25 * length),
        "position [m]",
        "height above the pivot [m]",
    )


def _column(values: Any) -> np.ndarray:
    return np.asarray(values, float)[:, None]  # [T, 1], one value per frame


def _around(reach: float) -> tuple[float, float, float, float]:
    return -reach, -reach, reach, reach


def _segments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return line segments [T, N, 2, 2]: the two ends of each, with (x, y) on the last axis.

    The last axis of the arguments x and y is the two ends. Each argument broadcasts to [T, N, 2].
    """
    return np.stack(np.broadcast_arrays(x, y), axis=-1)


def _rod(
    x: Any, y: Any, end_x: np.ndarray, end_y: np.ndarray, width: float, color: str = "blue"
) -> Lines:
    # [T, 1, 2]
    ends = [np.stack(np.broadcast_arrays(*pair), axis=-1) for pair in ((x, end_x), (y, end_y))]
    return Lines(_segments(*ends), color, width)


def _joint(x: Any, y: Any, size: float) -> list[Shapes]:
    return [Shapes(x, y, DISC, size, color="ink"), Shapes(x, y, DISC, 0.65 * size, color="paper")]


def _scene(
    marks: list,
    states: Any,
    params: Any,
    status: list[str],
    extent: tuple[float, float, float, float],
    xlabel: str,
    ylabel: str,
) -> Scene:
    last, time = int(params.episode_length), np.asarray(states.time)
    captions = [f"step {t} of {last}, {words}" for t, words in zip(time, status, strict=True)]
    return Scene(marks, captions, extent, time, xlabel=xlabel, ylabel=ylabel)
