"""Sweeps with damaged checkpoints, lost lines and edited files."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from probes import tiny_config, tiny_policy
from refusals import refusal
from stopping import EndsAfter

from wdjax.experiments.sweep import evolve, read_table, sweep
from wdjax.train import Trainer, read_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("quick_compile", "registered_probes", "compiled_once"),
]

CONFIG = tiny_config(
    "probe_signal", {"agent": tiny_policy("A2C")}, total_env_steps=4 * 48, updates_per_chunk=1,
    checkpoint_every=1,
    env_params={"constant": 1.0, "by_match": 0.5, "episode_length": 4, "time_limit": True},
)  # fmt: skip
RATE = "policies.agent.learning_rate"
VALUES = {RATE: [1e-2, 3e-2]}


def grid(folder, config=CONFIG, **options):
    return sweep(config, VALUES, seeds=4, workdir=folder, members_at_once=4, **options)


def population(folder, **options):
    return evolve(CONFIG, {RATE: [3e-3, 1e-2, 3e-2]}, 4, workdir=folder, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of a sweep in two batches, four chunks each."""
    folder = tmp_path_factory.mktemp("sweeps") / "whole"
    grid(folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return the folder of the same sweep, stopped in its second batch after three chunks."""
    folder = tmp_path_factory.mktemp("sweeps") / "stopped"
    grid(folder, stop=EndsAfter(7))
    return folder


@pytest.fixture
def begun(stopped, tmp_path):
    """Return a copy of the stopped sweep."""
    return Path(shutil.copytree(stopped, tmp_path / "begun"))


def cut(checkpoint):
    for file in (checkpoint / "state").rglob("d/*"):
        os.truncate(file, 10)


def words_of(capsys):
    return " ".join(capsys.readouterr().out.split())


def assert_same(folder, other):
    for name in (
        "table.csv",
        "table.jsonl",
        *(f"groups/000/00{turn}/metrics.jsonl" for turn in range(2)),
    ):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize(
    ("turn", "newest"), [("001", 3), ("000", 4)], ids=["in the middle", "finished"]
)
def test_a_truncated_checkpoint_is_renamed_and_the_table_is_the_same(
    turn, newest, whole, begun, capsys
):
    checkpoints = begun / "groups" / "000" / turn / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == [str(newest - 1), str(newest)]
    cut(checkpoints / str(newest))
    grid(begun, resume=True, quiet=False)
    assert f"Renamed to damaged-{newest}, resuming from {newest - 1} updates" in words_of(capsys)
    assert (checkpoints / f"damaged-{newest}").is_dir()
    assert_same(begun, whole)


@pytest.mark.parametrize("turn", ["001", "000"], ids=["in the middle", "finished"])
def test_the_error_without_a_readable_checkpoint_names_the_folder(turn, whole, begun):
    checkpoints = begun / "groups" / "000" / turn / "checkpoints"
    for checkpoint in checkpoints.iterdir():
        cut(checkpoint)
    for _ in range(2):
        words = refusal(grid, begun, resume=True)
        assert f"checkpoint {checkpoints}/" in words
        assert words.endswith(
            f"No older one is readable. Move {checkpoints} away and use --resume to restart."
        )
    shutil.rmtree(checkpoints)
    grid(begun, resume=True)
    assert_same(begun, whole)


def test_an_incomplete_line_is_removed_with_a_warning(whole, begun, capsys):
    """A line after the newest checkpoint is written again; one before it is lost."""
    for turn, lost in (("000", 20), ("001", 0)):
        file = begun / "groups" / "000" / turn / "metrics.jsonl"
        if lost:
            os.truncate(file, file.stat().st_size - lost)
        else:
            file.write_bytes(file.read_bytes() + b'{"member": 4, "upd')
    grid(begun, resume=True, quiet=False)
    words = words_of(capsys)
    assert "groups/000/000/metrics.jsonl is" in words
    assert "bytes short: its last lines are lost" in words
    assert "groups/000/001/metrics.jsonl is" not in words
    files = [begun / "groups" / "000" / turn / "metrics.jsonl" for turn in ("000", "001")]
    assert [len(file.read_text().splitlines()) for file in files] == [15, 16]
    assert files[1].read_bytes() == (whole / "groups/000/001/metrics.jsonl").read_bytes()
    assert len(read_table(begun)) == 8


def test_deleted_metrics_are_reported(begun, capsys):
    """One batch has ended, the other one has an update to do."""
    files = [begun / "groups" / "000" / turn / "metrics.jsonl" for turn in ("000", "001")]
    for file in files:
        file.unlink()
    grid(begun, resume=True, quiet=False)
    words = words_of(capsys)
    for turn in ("000", "001"):
        assert f"groups/000/{turn}/metrics.jsonl is" in words
    assert sum(len(read_metrics(file)) for file in files if file.exists()) == 4


def test_metrics_deleted_during_training_are_rewritten(whole, tmp_path, capsys):
    class Deletes(threading.Event):
        def is_set(self):
            file = tmp_path / "sweep" / "groups/000/000/metrics.jsonl"
            if file.exists() and len(read_metrics(file)) == 8:
                file.unlink()
            return False

    grid(tmp_path / "sweep", stop=Deletes(), quiet=False)
    assert "metrics.jsonl was deleted or replaced during training. It is rewritten" in words_of(
        capsys
    )
    assert_same(tmp_path / "sweep", whole)


def test_a_population_with_lost_lines_resumes(tmp_path, capsys):
    population(tmp_path, stop=EndsAfter(2))
    file = tmp_path / "population" / "000" / "metrics.jsonl"
    os.truncate(file, file.stat().st_size - 10)  # a line of the last chunk
    population(tmp_path, resume=True, quiet=False)
    assert "bytes short" in words_of(capsys)
    assert [(row["updates"], row["member"]) for row in read_metrics(file)] == [
        (k, i) for k in range(1, 5) for i in range(4) if (k, i) != (2, 3)
    ]


@pytest.mark.parametrize("name", ["size.json", "001/members.json"])
def test_invalid_json_is_reported_with_its_file(name, begun):
    file = begun / "groups" / "000" / name
    file.write_text('{"size": 4')
    assert refusal(grid, begun, resume=True).startswith(f"{file} is not valid JSON")


@pytest.mark.parametrize("place", ["groups", "groups/000/001"])
def test_a_sweep_does_not_write_through_links(place, begun, tmp_path):
    outside = tmp_path / "outside"
    shutil.move(begun / place, outside)
    (begun / place).symlink_to(outside)
    before = {path: path.stat().st_mtime_ns for path in outside.rglob("*")}
    assert "link" in refusal(grid, begun, resume=True)
    assert {path: path.stat().st_mtime_ns for path in outside.rglob("*")} == before


def test_a_batch_of_other_members_is_refused(begun):
    file = begun / "groups" / "000" / "001" / "members.json"
    content = json.loads(file.read_text())
    content["members"][0]["member"] = 9
    file.write_text(json.dumps(content))
    assert f"{file} lists different members than this population" in refusal(
        grid, begun, resume=True
    )


@pytest.mark.parametrize("rule", ["stop", "skip"])
def test_members_with_bad_numbers_are_reported_during_training(rule, tmp_path, capsys):
    config = CONFIG.__class__(**{**vars(CONFIG), "on_bad_numbers": rule})
    sweep(config, {RATE: [1e-2, 1e38]}, seeds=2, workdir=tmp_path, quiet=False)
    words = words_of(capsys)
    if rule == "stop":
        assert (
            words.count("Member 2 ended (and 1 other members): non-finite losses of policy 'agent'")
            == 1
        )
    else:
        assert (
            "Warning: skipped 1 of 1 updates of member 2 (and 1 other members). First: "
            "non-finite losses" in words
        )


def test_a_run_in_the_folder_of_a_sweep_is_refused(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    for resume in (False, True):
        words = refusal(Trainer, CONFIG, whole, resume=resume)
        assert words == f"{whole} contains a sweep of wdjax sweep. Use another --workdir."
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
