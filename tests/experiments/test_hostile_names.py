"""Names that users choose are never patterns, markup, URLs or code: all commands, in one process.

Pairs of names (40, where no number is given) and the places that they are used in:

folders, statistics: train, resume, eval, csv, tensorboard; 20 of them: report, render, export, diff
groups, statistics: a sweep of two values and two seeds, resumed, and the report of its best run
policies: curves.png and opponents.png (6), curves of a report; 2 in train, resume, eval, sweeps
presets, policies: diff
presets: 2 in train, 1 in sweeps; folders of sweeps and searches: 20 each; studies: 1
players (scripts): 8 in eval of a search's best run, and its CSV
TensorBoard's folders and tags
"""

import csv
import html
import json
import os
import xml.etree.ElementTree
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
import yaml
from ledger import Ledger
from rich.table import Column, Table
from rich.text import Text

from wdjax import envs
from wdjax.envs.classic_control import CartPole
from wdjax.experiments.cli import main
from wdjax.experiments.commands.train import named_modules
from wdjax.experiments.report.curves import draw_panels
from wdjax.experiments.report.page import of_terminal
from wdjax.experiments.sweep import read_table
from wdjax.train import load_config, read_metrics
from wdjax.train.host.callbacks import make_callbacks
from wdjax.train.host.plots import save_curves, save_opponents

NAMES = (
    "a[0]b", "[red]x[-red]", "[", "]", "*", "?", "z*?", "**", "$x$", "$", "$x^{$", "$(id)",
    "%20", "%s%d", "100%", "'", '"', "q'x\"y", "sp ace", " lead", "trail ", "tab\tin", "ü日本",
    "\U0001f600", "e\u0301",
    "-dash", "--resume", "{0}", "{", "}", "~t", "c~", "#a", "a|b", ";ls", "`id`", "file:", "http:",
    "<b>&amp;",
    "u" * 200,
)  # fmt: skip
POLICIES = ("[red]x[-red]", "$x^{$")


def noted(names):
    """Return cartpole with statistics of these names."""

    class Noted(CartPole):
        def step(self, key, state, action, params):
            *rest, info = super().step(key, state, action, params)
            return *rest, {**info, **{name: jnp.float32(1) for name in names}}

    return Noted


def preset(policy):
    return {
        "env": "noted", "num_envs": 2, "rollout_length": 4, "total_env_steps": 16,
        "updates_per_chunk": 1,
        "eval_episodes": 2,
        "policies": {policy: {"agents": ["agent"], "network": {"hidden_sizes": [4]}}},
    }  # fmt: skip


@pytest.mark.slow
def test_commands_take_hostile_names_as_they_are(tmp_path, monkeypatch, quick_compile, capsys):
    pytest.importorskip("tensorboardX")
    assert len(set(NAMES)) == 40
    monkeypatch.chdir(tmp_path)
    for i, policy in enumerate(POLICIES):
        names = NAMES[i::2]  # twenty in each path, and as many statistics
        monkeypatch.setitem(envs._REGISTRY, "noted", noted(names))
        run = os.path.join(".", *names)
        file = f"./{NAMES[(7 * i + 3) % 40]}.yaml"
        write_preset(file, preset(policy))
        main(["train", file, f"--workdir={run}", "--callbacks", "csv", "tensorboard"])
        main(
            [
                "train",
                file,
                f"--workdir={run}",
                "--callbacks",
                "csv",
                "--resume",
                "--no-pictures",
                "--total-env-steps=24",
            ]
        )
        rows = read_metrics(run)
        assert [row["updates"] for row in rows] == [1, 2, 3]
        assert all(f"{policy}/episode_return" in row for row in rows)
        assert {"config.yaml", "metrics.csv", "curves.png", "checkpoints", "tensorboard"} <= set(
            os.listdir(run)
        )
        main(["eval", run, "--episodes", "2", "--output", f"{run}/eval.json"])
        assert json.loads(Path(run, "eval.json").read_text(encoding="utf8"))
        if i == 0:
            main(["report", run, "--output", f"{run}/report.html"])
            main(["render", run, "--output", f"{run}/episode.svg"])
            main(["export", run])
            main(["diff", run, run])
    out, err = capsys.readouterr()
    assert "Warning: no" not in out + err
    assert "failed" not in out + err


@pytest.mark.slow
def test_presets_and_policies_take_hostile_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    packed = lambda text: "".join(text.split())  # noqa: E731
    before = "cartpole_ppo"
    for name, policy in zip(NAMES, (*NAMES[7:], *NAMES[:7]), strict=True):
        file = f"./{name}.yaml"
        write_preset(file, preset(policy) | {"env": "cartpole"})
        assert [*load_config(file).policies] == [policy]
        main(["diff", file, before])
        assert packed(f"policies.{policy}")[:30] in packed(capsys.readouterr().out)
        before = file


def write_preset(file, content):
    with open(file, "w", encoding="utf8") as stream:
        yaml.safe_dump(content, stream, allow_unicode=True)


@pytest.fixture
def ledger(tmp_path, monkeypatch, quick_compile):
    """Write a preset of two policies for some groups, with 40 scripts, in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(groups):
        scripts = tuple(f"{name}." for name in NAMES)
        monkeypatch.setitem(
            envs._REGISTRY, "ledger", Ledger(names=NAMES, members=groups, plays=scripts)
        )
        agents = {"--resume": list(groups[:1]), "s{0}%d": list(groups[1:])}
        small = {"network": {"hidden_sizes": [4]}}
        sizes = {
            "num_envs": 2,
            "rollout_length": 4,
            "total_env_steps": 16,
            "updates_per_chunk": 1,
            "eval_episodes": 2,
        }
        policies = {name: {"agents": own, **small} for name, own in agents.items()}
        write_preset("./{}*?.yaml", {"env": "ledger", "policies": policies, **sizes})
        return "./{}*?.yaml"

    return write


@pytest.mark.slow
def test_sweeps_take_hostile_names_as_they_are(ledger, capsys):
    folder = os.path.join(".", *NAMES[::2])
    learning_rate = "policies.s{0}%d.learning_rate"
    metric = "--metric=s{0}%d/episode_return"
    arguments = [
        "sweep",
        ledger(NAMES),
        "--set",
        f"{learning_rate}=1e-3,2e-3",
        metric,
        "--workdir",
        folder,
    ]
    main([*arguments, "--seeds=2"])
    main([*arguments, "--seeds=2", "--resume"])
    table = read_table(folder)
    assert [(row["seed"], row[learning_rate]) for row in table] == [
        (0, 1e-3),
        (1, 1e-3),
        (0, 2e-3),
        (1, 2e-3),
    ]
    assert all({"--resume/episode_return", "s{0}%d/episode_return"} <= set(row) for row in table)
    assert {"table.csv", "curves.png", "best"} <= set(os.listdir(folder))
    main(["report", f"{folder}/best", "--episodes", "0", "--output=-r.html"])
    page = Path("-r.html").read_text(encoding="utf8")
    assert [
        name for name in NAMES if html.escape(name[:190]) not in page
    ] == []  # cells have 200 characters
    out, err = capsys.readouterr()
    assert "Warning" not in out + err


@pytest.mark.slow
def test_searches_take_hostile_names_as_they_are(ledger):
    pytest.importorskip("optuna")
    learning_rate = "policies.--resume.learning_rate=log:1e-4:1e-2"
    folder = os.path.join("./s3:", *NAMES[1::2])
    journal, study = "./gs:/%s?a=[0]", '\'; drop table studies; -- $x$ "%d"'
    arguments = ["sweep", ledger(NAMES[:2]), "--set", learning_rate, "--search=2", "--batch=2"]
    arguments += [f"--study={study}", "--storage", journal, "--workdir", folder]
    main([*arguments, "--metric=s{0}%d/episode_return"])
    assert Path(journal).is_file()
    assert len(read_table(folder)) == 2
    scripts = [f"{name}." for name in NAMES if name[0] != "-"][::5]  # a dash would begin a flag
    main(
        [
            "eval",
            f"{folder}/best",
            "--episodes",
            "2",
            "--opponents",
            *scripts,
            "--output",
            "[*].csv",
        ]
    )
    with open("[*].csv", encoding="utf8", newline="") as stream:
        assert {line["--resume"] for line in csv.DictReader(stream)} == {"trained", *scripts}


COLORS = ("#000000", "#ffffff", "EPISODE_DATA", "<!--", "x, evaluated", "1.2.3 ± 4")


def rows_of(names):
    rows = []
    for update in (1, 2):
        row = {
            "updates": update,
            "env_steps": 8 * update,
            "env_steps_per_second": 8.0,
            "episode_length": 3.0,
        }
        for name in names:
            row |= {
                f"{name}/{metric}": float(update)
                for metric in ("episode_return", "entropy", "explained_variance")
            }
            row |= {f"eval/{name}/episode_return": 1.0, f"episode_{name}": 1.0}
            row |= {f"{name}/opponent_{what}/{name}": 0.5 for what in ("win_rate", "return")}
        rows.append(row)
    return rows


@pytest.mark.slow
def test_curves_name_hostile_policies_as_they_are(tmp_path):
    names = (*NAMES, *COLORS)
    [returns, *_] = panels = draw_panels({"run": [rows_of(names)]})
    for panel in panels:
        xml.etree.ElementTree.fromstring(panel)
    texts = {text.strip() for text in xml.etree.ElementTree.fromstring(returns).itertext()}
    assert {name.strip() for name in names if len(name) < 36} <= texts
    folder = tmp_path / NAMES[0] / NAMES[-1]
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows_of(NAMES[:6]))
    )
    assert save_curves(folder).is_file()
    assert save_opponents(folder).is_file()


@pytest.mark.slow
def test_panels_of_several_runs_name_every_policy():
    """A policy "e" is part of the label "mean episode return", too."""
    drawn = "".join(draw_panels({"a": [rows_of(["e", "m"])], "b": [rows_of(["e", "m"])]}))
    assert "mean episode return, e [reward]" in drawn
    assert "mean episode return, m [reward]" in drawn


def test_players_with_numbers_for_names_are_not_shaded():
    table = Table("a", Column(Text("random")), title="return")
    table.add_row(Text("1.2.3 ± 4"), "0.25 ± 0.14")
    table.add_row(Text("0.5 ± x"), "0.75 ± 0.14")
    assert of_terminal(table).count("color-mix") == 2


def test_folders_name_no_modules():
    assert named_modules(["--workdir", "os:a", "--callbacks", "mine:f", "--trust", "own"]) == [
        "mine",
        "own",
    ]
    assert (
        named_modules(
            ["--policies.agent.checkpoint", "os:a", "--stop-at", "my team:1/episode_return", "3"]
        )
        == []
    )


def test_tensorboard_takes_hostile_folders_and_tags(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    monkeypatch.chdir(tmp_path)
    for folder in (*NAMES, "s3:a", "gs:"):  # tensorboardX would write to buckets
        [logger] = make_callbacks(["tensorboard"])
        row = {"env_steps": 8, "updates": 1} | {f"{folder}/{name}": 1.0 for name in NAMES}
        logger(SimpleNamespace(workdir=Path(folder), config=None), row)
        logger.close()
        assert not logger.failed
        assert os.listdir(f"./{folder}/tensorboard")
