"""Saved runs: setup, on one device, and state of a checkpoint; and bundled runs."""

import dataclasses
import functools
from collections.abc import Collection
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require, require_known
from wdjax.files import new_file
from wdjax.train.learner.init import abstract_state, init
from wdjax.train.learner.setup import make_setup
from wdjax.train.learner.validate import validate
from wdjax.train.rollout.opponents import acting_state
from wdjax.train.rollout.pool import REFERENCE
from wdjax.train.state.policy import Setup
from wdjax.train.state.registry import read_config
from wdjax.train.state.sharding import one_copy
from wdjax.train.state.state import PolicyState, TrainState
from wdjax.train.storage.checkpoint import DamagedCheckpointError, open_checkpoints, restore
from wdjax.train.storage.folder import load_run_config, read_made_with
from wdjax.train.storage.leaves import by_place
from wdjax.train.storage.switches import KEYS, require_same_switches
from wdjax.yaml_reader import read_yaml

LEARNING_TABLE = Path(__file__).parents[2] / "experiments" / "reference"


def read_run(
    run: str | Path, default: str = "newest", trust: Collection[str] = ()
) -> tuple[Setup, TrainState]:
    """Return (setup, state) of a saved or bundled run.

    Args:
        run: folder, with or without a checkpoint (`split_checkpoint`).
        default: checkpoint if `run` names none.
        trust: as for `load_run` (train/load.py).
    """
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        raise RuntimeError(
            f"run = {str(run)!r}: must not be loaded while jax traces a function, such as "
            "Algorithm.begin. Load it before, or under jax.ensure_compile_time_eval()."
        )
    folder, checkpoint = split_checkpoint(str(run), default)
    num_updates = int(checkpoint) if checkpoint.isdecimal() else None
    if str(folder).startswith(REFERENCE):
        require(
            num_updates is None,
            f"checkpoint of {folder}",
            num_updates,
            "omitted: a bundled run has one state",
        )
        return read_reference(str(folder).removeprefix(REFERENCE))
    config = load_run_config(folder, trust)
    config = dataclasses.replace(config, devices=1)  # the run may have had more devices
    require_same_switches(read_made_with(folder), f"the run in {folder}", [KEYS])
    setup = make_setup(config, trust)
    best = checkpoint == "best"
    folder = folder / ("best" if best else "checkpoints")
    if not folder.is_dir():
        why = f": best_metric = {config.best_metric} selects none in this run. Name a metric."
        none = best and config.best_by is None  # auto with several policies
        raise FileNotFoundError(f"no checkpoint in {folder}{why if none else ''}")
    with open_checkpoints(folder, keep=None) as manager:
        steps = sorted(manager.all_steps())
        if not steps:
            raise FileNotFoundError(f"no checkpoint in {folder}")
        step = steps[-1] if num_updates is None else num_updates
        if step not in steps:
            raise FileNotFoundError(
                f"no checkpoint of {step} updates in {folder}. "
                f"Available: {', '.join(map(str, steps))} (see keep_checkpoints)."
            )
        try:
            return setup, restore(manager, step, abstract_state(setup), config)[0]
        except DamagedCheckpointError:
            manager.reload()
            if num_updates is not None or manager.latest_step() == step:
                raise
    # the run is training, and has deleted this checkpoint
    return read_run(run, default, trust)


def split_checkpoint(run: str, default: str = "newest") -> tuple[Path, str]:
    """Return (folder, checkpoint) of "runs/a@best", "runs/a@120" or "runs/a@newest".

    Args:
        run: folder, with or without a checkpoint.
        default: checkpoint if `run` names none.

    Raises:
        ValueError: for another text after @.
    """
    folder, _, own = run.rpartition("@") if "@" in run and not Path(run).exists() else (run, "", "")
    own = own or default
    if own not in ("newest", "best") and not own.isdecimal():
        raise ValueError(f"checkpoint {own!r}: must be newest, best, or a number of updates")
    return Path(folder), own


def list_references() -> list[str]:
    """Return the names of the bundled runs, sorted; `load_run("reference:NAME")` loads one."""
    return sorted(path.stem for path in LEARNING_TABLE.glob("policies/*.npz"))


def read_reference(row: str) -> tuple[Setup, TrainState]:
    """Return (setup, state) of a bundled run: a new state with learned parameters.

    Args:
        row: name of the run, a row of the table of learning results.

    Raises:
        ValueError: for an unknown run, with the closest name.
    """
    require_known("reference", row, list_references())
    config = read_config(read_yaml(LEARNING_TABLE / "results" / f"{row}.yaml")["config"])
    config = dataclasses.replace(config, devices=1)
    validate(config)
    setup = make_setup(config)
    state = jax.jit(functools.partial(init, setup))(jax.random.key(config.seed))
    learned = _learned(state)
    with np.load(LEARNING_TABLE / "policies" / f"{row}.npz") as file:
        leaves = [jnp.asarray(file[place]) for place in by_place(learned)]
    learned = jax.tree.unflatten(jax.tree.structure(learned), leaves)
    policies = {
        name: own.replace(params=learned[name].params, normalizer=learned[name].normalizer)
        for name, own in state.policies.items()
    }
    return setup, state.replace(policies=policies)


def save_learned(path: Path, state: TrainState) -> None:
    """Write the acting states of all policies for `read_reference`, as arrays by path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as file:
        np.savez_compressed(file, **jax.device_get(by_place(_learned(state))))


def _learned(state: TrainState) -> dict[str, PolicyState]:
    return {
        name: acting_state(one_copy(own)).replace(gradient_steps=None)
        for name, own in state.policies.items()
    }
