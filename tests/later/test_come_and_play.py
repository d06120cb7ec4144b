"""Faults that the issue "Come and play" fixes: 37, 38, the display of 18. Each fails until then."""

import re

import pytest

from wdjax.experiments import cli
from wdjax.experiments.report.curves import draw_panels
from wdjax.train import list_presets, load_config
from wdjax.train.host.plots import draw_run, quantities
from wdjax.train.host.progress import words_of_run

REASON = "Come and play"


def later(number, words):
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"{REASON}: {words} ({number})")


def rows_of(returns, steps):
    """Return metrics rows of a run, one for each number of env steps."""
    return [
        {"updates": i + 1, "env_steps": step, "env_steps_per_second": 1000.0,
         **{f"{name}/episode_return": value for name, value in returns.items()}}
        for i, step in enumerate(steps)
    ]  # fmt: skip


def labels_of(svg, names):
    """Return the names in the order in which a figure's legend writes them."""
    found = [first or second for first, second in re.findall(r"<!-- (.*?) -->|>([^<>]+)</text>", svg)]
    return [name for name in found if name in names]


@later(37, "name and purpose run together")
def test_list_separates_names_from_purposes(capsys):
    cli.call("list")
    lines = capsys.readouterr().out.splitlines()
    assert not [name for name in list_presets() for line in lines if re.match(rf"  {name}\w*[A-Z]", line)]


@later(37, "purposes are cut in mid sentence")
def test_list_shows_whole_sentences(capsys):
    cli.call("list")
    text = capsys.readouterr().out.partition("presets:\n")[2].partition("\ntrained")[0]
    purposes = [line for line in text.splitlines() if re.match(r"  \w", line)]
    assert len(purposes) == len(list_presets())
    assert not [line for line in purposes if not line.rstrip().endswith(".")]


@later(37, "the help of a sweep names another default folder")
def test_help_of_a_sweep_names_the_folder_that_it_uses(capsys):
    cli.call("sweep", "cartpole_ppo", "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: runs/sweep)" not in text


@later(38, "legends differ in their order")
def test_curves_and_report_list_policies_in_one_order():
    rows = rows_of({"tagger": 1.0, "runner": 2.0}, [100, 200])
    names = ("tagger", "runner")
    curves = [text.get_text() for text in draw_run(rows, most=1).axes[0].get_legend().get_texts()]
    report = labels_of(draw_panels({"run": [rows]})[0], names)
    assert [name for name in curves if name in names] == report


@later(38, "equal returns hide each other")
def test_equal_curves_can_be_told_apart():
    rows = rows_of({"a": 1.0, "b": 1.0}, [100, 200])
    lines = draw_run(rows, most=1).axes[0].lines
    styles = {(line.get_linestyle(), line.get_linewidth(), line.get_marker()) for line in lines}
    assert len(styles) == 2


@later(18, "returns are sums over agents, without a word of it")
def test_the_progress_bar_names_what_a_return_is():
    config = load_config("tag_small")
    row = rows_of({"tagger": 55.63, "runner": -7.0}, [1000])[0]
    assert re.search(r"agent|sum|total", words_of_run(config, row))


@later(18, "returns are sums over agents, without a word of it")
def test_curves_name_what_a_return_is():
    (label,) = [label for label in quantities(rows_of({"tagger": 55.63}, [1000])) if "return" in label]
    assert re.search(r"agent|sum|total", label)
