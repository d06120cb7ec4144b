"""Pictures and screens explain their numbers: units of returns, colors, legends, room at walls."""

import re

import jax
import numpy as np
import pytest
from matplotlib.colors import to_hex

import wdjax
from wdjax.drawing import Plot, Scene, Series
from wdjax.drawing.paint import draw_ground, draw_mark, lay_out
from wdjax.experiments.commands.matrix import matrix_tables
from wdjax.experiments.report import curves as report_curves
from wdjax.experiments.report.curves import draw_panels
from wdjax.metric_names import summed_over
from wdjax.train import Episodes, load_config
from wdjax.train.host.plots import draw_run, quantities
from wdjax.train.host.progress import words_of_run
from wdjax.train.storage.metrics_log import summarize

TEN_AGENTS = {"agent_steps_per_second": 10_000.0}  # in rows_of


def rows_of(returns, steps):
    """Return metrics rows of a run, one for each number of env steps."""
    return [
        {
            "updates": i + 1,
            "env_steps": step,
            "env_steps_per_second": 1000.0,
            **{f"{name}/episode_return": value for name, value in returns.items()},
        }
        for i, step in enumerate(steps)
    ]


def labels_of(svg, names):
    """Return the names in the order of a figure's legend."""
    labels = [
        first or second for first, second in re.findall(r"<!-- (.*?) -->|>([^<>]+)</text>", svg)
    ]
    return [name for name in labels if name in names]


def tag_scene(direction=0.0):
    """Return the picture of a tagger and a runner, in opposite corners of the square."""
    env, params = wdjax.make("tag_continuous", num_taggers=1, num_runners=1)
    _, state = jax.eval_shape(env.reset, jax.random.key(0), params)
    states = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), state)
    corners = np.array([[0.0, params.grid_length]])
    active, ways = np.ones((1, 2), bool), np.full((1, 2), direction)
    return env.scene(states.replace(x=corners, y=corners, direction=ways, active=active), params)


class Recorder:
    """A canvas that records the boxes [x0, y0, x1, y1] of polygons and numbers, in pixels."""

    def __init__(self):
        self.polygon_boxes, self.number_boxes = [], []

    def polygons(self, points, color, opacity, stroke, edge):
        self.polygon_boxes += [(*polygon.min(axis=0), *polygon.max(axis=0)) for polygon in points]

    def lines(self, *arguments):
        pass

    def text(self, x, y, text, size, color, align, bold=False, upwards=False):
        if re.fullmatch(r"[\d.,]+", text):
            width = 0.6 * size * len(text)
            left = x - {"left": 0.0, "center": 0.5, "right": 1.0}[align] * width
            self.number_boxes.append((left, y - 0.35 * size, left + width, y + 0.35 * size))


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("direction", [-np.pi / 2, np.pi], ids=["down", "left"])
def test_agents_at_walls_do_not_cover_axis_numbers(direction):
    scene = tag_scene(direction)
    layout, ground, agents = lay_out(scene), Recorder(), Recorder()
    draw_ground(ground, scene, layout)
    for mark in scene.marks:
        if mark.group:
            draw_mark(agents, scene, layout, mark, 0)
    assert len(agents.polygon_boxes) == 2
    assert ground.number_boxes
    assert not [
        box
        for box in agents.polygon_boxes
        if any(overlap(box, other) for other in ground.number_boxes)
    ]


@pytest.mark.parametrize("names", [("agent",), ("harvester", "planner")], ids=" ".join)
def test_curves_and_report_use_equal_colors(names, monkeypatch):
    monkeypatch.setattr(report_curves, "as_svg", lambda figure: figure)
    rows = rows_of({name: 1.0 + number for number, name in enumerate(names)}, [100, 200])
    figures = draw_run(rows, most=1), draw_panels({"run": [rows]})[0]
    curves, report = (
        {line.get_label(): to_hex(line.get_color()) for line in figure.axes[0].lines}
        for figure in figures
    )
    assert set(curves) == set(report) == set(names)
    assert curves == report


def test_player_and_report_list_policies_in_equal_order():
    rows = rows_of({"tagger": 1.0, "runner": 2.0}, [100, 200])
    names = ("tagger", "runner")
    player = [mark.label for mark in tag_scene().legend if mark.label in names]
    assert player == labels_of(draw_panels({"run": [rows]})[0], names)


def test_curves_and_report_list_policies_in_equal_order():
    rows = rows_of({"tagger": 1.0, "runner": 2.0}, [100, 200])
    names = ("tagger", "runner")
    curves = [text.get_text() for text in draw_run(rows, most=1).axes[0].get_legend().get_texts()]
    report = labels_of(draw_panels({"run": [rows]})[0], names)
    assert [name for name in curves if name in names] == report


def test_equal_curves_are_distinguishable():
    rows = rows_of({"a": 1.0, "b": 1.0}, [100, 200])
    lines = draw_run(rows, most=1).axes[0].lines
    styles = {(line.get_linestyle(), line.get_linewidth(), line.get_marker()) for line in lines}
    assert len(styles) == 2


def test_progress_bar_defines_returns():
    config = load_config("tag_small")
    row = rows_of({"tagger": 55.63, "runner": -7.0}, [1000])[0] | TEN_AGENTS
    assert "(sum over agents)" in words_of_run(config, row)


def test_curves_define_returns():
    [row] = rows_of({"tagger": 55.63}, [1000])
    (label,) = [label for label in quantities([row | TEN_AGENTS]) if "return" in label]
    assert "sum over 10 agents" in label


@pytest.mark.parametrize(
    ("policies", "agents", "unit"),
    [
        (["agent"], 1, ""),
        (["agent"], 3, "sum over 3 agents"),
        (["tagger", "runner"], 2, ""),
        (["tagger", "runner"], 10, "sum over agents"),
        (["agent"], None, ""),  # a member of a sweep
    ],
)
def test_unit_of_returns_counts_the_agents_of_a_policy(policies, agents, unit):
    [row] = rows_of(dict.fromkeys(policies, 55.63), [1000])
    speeds = {"agent_steps_per_second": 1000.0 * agents} if agents else {}
    assert summed_over(row | speeds) == unit


def test_report_of_different_numbers_of_agents_names_no_number():
    runs = {}
    for agents in (1, 3):
        [row] = rows_of({"agent": 1.0}, [100])
        runs[f"{agents} agents"] = [[row | {"agent_steps_per_second": 1000.0 * agents}]]
    [returns] = [panel for panel in draw_panels(runs) if "return" in panel]
    assert "[reward, sum over agents]" in returns


def test_curve_that_is_covered_in_part_is_widened():
    x = np.arange(4.0)
    series = [Series(values) for values in (np.maximum(x, 1), x, -x)]
    scene = Scene([], [""] * 4, plots=[Plot("return", series)])
    assert [curve.wide for curve in scene.plots[0].series] == [2, 1, 1]


def test_rows_list_policies_in_the_order_of_the_configuration():
    metrics = {f"{name}/loss": [1.0] for name in ("runner", "tagger")} | {"time_to_tag": [2.0]}
    summary = summarize({"episodes": [1]} | metrics, ("tagger", "runner"))
    assert list(summary) == ["episodes", "time_to_tag", "tagger/loss", "runner/loss"]


def test_cross_play_counts_the_agents_in_a_return():
    numbers = {"mean": 1.0, "standard_error": 0.1}
    returns = {"tagger": np.ones(4), "runner": np.ones(4)}
    agents = {"tagger": np.ones((4, 1)), "runner": np.ones((4, 8))}
    episodes = Episodes(returns, np.ones(4), {}, agents, {})
    rows = {("a", "b"): {f"{name} return": numbers for name in returns}}
    [table] = matrix_tables({("a", "b"): episodes}, rows)
    heads = [column.header for column in table.columns]
    assert heads == ["tagger", "runner", "tagger return", "runner return\n(sum of 8 agents)"]
