"""Pictures of reaction paths: the surface from above, walls white, the path so far, start, goal and known saddles."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from wdjax.envs.history import since_reset
from wdjax.envs.reaction.surfaces import WALL, Table

PATHS = ("#C843C3", "#E07B00")  # of the first and the second atom
GOAL, DARK = "#2E8B57", "#222222"
START_MARK = {"marker": "s", "color": "white", "markeredgecolor": DARK, "markersize": 8}
GOAL_MARK = {"marker": "*", "color": GOAL, "markeredgecolor": "white", "markersize": 16}
SADDLE_MARK = {"marker": "x", "color": DARK, "markersize": 8, "markeredgewidth": 2}


def draw_path(axes: Axes, env: Any, state: Any, params: Any, history: Any = None) -> None:
    """Draws one state of either game.

    Args:
        axes: empty matplotlib axes.
        env: a ReactionPath.
        state: its state; arrays of NumPy or JAX.
        params: its params.
        history: the states before this one, oldest first, leaves with a leading [H]: drawn as the path so far.
    """
    energies, table = np.asarray(params.energies), env.table
    path = since_reset(state, history).position
    layers = path - np.array([0, 0, int(params.z_lower)] * env.num_atoms)
    felt = energies if env.num_atoms == 1 else energies[..., *layers[-1, 3:]]  # by the first atom
    handles = draw_surface(axes, felt.min(axis=2), table)
    for atom in range(env.num_atoms):
        x_y, name = slice(3 * atom, 3 * atom + 2), f"atom {atom + 1}" if env.num_atoms > 1 else "path"
        for mark, cell in ((START_MARK, params.initial_state), (GOAL_MARK, params.final_state)):
            edge = {"markeredgecolor": PATHS[atom]} if env.num_atoms > 1 else {}
            axes.plot(*places(table, np.asarray(cell)[x_y]), linestyle="", zorder=4, **(mark | edge))
        handles.append(draw_line(axes, table, path[:, x_y], PATHS[atom], name))
        here = {"color": PATHS[atom], "markeredgecolor": "white", "markersize": 9, "zorder": 6}
        axes.plot(*places(table, path[-1, x_y]), "o", **here)
    inside = np.all((layers >= 0) & (layers < energies.shape), axis=1)
    words = f"energy {energies[tuple(layers[-1])]:.4g}" if inside[-1] else "out of the slab"
    if len(path) == int(state.time) + 1:  # all of it is known
        words += f", highest {max(energies[tuple(cell)] for cell in layers[inside]):.4g}"
    axes.set_title(f"step {int(state.time)} of {int(params.episode_length)}, {words}", fontsize=10)
    legend(axes, handles)


def places(table: Table, cells: Any) -> np.ndarray:
    """Returns x, y ([2, ...]) of cells [..., 2]."""
    cells = np.asarray(cells)
    return np.moveaxis(np.array(table.origin) + (table.spacing or 1.0) * cells, -1, 0)


def draw_surface(axes: Axes, energies: np.ndarray, table: Table) -> list[Line2D]:
    """Draws energies [nx, ny] as a map with contours, walls left out, and the saddles; returns the legend's handles."""
    low = np.ma.masked_greater_equal(np.asarray(energies, float), WALL)
    x, y = (places(table, np.stack([np.arange(n)] * 2, axis=-1))[i] for i, n in enumerate(low.shape))
    high = 2 * table.top - table.bottom if table.top is not None else np.percentile(low.compressed(), 75)
    levels = np.linspace(low.min(), max(high, low.min() + 1e-9), 15)
    colors = {"cmap": "Blues_r", "vmin": levels[0], "vmax": levels[-1] + 0.3 * (levels[-1] - levels[0])}
    mesh = axes.pcolormesh(x, y, low.T, shading="nearest", zorder=0, **colors)
    mesh.set_edgecolor("face")  # else thin lines show between the cells
    if min(low.shape) > 1:
        axes.contour(x, y, low.T, levels=levels[1:-1], colors="white", linewidths=0.6, linestyles="solid", zorder=1)
    half = 0.5 * (table.spacing or 1.0)
    axes.set(xlim=(x[0] - half, x[-1] + half), ylim=(y[0] - half, y[-1] + half), aspect="equal")
    unit = "" if table.spacing else " [cell]"
    axes.set(xlabel=f"x{unit}", ylabel=f"y{unit}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=8, integer=not table.spacing, steps=[1, 2, 5, 10]))
    for place in table.saddles:
        axes.plot(*place, linestyle="", zorder=3, **SADDLE_MARK)
    marks = [("start", START_MARK), ("goal", GOAL_MARK | {"markersize": 12})]
    marks += [("saddle", SADDLE_MARK)] * bool(table.saddles)
    return [Line2D([], [], linestyle="", label=name, **mark) for name, mark in marks]


def draw_line(axes: Axes, table: Table, cells: np.ndarray, color: str, name: str, **style: Any) -> Line2D:
    """Draws a path of cells [K, 2] and returns its handle; it is broken where it goes around a periodic axis."""
    cells = np.asarray(cells, float)
    jumps = np.flatnonzero(np.abs(np.diff(cells, axis=0)).max(axis=1, initial=0) > 1) + 1
    cells = np.insert(cells, jumps, np.nan, axis=0)
    style = {"color": color, "linewidth": 2.2, "solid_joinstyle": "round", "zorder": 5} | style
    axes.plot(*places(table, cells), **style)
    return Line2D([], [], label=name, **style)


def legend(axes: Axes, handles: list[Line2D]) -> None:
    """Puts the legend right of the map, where it hides nothing."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0), "borderaxespad": 0.0}
    axes.legend(handles=handles, fontsize=9, frameon=False, **place)
