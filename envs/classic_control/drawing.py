"""Pictures of classic control, in true proportions (metres)."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

CART, POLE, LIMIT = "#444444", "#245EB6", "#C843C3"
CART_WIDTH, CART_HEIGHT, WHEEL = 0.5, 0.22, 0.07  # m; a drawing's choice: the dynamics know a point


def draw_cartpole(axes: Axes, state: Any, params: Any) -> None:
    """Draws one state of cartpole: track, cart, pole, and the limits beyond which the episode ends.

    Args:
        axes: empty matplotlib axes.
        state: its state; arrays of NumPy or JAX.
        params: its params.
    """
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
