"""Damaged checkpoints and folders: errors, kept files, and resumed runs."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import pickle
import resource
import shutil
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import assert_same_run, numbers, small_config

import wdjax
from wdjax.train import Trainer, load_run, make_learner, plain_config, read_metrics
from wdjax.train.learner.init import abstract_state
from wdjax.train.storage.checkpoint import SIZES, DamagedCheckpointError, open_checkpoints, restore
from wdjax.train.storage.folder import hold_folder
from wdjax.train.storage.metrics_log import MetricsLog
from wdjax.train.storage.orbax_workarounds import silence

pytestmark = pytest.mark.usefixtures("quick_compile", "no_pictures")

KEPT = {"best_metric": "none", "keep_checkpoints": 9}


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def contents(folder):
    return {path: (folder / path).read_bytes() for path in files_of(folder)}


def data_file(checkpoint):
    """Return the largest file, which contains the arrays."""
    return max(
        (path for path in (checkpoint / "state").rglob("d/*")), key=lambda path: path.stat().st_size
    )


@pytest.mark.slow
def test_checkpoint_contains_the_state_of_the_host(whole_run):
    with open_checkpoints(whole_run / "checkpoints", keep=None) as manager:
        host = restore(manager, 4, abstract_state(make_learner(small_config(**KEPT)).setup))[1]
    lines = (whole_run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert host["metrics_size"] == len(b"".join(lines[:4]))
    assert host["config"] == plain_config(small_config(**KEPT))
    assert host["best_score"] is None


@pytest.mark.parametrize("sizes", [pytest.param(True, marks=pytest.mark.slow), False])
def test_truncated_checkpoint_is_renamed_and_the_run_ends_equal(sizes, whole_run, run, capsys):
    for broken in (run / "checkpoints" / "6" / "state").rglob("d/*"):  # some may be unused
        broken.write_bytes(broken.read_bytes()[:100])
    if not sizes:  # as if killed before the sizes were written
        (run / "checkpoints" / "6" / SIZES).unlink()
    before = contents(run / "checkpoints" / "6")
    # also killed during a save
    (run / "checkpoints" / "3.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    with pytest.raises(DamagedCheckpointError, match=r"checkpoints/6 .*damaged"):
        load_run(run)
    assert int(load_run(run, num_updates=4)[1].num_updates) == 4
    Trainer(small_config(**KEPT), run, resume=True).train()
    output = capsys.readouterr()
    text = " ".join(output.out.split())
    assert "Renamed to damaged-6, resuming from 4 updates" in text
    assert not sizes or "has 100 of" in text
    assert output.err == ""
    assert contents(run / "checkpoints" / "damaged-6") == before
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "2",
        "4",
        "6",
        "damaged-6",
    ]
    assert_same_run(whole_run, run)


@pytest.mark.slow
def test_damaged_files_never_give_wrong_numbers(whole_run, tmp_path):
    """With sizes, a missing or shorter file is named. Without, orbax raises or did not need it."""
    original, like = (
        whole_run / "checkpoints" / "6",
        abstract_state(make_learner(small_config(**KEPT)).setup),
    )
    expected = numbers(load_run(whole_run)[1])
    for name in set(files_of(original)) - {SIZES}:
        length = (original / name).stat().st_size
        for sizes, left in ((True, length // 2), (True, None), (False, length // 2), (False, None)):
            copy = shutil.copytree(original, tmp_path / "checkpoints" / "6")
            if left is None:
                (copy / name).unlink()
            else:
                os.truncate(copy / name, left)
            if not sizes:
                (copy / SIZES).unlink()
            with contextlib.ExitStack() as stack:
                manager = stack.enter_context(open_checkpoints(tmp_path / "checkpoints", keep=None))
                if sizes:
                    stack.enter_context(
                        pytest.raises(
                            DamagedCheckpointError, match=f"damaged: {name} (is miss|has)"
                        )
                    )
                else:
                    stack.enter_context(contextlib.suppress(DamagedCheckpointError))
                for a, b in zip(numbers(restore(manager, 6, like)[0]), expected, strict=True):
                    np.testing.assert_array_equal(a, b)
            shutil.rmtree(copy)


def test_nothing_changes_without_a_readable_checkpoint(run):
    for checkpoint in (run / "checkpoints").iterdir():
        os.truncate(data_file(checkpoint), 10)
    before = contents(run)
    with pytest.raises(DamagedCheckpointError, match=r"checkpoints/6 is damaged: .* has 10 of"):
        Trainer(small_config(**KEPT), run, resume=True, quiet=True).train()
    assert contents(run) == before


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("network.hidden_sizes", [4], r"hidden_sizes = \[4\]: .* saved with \[8\]"),
        ("clip", 0.3, r"clip = 0.3: .* 0.2"),
    ],
)
def test_checkpoint_of_another_configuration_raises_even_if_it_fits(
    name, value, message, run, tmp_path
):
    config = small_config(**KEPT, **{f"policies.agent.{name}": value})
    Trainer(config, tmp_path / "other", quiet=True)
    shutil.copytree(run / "checkpoints", tmp_path / "other" / "checkpoints")
    before = contents(tmp_path / "other")
    with pytest.raises(ValueError, match=message):
        load_run(tmp_path / "other")
    with pytest.raises(ValueError, match=message):
        Trainer(config, tmp_path / "other", resume=True, quiet=True).train()
    assert contents(tmp_path / "other") == before


def test_checkpoints_without_config_yaml_are_a_run(run):
    (run / "config.yaml").unlink()
    with pytest.raises(FileExistsError, match="already contains a run"):
        Trainer(small_config(**KEPT), run)
    with pytest.raises(
        FileNotFoundError, match=r"config.yaml is missing. Restore it from a checkpoint"
    ):
        Trainer(small_config(**KEPT), run, resume=True)
    assert not (run / "config.yaml").exists()
    stored = json.loads((run / "checkpoints" / "6" / "host" / "metadata").read_text())["config"]
    (run / "config.yaml").write_text(json.dumps(stored))  # JSON is YAML
    Trainer(small_config(**KEPT), run, resume=True)


@contextlib.contextmanager
def files_of_at_most(size):
    """Limit the size of files, as on a full disk.

    The system returns EFBIG, which Python raises.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            15_000,
            r"could not save a checkpoint in .*/checkpoints \(File too large\)\. "
            r"The checkpoint of 2 updates",
        ),
        (100, r"could not write .*/metrics.jsonl \(File too large\)"),
    ],
)
def test_full_disk_ends_the_run_and_keeps_the_last_checkpoint(
    more, message, whole_run, tmp_path, capfd
):
    """Metrics of three more chunks need less than 15 kB, the description of the arrays 20 kB."""
    config, folder = small_config(**KEPT | {"keep_checkpoints": 1}), tmp_path / "run"
    with contextlib.ExitStack() as stack:

        def fill(trainer, row):
            if row["updates"] == 3:
                while not (folder / "checkpoints" / "2").exists():  # saved in the background
                    time.sleep(0.01)
                stack.enter_context(
                    files_of_at_most((folder / "metrics.jsonl").stat().st_size + more)
                )

        with pytest.raises(OSError, match=message):
            Trainer(config, folder, callbacks=[fill], quiet=True).train()
    assert capfd.readouterr().err == ""
    assert int(load_run(folder)[1].num_updates) == 2
    assert len(read_metrics(folder / "metrics.jsonl")) >= 3
    Trainer(config, folder, resume=True, quiet=True).train()
    assert_same_run(whole_run, folder)
    # no partial checkpoint remains
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["6"]


def test_unwritable_folder_raises(run):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("in the way")
    with pytest.raises(OSError, match=r"checkpoints: must be a writable folder \(File exists\)"):
        Trainer(small_config(**KEPT), run, resume=True, quiet=True).train()


def test_folder_has_one_writer_and_any_number_of_readers(run):
    before = contents(run)
    waiting = Trainer(small_config(**KEPT), run, resume=True, quiet=True)
    with hold_folder(run):
        with pytest.raises(BlockingIOError, match=r"another run is training there\. Wait for it"):
            Trainer(small_config(**KEPT, total_env_steps=9 * 128), run, resume=True)
        with pytest.raises(BlockingIOError, match="another run is training there"):
            waiting.train()
        assert contents(run) == before
        assert int(load_run(run)[1].num_updates) == 6
    waiting.train()


@pytest.mark.slow
def test_folder_is_locked_during_training_only(tmp_path):
    def intrude(trainer, row):
        with pytest.raises(BlockingIOError):
            Trainer(trainer.config, trainer.workdir, resume=True)

    config = small_config(**KEPT, total_env_steps=128)
    Trainer(config, tmp_path / "run", callbacks=[intrude], quiet=True).train()
    Trainer(config, tmp_path / "run", resume=True)


def test_file_systems_without_locks_are_supported(run, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold_folder(run), hold_folder(run):
        pass


def test_reader_retries_if_its_checkpoint_is_deleted(run, monkeypatch):
    """This happens if `wdjax eval` reads a run that is training."""
    from wdjax.train.learner import saved

    (run / "checkpoints" / "6").rename(run / "6")

    def late(manager, step, *arguments):
        if step == 4:
            (run / "6").rename(run / "checkpoints" / "6")
            shutil.rmtree(run / "checkpoints" / "4")
        return restore(manager, step, *arguments)

    monkeypatch.setattr(saved, "restore", late)
    assert int(load_run(run)[1].num_updates) == 6


def test_loading_a_run_writes_nothing(run):
    # as if the run is saving at this moment
    (run / "checkpoints" / "8.orbax-checkpoint-tmp").mkdir()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    load_run(run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.slow
def test_truncated_metrics_warn_and_keep_complete_lines(run, capsys):
    file = run / "metrics.jsonl"
    os.truncate(file, file.stat().st_size - 10)
    Trainer(small_config(**KEPT), run, resume=True).train()
    assert "its last lines are lost" in " ".join(capsys.readouterr().out.split())
    assert [row["updates"] for row in read_metrics(file)] == [1, 2, 3, 4, 5]
    Trainer(small_config(**KEPT, total_env_steps=7 * 128), run, resume=True, quiet=True).train()
    assert [row["updates"] for row in read_metrics(file)] == [1, 2, 3, 4, 5, 7]


def test_metrics_are_truncated_to_a_checkpoint(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3')
    log = MetricsLog(file, size=9)
    assert log.size == 9
    log.write({"a": 4})
    log.close()
    assert read_metrics(file) == [{"a": 1}, {"a": 4}]


def test_no_pickle_is_read_or_written(whole_run, monkeypatch):
    """Loading a pickle could run code of others."""
    root = Path(wdjax.__file__).parent
    sources = [
        path
        for folder in ("", "envs", "train", "experiments")
        for path in (root / folder).glob("**/*.py")
    ]
    assert len(sources) > 50
    for source in sources:
        code = source.read_text(encoding="utf8")
        assert "import pickle" not in code, source
        assert "allow_pickle=True" not in code, source
    for path in whole_run.rglob("*"):
        if path.is_file():
            # the first byte of every pickle since protocol 2
            assert path.read_bytes()[:1] != pickle.dumps(0)[:1], path

    def refuse(*arguments, **named):
        raise AssertionError("a pickle is read")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert int(load_run(whole_run)[1].num_updates) == 6


@pytest.fixture(scope="module")
def best_run(tmp_path_factory):
    """Return (folder, updates of its best state)."""
    folder = tmp_path_factory.mktemp("runs") / "best"
    Trainer(small_config(keep_checkpoints=9), folder, quiet=True).train()
    return folder, int(load_run(folder, best=True)[1].num_updates)


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed", ["before the best one was whole", "before the checkpoint was whole"]
)
def test_kill_between_best_and_regular_checkpoint(killed, best_run, tmp_path):
    whole, best = best_run
    run, lost = (
        Path(shutil.copytree(whole, tmp_path / "run")),
        best if "best" in killed else best - 1,
    )
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.name) > lost:
            shutil.rmtree(checkpoint)
    if "best" in killed:
        shutil.rmtree(run / "best" / str(best))
    trainer = Trainer(small_config(keep_checkpoints=9), run, resume=True, quiet=True)
    trainer.train()
    assert_same_run(whole, run)
    assert [path.name for path in (run / "best").iterdir()] == [str(best)]
    for a, b in zip(
        *(numbers(load_run(folder, best=True)[1]) for folder in (whole, run)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    scores = [row["eval/agent/episode_return"] for row in read_metrics(run / "metrics.jsonl")]
    assert trainer.best_score == max(score for score in scores if score is not None)


@pytest.mark.slow
def test_best_checkpoint_of_a_lost_part_is_kept_if_better(best_run, tmp_path):
    """Without --deterministic a GPU gets other numbers. The score must match the kept state."""
    whole, best = best_run
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.move(run / "best" / str(best), run / "best" / "99")
    trainer = Trainer(small_config(keep_checkpoints=9), run, resume=True, quiet=True)
    trainer.train()
    assert trainer.best_updates == 99


@pytest.mark.slow
def test_best_checkpoint_of_a_lost_part_is_replaced_if_worse(best_run, tmp_path):
    whole, best = best_run
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    moved = Path(shutil.move(run / "best" / str(best), run / "best" / "99"))
    host = json.loads((moved / "host" / "metadata").read_text())
    (moved / "host" / "metadata").write_text(json.dumps(host | {"best_score": 0.5}))
    (moved / SIZES).unlink()  # otherwise it counts as damaged
    for name in (path.name for path in (run / "checkpoints").iterdir() if path.name != "2"):
        shutil.rmtree(run / "checkpoints" / name)
    trainer = Trainer(small_config(keep_checkpoints=9), run, resume=True, quiet=True)
    trainer.train()
    assert [path.name for path in (run / "best").iterdir()] == [str(trainer.best_updates)]
    assert 2 < trainer.best_updates <= 6


def test_only_known_messages_of_threads_are_silenced(monkeypatch):
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    monkeypatch.setattr(logging.getLogger("asyncio"), "filters", [])
    silence.__wrapped__()
    closed, other = (
        types.SimpleNamespace(exc_value=RuntimeError(text), exc_traceback=None, object=None)
        for text in ("Event loop is closed", "something of the user's")
    )
    sys.unraisablehook(closed)
    sys.unraisablehook(other)
    assert heard == [other]
    passed = [
        bool(
            logging.getLogger("asyncio").filter(
                logging.LogRecord("asyncio", 40, "", 0, text, None, None)
            )
        )
        for text in (
            "never retrieved: OCDBT database",
            "never retrieved: /6.orbax-checkpoint-tmp",
            "an error of user code",
        )
    ]
    assert passed == [False, False, True]
