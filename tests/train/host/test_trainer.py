"""The host side of a run: files, resuming, signals."""

import dataclasses
import json
import os
import shutil
import signal

import numpy as np
import pytest
from tiny_runs import TIMING, assert_same_run, numbers, small_config

from wdjax.train import Trainer, load_config, load_run, read_metrics
from wdjax.train.host import start

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    rows = []
    trainer = Trainer(
        small_config(), folder, callbacks=[lambda trainer, row: rows.append(row)], quiet=True
    )
    trainer.train()
    return folder, trainer, rows


@pytest.fixture
def no_pictures(whole_run, monkeypatch):
    """Skip drawing, which is slow, in runs after the first one."""
    monkeypatch.setattr(Trainer, "draw", lambda self: None)


@pytest.mark.slow
def test_run_folder_contains_the_documented_files(whole_run):
    folder, trainer, rows = whole_run
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml",
        "metrics.jsonl",
        "checkpoints",
        "best",
        "curves.png",
        "episode.gif",
    }
    assert not trainer.stopped
    assert read_metrics(folder / "metrics.jsonl") == rows
    # the two newest of 2, 4, 6
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["4", "6"]
    assert load_config(folder / "config.yaml") == dataclasses.replace(trainer.config)
    assert list(load_config(folder / "config.yaml").policies) == list(trainer.config.policies)


@pytest.mark.slow
def test_metrics_rows_have_equal_fields(whole_run):
    lines = (whole_run[0] / "metrics.jsonl").read_text().splitlines()
    rows = [
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        for line in lines
    ]
    assert len({tuple(row) for row in rows}) == 1
    assert [row["env_steps"] for row in rows] == [128 * (i + 1) for i in range(6)]
    for name in (
        "agent/episode_return",
        "agent/policy_loss",
        "agent/approx_kl",
        "env_steps_per_second",
        "episodes",
    ):
        assert name in rows[0]
    evaluated = [row["eval/agent/episode_return"] is not None for row in rows]
    assert evaluated == [False, True] * 3


def test_best_checkpoint_has_the_highest_evaluation(whole_run):
    folder, _, rows = whole_run
    scores = {row["updates"]: row["eval/agent/episode_return"] for row in rows}
    best = int(load_run(folder, best=True)[1].num_updates)
    assert scores[best] == max(score for score in scores.values() if score is not None)


def test_resumed_run_equals_an_uninterrupted_one(whole_run, no_pictures, tmp_path):
    """Also from a checkpoint before the last line, without lost or repeated lines."""
    half = small_config(total_env_steps=5 * 128, checkpoint_every=2, keep_checkpoints=3)
    Trainer(half, tmp_path / "run", quiet=True).train()
    for name in ("5",):  # as if killed after chunk 5, before its checkpoint
        (tmp_path / "run" / "checkpoints" / name).rename(tmp_path / name)
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 5
    Trainer(small_config(), tmp_path / "run", resume=True, quiet=True).train()
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 6
    states = [numbers(load_run(folder)[1]) for folder in (whole_run[0], tmp_path / "run")]
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)


def test_resuming_a_finished_run_compiles_nothing(
    whole_run, no_pictures, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(start, "compile_chunk", lambda *_: pytest.fail("a program is compiled"))
    folder = shutil.copytree(whole_run[0], tmp_path / "run")
    Trainer(small_config(), folder, resume=True).train()
    assert "run already has 768 of 768 env steps: nothing to do" in " ".join(
        capsys.readouterr().out.split()
    )
    assert_same_run(whole_run[0], folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_and_the_run_resumes(whole_run, no_pictures, tmp_path, number, capsys):
    def interrupt(trainer, row):
        if row["updates"] == 3:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    trainer = Trainer(small_config(), tmp_path / "run", callbacks=[interrupt])
    trainer.train()
    assert trainer.stopped
    assert signal.getsignal(number) is before
    output = " ".join(capsys.readouterr().out.split())
    # the device was already one chunk ahead
    assert "Stopped and saved after 512 of 768 env steps" in output
    assert "--resume" in output
    assert int(load_run(tmp_path / "run")[1].num_updates) == 4
    resumed = Trainer(small_config(), tmp_path / "run", resume=True, quiet=True)
    resumed.train()
    assert not resumed.stopped
    assert_same_run(whole_run[0], tmp_path / "run")


@pytest.mark.slow
def test_evaluation_does_not_change_training(whole_run, no_pictures, tmp_path):
    Trainer(small_config(best_metric="none"), tmp_path / "run", quiet=True).train()
    states = [numbers(load_run(folder)[1]) for folder in (whole_run[0], tmp_path / "run")]
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not (tmp_path / "run" / "best").exists()


@pytest.mark.slow
def test_evaluate_every_counts_chunks(whole_run, no_pictures, tmp_path):
    """Evaluation does not depend on checkpoints, and training is unchanged bit for bit."""
    folder = tmp_path / "run"
    Trainer(
        small_config(best_metric="none", evaluate_every=4, eval_episodes=3, eval_greedy=False),
        folder,
    ).train()
    rows = read_metrics(folder / "metrics.jsonl")
    evaluated = {
        row["updates"]: row for row in rows if row["eval/agent/episode_return"] is not None
    }
    assert list(evaluated) == [4, 6]  # the last one is always evaluated
    for row in evaluated.values():
        assert row["eval/agent/episode_return"] == row["eval/episode_length"]
        assert row["eval/agent/episode_return_standard_error"] > 0
    training_rows = [
        [
            {k: v for k, v in row.items() if k not in TIMING and not k.startswith("eval/")}
            for row in run
        ]
        for run in (rows, whole_run[2])
    ]
    assert training_rows[0] == training_rows[1]
    for a, b in zip(*(numbers(load_run(run)[1]) for run in (whole_run[0], folder)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not (folder / "best").exists()


def test_folder_with_a_run_is_not_overwritten(whole_run):
    folder = whole_run[0]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(FileExistsError, match="resume"):
        Trainer(small_config(), folder)
    with pytest.raises(ValueError, match=r"policies.agent.clip = 0.3: .* started with 0.2"):
        Trainer(small_config(**{"policies.agent.clip": 0.3}), folder, resume=True)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_load_run_without_run_or_checkpoint_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="contains no run"):
        load_run(tmp_path)
    Trainer(small_config(best_metric="none"), tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_run(tmp_path / "run")


def test_checkpoint_of_another_network_size_raises(whole_run, tmp_path):
    folder = tmp_path / "run"
    Trainer(small_config(**{"policies.agent.network.hidden_sizes": [4]}), folder, quiet=True)
    (whole_run[0] / "checkpoints").rename(folder / "checkpoints")
    try:
        with pytest.raises(
            ValueError, match=r"hidden_sizes = \[4\]: checkpoint .* was saved with \[8\]"
        ):
            load_run(folder)
    finally:
        (folder / "checkpoints").rename(whole_run[0] / "checkpoints")
