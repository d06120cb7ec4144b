"""The command wdjax sweep: its arguments, its help, and SIGKILL at random times."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from probes import tiny_config, tiny_policy
from quick import quick_environment

from wdjax.experiments import cli
from wdjax.experiments import sweep as kinds
from wdjax.experiments.commands.train import of_preset, with_flags
from wdjax.experiments.sweep import Halving, Selection
from wdjax.experiments.sweep.members import Range
from wdjax.files import find_files
from wdjax.train import change_config, load_config, load_run, plain_config

ROOT = Path(__file__).resolve().parents[2]
RATE = "policies.agent.learning_rate"


@pytest.fixture
def called(monkeypatch, tmp_path):
    """Return a function that runs a command and returns the call that it makes."""
    monkeypatch.setenv(
        "JAX_COMPILATION_CACHE_DIR", str(tmp_path)
    )  # leaves the settings of the tests alone
    calls = []
    for name in ("sweep", "evolve", "search"):
        monkeypatch.setitem(
            vars(kinds), name, lambda *own, name=name, **options: calls.append((name, own, options))
        )

    def run(*arguments):
        cli.main(["sweep", "cartpole_ppo", *arguments])
        name, (config, *own), options = calls.pop()
        assert config == load_config("cartpole_ppo")
        assert not options.pop("stop").is_set()
        return name, own, options

    return run


COMMON = {
    "workdir": Path("runs/sweep_cartpole_ppo"), "metric": None, "devices": 0, "resume": False,
    "quiet": False,
    "trust": (), "callbacks": (),
}  # fmt: skip


def test_arguments_of_a_grid(called, tmp_path):
    name, own, options = called(
        "--seeds", "8", "--set", f"{RATE}=1e-3,3e-3", "--set", "env_params.length=0.5,0.7"
    )
    assert (name, own) == ("sweep", [{RATE: [1e-3, 3e-3], "env_params.length": [0.5, 0.7]}, 8, []])
    assert options == {**COMMON, "members_at_once": 0}
    file = tmp_path / "points.yaml"
    file.write_text(f"- {{{RATE}: 1e-2, num_envs: 2}}")
    name, own, options = called(
        "--point", f"{RATE}=1e-3", "num_envs=4", "--point", f"{RATE}=3e-3", "num_envs=8", "--file",
        str(file),
        "--workdir", "runs/a", "--resume", "--metric", "loss", "--devices", "2",
        "--members-at-once", "3",
    )  # fmt: skip
    points = [{RATE: 1e-3, "num_envs": 4}, {RATE: 3e-3, "num_envs": 8}, {RATE: 1e-2, "num_envs": 2}]
    assert (name, own) == ("sweep", [{}, 1, points])
    changes = {
        "workdir": Path("runs/a"),
        "resume": True,
        "metric": "loss",
        "devices": 2,
        "members_at_once": 3,
    }
    assert options == COMMON | changes


def test_fields_are_flags_of_a_sweep(called):
    """They are written as for train; values are separated by commas."""
    _, (values, *_), options = called(
        "--policies.all.learning-rate", "1e-3,0 1e-3 1e6 1e-4,{fraction: [[0, 1e-3], [1, 0]]}",
        "--seeds=2", "--policies.agent.network.hidden_sizes", "64", "64,32", "--kernels=False",
        "--set", "env-params.length=0.5", "--policies.agent.opponents.runs/a-b", "0.5",
    )  # fmt: skip
    assert values == {
        "policies.all.learning_rate": [
            1e-3,
            [[0.0, 1e-3], [1e6, 1e-4]],
            {"fraction": [[0, 1e-3], [1, 0]]},
        ],
        "policies.agent.network.hidden_sizes": [[64, 64], [32]],
        "kernels": [False],
        "env_params.length": [0.5],
        "policies.agent.opponents.runs/a-b": [0.5],
    }
    assert options == {**COMMON, "members_at_once": 0}
    line = ["--policies.agent.algorithm", "DQN", "--policies.agent.epsilon", "0.1,0.2"]
    assert called(*line)[1][0] == {
        "policies.agent.algorithm": ["DQN"],
        "policies.agent.epsilon": [0.1, 0.2],
    }
    _, (values, *_), _ = called("--search", "4", "--policies.all.clip", "uniform:0.1:0.3")
    assert values == {"policies.all.clip": Range("uniform", 0.1, 0.3)}


def test_one_flag_sets_a_field_of_every_policy():
    line = ["--policies.all.learning-rate", "0", "2e-3", "100", "1e-3"]
    line += ["--policies.runner.learning_rate", "[[0, 5e-3], [9, 0]]", "--policies.all.clip=0.3"]
    parsed = with_flags("tag_small", *of_preset("tag_small", line), line)
    tagger, runner = parsed.config.policies.values()
    assert tagger.learning_rate == ((0.0, 2e-3), (100.0, 1e-3))
    assert runner.learning_rate == ((0.0, 5e-3), (9.0, 0.0))
    assert tagger.options.clip == runner.options.clip == 0.3
    config = load_config("tag_small", **{"policies.all.learning_rate": 1e-2})
    assert {own.learning_rate for own in config.policies.values()} == {1e-2}


def test_a_policy_may_be_named_all():
    named = {"policies": {"all": {"agents": ["runner"]}, "tagger": {"learning_rate": 1e-3}}}
    config = change_config(
        load_config("tag_small", **named), **{"policies.all.learning_rate": 1e-2}
    )
    assert [own.learning_rate for own in config.policies.values()] == [1e-2, 1e-3]


def test_a_population_of_several_policies_varies_one_at_a_time():
    with pytest.raises(ValueError, match=r"of one policy: policies.tagger.clip or policies.runner"):
        kinds.evolve("tag_small", {"policies.all.clip": [0.1, 0.2]}, members=2)


def test_arguments_of_a_search(called):
    name, own, options = called(
        "--search", "64", "--seeds", "2", "--set", f"{RATE}=log:1e-4:1e-2", "--batch", "8",
        "--halving", "3",
        "--rungs", "1", "--storage", "sqlite:///a.db", "--study", "cart",
    )  # fmt: skip
    assert (name, own) == ("search", [{RATE: Range("log", 1e-4, 1e-2)}, 64, 2, 8, Halving(3, 1)])
    assert options == {**COMMON, "storage": "sqlite:///a.db", "study": "cart", "members_at_once": 0}


def test_arguments_of_a_population(called):
    line = [
        "--pbt",
        "16",
        "--set",
        f"{RATE}=1e-4,1e-2",
        "--pbt-every",
        "2",
        "--pbt-factors",
        "0.5",
        "2",
    ]
    name, own, options = called(*line)
    assert (name, own) == ("evolve", [{RATE: [1e-4, 1e-2]}, 16, Selection(2, 0.25, (0.5, 2.0))])
    assert options == COMMON
    _, own, _ = called(*line[:4], "--pbt-every-updates", "50")
    assert own[2] == Selection(every_updates=50)


def test_help_lists_the_options_of_each_kind(capsys):
    cli.main(["sweep", "--help"])
    said = capsys.readouterr().out
    for words in (
        "--set FIELD=VALUES",
        "--search",
        "--pbt",
        "--seeds 8 --policies.agent.learning-rate 1e-3,3e-3",
        "members-at-once",
        "--resume",
    ):
        assert words in said
    assert len(said.splitlines()) <= 45
    assert "runs/sweep_PRESET)" in said
    cli.main(["sweep", "cartpole_ppo", "--help"])
    assert "(default: runs/sweep_cartpole_ppo)" in " ".join(capsys.readouterr().out.split())
    cli.main(["sweep", "cartpole_ppo", "--help", "search"])
    said = capsys.readouterr().out
    assert "--halving INT" in said
    assert "--seeds INT" not in said


@pytest.mark.slow
@pytest.mark.parametrize("mode", [[], ["--pbt", "4"]], ids=["grid", "population"])
def test_a_sweep_killed_at_random_times_ends_with_the_same_table(tmp_path, mode):
    """Three times SIGKILL, or until it is complete, also during saves."""
    config = tiny_config(
        "cartpole", {"agent": tiny_policy("A2C")}, num_envs=4, rollout_length=16,
        total_env_steps=40 * 64,
        updates_per_chunk=1, checkpoint_every=2,
    )  # fmt: skip
    preset = tmp_path / "tiny.yaml"
    preset.write_text(json.dumps(plain_config(config)))  # JSON is YAML

    def run(workdir, *options):
        arguments = [*mode, "--set", f"{RATE}=1e-3,1e-2", "--workdir", str(workdir), *options]
        arguments += [] if mode else ["--seeds", "3", "--members-at-once", "3"]
        line = [sys.executable, "-m", "wdjax.experiments.cli", "sweep", str(preset), *arguments]
        with open(tmp_path / "said.txt", "a", encoding="utf8") as said:
            return subprocess.Popen(
                line, cwd=ROOT, env=quick_environment(), stdout=said, stderr=said
            )

    assert run(tmp_path / "whole").wait(timeout=600) == 0, (tmp_path / "said.txt").read_text()

    def count_rows():
        files = find_files(tmp_path / "killed", "metrics.jsonl")
        return sum(file.read_bytes().count(b"\n") for file in files)

    draw, kills = random.Random(0), 0
    for _ in range(3):
        before = count_rows()
        process = run(tmp_path / "killed", "--resume")
        deadline = time.monotonic() + 300
        while process.poll() is None and count_rows() <= before:  # until it trains
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, 1.0))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(timeout=60)
    assert kills > 0
    assert run(tmp_path / "killed", "--resume").wait(timeout=600) == 0, (
        tmp_path / "said.txt"
    ).read_text()
    assert (tmp_path / "killed" / "table.csv").read_bytes() == (
        tmp_path / "whole" / "table.csv"
    ).read_bytes()
    assert int(load_run(tmp_path / "killed" / "best")[1].num_updates) == 40
