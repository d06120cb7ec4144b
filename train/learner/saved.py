"""What a run has saved, read back: its setup, on one device, and the state of one of its checkpoints."""

import dataclasses
from collections.abc import Collection
from pathlib import Path

from wdjax.train.learner.init import abstract_state
from wdjax.train.learner.setup import make_setup
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import DamagedCheckpointError, open_checkpoints, restore
from wdjax.train.storage.folder import load_run_config


def read_run(
    run_folder: str | Path, best: bool = False, num_updates: int | None = None, trust: Collection[str] = ()
) -> tuple[Setup, TrainState]:
    """Returns what `load_run` does (train/load.py), the setup in place of its learner."""
    config = load_run_config(run_folder, trust)
    config = dataclasses.replace(config, devices=1)  # it may have had more than there are here
    setup = make_setup(config, trust)
    folder = Path(run_folder) / ("best" if best else "checkpoints")
    if not folder.is_dir():
        raise FileNotFoundError(f"no checkpoint in {folder}")
    with open_checkpoints(folder, keep=None) as manager:
        steps = sorted(manager.all_steps())
        if not steps:
            raise FileNotFoundError(f"no checkpoint in {folder}")
        step = steps[-1] if num_updates is None else num_updates
        if step not in steps:
            held = ", ".join(map(str, steps))
            raise FileNotFoundError(f"no checkpoint of {step} updates in {folder}, only of {held} (keep_checkpoints)")
        try:
            return setup, restore(manager, step, abstract_state(setup), config)[0]
        except DamagedCheckpointError:
            manager.reload()
            if num_updates is not None or manager.latest_step() == step:
                raise
    return read_run(run_folder, best, trust=trust)  # the run goes on at this moment, and has cleaned that one away


def split_checkpoint(run: str, default: str = "newest") -> tuple[Path, str]:
    """Returns (folder, checkpoint) of "runs/a@best", "runs/a@120", "runs/a@newest"; without one the default.

    Raises:
        ValueError: where what follows @ is none of these.
    """
    folder, _, own = run.rpartition("@") if "@" in run and not Path(run).exists() else (run, "", "")
    own = own or default
    if own not in ("newest", "best") and not own.isdecimal():
        raise ValueError(f"checkpoint {own!r}: must be newest, best, or a number of updates")
    return Path(folder), own


def read_named(run: str, default: str = "newest", trust: Collection[str] = ()) -> tuple[Setup, TrainState]:
    """Returns what `read_run` does, of a checkpoint named as for `split_checkpoint`."""
    folder, which = split_checkpoint(run, default)
    return read_run(folder, best=which == "best", num_updates=int(which) if which.isdecimal() else None, trust=trust)
