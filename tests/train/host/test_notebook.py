"""Output in notebooks: progress without ipywidgets, HTML tables, cells that run twice."""

import contextlib
import importlib.util
import io
import re
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from rich.console import Console
from tiny_runs import small_config

import wdjax
from wdjax import progress
from wdjax.tables import brief, html_table
from wdjax.train import make_learner
from wdjax.train.host import plots
from wdjax.train.host.plots import draw_run, thinned

CELL = """
from wdjax.train import Trainer, load_config
size = {"num_envs": 8, "rollout_length": 16, "total_env_steps": 512}
config = load_config("cartpole_ppo", updates_per_chunk=1, eval_episodes=4, **size)
trainer = Trainer(config, "runs/a", pictures=False)
trainer.train()
trainer
"""


@pytest.fixture
def notebook(monkeypatch):
    """Mock IPython. Yield (displayed bundles, updates of bundles)."""
    shown, changed = [], []
    handle = SimpleNamespace(update=lambda bundle, raw: changed.append(bundle))

    def display(bundle, raw, display_id):
        return shown.append(bundle) or handle

    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0.0)
    return shown, changed


def test_progress_updates_a_single_output(notebook):
    shown, changed = notebook
    with progress.progress_bar(Console(), 10, 2, lambda: "<svg/>") as advance:
        assert re.fullmatch(
            r'<div><progress value="2" max="10"></progress> compiling</div><svg/>',
            shown[0]["text/html"],
        )
        advance(6, "return <3>")
        assert re.fullmatch(r"return <3>, \d:\d\d:\d\d left", changed[0]["text/plain"])
        assert (
            '<progress value="6" max="10"></progress> return &lt;3&gt;, 0:'
            in changed[0]["text/html"]
        )
        advance(10, "return 4")
    assert [bundle["text/plain"] for bundle in changed[1:]] == ["return 4"] * 2
    assert len(shown) == 1


def stop_after_two(advance):
    advance(1, "one")
    advance(2, "two")
    raise KeyError


def test_progress_is_throttled_and_shows_the_last_state(notebook, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 1e9)
    with pytest.raises(KeyError), contextlib.ExitStack() as stack:
        stop_after_two(stack.enter_context(progress.progress_bar(Console(), 3, 0)))
    assert [bundle["text/plain"][:3] for bundle in notebook[1]] == ["two"]


def test_quiet_runs_and_terminals_display_nothing(notebook, monkeypatch):
    with progress.progress_bar(Console(quiet=True), 3, 0) as advance:
        advance(1, "one")
    assert notebook == ([], [])
    for other in (
        SimpleNamespace(get_ipython=lambda: None),
        SimpleNamespace(get_ipython=lambda: object()),
    ):
        monkeypatch.setitem(sys.modules, "IPython", other)
        assert progress.notebook_display() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert progress.notebook_display() is None


def test_output_of_callbacks_is_shown_in_quiet_runs(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal, where a bar captures all output
    monkeypatch.delenv("TERM", raising=False)
    with progress.progress_bar(Console(quiet=True), 3, 0) as advance:
        advance(1, "one")
        print("a callback's words")
    assert capsys.readouterr().out == "a callback's words\n"


@pytest.mark.parametrize("where", ["a notebook's !", "a log"])
def test_progress_in_logs_is_drawn_rarely(monkeypatch, where):
    drawn = io.StringIO()
    drawn.isatty = lambda: where == "a notebook's !"
    monkeypatch.setenv("JPY_PARENT_PID", "1") if drawn.isatty() else monkeypatch.delenv(
        "JPY_PARENT_PID", raising=False
    )
    with progress.progress_bar(Console(file=drawn, force_terminal=True), 3, 0) as advance:
        advance(1, "one")
        time.sleep(0.3)  # three refreshes of a bar in a terminal
        advance(2, "two")
    assert (drawn.getvalue().count("compiling"), drawn.getvalue().count("two")) == (1, 1)
    assert "one" not in drawn.getvalue()


def test_live_curves_are_thinned():
    rows = [{"updates": i} for i in range(9_001)]
    updates = [row["updates"] for row in thinned(rows)]
    assert len(updates) <= 2_000
    assert (updates[0], updates[-1]) == (0, 9_000)
    assert set(np.diff(updates)) == {8}
    assert thinned(rows[:3]) == rows[:3]
    assert len(thinned(rows[:2_001])) == 1_001


def test_live_curves_read_metrics_once(monkeypatch):
    reads = []
    monkeypatch.setattr(plots, "svg_of_run", lambda rows: [row["updates"] for row in rows])
    curve = plots.LiveCurve(lambda: reads.append("metrics.jsonl") or [{"updates": 1}])
    assert curve.svg() == [1]
    curve.add({"updates": 2})
    assert curve.svg() == [1, 2]
    assert reads == ["metrics.jsonl"]


def test_env_steps_are_abbreviated():
    rows = [
        {"env_steps": steps, "a/episode_return": 1.0, "episode_length": 2.0}
        for steps in (0, 1_280_000)
    ]
    figure = draw_run(rows, most=1)
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert {"0", "200k", "1M", "1.2M"} <= set(labels)
    assert figure.axes[0].get_xlabel() == "env steps"


def test_html_tables_shorten_and_escape_cells():
    table = html_table([["<a>", None], [{"b": 0.1234567}, np.arange(9)]], ["x & y"], "<t>")
    cell_texts = re.findall(r">([^<>]+)</(?:t[dh]|b)>", table)
    assert cell_texts == ["&lt;t&gt;", "x &amp; y", "&lt;a&gt;", "b: 0.123457", "int64[9]"]
    assert brief("x" * 300) == "x" * 200 + " ..."
    assert brief(np.float32(0.5)) == "0.5"
    assert brief(jax.numpy.arange(3)) == "[0, 1, 2]"
    assert brief(jax.ShapeDtypeStruct((2,), np.float32)) == "float32[2]"
    gone = jax.numpy.arange(3)
    gone.delete()
    assert brief(gone) == "int32[3]"


def cells(thing):
    """Return the rows of an object's HTML table."""
    rows = re.findall(r"<tr>(.*?)</tr>", thing._repr_html_())
    return [re.findall(r">([^<>]*)</t[dh]>", row) for row in rows]


def test_html_tables_of_configurations_environments_spaces_and_states():
    config = small_config()
    assert ["total_env_steps", "768"] in cells(config)
    assert ["policies.agent.network.hidden_sizes", "(8,)"] in cells(config)
    assert not any("optimizer" in name or "max_grad_norm" in name for name, _ in cells(config))
    assert ["network.hidden_sizes", "(8,)"] in cells(config.policies["agent"])
    shown = cells(wdjax.make("tag_gridworld", num_taggers=3)[0])
    assert ["num_taggers", "3", "static"] in shown
    assert ["tagger", "3 agents", "group"] in shown
    assert ["action tagger", "Discrete[3] int32, choices: 5", "space"] in shown
    assert ["episode_length", "100", "default param"] in shown
    assert cells(
        wdjax.Dict({"a": wdjax.Discrete(3), "b": wdjax.Dict({"c": wdjax.Box(-1, 1, (2,))})})
    ) == [["a", "Discrete[] int32, choices: 3"], ["b.c", "Box[2] float32 from -1 to 1"]]
    assert cells(wdjax.MultiDiscrete((3, 4)).batch(5)) == [
        ["", "MultiDiscrete[5, 2] int32, choices: 3, 4"]
    ]
    state = jax.eval_shape(make_learner(config).init, jax.random.key(0))
    assert ["obs of agent", "float32[8, 1, 4]"] in cells(state)
    assert ["updates done", "int32[]"] in cells(state)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("ipykernel", "nbclient"))),
    reason="ipykernel and nbclient are not installed",
)
def test_training_in_a_real_notebook(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # in the process of the notebook
    sources = [CELL, "trainer.train()", CELL, "config"]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources]
    )
    client = NotebookClient(
        notebook, timeout=500, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    first, second_training, twice, config = (cell.outputs for cell in notebook.cells)
    html = [out.data.get("text/html", "") for out in first if "data" in out]
    assert sum("<progress" in text for text in html) == 1
    assert "ipywidgets" not in str(notebook)
    [bar] = [text for text in html if "<progress" in text]
    assert 'value="4" max="4"' in bar
    assert "<svg" in bar
    assert "512 of 512 env steps" in html[-1]
    assert "nothing to do. To train longer, raise total_env_steps" in " ".join(
        str(second_training).split()
    )
    assert "already contains a run. Resume it (--resume, in Python resume=True)" in twice[-1].evalue
    assert "total_env_steps" in config[-1].data["text/html"]
