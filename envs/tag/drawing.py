"""Drawings of Tag: magenta taggers and blue runners."""

from typing import Any

import numpy as np

from wdjax.drawing import CROSS, DISC, TRIANGLE, Lines, Mark, Plot, Scene, Series, Shapes, Text

COLORS = {"tagger": "magenta", "runner": "blue"}
CROWD = 200  # number of agents above which runners are drawn with fewer corners
FADE = 20  # steps until the mark of a tagged runner stops fading
# Outlines [V, 2] around the agent's position, of size about 1, heading along +x.
DART = np.array([[1.5, 0.0], [-1.0, 1.0], [-0.45, 0.0], [-1.0, -1.0]])
DROP, FAR_DROP = (
    np.concatenate([np.stack([np.cos(back), np.sin(back)], axis=1), [[2.0, 0.0]]])
    for back in (np.linspace(np.pi / 3, 5 * np.pi / 3, corners) for corners in (21, 5))
)


def continuous_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the scene of a tag_continuous episode (`Env.scene`); tagged runners fade out."""
    length, n = float(params.grid_length), env.num_taggers
    x, y, direction, active = (
        np.asarray(leaf) for leaf in (states.x, states.y, states.direction, states.active)
    )
    size = 0.03 * length / env.num_agents**0.25  # smaller for more agents
    tagger_size = max(1.5 * size, 0.009 * length)  # taggers stand out from a crowd
    in_game = active[:, n:]
    runner_x = np.where(in_game, x[:, n:], np.nan)
    frames = np.arange(len(x))
    since = np.minimum(
        frames[:, None] - np.maximum.accumulate(np.where(in_game, frames[:, None], 0)), FADE
    )
    runners_left = in_game.sum(axis=1)
    drop = DROP if env.num_agents <= CROWD else FAR_DROP
    marks = [
        Shapes(
            x[:, :n],
            y[:, :n],
            DISC,
            float(params.tagging_margin),
            color="magenta",
            opacity=0.25,
            label="tagging margin",
        ),
        Shapes(
            np.where(in_game, np.nan, x[:, n:]),
            y[:, n:],
            CROSS,
            0.6 * size,
            color="grey",
            opacity=1 - 0.65 * since / FADE,
            label="tagged runner",
        ),
        agents("runner", runner_x, y[:, n:], drop, size, direction[:, n:]),
        agents("tagger", x[:, :n], y[:, :n], DART, tagger_size, direction[:, :n]),
    ]
    last = int(params.episode_length)
    captions = [
        f"step {time} of {last}, {num_left} of {env.num_runners} runners left"
        for time, num_left in zip(states.time, runners_left, strict=True)
    ]
    return Scene(
        marks,
        captions,
        (0.0, 0.0, length, length),
        states.time,
        xlabel="x [length]",
        ylabel="y [length]",
        margin=2 * max(size, 0.8 * tagger_size),  # from an agent's position to its tip
        plots=[Plot("runners left", [Series(runners_left, "blue")])] if len(x) > 1 else [],
        trail=env.trail,
    )


def gridworld_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the scene of a tag_gridworld episode (`Env.scene`).

    Agents on the same cell are drawn side by side, with a count if they would overlap.
    """
    top = int(params.grid_length)
    cell_x, cell_y = np.asarray(states.x), np.asarray(states.y)
    x, y, side = (
        np.stack(column) for column in zip(*map(share_cells, cell_x, cell_y), strict=True)
    )
    smallest = 0.009 * (top + 1)  # on large grids agents are drawn larger than their cell
    size = np.maximum(0.4 / side, smallest)
    # large grids show every tenth cell border only
    borders = np.arange(0, top, 1 if top <= 30 else 10) + 0.5
    ends = np.array([-0.5, top + 0.5])
    coordinates = [
        np.broadcast_to(borders[:, None], (len(borders), 2)),
        np.broadcast_to(ends, (len(borders), 2)),
    ]
    marks: list[Mark] = [
        Lines(
            np.concatenate([np.stack(coordinates, axis=-1), np.stack(coordinates[::-1], axis=-1)]),
            "faint",
            0.7,
        ),
        agents("runner", x[:, -1:], y[:, -1:], DISC, 0.9 * size[:, -1:]),
        agents("tagger", x[:, :-1], y[:, :-1], TRIANGLE, size[:, :-1]),
        *count_words(cell_x, cell_y, top, 0.4 / side < smallest),
    ]
    is_tagged = np.any(
        (cell_x[:, :-1] == cell_x[:, -1:]) & (cell_y[:, :-1] == cell_y[:, -1:]), axis=1
    )
    last, time = int(params.episode_length), np.asarray(states.time)
    captions = [
        f"step {t} of {last}, the runner is {'tagged' if tagged and t > 0 else 'free'}"
        for t, tagged in zip(time, is_tagged, strict=True)
    ]
    return Scene(
        marks,
        captions,
        (-0.5, -0.5, top + 0.5, top + 0.5),
        time,
        xlabel="x [cell]",
        ylabel="y [cell]",
        trail=env.trail,
    )


def agents(group: str, x: Any, y: Any, outline: Any, size: Any, angle: Any = 0.0) -> Shapes:
    """Return the marks of all agents of a group."""
    color = COLORS[group]
    return Shapes(
        x, y, outline, size, angle, color, edge=True, label=group, group=group, trail=True
    )


def share_cells(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrange agents on the same cell in a square of slots.

    Args:
        x: [N] int, cells.
        y: [N] int, cells.

    Returns:
        (x [N], y [N], side [N] int): positions inside the cells, and the number of slots per side
        of each agent's cell. An agent alone on its cell is in the middle.
    """
    _, cell, counts = np.unique(np.stack([x, y]), axis=1, return_inverse=True, return_counts=True)
    cell = cell.reshape(-1)
    count = counts[cell]  # [N] number of agents on the same cell
    order = np.argsort(cell, kind="stable")
    rank = np.empty(len(x), int)  # index among the agents on the same cell
    rank[order] = np.arange(len(x)) - (np.cumsum(counts) - counts)[cell[order]]
    side = np.ceil(np.sqrt(count)).astype(int)
    column, row = rank % side, rank // side
    num_rows = -(-count // side)
    num_columns = np.minimum(side, count - row * side)  # the last row may be short
    return x + (column - (num_columns - 1) / 2) / side, y - (row - (num_rows - 1) / 2) / side, side


def count_words(x: np.ndarray, y: np.ndarray, top: int, crowded: np.ndarray) -> list[Text]:
    """Return labels with the number of agents on cells where agents overlap.

    `crowded` [T, N] bool marks the overlapping agents. The list is empty if no cell needs a label.
    """
    labels = []
    for t in range(len(x)):
        cells, counts = np.unique(np.stack([x[t], y[t]])[:, crowded[t]], axis=1, return_counts=True)
        labels.append(
            [
                (*cell, f"{count} here")
                for cell, count in zip(cells.T, counts, strict=True)
                if count > 1
            ]
        )
    most = max(map(len, labels))
    padded = [[*row, *[(np.nan, np.nan, "")] * (most - len(row))] for row in labels]
    position = np.array([[label[:2] for label in row] for row in padded], float).reshape(
        len(x), most, 2
    )
    offset = np.where(position < 0.85 * top, 0.04, -0.04) * (top + 1)  # towards the inside
    texts = [[label[2] for label in row] for row in padded]
    shown_x, shown_y = np.moveaxis(position + offset, -1, 0)
    return [Text(shown_x, shown_y, texts, size=11)] if most else []
