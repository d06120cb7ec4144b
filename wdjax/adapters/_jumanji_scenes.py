"""Scenes of Jumanji's games with several agents: warehouse, foraging and connector."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wdjax.drawing import DISC, SQUARE, TRIANGLE, Lines, Mark, Scene, Shapes, Text
from wdjax.env import SINGLE_AGENT

COLORS = ("blue", "orange", "green", "magenta", "red", "ink", "grey")  # of agents in Connector


def warehouse(env: Any, states: Any) -> Scene:
    """Return the scene of RobotWarehouse: shelves, requested shelves, goals and robots."""
    rows, columns = env.grid_size
    goal_x, goal_row = np.asarray(env.goals).T
    shelves, robots = states.inner.shelves, states.inner.agents
    requested = np.asarray(shelves.is_requested, bool)
    # positions are (row, column)
    shelf_x, shelf_y = shelves.position.y, rows - 1 - shelves.position.x
    x, y = robots.position.y, rows - 1 - robots.position.x
    carries = np.asarray(robots.is_carrying, bool)
    angle = -np.pi / 2 * np.asarray(robots.direction)  # up, right, down, left
    marks = [
        grid_lines(rows, columns),
        Shapes(goal_x, rows - 1 - goal_row, SQUARE, 0.48, color="green", opacity=0.5, label="goal"),
        cells(shelf_x, shelf_y, ~requested, color="grey", label="shelf"),
        cells(shelf_x, shelf_y, requested, color="orange", label="requested shelf"),
        Shapes(
            x, y, TRIANGLE, 0.32, angle, "blue", edge=True, label="robot", group=SINGLE_AGENT,
            trail=True,
        ),
        Shapes(np.where(carries, x, np.nan), y, DISC, 0.12, color="paper"),
    ]  # fmt: skip
    return scene(env, states, marks, rows, columns)


def foraging(env: Any, states: Any) -> Scene:
    """Return the scene of LevelBasedForaging: agents and food with their levels."""
    size, agents, food = env.grid_size, states.inner.agents, states.inner.food_items
    x, y = agents.position[..., 1], size - 1 - agents.position[..., 0]
    eaten = np.asarray(food.eaten, bool)
    food_x = np.where(eaten, np.nan, food.position[..., 1])
    food_y = size - 1 - food.position[..., 0]
    loading = np.where(agents.loading, x, np.nan)
    marks = [
        grid_lines(size, size),
        Shapes(food_x, food_y, SQUARE, 0.36, color="green", label="food"),
        Text(food_x, food_y, levels(food.level), "paper", bold=True),
        Shapes(x, y, DISC, 0.36, color="blue", label="agent", group=SINGLE_AGENT, trail=True),
        Shapes(loading, y, DISC, 0.44, color="orange", stroke=2.0, label="loading"),
        Text(x, y, levels(agents.level), "paper", bold=True),
    ]
    return scene(env, states, marks, size, size)


def connector(env: Any, states: Any) -> Scene:
    """Return the scene of Connector: the path, the position and the target of each agent."""
    size, agents, grid = env.grid_size, states.inner.agents, np.asarray(states.inner.grid)
    num = env.num_agents
    x, y = agents.position[..., 1], size - 1 - agents.position[..., 0]
    target_x, target_y = agents.target[..., 1], size - 1 - agents.target[..., 0]
    row, column = (index.ravel() for index in np.indices((size, size)))
    owner = np.where(grid % 3 == 1, grid // 3, -1).reshape(len(grid), -1)  # of paths
    numbers = tuple(str(agent + 1) for agent in range(num))
    marks: list[Mark] = [grid_lines(size, size)]
    for index, color in enumerate(COLORS[:num]):
        own = np.arange(index, num, len(COLORS))
        here = np.isin(owner, own)
        ends = target_x[:, own], target_y[:, own]
        marks += [
            cells(column[None], size - 1 - row[None], here, color=color, opacity=0.35),
            Shapes(*ends, SQUARE, 0.38, color=color, stroke=2.5),
            Shapes(x[:, own], y[:, own], DISC, 0.38, color=color),
        ]
    marks += [
        Text(target_x, target_y, numbers, "text"),
        Shapes(x, y, DISC, 0.26, color="paper", group=SINGLE_AGENT, opacity=0.8),
        Text(x, y, numbers, "text", bold=True),
    ]
    return scene(env, states, marks, size, size)


def grid_lines(rows: int, columns: int) -> Lines:
    """Return the borders of all cells. The cell in the lower left corner is at (0, 0)."""
    lines = [[(i - 0.5, -0.5), (i - 0.5, rows - 0.5)] for i in range(columns + 1)]
    lines += [[(-0.5, i - 0.5), (columns - 0.5, i - 0.5)] for i in range(rows + 1)]
    return Lines(np.array(lines), "faint", 0.7)


def cells(x: Any, y: Any, shown: np.ndarray, **style: Any) -> Shapes:
    """Return squares in the cells that are shown.

    Args:
        x: [T, N] or [1, N], columns.
        y: [T, N] or [1, N], rows from the bottom.
        shown: [T, N] bool.
        **style: fields of Shapes.
    """
    return Shapes(np.where(shown, x, np.nan), y, SQUARE, 0.4, **style)


def levels(level: Any) -> list[list[str]]:
    """Return levels [T, N] as texts."""
    return [[str(number) for number in row] for row in np.asarray(level)]


def scene(env: Any, states: Any, marks: list[Any], rows: int, columns: int) -> Scene:
    """Return a scene of a grid with the step in its captions."""
    captions = [f"step {time} of {env.time_limit}" for time in states.time]
    extent = (-0.5, -0.5, columns - 0.5, rows - 0.5)
    return Scene(marks, captions, extent, states.time, axes=False)


SCENES: Mapping[str, Callable[[Any, Any], Scene]] = {
    "Connector": connector,
    "LevelBasedForaging": foraging,
    "RobotWarehouse": warehouse,
}
"""name of a class of Jumanji -> function (environment, states) that returns its scene"""
