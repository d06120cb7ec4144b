"""Fault 37, which the issue "Come and play" fixes. Each test fails until then."""

import io
import json
import re
import threading
from types import SimpleNamespace

import pytest

from wdjax.console import Console
from wdjax.experiments import cli
from wdjax.experiments.sweep import searching
from wdjax.experiments.sweep.driver import Sweep
from wdjax.experiments.sweep.members import make_members
from wdjax.train import Population, load_config

REASON = "Come and play"


def later(number, description):
    return pytest.mark.xfail(
        strict=True, raises=AssertionError, reason=f"{REASON}: {description} ({number})"
    )


def quiet_host(folder):
    """Return the host of a sweep that writes to memory, and the text."""
    text = io.StringIO()
    return Sweep(folder, Console(file=text, width=200), threading.Event()), text


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
