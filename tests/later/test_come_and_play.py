"""Faults 37, 38 and the display of 18, which the issue "Come and play" fixes.

Each test fails until then. Two parts of 38 need a browser and have no test here: the player clips
agents at the edge of its canvas, and narrow pages cut tables.
"""

import io
import json
import re
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from matplotlib.colors import to_hex

import wdjax
from wdjax.console import Console
from wdjax.drawing.paint import draw_ground, draw_mark, lay_out
from wdjax.experiments import cli
from wdjax.experiments.report import curves as report_curves
from wdjax.experiments.report.curves import draw_panels
from wdjax.experiments.sweep import searching
from wdjax.experiments.sweep.driver import Sweep
from wdjax.experiments.sweep.members import make_members
from wdjax.train import Population, load_config
from wdjax.train.host.plots import draw_run, quantities
from wdjax.train.host.progress import words_of_run

REASON = "Come and play"


def later(number, description):
    return pytest.mark.xfail(
        strict=True, raises=AssertionError, reason=f"{REASON}: {description} ({number})"
    )


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


def quiet_host(folder):
    """Return the host of a sweep that writes to memory, and the text."""
    text = io.StringIO()
    return Sweep(folder, Console(file=text, width=200), threading.Event()), text


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


@later(37, "the help of a sweep names another default folder")
def test_help_of_sweep_names_its_default_folder(capsys):
    cli.call("sweep", "cartpole_ppo", "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: runs/sweep)" not in text


@later(37, "a search that halves counts env steps that it never trains")
def test_progress_of_a_halving_search_ends_at_its_total(tmp_path, monkeypatch):
    config, rungs = load_config("cartpole_ppo"), searching.Halving(4, 2)
    points = [{"policies.agent.learning_rate": 0.001 * (1 + number)} for number in range(16)]

    def train(self, populations, bar, span, before):
        for folder, population in populations:
            folder.mkdir(parents=True)
            steps = span(config.num_updates)[1] * config.env_steps_per_update
            rows = [
                {"member": own["member"], "env_steps": steps, "score": float(own["member"])}
                for own in population.members
            ]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            for row in rows:
                bar(None, row)
            yield folder, population

    monkeypatch.setattr(Sweep, "train", train)
    monkeypatch.setattr(Population, "fit", lambda self, most: len(self.configs))
    running, text = quiet_host(tmp_path)
    members = make_members(config, points, [0])
    study = SimpleNamespace(report=lambda *result: None, tell=lambda *result, pruned: None)
    searching.train_trials(running, study, tmp_path, members, rungs, "score", [])
    ((done, total),) = re.findall(r"([\d,]+) of ([\d,]+) env steps", text.getvalue())[-1:]
    assert done == total


@later(37, "a search prints no table of its trials")
def test_search_prints_all_scores(tmp_path):
    table = [
        {"trial": number, "rate": rate, "score": score, "state": "complete", "env_steps": 640}
        for number, rate, score in [(0, 0.1, 41.5), (1, 0.2, 173.25)]
    ]
    host, text = quiet_host(tmp_path)
    searching.conclude(
        host, SimpleNamespace(table=lambda: table, settings={"rate": [0.1, 0.2]}), [], [], "score"
    )
    assert "173.2" in text.getvalue()
    assert "41.5" in text.getvalue()


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
    row = rows_of({"tagger": 55.63, "runner": -7.0}, [1000])[0]
    assert re.search(r"agent|sum|total", words_of_run(config, row))


def test_curves_define_returns():
    (label,) = [
        label for label in quantities(rows_of({"tagger": 55.63}, [1000])) if "return" in label
    ]
    assert re.search(r"agent|sum|total", label)
