"""No command on an existing run reduces its progress."""

import dataclasses
import shutil

import numpy as np
import pytest
from tiny_runs import numbers, small_config

from wdjax.train import Trainer, load_config, load_run, read_metrics
from wdjax.train.storage.checkpoint import DamagedCheckpointError, open_checkpoints, save

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compile")]


def contents(folder):
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"total_env_steps": 4 * 128},
        {"total_env_steps": 1},
        {"total_env_steps": 3 * 128, "updates_per_chunk": 0},
        {"total_env_steps": 3 * 128, "keep_checkpoints": 1, "checkpoint_every_updates": 1},
        {"total_env_steps": 3 * 128, "stop_at": {"episode_length": 1}},
        {"total_env_steps": 3 * 128, "stop_at": {"episode_length": 1_000}},
    ],
)
def test_resuming_below_the_progress_changes_nothing(changes, run, capsys):
    shorter, before, state = small_config(**changes), contents(run), load_run(run)[1]
    trainer = Trainer(
        shorter, run, resume=True, callbacks=[lambda *_: pytest.fail("an update is reported")]
    )
    for a, b in zip(numbers(trainer.train()), numbers(state), strict=True):
        np.testing.assert_array_equal(a, b)
    total = shorter.num_updates * 128
    assert f"run already has 768 of {total} env steps: nothing to do" in " ".join(
        capsys.readouterr().out.split()
    )
    assert not trainer.stopped
    assert contents(run) == before
    longer = Trainer(small_config(total_env_steps=8 * 128), run, resume=True, quiet=True)
    assert int(longer.train().num_updates) == 8
    assert [row["updates"] for row in read_metrics(run)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert int(load_run(run)[1].num_updates) == 8


def test_resuming_below_the_progress_keeps_rows_after_the_newest_checkpoint(run):
    """A run killed during an extension has rows without a checkpoint."""
    Trainer(small_config(total_env_steps=8 * 128), run, resume=True, quiet=True).train()
    shutil.rmtree(run / "checkpoints" / "8")
    shutil.rmtree(run / "checkpoints" / "6")
    shutil.copytree(run / "best", run / "checkpoints", dirs_exist_ok=True)
    newest = max(int(path.name) for path in (run / "checkpoints").iterdir())
    assert newest < 8
    before = contents(run)
    for updates in range(1, newest + 1):
        Trainer(small_config(total_env_steps=updates * 128), run, resume=True, quiet=True).train()
    assert contents(run) == before
    assert load_config(run / "config.yaml").total_env_steps == 8 * 128


def test_creating_a_trainer_changes_nothing(run):
    before = contents(run)
    Trainer(small_config(total_env_steps=10**6), run, resume=True, quiet=True)
    assert contents(run) == before


def test_resuming_a_finished_run_changes_nothing(run):
    before = contents(run)
    for steps in (6 * 128, 6 * 128 - 1):
        Trainer(
            small_config(total_env_steps=steps, keep_checkpoints=1), run, resume=True, quiet=True
        ).train()
    assert contents(run) == before


def test_saving_a_checkpoint_older_than_the_newest_raises(run):
    _, state = load_run(run)
    with open_checkpoints(run / "checkpoints", 2) as checkpoints:
        with pytest.raises(
            OSError,
            match=r"cannot save a checkpoint of 3 updates: a newer one exists, of 6 updates",
        ):
            save(checkpoints, 3, state, {"metrics_size": 0})
        save(checkpoints, 6, state, {"metrics_size": 0})  # exists already
    assert (run / "checkpoints" / "6").exists()


def test_checkpoint_with_an_older_state_is_damaged(run, capsys):
    """wdjax 0.2.0 wrote such checkpoints when it resumed a run below its progress."""
    _, state = load_run(run)
    with open_checkpoints(run / "checkpoints", 2) as checkpoints:
        save(checkpoints, 4101, state, {"metrics_size": 10**9})
    with pytest.raises(
        DamagedCheckpointError, match="checkpoints/4101 is damaged: it contains the state after 6"
    ):
        load_run(run)
    longer = dataclasses.replace(small_config(), total_env_steps=8 * 128)
    assert int(Trainer(longer, run, resume=True).train().num_updates) == 8
    assert "Renamed to damaged-4101, resuming from 6 updates" in " ".join(
        capsys.readouterr().out.split()
    )
    assert int(load_run(run)[1].num_updates) == 8
