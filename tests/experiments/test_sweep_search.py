"""Search with Optuna, by one worker or several, also if one is killed."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from probes import tiny_config, tiny_policy
from quick import quick_environment
from refusals import refusal
from stopping import EndsAfter

from wdjax.experiments.sweep import Halving, read_table, search
from wdjax.experiments.sweep import searching as trials
from wdjax.experiments.sweep.members import parse_settings
from wdjax.experiments.sweep.optuna_study import (
    distributions,
    open_study,
    point_of,
    require_optuna,
)
from wdjax.train import load_run, read_metrics

optuna = pytest.importorskip("optuna")

pytestmark = pytest.mark.usefixtures("quick_compile", "registered_probes")

ROOT = Path(__file__).resolve().parents[2]
RATE, GAMMA = "policies.agent.learning_rate", "policies.agent.gamma"
CONFIG = tiny_config(
    "probe_signal", {"agent": tiny_policy("A2C")},
    env_params={"constant": 1.0, "by_match": 0.5, "episode_length": 4, "time_limit": True},
    total_env_steps=4 * 48, updates_per_chunk=2, checkpoint_every=1,
)  # fmt: skip
VALUES = {RATE: "log:1e-3:1e-1", GAMMA: [0.5, 0.9], "rollout_length": [6]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return (folder, table) of 4 trials in batches of 2; one of each continues after 2 updates."""
    folder = tmp_path_factory.mktemp("searches") / "whole"
    return folder, search(
        CONFIG, VALUES, trials=4, batch=2, seeds=2, halving=Halving(2, 1), workdir=folder
    )


# --- the study alone ---


def test_fields_are_converted_to_distributions_and_back():
    settings = parse_settings(
        ["a=log:1e-4:1e-2", "b=uniform:0:1", "c=int:1:8", "d=[64,64],[8]", "e=relu,tanh", "f=3"]
    )
    found = distributions(settings)
    assert found == {
        "a": optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True),
        "b": optuna.distributions.FloatDistribution(0.0, 1.0),
        "c": optuna.distributions.IntDistribution(1, 8),
        "d": optuna.distributions.CategoricalDistribution(["[64, 64]", "[8]"]),
        "e": optuna.distributions.CategoricalDistribution(["relu", "tanh"]),
    }
    chosen = {"a": 1e-3, "b": 0.5, "c": 2, "d": "[8]", "e": "tanh"}
    assert point_of(settings, chosen) == {
        "a": 1e-3,
        "b": 0.5,
        "c": 2,
        "d": [8],
        "e": "tanh",
        "f": 3,
    }


@pytest.fixture(params=["{}/shared.log", "sqlite:///{}/shared.db"])
def studies(request, tmp_path):
    """Return a function that opens the same study for a worker."""
    settings, shared = parse_settings(["a=uniform:0:1"]), request.param.format(tmp_path)

    def open_one(worker, storage=shared, question=(("x", 1),)):
        return open_study(storage, "wdjax", tmp_path / worker, settings, dict(question), seed=3)

    return open_one


@pytest.mark.slow
def test_workers_share_the_trials_of_a_study(studies):
    first, second = studies("first"), studies("second")
    asked = first.ask(4, 6, held=[])
    more = second.ask(4, 6, held=[])
    assert [number for number, _ in asked + more] == list(
        range(6)
    )  # none twice, no more than there are to be
    assert len({values["a"] for _, values in asked + more}) == 6  # nor the same values
    assert first.ask(4, 6, held=[number for number, _ in asked]) == []
    assert len(first.ask(4, 8, held=[number for number, _ in asked])) == 2  # a study may grow
    second.report(4, 10, 1.0)
    second.report(4, 20, 2.5)
    second.tell(4, 2.5)
    second.report(5, 10, 1.0)
    second.tell(5, 1.0, pruned=True)
    first.tell(0)
    first.tell(0, 7.0)  # it is over
    second.report(4, 30, 9.0)
    table = first.table()
    assert [row["state"] for row in table] == [
        "fail",
        *["running"] * 3,
        "complete",
        "pruned",
        *["running"] * 2,
    ]
    assert [row["score"] for row in table[4:6]] == [2.5, 1.0]
    assert [row["env_steps"] for row in table[4:6]] == [20, 10]
    assert [Path(row["workdir"]).name for row in table[:6]] == ["first"] * 4 + ["second"] * 2


def test_a_killed_worker_gets_its_trials_again(studies):
    asked = studies("first").ask(3, 8, held=[])
    studies("second").ask(1, 8, held=[])
    again = studies("first")
    assert again.ask(3, 8, held=[]) == asked  # asked for, but in no batch
    assert [number for number, _ in again.ask(3, 8, held=[0, 1])] == [2, 4, 5]


def test_only_one_of_two_workers_gets_the_last_trial(studies, monkeypatch):
    first, second = studies("first"), studies("second")
    assert len(first.ask(3, 3, held=[])) == 3
    real, calls = second.study.get_trials, []

    def too_early(**options):
        calls.append(1)
        # the trials before the other worker asked
        return real(**options)[:2] if len(calls) == 2 else real(**options)

    monkeypatch.setattr(second.study, "get_trials", too_early)
    assert second.ask(3, 3, held=[]) == []
    assert len(first.study.get_trials()) == 4
    assert len(first.table()) == 3
    assert first.study.get_trials()[3].state.name == "FAIL"


def test_a_storage_of_another_question_is_refused(studies, tmp_path):
    studies("first")
    words = refusal(studies, "second", question=(("x", 2),))
    assert words.startswith("x = 2: the study 'wdjax' in")
    assert words.endswith("was started with 1")
    assert "storage = 'nosuch://x': " in refusal(studies, "second", storage="nosuch://x")
    assert "storage = " in refusal(studies, "second", storage=str(tmp_path))


def test_the_error_without_optuna_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert 'a search needs Optuna. Run pip install "wdjax[search]"' in refusal(require_optuna)


# --- whole searches ---


@pytest.mark.slow
def test_the_better_half_continues(whole):
    folder, table = whole
    assert [row["trial"] for row in table] == list(range(4))
    for batch in (range(2), range(2, 4)):
        pruned = [row for row in table if row["trial"] in batch and row["state"] == "pruned"]
        gone_on = [row for row in table if row["trial"] in batch and row["state"] == "complete"]
        assert all(row["env_steps"] == 96 for row in pruned)
        assert all(row["env_steps"] == 192 for row in gone_on)
        early = {
            trial: np.mean([
                row["agent/episode_return"]
                for file in folder.glob("batches/*/rungs/0/*/*/metrics.jsonl")
                for row in read_metrics(file)
                if row["member"] // 2 == trial
            ])
            for trial in batch
        }  # fmt: skip
        assert [row["trial"] for row in gone_on] == [max(early, key=early.get)]
        assert len(pruned) == 1
        assert all(row["score"] == pytest.approx(early[row["trial"]]) for row in pruned)
    assert all(
        1e-3 <= row[RATE] <= 1e-1 and row[GAMMA] in (0.5, 0.9) and row["rollout_length"] == 6
        for row in table
    )
    assert read_table(folder) == table


@pytest.mark.slow
def test_the_bar_reaches_its_end_and_the_trials_are_printed(capsys):
    search(CONFIG, VALUES, trials=2, batch=2, seeds=2, halving=Halving(2, 1), quiet=False)
    said = capsys.readouterr().out
    done, total = re.findall(r"(\d+) of (\d+) env steps", said)[-1]
    assert done == total == str(2 * 2 * 96 + 2 * 96)
    assert re.search(r"trial .* learning_rate .* gamma .* score .* env steps .* state", said)
    assert [line.split()[-2] for line in said.splitlines() if line.startswith("│")] == [
        "complete",
        "pruned",
    ]


@pytest.mark.slow
def test_members_continue_from_their_last_rung(whole):
    """The second rung of a batch begins with the states of the first and ends after 4 updates."""
    folder, table = whole
    best = max((row for row in table if row["state"] == "complete"), key=lambda row: row["score"])
    learner, state = load_run(folder / "best")
    assert int(state.num_updates) == 4
    assert learner.config.policies["agent"].learning_rate == best[RATE]
    rows = read_metrics(folder / "best" / "metrics.jsonl")
    assert [row["updates"] for row in rows] == [2, 4]
    assert (folder / "curves.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("looks", [2, 6])
def test_an_interrupted_search_ends_with_the_same_table(whole, tmp_path, looks):
    again = functools.partial(
        search, CONFIG, VALUES, batch=2, seeds=2, halving=Halving(2, 1), workdir=tmp_path
    )
    stopped = again(trials=2 if looks == 6 else 4, stop=EndsAfter(looks))
    assert any(row["state"] == "running" for row in stopped) == (looks == 2)
    again(trials=4, resume=True)  # a study may grow
    assert (tmp_path / "table.csv").read_bytes() == (whole[0] / "table.csv").read_bytes()


def test_invalid_combinations_fail_and_the_search_continues(tmp_path, monkeypatch):
    """6 replicas and 4 blocks are each valid, but not in combination."""
    trained = []

    def train(running, study, folder, members, *_):
        for member in members:
            study.tell(member.point, 1.0)
        trained.extend(members)
        return []

    monkeypatch.setattr(trials, "train_trials", train)
    monkeypatch.setattr(trials, "conclude", lambda *_: None)
    table = search(
        CONFIG, {"num_envs": [8, 6], "num_blocks": [2, 4]}, trials=12, batch=3, workdir=tmp_path
    )
    together = [row["num_envs"] == 6 and row["num_blocks"] == 4 for row in table]
    assert 0 < sum(together) < 12
    assert [row["state"] == "fail" for row in table] == together
    assert [member.point for member in trained] == [i for i in range(12) if not together[i]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"values": {RATE: [1e-3]}}, "must be several values or a range of at least one field"),
        (
            {"values": {RATE: "log:1e-3:1e-1", "num_env": [4]}},
            "unknown field num_env: did you mean 'num_envs'?",
        ),
        (
            {"values": {GAMMA: "uniform:0.5:1.5"}},
            "policies.agent.gamma = 1.5: must be between 0 and 1",
        ),
        ({"trials": 0}, "trials = 0: must be at least 1"),
        ({"batch": 0}, "batch = 0: must be at least 1"),
        ({"metric": "agent/episode_retrun"}, "did you mean 'agent/episode_return'"),
        (
            {"values": {**VALUES, "stop_at": [{"episodes": 9}]}, "halving": Halving(2, 1)},
            "stop_at = {'episodes': 9.0}: must be omitted with halving",
        ),
    ],
)
def test_bad_searches_are_refused_before_anything_is_written(tmp_path, arguments, words):
    arguments = {"values": VALUES, "trials": 4, "workdir": tmp_path / "search", **arguments}
    assert words in refusal(search, CONFIG, **arguments)
    assert not (tmp_path / "search").exists()


@pytest.mark.slow
def test_two_processes_share_a_journal_file(tmp_path):
    """Two workers train six trials, each trial once, and a table contains all of them."""
    command = [
        sys.executable, "-m", "wdjax.experiments.cli", "sweep", "cartpole_ppo", "--search", "6",
        "--batch", "2",
        "--set", f"{RATE}=log:1e-4:1e-2", "--set", "rollout_length=32", "--set",
        "total_env_steps=1024",
        "--set", "updates_per_chunk=8", "--storage", str(tmp_path / "journal.log"),
    ]  # fmt: skip
    workers = [
        subprocess.Popen(
            [*command, "--workdir", str(tmp_path / name)],
            cwd=ROOT,
            env=quick_environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for worker in workers:
        error = worker.communicate(timeout=600)[1]
        assert worker.returncode == 0, error
    tables = [read_table(tmp_path / name) for name in ("a", "b")]
    table = max(tables, key=lambda table: sum(row["state"] == "complete" for row in table))
    assert [(row["trial"], row["state"]) for row in table] == [(i, "complete") for i in range(6)]
    assert len({row[RATE] for row in table}) == 6
    trained = [
        trial["trial"]
        for file in tmp_path.glob("?/batches/*/batch.json")
        for trial in json.loads(file.read_text())
    ]
    assert sorted(trained) == list(range(6))
