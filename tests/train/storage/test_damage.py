"""Deleted, edited and blocked files of a run: clear errors and successful resumes."""

import json
import os
import shutil
from pathlib import Path

import pytest
from refusals import refusal
from tiny_runs import assert_same_run, numbers, small_config

from wdjax.train import Trainer, load_run, read_metrics, save_curves
from wdjax.train.storage.checkpoint import SIZES, DamagedCheckpointError
from wdjax.train.storage.folder import hold_folder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compile")]

KEPT = {"keep_checkpoints": 9}


@pytest.fixture(scope="module", autouse=True)
def no_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wdjax.train.trainer.save_episode", lambda *_, **__: Path("episode.gif"))
        yield


def printed(capsys):
    return " ".join(capsys.readouterr().out.split())


def resumed(folder, pictures=False, **options):
    trainer = Trainer(small_config(**KEPT), folder, resume=True, pictures=pictures, **options)
    trainer.train()
    return trainer


def edit_host(checkpoint, content):
    """Write the metadata of a checkpoint, with its sizes as if saved like this."""
    (checkpoint / "host" / "metadata").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    (checkpoint / SIZES).unlink()


def host_of(checkpoint):
    return json.loads((checkpoint / "host" / "metadata").read_text())


# --- metrics.jsonl ---


@pytest.mark.parametrize("replaced", [False, True])
def test_metrics_deleted_during_training_are_rewritten(replaced, whole_run, tmp_path, capsys):
    """All lines, under the lock: another run cannot use the folder."""
    refused = []

    def delete(trainer, row):
        file = trainer.workdir / "metrics.jsonl"
        if row["updates"] == 3:
            file.unlink()
            if replaced:
                file.write_text("something else\n")
        if row["updates"] == 4:
            refused.append(refusal(Trainer, trainer.config, trainer.workdir, resume=True))

    Trainer(small_config(**KEPT), tmp_path / "run", callbacks=[delete], pictures=replaced).train()
    assert "metrics.jsonl was deleted or replaced during training. It is rewritten" in printed(
        capsys
    )
    assert "another run is training there" in refused[0]
    assert_same_run(whole_run, tmp_path / "run")
    assert (tmp_path / "run" / "curves.png").exists() == replaced


def test_metrics_deleted_after_the_last_line_are_rewritten(tmp_path):
    def delete(trainer, row):
        return (trainer.workdir / "metrics.jsonl").unlink()

    config = small_config(**KEPT, total_env_steps=128)
    Trainer(config, tmp_path / "run", callbacks=[delete], pictures=False).train()
    assert [row["updates"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1]


def test_run_ends_if_another_one_took_the_folder(tmp_path):
    locks = []

    def delete(trainer, row):
        if row["updates"] == 3:
            (trainer.workdir / "metrics.jsonl").unlink()
            locks.append(hold_folder(trainer.workdir))
            locks[0].__enter__()

    trainer = Trainer(small_config(**KEPT), tmp_path / "run", callbacks=[delete], quiet=True)
    assert "another run is training there" in refusal(trainer.train)
    locks[0].__exit__(None, None, None)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == b""  # by the other run


def test_finished_run_without_metrics_draws_no_curves(run, capsys):
    (run / "metrics.jsonl").unlink()
    (run / "curves.png").unlink()
    resumed(run, pictures=True)
    output = printed(capsys)
    assert "bytes short: its last lines are lost" in output
    assert f"No curves: {run}/metrics.jsonl is empty" in output
    assert not (run / "curves.png").exists()
    assert save_curves(run) is None


def test_invalid_metrics_lines_raise_and_partial_last_lines_are_dropped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_metrics(file) == [{"a": 1}, {"a": 2}]
    file.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    assert f"{file}, line 2, is not valid JSON" in refusal(read_metrics, file)


# --- checkpoints ---


def test_damaged_best_checkpoint_is_renamed(whole_run, run, capsys):
    newest = max((run / "best").iterdir(), key=lambda path: int(path.name))
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.name) >= int(newest.name):
            shutil.rmtree(checkpoint)
    (newest / "host" / "metadata").write_text("{")
    trainer = resumed(run)
    assert f"Renamed to damaged-{newest.name}" in printed(capsys)
    assert sorted(path.name for path in (run / "best").iterdir()) == sorted(
        [newest.name, f"damaged-{newest.name}"]
    )
    assert trainer.best_updates == int(newest.name)
    assert_same_run(whole_run, run)
    for a, b in zip(
        *(numbers(load_run(folder, best=True)[1]) for folder in (whole_run, run)), strict=True
    ):
        assert (a == b).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("[1, 2]", "host/metadata is not a mapping"),
        ({"metrics_size": None}, "host/metadata contains metrics_size = None"),
        ({"metrics_size": -5}, "host/metadata contains metrics_size = -5"),
        ({"metrics_size": "12"}, "host/metadata contains metrics_size = '12'"),
        ({"best_score": "high"}, "host/metadata contains best_score = 'high'"),
        ({"best_updates": 1.5}, "host/metadata contains best_updates = 1.5"),
        ({"config": 5}, "host/metadata contains config = 5"),
    ],
)
def test_invalid_metadata_is_a_damaged_checkpoint(change, message, whole_run, run, capsys):
    newest = run / "checkpoints" / "6"
    edit_host(newest, change if isinstance(change, str) else host_of(newest) | change)
    resumed(run)
    assert f"checkpoints/6 is damaged: {message}. Renamed to damaged-6, resuming from 4" in printed(
        capsys
    )
    assert_same_run(whole_run, run)


def test_metadata_of_older_versions_may_lack_entries(run):
    newest = run / "checkpoints" / "6"
    edit_host(newest, {"metrics_size": host_of(newest)["metrics_size"]})
    assert resumed(run, quiet=True).best_score is None


@pytest.mark.parametrize("content", ["5", "[1, 2]", '{"d": "long"}', "{"])
def test_invalid_sizes_are_a_damaged_checkpoint(content, whole_run, run, capsys):
    (run / "checkpoints" / "6" / SIZES).write_text(content)
    with pytest.raises(
        DamagedCheckpointError, match=r"checkpoints/6 is damaged: sizes.json (is not|does not)"
    ):
        load_run(run)
    resumed(run)
    assert "Renamed to damaged-6, resuming from 4 updates" in printed(capsys)
    assert_same_run(whole_run, run)


def test_unknown_field_in_a_checkpoint_raises(run):
    newest = run / "checkpoints" / "6"
    host = host_of(newest)
    edit_host(newest, host | {"config": host["config"] | {"num_envz": 8}})
    for message in (refusal(load_run, run), refusal(resumed, run, quiet=True)):
        assert message.startswith(f"checkpoint {run}/checkpoints/6: unknown field num_envz")


def test_error_without_a_readable_checkpoint_names_the_fix(whole_run, run):
    for checkpoint in (run / "checkpoints").iterdir():
        for file in (checkpoint / "state").rglob("d/*"):
            os.truncate(file, 10)
    message = refusal(resumed, run, quiet=True)
    assert message.endswith(
        f"No older one is readable. Move {run}/checkpoints away and use --resume to restart."
    )
    shutil.move(run / "checkpoints", run / "away")
    shutil.rmtree(run / "best")
    resumed(run, quiet=True)
    assert_same_run(whole_run, run)


# --- folders ---


def test_folder_of_a_sweep_is_rejected(tmp_path):
    for sign in ("sweep.yaml", "groups/000/000/members.json"):
        file = tmp_path / sign
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        before = sorted(tmp_path.rglob("*"))
        for resume in (False, True):
            message = refusal(Trainer, small_config(**KEPT), file.parent, resume=resume)
            assert (
                message == f"{file.parent} contains a sweep of wdjax sweep. Use another --workdir."
            )
        assert sorted(tmp_path.rglob("*")) == before
