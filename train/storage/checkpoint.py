"""Checkpoints (orbax): the whole TrainState, and beside it what the host needs to go on. No pickle."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from wdjax.checks import one_line
from wdjax.train.config.schema import TrainConfig
from wdjax.train.state.registry import read_config
from wdjax.train.state.state import TrainState
from wdjax.train.storage.folder import partial_file, require_same_run, write_whole, writing
from wdjax.train.storage.orbax_noise import silence

SIZES = "sizes.json"  # in the folder of a checkpoint: file -> bytes


class DamagedCheckpointError(ValueError):
    """A checkpoint that was whole once cannot be read."""


@contextlib.contextmanager
def open_checkpoints(folder: Path, keep: int | None) -> Iterator[ocp.CheckpointManager]:
    """Gives a manager of a folder that keeps the `keep` newest checkpoints; at the end waits for the last save.

    Args:
        keep: None: only to read; nothing in the folder is touched.

    Raises:
        OSError: where the folder cannot be made, or the last checkpoint could not be saved.
    """
    silence()
    # Several processes wait for each other by names, which two managers that save at once must not share.
    names = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=folder.name)
    if keep is None:
        options = ocp.CheckpointManagerOptions(read_only=True, multiprocessing_options=names)
    else:  # temporary folders are what a run left that was killed while it saved
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, cleanup_tmp_directories=True, multiprocessing_options=names
        )
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    manager = ocp.CheckpointManager(folder.absolute(), options=options, item_names=("state", "host"))
    try:
        yield manager
    except BaseException:
        with contextlib.suppress(Exception):  # what is under way already says more than what closing would
            manager.close()
        raise
    with saving(manager):
        manager.close()
        if keep is not None:
            write_sizes(manager)


def save(manager: ocp.CheckpointManager, step: int, state: TrainState, host: dict[str, Any]) -> None:
    """Starts to save a state under the number of its updates, in the background; nothing where it is there already.

    Args:
        host: what JSON holds: the place in metrics.jsonl, the best score, the configuration.

    Raises:
        OSError: where this checkpoint or the one before could not be saved.
    """
    if step in manager.all_steps():
        return
    finish(manager)
    with saving(manager):
        # The trainer donates the state to its next chunk, and on the CPU orbax reads the very buffers: hand it a copy.
        state = _copy(state)
        manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(host)))


@jax.jit
def _copy(state: TrainState) -> TrainState:
    return jax.tree.map(jnp.copy, state)


def delete_newer(manager: ocp.CheckpointManager, step: int) -> None:
    """Deletes the checkpoints of more updates: orbax saves none before them. Raises OSError where it cannot."""
    with saving(manager):
        for other in manager.all_steps():
            if other > step:
                manager.delete(other)


def require_saved(manager: ocp.CheckpointManager) -> None:
    """Raises OSError where a save that ended in the background has failed."""
    with saving(manager):
        manager.check_for_errors()


def finish(manager: ocp.CheckpointManager) -> None:
    """Waits for a save in the background. Raises OSError where it fails."""
    with saving(manager):
        manager.wait_until_finished()
        write_sizes(manager)


@contextlib.contextmanager
def saving(manager: ocp.CheckpointManager) -> Iterator[None]:
    """Makes of whatever goes wrong while a checkpoint is saved one sentence, an OSError."""
    try:
        yield
    except Exception as error:  # orbax raises what its threads and tensorstore do: of any type
        whole = [int(path.name) for path in Path(manager.directory).glob("*") if path.name.isdecimal()]
        good = max(whole, default=None)
        rest = "there is none yet" if good is None else f"the one of {good} updates is whole, --resume goes on from it"
        raise OSError(f"could not save a checkpoint in {manager.directory} ({reason(error)}): {rest}") from error


def reason(error: BaseException) -> str:
    """Returns what an error of orbax or tensorstore says, short: the deepest cause that has words."""
    while error.__cause__ is not None and str(error.__cause__):
        error = error.__cause__
    words = one_line(error)
    if number := getattr(error, "errno", None) or re.search(r"os_error_code='(\d+)'", words):
        return os.strerror(number if isinstance(number, int) else int(number[1]))
    return words if len(words) <= 200 else f"{words[:200]} ..."


def restore(
    manager: ocp.CheckpointManager, step: int, like: TrainState, config: TrainConfig | None = None
) -> tuple[TrainState, dict[str, Any]]:
    """Returns (state, host) of a checkpoint.

    Args:
        like: a state of the same run, or its shapes (`jax.eval_shape`); what has no sharding goes to the first device.
        config: that the run in the checkpoint must have.

    Raises:
        ValueError: where the checkpoint belongs to a run of another configuration.
        DamagedCheckpointError: where it cannot be read.
    """
    name = f"checkpoint {manager.directory}/{step}"
    require_sizes(Path(manager.directory) / str(step), name)
    host = _read(manager, step, name, host=ocp.args.JsonRestore())["host"]
    if config is not None and "config" in host:
        begun = read_config(host["config"])
        require_same_run(begun, config, f"{name} does not fit this configuration, it was saved with")
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def with_place(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or first)

    target = jax.tree.map(with_place, like)
    stored = as_stored(Path(manager.directory) / str(step), target, name)
    found = _read(manager, step, name, state=ocp.args.StandardRestore(stored))["state"]
    leaves = by_place(found)
    return jax.tree.unflatten(jax.tree.structure(target), [leaves[place] for place in by_place(target)]), host


def as_stored(folder: Path, target: TrainState, name: str) -> Any:
    """Returns the leaves of a state in the tree that a checkpoint has: orbax also keeps where there was nothing (None),
    which another version of wdjax may not know, or have more of.

    Raises:
        DamagedCheckpointError: where the checkpoint has other leaves.
    """
    try:
        tree = ocp.PyTreeCheckpointHandler().metadata(folder / "state").tree
    except Exception as error:  # of any type, as above
        raise DamagedCheckpointError(f"{name} is damaged: {reason(error)}") from error
    own, held = by_place(target), by_place(tree)
    if own.keys() != held.keys():
        other = sorted(own.keys() ^ held.keys())
        words = f"{other[0]} {'is missing' if other[0] in own else 'is there'} ({len(other)} differences)"
        raise DamagedCheckpointError(f"{name} does not fit this configuration, or is damaged: {words}")
    return jax.tree.unflatten(jax.tree.structure(tree), [own[place] for place in held])


def by_place(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by their places in it, "policies/runner/params/policy_head/bias"."""
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in
            jax.tree_util.tree_leaves_with_path(tree)}  # fmt: skip


def read_host(manager: ocp.CheckpointManager) -> dict[str, Any]:
    """Returns what the host needs to go on from the newest checkpoint; raises DamagedCheckpointError."""
    step = manager.latest_step()
    return _read(manager, step, f"checkpoint {manager.directory}/{step}", host=ocp.args.JsonRestore())["host"]


def _read(manager: ocp.CheckpointManager, step: int, name: str, **items: Any) -> Any:
    try:
        return manager.restore(step, args=ocp.args.Composite(**items))
    except Exception as error:  # orbax raises what its threads and tensorstore do: of any type
        words = f"{name} does not fit this configuration, or is damaged: {reason(error)}"
        raise DamagedCheckpointError(words) from error


def restore_newest(
    manager: ocp.CheckpointManager, like: TrainState, config: TrainConfig, say: Callable[[str], Any]
) -> tuple[TrainState, dict[str, Any]] | None:
    """Returns (state, host) of the newest checkpoint that can be read, or None where there is no checkpoint.

    Newer ones that are damaged are set aside, for the run will come to their updates again; nothing is deleted.

    Args:
        say: told what was set aside, in a sentence.

    Raises:
        ValueError: where the newest belongs to a run of another configuration, or none can be read.
    """
    damaged: dict[int, DamagedCheckpointError] = {}
    for step in sorted(manager.all_steps(), reverse=True):
        try:
            found = restore(manager, step, like, config)
        except DamagedCheckpointError as error:
            damaged[step] = error
            continue
        for other, error in damaged.items():
            say(f"Mind: {error}; kept as {set_aside(manager, other).name}, going on from {step} updates instead")
        return found
    if damaged:
        raise next(iter(damaged.values()))
    return None


def set_aside(manager: ocp.CheckpointManager, step: int) -> Path:
    """Renames a checkpoint such that it counts as one no more. Returns its new path."""
    folder = Path(manager.directory)
    free = next(path for i in range(10_000) if not (path := folder / f"damaged-{step}{f'-{i}' if i else ''}").exists())
    if jax.process_index() == 0:
        (folder / str(step)).rename(free)
    multihost_utils.sync_global_devices(free.name)  # of several processes none looks before it is done
    manager.reload()
    return free


def write_sizes(manager: ocp.CheckpointManager) -> None:
    """Notes in every whole checkpoint how long its files are, so that a truncated one is found before it is read."""
    if jax.process_index() != 0:
        return
    for step in manager.all_steps():
        folder = Path(manager.directory) / str(step)
        if folder.is_dir() and not (folder / SIZES).exists():
            write_whole(folder / SIZES, json.dumps(_sizes(folder)))


def require_sizes(folder: Path, name: str) -> None:
    """Raises DamagedCheckpointError where a file of a checkpoint is missing or not as long as it was."""
    file = folder / SIZES
    if not file.exists():
        return  # the run was killed before it came to note them: orbax finds out by itself, in more words
    try:
        expected = dict(json.loads(file.read_text(encoding="utf8")))
    except ValueError as error:
        raise DamagedCheckpointError(f"{name} is damaged: {SIZES} holds no JSON") from error
    found = _sizes(folder)
    for path, size in expected.items():
        if found.get(path) != size:
            holds = "is missing" if path not in found else f"holds {found[path]:,} of {size:,} bytes"
            raise DamagedCheckpointError(f"{name} is damaged: {path} {holds}")


def _sizes(folder: Path) -> dict[str, int]:
    own = (folder / SIZES, partial_file(folder / SIZES))
    files = (path for path in folder.rglob("*") if path.is_file() and path not in own)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}
