"""Pictures of classic control, in true proportions (metres).

Each `draw_` draws one state of a game, with its params (arrays of NumPy or JAX), onto empty matplotlib axes.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Polygon, Rectangle

CART, POLE, LIMIT = "#444444", "#245EB6", "#C843C3"
GOAL = "#2E8B57"
CART_WIDTH, CART_HEIGHT, WHEEL = 0.5, 0.22, 0.07  # m; a drawing's choice: the dynamics know a point
CAR_LENGTH, CAR_HEIGHT, CAR_WHEEL = 0.14, 0.05, 0.022  # m; likewise
HILL_BASE, HILL_HEIGHT = 0.55, 0.45  # m, as gymnasium draws it: the dynamics know the slope's shape only


def draw_cartpole(axes: Axes, state: Any, params: Any) -> None:
    """Draws one state of cartpole: track, cart, pole, and the limits beyond which the episode ends."""
    x, theta = float(state.x), float(state.theta)
    limit, tilt = float(params.x_threshold), float(params.theta_threshold_radians)
    pole = 2 * float(params.length)  # the params hold half of it
    pivot = 2 * WHEEL + CART_HEIGHT

    low, high = -0.35 * pole, pivot + 1.25 * pole
    words = {"color": LIMIT, "fontsize": 8}
    axes.axhline(0.0, color=CART, linewidth=1.2, zorder=1)
    for sign, inside in ((-1, "left"), (1, "right")):
        axes.axvline(sign * limit, color=LIMIT, linestyle="--", linewidth=1.2, zorder=1)
        axes.text(sign * (limit - 0.05), high - 0.04 * pole, "limit", ha=inside, va="top", **words)
        tip_x, tip_y = x + sign * pole * np.sin(tilt), pivot + pole * np.cos(tilt)
        axes.plot([x, tip_x], [pivot, tip_y], color=LIMIT, linestyle=":", linewidth=1.2, zorder=1)
        axes.text(tip_x, tip_y + 0.03 * pole, f"{sign * np.degrees(tilt):+.3g}°", ha="center", va="bottom", **words)
    corner = (x - CART_WIDTH / 2, 2 * WHEEL)
    axes.add_patch(Rectangle(corner, CART_WIDTH, CART_HEIGHT, facecolor=CART, zorder=3))
    for wheel_x in (x - CART_WIDTH / 4, x + CART_WIDTH / 4):
        axes.add_patch(Circle((wheel_x, WHEEL), WHEEL, facecolor="white", edgecolor=CART, linewidth=1.5, zorder=2))
    tip_x, tip_y = x + pole * np.sin(theta), pivot + pole * np.cos(theta)
    axes.plot([x, tip_x], [pivot, tip_y], color=POLE, linewidth=4, solid_capstyle="round", zorder=4)
    axes.plot([x], [pivot], "o", color="white", markeredgecolor=CART, markersize=5, zorder=5)

    fallen = abs(x) > limit or abs(theta) > tilt
    axes.set(xlim=(-limit - 0.4, limit + 0.4), ylim=(low, high), aspect="equal")
    axes.set(xlabel="place on the track [m]", ylabel="height [m]")
    axes.set_title(f"step {int(state.time)} of {int(params.episode_length)}, " + ("fallen" if fallen else "balanced"))


def draw_acrobot(axes: Axes, state: Any, params: Any) -> None:
    """Draws one state of acrobot: the two links, their joints, and the height that the tip must pass."""
    theta1, theta2 = float(state.theta1), float(state.theta2)
    length1, length2 = float(params.LINK_LENGTH_1), float(params.LINK_LENGTH_2)
    elbow = length1 * np.array([np.sin(theta1), -np.cos(theta1)])
    tip = elbow + length2 * np.array([np.sin(theta1 + theta2), -np.cos(theta1 + theta2)])
    reach = length1 + length2

    axes.add_patch(Circle((0, 0), reach, facecolor="none", edgecolor="#CCCCCC", linewidth=0.8, zorder=1))
    if np.isclose(length1, length2):  # the rule knows no lengths: with others it is no height
        axes.axhline(length1, color=GOAL, linestyle="--", linewidth=1.2, zorder=1)
        axes.text(-1.08 * reach, 1.02 * length1, "goal", ha="left", va="bottom", color=GOAL, fontsize=8)
    for (x, y), (end_x, end_y), color in (((0.0, 0.0), elbow, CART), (elbow, tip, POLE)):
        axes.plot([x, end_x], [y, end_y], color=color, linewidth=6, solid_capstyle="round", zorder=3)
    joints = {"color": "white", "markeredgecolor": CART, "linestyle": "", "zorder": 4}
    axes.plot([0, elbow[0]], [0, elbow[1]], marker="o", markersize=6, **joints)
    axes.plot([tip[0]], [tip[1]], marker="o", markersize=7, color=LIMIT, markeredgecolor="white", zorder=5)

    is_up = -np.cos(theta1) - np.cos(theta1 + theta2) > 1
    axes.set(xlim=(-1.12 * reach, 1.12 * reach), ylim=(-1.12 * reach, 1.12 * reach), aspect="equal")
    axes.set(xlabel="place [m]", ylabel="height over the fixed joint [m]")
    what = "swung up" if is_up else f"tip at {tip[1]:+.2f} m"
    axes.set_title(f"step {int(state.time)} of {int(params.episode_length)}, {what}")


def draw_mountain_car(axes: Axes, state: Any, params: Any) -> None:
    """Draws one state of mountain_car or continuous_mountain_car: the track, the wall, the goal, and the car."""
    position, velocity = float(state.position), float(state.velocity)
    goal, room = float(params.goal_position), 0.6 * CAR_LENGTH  # the car's middle is its position: it has ends
    low, high = float(params.min_position) - room, float(params.max_position) + room
    track = np.linspace(low, high, 200)

    axes.fill_between(track, hill(track), 0.0, facecolor="#EEEEEE", zorder=1)
    axes.plot(track, hill(track), color=CART, linewidth=1.5, zorder=2)
    axes.plot([low, low], [hill(low), hill(low) + 0.35], color=LIMIT, linewidth=3, zorder=2)
    axes.text(low + 0.02, hill(low) + 0.35, "wall", ha="left", va="top", color=LIMIT, fontsize=8)
    pole, flag = hill(goal) + 0.3, np.array([[0.0, 0.0], [0.0, -0.1], [-0.12, -0.05]])
    axes.plot([goal, goal], [hill(goal), pole], color=GOAL, linewidth=1.5, zorder=2)
    axes.add_patch(Polygon(flag + np.array([goal, pole]), facecolor=GOAL, zorder=2))
    axes.text(goal - 0.02, pole + 0.01, "goal", ha="center", va="bottom", color=GOAL, fontsize=8)
    draw_car(axes, position, velocity / float(params.max_speed))

    arrived = position >= goal and velocity >= float(params.goal_velocity)
    what = "arrived" if arrived else f"velocity {velocity:+.3f} m a step"
    axes.set(xlim=(low - 0.06, high + 0.06), ylim=(0.0, 1.45), aspect="equal")
    axes.set(xlabel="position [m]", ylabel="height [m]")
    axes.set_title(f"step {int(state.time)} of {int(params.episode_length)}, {what}")


def hill(position: Any) -> Any:
    """Returns the height of the track, [m]: its slope is what pulls the car."""
    return HILL_BASE + HILL_HEIGHT * np.sin(3 * position)


def draw_car(axes: Axes, position: float, speed: float) -> None:
    """Draws a car that stands on the track, and over it an arrow for its `speed`, from -1 to 1."""
    slope = np.arctan(3 * HILL_HEIGHT * np.cos(3 * position))
    ahead, above = np.array([np.cos(slope), np.sin(slope)]), np.array([-np.sin(slope), np.cos(slope)])
    ground = np.array([position, hill(position)])
    for side in (-1, 1):
        hub = ground + side * 0.3 * CAR_LENGTH * ahead + CAR_WHEEL * above
        axes.add_patch(Circle(hub, CAR_WHEEL, facecolor="white", edgecolor=CART, linewidth=1.5, zorder=4))
    corners = [(-0.5, 0.0), (0.5, 0.0), (0.5, 0.6), (0.3, 1.0), (-0.3, 1.0), (-0.5, 0.6)]
    floor = ground + 1.2 * CAR_WHEEL * above
    body = [floor + along * CAR_LENGTH * ahead + up * CAR_HEIGHT * above for along, up in corners]
    axes.add_patch(Polygon(body, facecolor=POLE, zorder=3))
    if abs(speed) > 0.15:  # a shorter one would be all head
        middle, half = ground + 0.14 * above, 0.1 * speed * ahead
        arrow = {"arrowstyle": "-|>", "mutation_scale": 9, "color": POLE, "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0}
        axes.add_patch(FancyArrowPatch(middle - half, middle + half, zorder=4, **arrow))


def draw_pendulum(axes: Axes, state: Any, params: Any) -> None:
    """Draws one state of pendulum: the rod, its pivot, and the upright place where it should come to rest."""
    theta, theta_dot, length = float(state.theta), float(state.theta_dot), float(params.l)
    tip = length * np.array([-np.sin(theta), np.cos(theta)])

    axes.add_patch(Circle((0, 0), length, facecolor="none", edgecolor="#CCCCCC", linewidth=0.8, zorder=1))
    axes.plot([0, 0], [0, length], color=GOAL, linestyle=":", linewidth=1.5, zorder=2)
    axes.text(0.0, 1.06 * length, "upright", ha="center", va="bottom", color=GOAL, fontsize=8)
    axes.plot([0, tip[0]], [0, tip[1]], color=POLE, linewidth=8, solid_capstyle="round", zorder=3)
    axes.plot([0], [0], "o", color="white", markeredgecolor=CART, markersize=7, zorder=4)

    off = np.degrees((theta + np.pi) % (2 * np.pi) - np.pi)
    axes.set(xlim=(-1.25 * length, 1.25 * length), ylim=(-1.25 * length, 1.25 * length), aspect="equal")
    axes.set(xlabel="place [m]", ylabel="height over the pivot [m]")
    what = f"{abs(off):.0f}° from upright, {theta_dot:+.1f} rad/s"
    axes.set_title(f"step {int(state.time)} of {int(params.episode_length)}, {what}")
