"""Drawings of covid_economy: a tile map per day (`map_scene`) and curves per state (`save_curves`).

The tiles of synthetic states, which have no location, are arranged in rows.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from wdjax.drawing import SQUARE, Mark, Scene, Shapes, Text
from wdjax.envs.covid.calibration import NUM_LEVELS

# (column, row) of the 50 states and DC, in the alphabetical order of their full names
TILES = {
    "AL": (6, 6),
    "AK": (0, 0),
    "AZ": (1, 5),
    "AR": (4, 5),
    "CA": (0, 4),
    "CO": (2, 4),
    "CT": (9, 3),
    "DE": (9, 4),
    "DC": (8, 5),
    "FL": (8, 7),
    "GA": (7, 6),
    "HI": (0, 7),
    "ID": (1, 2),
    "IL": (5, 2),
    "IN": (5, 3),
    "IA": (4, 3),
    "KS": (3, 5),
    "KY": (5, 4),
    "LA": (4, 6),
    "ME": (10, 0),
    "MD": (8, 4),
    "MA": (10, 2),
    "MI": (7, 2),
    "MN": (4, 2),
    "MS": (5, 6),
    "MO": (4, 4),
    "MT": (2, 2),
    "NE": (3, 4),
    "NV": (1, 3),
    "NH": (10, 1),
    "NJ": (8, 3),
    "NM": (2, 5),
    "NY": (8, 2),
    "NC": (6, 5),
    "ND": (3, 2),
    "OH": (6, 3),
    "OK": (3, 6),
    "OR": (0, 3),
    "PA": (7, 3),
    "RI": (9, 2),
    "SC": (7, 5),
    "SD": (3, 3),
    "TN": (5, 5),
    "TX": (3, 7),
    "UT": (1, 4),
    "VT": (9, 1),
    "VA": (7, 4),
    "WA": (0, 2),
    "WV": (6, 4),
    "WI": (6, 2),
    "WY": (2, 3),
}
TEXT = "#1F2933"
MOST_DEAD, MOST_IDLE = 1.5, 25.0  # % of the population at full bar length
COLORS = ("#245EB6", "#8A8F98", "#C843C3")  # colors of the episodes in save_curves
MEASURES = ("dead [% of the population]", "unemployed [% of the population]", "stringency level")


def tile_places(env: Any) -> dict[str, tuple[int, int]]:
    """Return the tile (column, row) of every state, by name.

    The tiles resemble the map of the US if a calibration file provides all 51 states. Otherwise
    they form a grid, and the names are "0", "1", and so on.
    """
    if env.calibration_file and env.num_states == len(TILES):
        return TILES
    columns = math.ceil(math.sqrt(1.6 * env.num_states))
    return {str(i): (i % columns, i // columns) for i in range(env.num_states)}


def map_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the scene of an episode (`Env.scene`).

    Each state is a tile, darker for more stringent levels, with bars for the dead and unemployed.
    """
    places = tile_places(env)
    x, y = np.array(list(places.values()), float).T * [[1], [-1]]  # upper left corners
    population = np.asarray(params.calibration.population)
    # [T, n]
    dead, unemployed = (
        100 * np.asarray(people) / population for people in (states.dead, states.unemployed)
    )
    level, subsidy = np.asarray(states.level), np.asarray(states.subsidy_level)
    text_size = 14.0 if len(places) <= 12 else 9.5  # px
    nowhere = np.full(1, np.nan)  # invisible marks that only add legend entries
    marks: list[Mark] = [
        Shapes(nowhere, nowhere, SQUARE, opacity=shade_of(shown), label=f"level {shown}")
        for shown in (10, 7, 4, 1)
    ]
    marks += [
        Shapes(x + 0.5, y - 0.5, SQUARE, 0.47, opacity=shade_of(level), group="state"),
        Text(x + 0.1, y - 0.19, list(places), size=text_size, align="left"),
        Text(
            x + 0.9,
            y - 0.19,
            level.astype(int).astype(str).tolist(),
            size=text_size,
            align="right",
            bold=True,
        ),
    ]
    marks += _bar(
        x, y - 0.935 + 0.1, unemployed / MOST_IDLE, "orange", f"unemployed, to {MOST_IDLE:g} %"
    )
    marks += _bar(x, y - 0.935 + 0.3, dead / MOST_DEAD, "red", f"dead, to {MOST_DEAD:g} %")
    columns, rows = (max(place[i] for place in places.values()) + 1 for i in (0, 1))

    def share(people) -> np.ndarray:
        return 100 * np.asarray(people).sum(axis=-1) / population.sum()

    days = zip(states.time, share(states.dead), share(states.unemployed), subsidy, strict=True)
    last, highest = int(params.episode_length), float(params.max_subsidy)
    captions = [
        f"day {int(t)} of {last}: {dead:.2f} % dead, {idle:.1f} % unemployed\n"
        f"subsidy level {int(paid)}: {highest * int(paid) / env.num_subsidy_levels:,.0f} USD "
        "per person and year"
        for t, dead, idle, paid in days
    ]
    return Scene(
        marks,
        captions,
        (0.0, -float(rows), float(columns), 0.0),
        np.asarray(states.time),
        axes=False,
    )


def _bar(x: np.ndarray, y: np.ndarray, share: np.ndarray, color: str, label: str) -> list[Mark]:
    """Return a bar in each tile, filled by a share [T, n] of its length."""
    filled, height = np.clip(share, 0, 1), 0.065
    bar = Shapes(
        x + 0.1 + 0.4 * filled, y, SQUARE, (0.4 * filled, height), color=color, label=label
    )
    return [Shapes(x + 0.5, y, SQUARE, (0.4, height), color="paper"), bar]


def shade_of(level: Any) -> Any:
    """Return the opacity of a level from 1 to 10, darker for higher levels."""
    return 0.08 + 0.74 * (level - 1) / (NUM_LEVELS - 1)


def save_curves(
    path: str | pathlib.Path, env: Any, params: Any, episodes: Mapping[str, Any]
) -> None:
    """Write a PNG with deaths, unemployment and stringency over time, one tile per state.

    Args:
        path: path of the file. Missing folders are created.
        env: a CovidEconomy.
        params: its params.
        episodes: name -> states of an episode as returned by `play_episode`, leaves [T, ...]. At
            most three episodes of any length are drawn on top of each other.
    """
    from matplotlib.figure import Figure

    places = tile_places(env)
    columns, rows = (max(place[i] for place in places.values()) + 1 for i in (0, 1))
    figure = Figure((15.6, 5.2 * rows / columns + 0.9), dpi=90, layout="constrained")
    days = int(params.episode_length)
    curves = {name: measures(states, params) for name, states in episodes.items()}
    for k, axes in enumerate(figure.subplots(1, 3)):
        most = (
            max(float(curve[k].max()) for curve in curves.values()) if k < 2 else float(NUM_LEVELS)
        )
        for (x, y), name in zip(places.values(), places, strict=True):
            axes.add_patch(
                Rectangle((x + 0.03, -y - 0.97), 0.94, 0.94, facecolor="#F2F4F7", linewidth=0)
            )
            axes.text(x + 0.07, -y - 0.07, name, ha="left", va="top", fontsize=6, color=TEXT)
        for (label, curve), color in zip(curves.items(), COLORS, strict=False):
            time = 0.05 + 0.9 * np.arange(1, len(curve[k]) + 1) / days
            height = 0.05 + 0.7 * curve[k] / most  # [T, n]
            lines = [
                np.stack([x + time, height[:, i] - y - 1], axis=1)
                for i, (x, y) in enumerate(places.values())
            ]
            axes.add_collection(
                LineCollection(lines, colors=color, linewidths=1.0, label=label), autolim=False
            )
        axes.set(xlim=(0, columns), ylim=(-rows, 0), aspect="equal")
        axes.set_title(f"{MEASURES[k]}, 0 to {most:.3g}", fontsize=10)
        axes.axis("off")
    figure.legend(
        handles=[
            Line2D([], [], color=color, label=label)
            for label, color in zip(curves, COLORS, strict=False)
        ],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=10,
    )
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def measures(states: Any, params: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the curves named in `MEASURES`, [T, n] each."""
    population = np.asarray(params.calibration.population)[None]
    dead, unemployed = (
        100 * np.asarray(people) / population for people in (states.dead, states.unemployed)
    )
    return dead, unemployed, np.asarray(states.level, float)
