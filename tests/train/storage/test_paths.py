"""Run folders with unusual names, and links, pipes and devices in them."""

import os
import signal

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import small_config

from wdjax.files import new_file, write_text
from wdjax.train import Trainer, load_run, read_metrics, save_curves
from wdjax.train.storage.checkpoint import open_checkpoints, restore, save
from wdjax.train.storage.orbax_workarounds import LocalPath

pytestmark = pytest.mark.usefixtures("quick_compile", "no_pictures")

KEPT = {"best_metric": "agent/episode_return", "keep_checkpoints": 9}


@pytest.mark.parametrize(
    "name", ["lr=1e-3,seed=[0]", "*?", "file:", "a|b", "%20#{0}", "\n", "ü" * 100]
)
def test_checkpoints_work_in_folders_with_unusual_names(name, tmp_path):
    state = {"a": jnp.arange(3.0), "b": jnp.ones(2)}
    with open_checkpoints(tmp_path / name / "checkpoints", 2) as manager:
        save(manager, 1, state, {"metrics_size": 7})
    with open_checkpoints(tmp_path / name / "checkpoints", None) as manager:
        restored, host = restore(manager, 1, state)
    np.testing.assert_array_equal(restored["a"], state["a"])
    assert host["metrics_size"] == 7


def test_paths_that_look_like_remote_storage_are_local():
    assert str(LocalPath("/s3/bucket") / "run") == "/s3/bucket/run"


@pytest.mark.parametrize("name", ["a\\b", "gs:", "\udcff"])
def test_unsupported_folder_names_raise_before_training(name, tmp_path):
    with pytest.raises(ValueError, match=r"workdir = .*Use another folder"):
        Trainer(small_config(), tmp_path / name / "run", quiet=True)
    assert not list(tmp_path.iterdir())


def test_unreadable_checkpoint_is_not_reported_as_saved(tmp_path, monkeypatch):
    # orbax globs its own paths
    monkeypatch.setattr("wdjax.train.storage.checkpoint.LocalPath", lambda path: path)
    with (
        pytest.raises(OSError, match="could not save a checkpoint"),
        open_checkpoints(tmp_path / "[0]", 1) as manager,
    ):
        save(manager, 1, {"a": jnp.arange(3.0)}, {"metrics_size": 0})


def limited(seconds, function, *arguments):
    """Call a function. Raise TimeoutError if it blocks, as on a pipe or an endless device."""

    def stop(signum, frame):
        raise TimeoutError(f"{function} waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return function(*arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


READ = (
    "config.yaml",
    "metrics.jsonl",
    "checkpoints/6/sizes.json",
    "checkpoints/6/host/metadata",
    "checkpoints/6/state/manifest.ocdbt",
    "checkpoints/6/_CHECKPOINT_METADATA",
)


@pytest.mark.slow
@pytest.mark.parametrize("file", READ)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_in_a_run_folder_are_not_read(kind, file, run):
    (run / file).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / file)
    else:
        (run / file).symlink_to("/dev/zero")

    def read():
        load_run(run)
        read_metrics(run)

    with pytest.raises((ValueError, FileNotFoundError)):
        limited(20, read)


def extend(run):
    Trainer(
        small_config(**KEPT, total_env_steps=7 * 128),
        run,
        resume=True,
        callbacks=["csv"],
        quiet=True,
    ).train()
    save_curves(run)


@pytest.mark.slow
def test_links_are_replaced_and_their_targets_unchanged(run, tmp_path):
    files = ("config.yaml", "metrics.csv", "curves.png")
    for file in files:
        text = (run / file).read_text() if (run / file).exists() else ""
        (tmp_path / file).write_text(text)
        (run / file).unlink(missing_ok=True)
        (run / file).symlink_to(tmp_path / file)
    before = [(tmp_path / file).read_bytes() for file in files]
    extend(run)
    assert [(tmp_path / file).read_bytes() for file in files] == before
    assert not any((run / file).is_symlink() for file in files)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["metrics.jsonl", "checkpoints", "best"])
def test_links_that_cannot_be_replaced_raise(place, run, tmp_path):
    (run / place).rename(tmp_path / "outside")
    (run / place).symlink_to(tmp_path / "outside")
    outside = tmp_path / "outside"

    def sizes_outside():
        return sorted((path, path.stat().st_size) for path in [outside, *outside.rglob("*")])

    before = sizes_outside()
    with pytest.raises(ValueError, match="is a link"):
        extend(run)
    assert sizes_outside() == before


def test_failed_write_keeps_the_old_file(tmp_path):
    write_text(tmp_path / "a", "old")
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "a", "w") as stream:
        stream.write(str(1 / 0))
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "old")]


@pytest.mark.slow
def test_run_folder_may_be_a_link(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    Trainer(small_config(**KEPT), tmp_path / "link", resume=True, quiet=True).train()
    assert int(load_run(tmp_path / "link")[1].num_updates) == 6
