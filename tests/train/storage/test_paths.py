"""Run folders with hostile but legal names, and files in a run folder that lead elsewhere."""

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import small_config

from wdjax.train import Trainer
from wdjax.train.storage.checkpoint import open_checkpoints, restore, save
from wdjax.train.storage.orbax_noise import LocalPath


@pytest.mark.parametrize("name", ["lr=1e-3,seed=[0]", "*?", "file:", "a|b", "%20#{0}", "\n", "ü" * 100])
def test_checkpoints_are_read_from_folders_of_any_name(name, tmp_path):
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
def test_folders_that_checkpoints_cannot_be_read_from_are_refused_before_training(name, tmp_path):
    with pytest.raises(ValueError, match=r"workdir = .*Use another folder"):
        Trainer(small_config(), tmp_path / name / "run", quiet=True)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_cannot_be_read_back_is_not_reported_as_saved(tmp_path, monkeypatch):
    monkeypatch.setattr("wdjax.train.storage.checkpoint.LocalPath", lambda path: path)  # orbax globs its own paths
    with pytest.raises(OSError, match="could not save a checkpoint"), open_checkpoints(tmp_path / "[0]", 1) as manager:
        save(manager, 1, {"a": jnp.arange(3.0)}, {"metrics_size": 0})
