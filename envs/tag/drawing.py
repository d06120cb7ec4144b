"""Pictures of Tag: taggers as magenta darts (on the grid: triangles), runners as blue drops (on the grid: discs).

Everything that stands for an agent is a polygon in the units of the game, so that a picture looks alike at every size.
"""

import functools
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

TAGGER, RUNNER, OUT = "#C843C3", "#245EB6", "#666666"
MARGIN = "#F3CDF1"  # the tagger's colour, light
TITLE_PAD = 10  # points: agents at the edge reach over it

_ROUND = np.linspace(0, 2 * np.pi, 33)[:-1]
CROWD = 200  # agents, of whom each is but a few pixels: rounded by fewer corners
SEGMENTS = 2_000  # of all trails together, at most: more of them are one grey
# Outlines [V, 2] about the agent's place, of size about 1, heading along +x.
DART = np.array([[1.5, 0.0], [-1.0, 1.0], [-0.45, 0.0], [-1.0, -1.0]])
DROP, FAR_DROP = (
    np.concatenate([np.stack([np.cos(back), np.sin(back)], axis=1), [[2.0, 0.0]]])
    for back in (np.linspace(np.pi / 3, 5 * np.pi / 3, corners) for corners in (21, 5))
)
DISC = np.stack([np.cos(_ROUND), np.sin(_ROUND)], axis=1)
TRIANGLE = np.array([[0.0, 1.15], [-1.0, -0.75], [1.0, -0.75]])


def draw_continuous(axes: Axes, env: Any, state: Any, params: Any, history: Any = None) -> None:
    """Draws one state of tag_continuous.

    Args:
        axes: empty matplotlib axes.
        env: a TagContinuous.
        state: its state; arrays of NumPy or JAX.
        params: its params.
        history: the states before this one, oldest first, leaves with a leading [H]: drawn as a fading trail.
    """
    length, n = float(params.grid_length), env.num_taggers
    x, y, direction = (np.asarray(leaf) for leaf in (state.x, state.y, state.direction))
    active = np.asarray(state.active)
    size = 0.03 * length / env.num_agents**0.25  # the more agents, the smaller
    run, out = np.flatnonzero(active[n:]) + n, np.flatnonzero(~active[n:]) + n

    margin = float(params.tagging_margin)
    add = functools.partial(axes.add_collection, autolim=False)  # the limits are known
    add(_shapes(DISC, x[:n], y[:n], 0.0, margin, facecolor=MARGIN, zorder=1))
    ring = {"facecolor": "none", "edgecolor": MARGIN, "linewidth": 0.5}  # seen where the tagger hides the disc
    add(_shapes(DISC, x[:n], y[:n], 0.0, margin, zorder=6, **ring))
    draw_trails(axes, env, x, y, state, history, moving=active)
    if len(out):  # (an empty line would claim the figure's corner in layouts)
        axes.plot(x[out], y[out], "x", color=OUT, alpha=0.45, markersize=5, zorder=2, clip_on=False)
    edge = {"edgecolor": "white", "linewidth": 0.6, "clip_on": False}  # tells neighbours apart
    drop = DROP if env.num_agents <= CROWD else FAR_DROP
    add(_shapes(drop, x[run], y[run], direction[run], size, facecolor=RUNNER, zorder=4, **edge))
    add(_shapes(DART, x[:n], y[:n], direction[:n], 1.5 * size, facecolor=TAGGER, zorder=5, **edge))

    _set_square(axes, 0.0, length, "length")
    left = f"{len(run)} of {env.num_runners} runners left"
    axes.set_title(f"step {int(state.time)} of {int(params.episode_length)}, {left}", pad=TITLE_PAD)
    handles = [
        _handle("tagger", TAGGER, DART, 11), _handle("runner", RUNNER, DROP, 10),
        Line2D([], [], linestyle="", marker="x", color=OUT, alpha=0.45, markersize=5, label="runner, out"),
        _handle("tagging margin", MARGIN, "o", 9),
    ]  # fmt: skip
    _legend(axes, handles)


def draw_gridworld(axes: Axes, env: Any, state: Any, params: Any, history: Any = None) -> None:
    """Draws one state of tag_gridworld; agents that share a cell stand side by side in it, and are counted.

    Args:
        axes: empty matplotlib axes.
        env: a TagGridworld.
        state: its state; arrays of NumPy or JAX.
        params: its params.
        history: the states before this one, oldest first, leaves with a leading [H]: drawn as a fading trail.
    """
    top = int(params.grid_length)
    cell_x, cell_y = np.asarray(state.x), np.asarray(state.y)
    x, y, side = share_cells(cell_x, cell_y)
    smallest = 0.009 * (top + 1)  # on big grids agents are drawn larger than their cell
    size = np.maximum(0.4 / side, smallest)

    draw_trails(axes, env, cell_x, cell_y, state, history, moving=np.ones(env.num_agents, bool))
    edge = {"edgecolor": "white", "linewidth": 0.3, "clip_on": False}
    add = functools.partial(axes.add_collection, autolim=False)
    add(_shapes(TRIANGLE, x[:-1], y[:-1], 0.0, size[:-1], facecolor=TAGGER, zorder=4, **edge))
    add(_shapes(DISC, x[-1:], y[-1:], 0.0, 0.9 * size[-1:], facecolor=RUNNER, zorder=5, **edge))
    _draw_counts(axes, cell_x, cell_y, top, 0.4 / side < smallest)

    _draw_cells(axes, top)
    _set_square(axes, -0.5, top + 0.5, "cell")
    tagged = np.any((cell_x[:-1] == cell_x[-1]) & (cell_y[:-1] == cell_y[-1])) and int(state.time) > 0
    ending = "the runner is tagged" if tagged else "the runner is free"
    axes.set_title(f"step {int(state.time)} of {int(params.episode_length)}, {ending}", pad=TITLE_PAD)
    _legend(axes, [_handle("tagger", TAGGER, TRIANGLE, 10), _handle("runner", RUNNER, "o", 9)])


def draw_trails(axes: Axes, env: Any, x: Any, y: Any, state: Any, history: Any, moving: np.ndarray) -> None:
    """Draws a line through the last places of every agent that is `moving`, the fainter the older.

    States from before the last reset (their time is not less than their successor's) are left out.
    """
    if history is None or not len(np.asarray(history.time)):
        return
    time = np.append(np.asarray(history.time), int(state.time))
    breaks = np.flatnonzero(np.diff(time) <= 0)
    first = breaks[-1] + 1 if len(breaks) else 0
    path_x = np.concatenate([np.asarray(history.x), x[None]])[first:]
    path_y = np.concatenate([np.asarray(history.y), y[None]])[first:]
    points = np.stack([path_x, path_y], axis=-1)[:, moving]  # [K, M, 2]
    stride = max(1, -(-(len(points) - 1) * points.shape[1] // SEGMENTS))  # steps of a segment, the newest one last
    steps = len(time) - 1  # a full trail fades out; a short one is its newest part
    alpha = ((np.arange(steps)[first:] + 1) / steps * 0.55)[::-stride][::-1]
    points = points[::-stride][::-1]
    segments = np.stack([points[:-1], points[1:]], axis=2)  # [K', M, 2, 2]
    alpha = alpha[len(alpha) - len(segments) :]
    is_tagger = np.arange(env.num_agents)[moving] < env.num_taggers
    codes = np.array([Path.MOVETO, Path.LINETO], np.uint8)
    for of, color in ((~is_tagger, RUNNER), (is_tagger, TAGGER)):  # a path for each step and color, whoever goes it
        ends = [step[of].reshape(-1, 2) for step in segments]
        paths = [Path(places, np.tile(codes, len(places) // 2)) for places in ends if len(places)]
        colors = [(*to_rgb(color), strength) for strength in alpha]
        axes.add_collection(
            PathCollection(paths, facecolors="none", edgecolors=colors, linewidths=1.4, zorder=3, capstyle="butt"),
            autolim=False,
        )


def share_cells(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spreads agents that stand on the same cell over it, in rows.

    Args:
        x, y: [N] int, cells.

    Returns:
        (x [N], y [N], side [N] int): places inside the cells, the middle for who stands alone, and into how many places
        a side the cell of each agent is split.
    """
    _, cell, counts = np.unique(np.stack([x, y]), axis=1, return_inverse=True, return_counts=True)
    cell = cell.reshape(-1)
    count = counts[cell]  # agents on the cell of each
    order = np.argsort(cell, kind="stable")
    rank = np.empty(len(x), int)  # how many of them come before it
    rank[order] = np.arange(len(x)) - (np.cumsum(counts) - counts)[cell[order]]
    side = np.ceil(np.sqrt(count)).astype(int)
    column, row = rank % side, rank // side
    num_rows = -(-count // side)
    num_columns = np.minimum(side, count - row * side)  # the last row may be short
    return x + (column - (num_columns - 1) / 2) / side, y - (row - (num_rows - 1) / 2) / side, side


def _draw_counts(axes: Axes, x: np.ndarray, y: np.ndarray, top: int, crowded: np.ndarray) -> None:
    """Writes how many agents share a cell, beside those cells whose agents are `crowded` [N] bool: cover each other."""
    cells, counts = np.unique(np.stack([x, y])[:, crowded], axis=1, return_counts=True)
    for (cell_x, cell_y), count in zip(cells.T, counts, strict=True):
        if count > 1:
            right, above = cell_x < 0.9 * top, cell_y < 0.9 * top  # where there is room in the square
            offset = (6 if right else -6, 6 if above else -6)  # points
            align = {"ha": "left" if right else "right", "va": "bottom" if above else "top"}
            place = (cell_x, cell_y)
            axes.annotate(f"{count} here", place, offset, textcoords="offset points", fontsize=8, zorder=6, **align)


def _draw_cells(axes: Axes, top: int) -> None:
    """Draws the borders of the cells where they can be told apart, every tenth of them otherwise."""
    borders = np.arange(0, top, 1 if top <= 30 else 10) + 0.5
    style = {"color": "#E4E4E4", "linewidth": 0.7, "zorder": 0}
    axes.vlines(borders, -0.5, top + 0.5, **style)
    axes.hlines(borders, -0.5, top + 0.5, **style)


def _shapes(outline: np.ndarray, x: Any, y: Any, angle: Any, size: Any, **style: Any) -> PolyCollection:
    """Returns one polygon an agent: `outline` [V, 2] turned by `angle` [N] rad, times `size` [N], at (x, y) [N]."""
    angle = np.broadcast_to(np.asarray(angle, float), np.shape(x))
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    turned = np.stack([cos * outline[:, 0] - sin * outline[:, 1], sin * outline[:, 0] + cos * outline[:, 1]], axis=-1)
    size = np.broadcast_to(size, np.shape(x))[:, None, None]
    return PolyCollection(turned * size + np.stack([x, y], axis=-1)[:, None, :], **style)


def _set_square(axes: Axes, low: float, high: float, unit: str) -> None:
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel=f"x [{unit}]", ylabel=f"y [{unit}]")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=10, integer=unit == "cell", steps=[1, 2, 5, 10]))


def _handle(label: str, color: str, marker: Any, size: float) -> Line2D:
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.6}
    return Line2D([], [], linestyle="", marker=marker, color=color, markersize=size, label=label, **edge)


def _legend(axes: Axes, handles: list[Line2D]) -> None:
    """Puts the legend right of the square, where it hides nothing."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.03, 1.0), "borderaxespad": 0.0}
    axes.legend(handles=handles, fontsize=9, frameon=False, handlelength=0.9, handletextpad=0.5, borderpad=0.0, **place)
