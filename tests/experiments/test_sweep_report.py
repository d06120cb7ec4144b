"""wdjax report of sweeps: records written by hand, and a sweep that is running."""

import fcntl
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from browser import CHROMIUM, DRIVER, browser
from quick import quick_environment

from wdjax.experiments.cli import main
from wdjax.experiments.report.sweeps import of_settings, of_trials, read_record
from wdjax.yaml_reader import read_yaml

ROOT = Path(__file__).resolve().parents[2]
RATE, RETURN = "policies.agent.learning_rate", "agent/episode_return"
CONFIG = {"env": "own:Game", "policies": {"agent": {"trainable": True}}, "num_envs": 2}


def write_sweep(folder, **asked):
    folder.mkdir()
    content = {"config": CONFIG, "metric": RETURN, **asked}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
    return folder


def write_batch(folder, runs, finished=False, **more):
    """Write the records of members: number -> values of the metric, one for each chunk."""
    folder.mkdir(parents=True)
    members = [{"member": number, "seed": 0, "values": {}} for number in runs]
    (folder / "members.json").write_text(json.dumps({"size": len(runs), "members": members}))
    rows = [
        {"member": number, "updates": i + 1, "env_steps": 8 * (i + 1), "bad_numbers": None,
         "episode_length": 3.0, RETURN: value, **more}
        for number, values in runs.items() for i, value in enumerate(values)
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"member": 1, "upd')  # is being written
    if finished:
        (folder / "finished").write_text("")


def a_grid(folder):
    """Return a running grid of three configurations with two seeds, one of which has begun."""
    points = [{"seed": seed, RATE: rate} for rate in (1e-3, 3e-3, 1e-2) for seed in (4, 5)]
    write_sweep(folder, mode="grid", members=points)
    groups = folder / "groups"
    write_batch(groups / "000" / "000", {0: [1.0, 8.0, 2.0], 1: [2.0, None, 4.0]}, finished=True)
    write_batch(groups / "000" / "001", {2: [5.0, 7.0]})
    return folder


def lines_of(section):
    rows = re.findall(r"<tr>(.*?)</tr>", section.body)
    return [re.findall(r">([^<>]*)</t[dh]>", row) for row in rows]


def test_trials_of_a_running_grid(tmp_path):
    record = read_record(a_grid(tmp_path / "grid"))
    section = of_trials(record)
    assert lines_of(section) == [
        ["configuration", "agent.learning_rate", "seeds", "env steps",
         f"final {RETURN}", f"best {RETURN}", "status"],
        ["0", "0.001", "2", "24", "3.00 ± 1.41", "6.00 ± 2.83", "complete"],
        ["1", "0.003", "1 of 2", "16", "7.00", "7.00", "stopped"],  # a shorter run
        ["2", "0.01", "0 of 2", "0", "-", "-", "stopped"],
    ]  # fmt: skip
    assert section.words.startswith("1 complete, 2 stopped. The sweep was stopped: ")
    assert "sample standard deviation" in section.words
    assert section.words.endswith("; the return of a policy is the sum over its agents")
    groups = record.groups()
    assert list(groups) == ["learning_rate 0.001", "learning_rate 0.003"]
    assert [len(runs) for runs in groups.values()] == [2, 1]
    assert ["seeds", "[4, 5]"] in lines_of(of_settings(record))


def test_a_sweep_runs_while_its_folder_is_locked(tmp_path):
    """As `wdjax sweep` locks it; a process that was killed holds no lock."""
    folder = a_grid(tmp_path / "grid")
    with open(folder / "sweep.yaml", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        record = read_record(folder)
        assert [own.status for own in record.trials] == ["complete", "running", "waiting"]
        assert "stopped" not in of_trials(record).words
    assert read_record(folder).trials[1].status == "stopped"


def test_checkpoints_are_not_searched_for_records(tmp_path):
    """They are deleted while a sweep runs."""
    folder = a_grid(tmp_path / "grid")
    write_batch(folder / "groups" / "000" / "000" / "checkpoints" / "12" / "host", {0: [99.0]})
    assert max(map(len, read_record(folder).trials[0].runs)) == 3


def test_long_labels_are_numbers_of_the_table(tmp_path):
    points = [{"seed": 0, RATE: 1e-3, "env_params.a": [i] * 12} for i in range(2)]
    folder = write_sweep(tmp_path / "grid", mode="grid", members=points)
    write_batch(folder / "groups" / "000" / "000", {0: [1.0], 1: [2.0]})
    assert list(read_record(folder).groups()) == ["configuration 1", "configuration 0"]


def test_trials_of_a_search_are_pruned_after_a_rung(tmp_path):
    folder = write_sweep(
        tmp_path / "search", mode="search", seeds=[0, 1], halving={"reduction": 2, "rungs": 1},
        values={RATE: "log:0.001:0.1"},
    )  # fmt: skip
    for batch, trials in enumerate([(0, 1), (2, 3)]):
        place = folder / "batches" / f"{batch:03d}"
        place.mkdir(parents=True)
        content = [{"trial": trial, "values": {RATE: 10**-trial}} for trial in trials]
        (place / "batch.json").write_text(json.dumps(content))
    runs = {0: [1.0], 1: [3.0], 2: [4.0], 3: [6.0]}
    first, second = (folder / "batches" / name / "rungs" for name in ("000", "001"))
    write_batch(first / "0" / "000" / "000", runs, finished=True)
    write_batch(first / "1" / "000" / "000", {2: [7.0], 3: [7.0]}, finished=True)
    write_batch(second / "0" / "000" / "000", {4: [0.0], 5: [0.0], 6: [9.0], 7: [9.0]}, True)
    table = lines_of(of_trials(read_record(folder)))
    assert [(line[0], line[-3], line[-1]) for line in table[1:]] == [
        ("1", "7.00 ± 0.00", "complete"),
        ("3", "9.00 ± 0.00", "stopped"),  # the next rung has not begun
        ("0", "2.00 ± 1.41", "pruned"),
        ("2", "0.00 ± 0.00", "stopped"),
    ]


def test_members_of_a_population_have_their_current_values(tmp_path):
    folder = write_sweep(tmp_path / "pbt", mode="pbt", members=2, values={RATE: "log:0.001:0.1"})
    place = folder / "population" / "000"
    write_batch(place, {0: [1.0, 2.0], 1: [5.0, 6.0]}, **{RATE: 0.01, "parent": None})
    text = (place / "metrics.jsonl").read_text()
    (place / "metrics.jsonl").write_text(text.replace("0.01,", "0.02,", 2))  # of member 0
    record = read_record(folder)
    assert [line[:2] for line in lines_of(of_trials(record))[1:]] == [["1", "0.01"], ["0", "0.02"]]
    assert list(record.groups()) == ["member 1", "member 0"]


def test_a_page_of_a_sweep(tmp_path, capsys):
    folder = a_grid(tmp_path / "<b>")
    main(["report", str(folder)])
    assert capsys.readouterr().out.startswith(f"Wrote {folder}/report.html (")
    page = (folder / "report.html").read_text()
    assert "<b>" not in page.replace("<b></b>", "")
    assert page.count("learning_rate 0.001 (2 seeds)") == page.count("<svg ") == 2
    assert page.count("[reward, sum over its agents]") == 1  # the other panel shows no return
    assert "Best " not in page
    assert "Cross-play" not in page
    file = folder / "groups" / "000" / "001" / "metrics.jsonl"
    file.write_text(file.read_text().replace("7.0", '"7"'))
    with pytest.raises(SystemExit):
        main(["report", str(folder)])
    assert "configuration 1, line 2: agent/episode_return = '7': must" in capsys.readouterr().err


@pytest.mark.parametrize(("changes", "words"), [
    ({"config": {"env": "x", "policies": {"a": 1}}}, "must contain a, a dict"),
    ({"metric": 3}, "must contain metric, a str"),
    ({"members": [{"seed": 0}, 7]}, "must contain seed, a int"),
    ({"members": 3}, "must contain members, a list"),
    ({"mode": "pbt", "members": 10**9, "values": {}}, "must be at least 1 and at most 100000"),
    ({"mode": "search", "halving": [2]}, "must contain halving, a dict"),
    ({"mode": "search"}, "must contain seeds, a list"),
])  # fmt: skip
def test_damaged_records_are_refused(tmp_path, changes, words):
    folder = a_grid(tmp_path / "grid")
    for other in ("batches", "population"):
        (folder / other).symlink_to(folder / "groups")
    asked = read_yaml(folder / "sweep.yaml") | changes
    (folder / "sweep.yaml").write_text(yaml.safe_dump(asked))
    with pytest.raises(ValueError, match=words):
        read_record(folder)


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are missing")
def test_a_sweep_is_reported_while_it_runs(tmp_path):
    """The sweep ends as without reports, and its page then has an episode of the best run."""
    folder = tmp_path / "sweep"
    line = [sys.executable, "-m", "wdjax.experiments.cli", "sweep", "cartpole_ppo", "--seeds", "2"]
    line += ["--policies.all.learning-rate", "1e-3,3e-3,1e-2", "--members-at-once", "2"]
    line += ["--total-env-steps", "200_000", "--updates-per-chunk", "4", "--workdir", str(folder)]
    process = subprocess.Popen([*line, "--resume"], cwd=ROOT, env=quick_environment())
    deadline = time.monotonic() + 300
    while len(list(folder.glob("groups/*/*/metrics.jsonl"))) < 2:  # the second of three batches
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    main(["report", str(folder)])
    early = read_record(folder)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    assert {own.status for own in early.trials} == {"complete", "running", "waiting"}
    assert {own.status for own in read_record(folder).trials} == {"complete", "stopped"}
    again = subprocess.run([*line, "--resume"], cwd=ROOT, env=quick_environment())
    assert again.returncode == 0
    main(["report", str(folder), "--episodes", "4"])
    assert {own.status for own in read_record(folder).trials} == {"complete"}
    assert read_yaml(folder / "sweep.yaml")["mode"] == "grid"
    for dark, width in ((False, 1200), (True, 400)):
        with browser(tmp_path / f"profile{width}", dark=dark, size=(width, 800)) as page:
            page.show(folder / "report.html")
            page.wait_for("return document.querySelectorAll('iframe').length == 1")
            assert page.run("return document.documentElement.scrollWidth") <= width
            assert page.run("return document.querySelectorAll('.panels svg').length") >= 4
            assert page.run("return document.querySelectorAll('table tr').length") > 4
