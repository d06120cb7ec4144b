"""Drawings of reaction paths: the surface from above, the path, start, goal and known saddles."""

from typing import Any

import numpy as np

from wdjax.drawing import CROSS, SQUARE, STAR, Field, Lines, Mark, Scene, Shapes, so_far
from wdjax.env import SINGLE_AGENT
from wdjax.envs.reaction.surfaces import WALL, Table

PATHS = ("magenta", "orange")  # colors of the first and second atom


def path_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the scene of an episode (`Env.scene`).

    For two atoms, the map shows the energy of the first atom at the current position of the second.
    """
    energies, table = np.asarray(params.energies), env.table
    time, path = np.asarray(states.time), np.asarray(states.position)
    window = so_far(time)
    layers = path - np.array([0, 0, int(params.z_lower)] * env.num_atoms)
    inside = np.all((layers >= 0) & (layers < energies.shape), axis=1)
    if env.num_atoms == 1:
        surfaces, index = energies[None], np.zeros(1, int)
    else:
        others, index = np.unique(
            np.clip(layers[:, 3:], 0, np.array(energies.shape[3:]) - 1), axis=0, return_inverse=True
        )
        surfaces = np.stack([energies[..., *other] for other in others])
    marks = [
        *surface_marks(table, surfaces.min(axis=3), index.reshape(-1)),
        *end_marks(table, params, env.num_atoms),
    ]
    for atom in range(env.num_atoms):
        name = f"atom {atom + 1}" if env.num_atoms > 1 else "path"
        x_y = slice(3 * atom, 3 * atom + 2)
        points = with_breaks(path[:, x_y])
        # number of vertices up to each frame, including breaks
        vertex = np.flatnonzero(np.isfinite(points[:, 0]))
        shown = np.stack([vertex[window[:, 0]], vertex[window[:, 1] - 1] + 1], axis=1)
        marks.append(Lines(places(table, points), PATHS[atom], 3, window=shown, label=name))
        position = places(table, path[:, None, x_y])
        marks.append(
            Shapes(
                position[..., 0],
                position[..., 1],
                size=mark_size(table, 0.016),
                color=PATHS[atom],
                edge=True,
                group="" if atom else SINGLE_AGENT,
            )
        )
    captions, highest = [], -np.inf
    for t, cell in enumerate(layers):
        description = f"energy {energies[tuple(cell)]:.4g}" if inside[t] else "outside the slab"
        first = window[t, 0]
        highest = max(
            highest if t > first else -np.inf, energies[tuple(cell)] if inside[t] else -np.inf
        )
        if t - first == int(time[t]) and np.isfinite(highest):  # the whole episode is shown
            description += f", highest {highest:.4g}"
        captions.append(f"step {int(time[t])} of {int(params.episode_length)}, {description}")
    return surface_scene(table, marks, captions, time)


def surface_scene(table: Table, marks: list[Mark], captions: list[str], time: Any = None) -> Scene:
    """Return a scene with `marks`, the extent of the surface, and labeled x and y axes."""
    unit = "" if table.spacing else " [cell]"
    return Scene(marks, captions, ground(table), time, xlabel=f"x{unit}", ylabel=f"y{unit}")


def ground(table: Table) -> tuple[float, float, float, float]:
    """Return the corners (x0, y0, x1, y1) of the area covered by the cells."""
    half, (x, y) = (
        0.5 * (table.spacing or 1.0),
        places(table, np.array(table.energies.shape[:2]) - 1),
    )
    return table.origin[0] - half, table.origin[1] - half, float(x) + half, float(y) + half


def places(table: Table, cells: Any) -> np.ndarray:
    """Return the coordinates x, y [..., 2] of cells [..., 2]."""
    return np.array(table.origin) + (table.spacing or 1.0) * np.asarray(cells)


def mark_size(table: Table, share: float) -> float:
    """Return the size of a mark: `share` times the longer side of the surface."""
    x0, y0, x1, y1 = ground(table)
    return share * max(x1 - x0, y1 - y0)


def surface_marks(table: Table, energies: np.ndarray, index: Any = 0) -> list[Mark]:
    """Return marks that show energies as a heat map, with contour lines and known saddles.

    Lower energies are darker, and walls are blank.

    Args:
        table: the surface, which defines the extent and the saddles.
        energies: [K, nx, ny], one or more maps. Contour lines are drawn only for K = 1.
        index: [T] int, which of the K maps each frame shows.
    """
    low = np.ma.masked_greater_equal(np.asarray(energies, float), WALL)
    high = (
        2 * table.top - table.bottom
        if table.top is not None
        else np.percentile(low.compressed(), 75)
    )
    levels = np.linspace(low.min(), max(high, low.min() + 1e-9), 15)
    depth = 1 - (low - levels[0]) / (1.3 * (levels[-1] - levels[0]))
    opacity = np.clip(0.9 * depth, 0.03, 0.9).filled(0.0)
    marks: list[Mark] = [Field(np.swapaxes(opacity, 1, 2), ground(table), "blue", index)]
    if len(low) == 1 and min(low[0].shape) > 1:
        marks.append(Lines(contours(table, low[0], levels[1:-1]), "paper", 0.6))
    if table.saddles:
        saddle_x, saddle_y = np.transpose(table.saddles)
        marks.append(
            Shapes(
                saddle_x,
                saddle_y,
                CROSS,
                mark_size(table, 0.016),
                color="text",
                label="saddle",
            )
        )
    return marks


def contours(table: Table, energies: np.ma.MaskedArray, levels: np.ndarray) -> np.ndarray:
    """Return the contour lines as one line with NaN breaks."""
    from contourpy import contour_generator  # installed with matplotlib

    lines = [line for level in levels for line in contour_generator(z=energies.T).lines(level)]
    gap = np.full((1, 2), np.nan)
    return places(table, np.concatenate([part for line in lines for part in (line, gap)] or [gap]))


def end_marks(table: Table, params: Any, num_atoms: int = 1) -> list[Mark]:
    """Return the marks of the start and goal of every atom."""
    size, starts, goals = mark_size(table, 0.013), [], []
    for atom in range(num_atoms):
        (x, y), (goal_x, goal_y) = (
            places(table, np.asarray(cell)[3 * atom : 3 * atom + 2])
            for cell in (params.initial_state, params.final_state)
        )
        color, first = PATHS[atom] if num_atoms > 1 else "text", not atom
        starts += [
            Shapes([x], [y], SQUARE, 1.15 * size, color=color, label="start" * first),
            Shapes([x], [y], SQUARE, 0.85 * size, color="paper"),
        ]
        goals.append(
            Shapes(
                [goal_x], [goal_y], STAR, 2.2 * size, color="green", edge=True, label="goal" * first
            )
        )
    return [*starts, *goals]


def with_breaks(cells: np.ndarray) -> np.ndarray:
    """Insert NaN into a path of cells [K, 2] where it wraps around a periodic axis."""
    cells = np.asarray(cells, float)
    jumps = np.flatnonzero(np.abs(np.diff(cells, axis=0)).max(axis=1, initial=0) > 1) + 1
    return np.insert(cells, jumps, np.nan, axis=0)
