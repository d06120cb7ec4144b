"""Checkpoints, written with orbax: the TrainState, and JSON data of the host. No pickle."""

import contextlib
import errno
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from wdjax.files import make_folder_inside, write_text
from wdjax.train.config.schema import TrainConfig
from wdjax.train.config.trust import require_trusted, with_own
from wdjax.train.devices.memory import give_back_memory
from wdjax.train.state.aliases import PyTree
from wdjax.train.state.registry import read_config
from wdjax.train.state.state import TrainState
from wdjax.train.storage.damage import (
    SIZES,
    DamagedCheckpointError,
    file_sizes,
    reason,
    require_regular_files,
    require_sizes,
)
from wdjax.train.storage.folder import (
    require_checkpoint_path,
    require_same_run,
    writing,
)
from wdjax.train.storage.leaves import as_state, as_stored
from wdjax.train.storage.metrics_log import MetricsLog
from wdjax.train.storage.orbax_workarounds import LocalPath, silence, stop_leaks

# One save begins at a time: orbax counts them in a variable of the process.
_BEGINNING = threading.Lock()
# open file descriptors of the folders of managers
_FOLDERS: weakref.WeakKeyDictionary[ocp.CheckpointManager, int] = weakref.WeakKeyDictionary()
# managers with a checkpoint that has been read back
_READ_BACK: weakref.WeakSet[ocp.CheckpointManager] = weakref.WeakSet()


class HostData(TypedDict, total=False):
    """Content of a checkpoint besides the state."""

    metrics_size: int  # bytes of metrics.jsonl
    best_score: float | None
    best_updates: int | None  # updates of the best state
    config: dict[str, Any]


# values of missing fields; a missing metrics_size is an error
_DEFAULTS: dict[str, Any] = {
    "metrics_size": None,
    "best_score": None,
    "best_updates": None,
    "config": {},
}
_VALID: dict[str, Callable[[Any], bool]] = {
    "metrics_size": lambda size: type(size) is int and size >= 0,
    "best_score": lambda score: score is None or type(score) in (int, float),
    "best_updates": lambda updates: updates is None or type(updates) is int,
    "config": lambda config: isinstance(config, Mapping),
}


@contextlib.contextmanager
def open_checkpoints(folder: Path, keep: int | None) -> Iterator[ocp.CheckpointManager]:
    """Open the checkpoints of a folder; at the end, wait for the last save.

    Args:
        folder: folder of the checkpoints; created if missing.
        keep: number of newest checkpoints to keep; None: read only, and change nothing.

    Raises:
        OSError: if the folder cannot be created, or the last checkpoint could not be saved.
        ValueError: if checkpoints in the folder could not be read back, or it contains a pipe, a
            device or a link to a folder.
    """
    require_checkpoint_path(folder)
    require_regular_files(folder)
    silence()
    stop_leaks()
    # Processes wait for each other by names, which must differ between managers that save at once.
    names = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=folder.name)
    if keep is None:
        options = ocp.CheckpointManagerOptions(read_only=True, multiprocessing_options=names)
    else:  # temporary folders come from runs that were killed during a save
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, cleanup_tmp_directories=True, multiprocessing_options=names
        )
        with writing(folder):
            make_folder_inside(folder)
    manager = ocp.CheckpointManager(
        LocalPath(folder.absolute()), options=options, item_names=("state", "host")
    )
    if jax.process_count() > 1 and keep is not None:
        _FOLDERS[manager] = os.open(folder, os.O_RDONLY)  # until the process ends
    try:
        yield manager
    except BaseException:
        # not with several processes: each would wait here for the others
        if jax.process_count() == 1:
            with contextlib.suppress(Exception):  # the first error is more informative
                manager.close()
        raise
    with saving(manager):
        manager.close()
        if keep is not None:
            write_sizes(manager, last=True)


def save(manager: ocp.CheckpointManager, step: int, state: TrainState, host: HostData) -> None:
    """Begin to save a state in the background; do nothing if the checkpoint exists.

    Args:
        manager: from `open_checkpoints`.
        step: number of updates of the state.
        state: state that is not donated to a program: on a CPU, orbax reads its buffers directly.
        host: other content, as JSON.

    Raises:
        OSError: if this checkpoint or the previous one cannot be saved, or a newer one exists:
            orbax would skip this one without an error.
    """
    if step in manager.all_steps():
        return
    finish(manager)
    give_back_memory()
    items = ocp.args.Composite(state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(host))
    with _BEGINNING, saving(manager):
        if not manager.save(step, args=items):
            raise FileExistsError(
                f"cannot save a checkpoint of {step} updates: "
                f"a newer one exists, of {manager.latest_step()} updates"
            )


def save_state(
    manager: ocp.CheckpointManager,
    step: int,
    state: TrainState,
    log: MetricsLog | None,
    host: HostData,
) -> None:
    """Begin to save a state, with the size of metrics.jsonl, whose lines are first synced."""
    if log:
        log.sync()
    save(manager, step, state, {"metrics_size": log.size if log else 0, **host})


@jax.jit
def copied(state: TrainState) -> TrainState:
    """Return a copy of a state, to be saved while the next chunk donates the state itself."""
    return jax.tree.map(jnp.copy, state)


def delete_newer(manager: ocp.CheckpointManager, step: int) -> None:
    """Delete the checkpoints of more updates, after which orbax saves no older one.

    Raises:
        OSError: if a checkpoint cannot be deleted.
    """
    with saving(manager):
        for other in manager.all_steps():
            if other > step:
                manager.delete(other)


def require_saved(manager: ocp.CheckpointManager) -> None:
    """Raise OSError if a save in the background has failed."""
    with saving(manager):
        manager.check_for_errors()


def finish(manager: ocp.CheckpointManager) -> None:
    """Wait for a save in the background. Raise OSError if it fails."""
    with saving(manager):
        if jax.process_count() > 1:
            wait_while_folder_exists(manager)
        manager.wait_until_finished()
        write_sizes(manager)


def wait_while_folder_exists(manager: ocp.CheckpointManager) -> None:
    """Wait for a save of several processes. Raise OSError if the folder is deleted meanwhile.

    Otherwise each process would wait ten minutes for the others, even if orbax creates the folder
    again.
    """
    while manager.is_saving_in_progress():
        os.stat(manager.directory)
        if manager in _FOLDERS and os.fstat(_FOLDERS[manager]).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(manager.directory))
        time.sleep(0.05)


@contextlib.contextmanager
def saving(manager: ocp.CheckpointManager) -> Iterator[None]:
    """Raise any error of a save as an OSError, with the last complete checkpoint."""
    try:
        yield
    except Exception as error:  # of any type, from the threads of orbax and tensorstore
        names = [path.name for path in Path(manager.directory).glob("*")]
        complete = max((int(name) for name in names if name.isdecimal()), default=None)
        rest = f"The checkpoint of {complete} updates is complete: continue from it with --resume."
        raise OSError(
            f"could not save a checkpoint in {manager.directory} ({reason(error)}). "
            f"{'No checkpoint is complete.' if complete is None else rest}"
        ) from error


def write_sizes(manager: ocp.CheckpointManager, last: bool = False) -> None:
    """Write the sizes of a checkpoint's files into it, to detect truncated files before reading.

    Before, the first and the `last` checkpoint of a manager are read back: the host data and the
    metadata of the arrays, which takes 15 ms for 57 arrays. Not every checkpoint is read back,
    since orbax does not free all memory of metadata. With several processes, no checkpoint is,
    since orbax makes each read a barrier.
    """
    if jax.process_index() != 0:
        return
    alone = jax.process_count() == 1
    for step in manager.all_steps():
        folder = Path(manager.directory) / str(step)
        if folder.is_dir() and not (folder / SIZES).exists():
            if alone and step == manager.latest_step() and (last or manager not in _READ_BACK):
                _READ_BACK.add(manager)
                read_host(manager, step)
                read_tree(folder, _name(manager, step))
            write_text(folder / SIZES, json.dumps(file_sizes(folder)), sync=True)


def restore(
    manager: ocp.CheckpointManager, step: int, like: TrainState, config: TrainConfig | None = None
) -> tuple[TrainState, HostData]:
    """Return the state and the other content of a checkpoint.

    Args:
        manager: from `open_checkpoints`.
        step: number of updates of the state.
        like: a state of the same run, or its shapes (`jax.eval_shape`); leaves without a sharding
            are placed on the first device.
        config: configuration that the checkpoint must have; None: any.

    Raises:
        ValueError: if the checkpoint has another configuration.
        DamagedCheckpointError: if it cannot be read.
    """
    host, name = read_host(manager, step), _name(manager, step)
    if config is not None and host["config"]:
        try:
            require_trusted("it", host["config"], with_own((), config))
            begun = read_config(host["config"])
        except (ValueError, TypeError) as error:
            raise type(error)(f"{name}: {error}") from error
        require_same_run(begun, config, f"{name} was saved with")
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or first),
        like,
    )
    tree = read_tree(Path(manager.directory) / str(step), name)
    stored = as_stored(tree, target, name, may_lack_hypers=config is not None)
    arrays = _read(manager, step, state=ocp.args.StandardRestore(stored))["state"]
    state = as_state(arrays, target, config)
    # a population has more axes, and members that stopped early at bad numbers
    alone = isinstance(state, TrainState) and state.num_updates.ndim == 0
    if alone and int(state.num_updates) != step:
        raise DamagedCheckpointError(
            f"{name} is damaged: it contains the state after {int(state.num_updates)} updates"
        )
    return state, host


def read_tree(folder: Path, name: str) -> PyTree:
    """Return the tree of a checkpoint's state, with the metadata of each array.

    Raises:
        DamagedCheckpointError: if it cannot be read.
    """
    try:
        return ocp.PyTreeCheckpointHandler().metadata(LocalPath(folder) / "state").tree
    except Exception as error:  # of any type, from the threads of orbax and tensorstore
        raise DamagedCheckpointError(f"{name} is damaged: {reason(error)}") from error


def read_host(manager: ocp.CheckpointManager, step: int) -> HostData:
    """Return the content of a checkpoint besides the state; check the sizes of its files.

    Raises:
        DamagedCheckpointError: if a file has another size than before, or invalid content.
    """
    name = _name(manager, step)
    require_sizes(Path(manager.directory) / str(step), name)
    stored = _read(manager, step, host=ocp.args.JsonRestore())["host"]
    if not isinstance(stored, Mapping):
        raise DamagedCheckpointError(f"{name} is damaged: host/metadata is not a mapping")
    host: dict[str, Any] = {**_DEFAULTS, **stored}
    for field, is_valid in _VALID.items():
        if not is_valid(host[field]):
            raise DamagedCheckpointError(
                f"{name} is damaged: host/metadata contains {field} = {host[field]!r}"
            )
    return cast(HostData, host)


def _name(manager: ocp.CheckpointManager, step: int) -> str:
    return f"checkpoint {manager.directory}/{step}"


def _read(
    manager: ocp.CheckpointManager, step: int, **items: ocp.args.CheckpointArgs
) -> Mapping[str, PyTree]:
    try:
        return manager.restore(step, args=ocp.args.Composite(**items))
    except Exception as error:  # of any type, from the threads of orbax and tensorstore
        raise DamagedCheckpointError(
            f"{_name(manager, step)} is damaged, or from another configuration or wdjax version: "
            f"{reason(error)}"
        ) from error


def restore_newest(
    manager: ocp.CheckpointManager,
    like: TrainState,
    config: TrainConfig | None,
    say: Callable[[str], None],
) -> tuple[int, TrainState, HostData] | None:
    """Return (step, state, host) of the newest readable checkpoint, None without checkpoints.

    Damaged newer checkpoints are renamed, because the run reaches their updates again. They are not
    deleted.

    Args:
        manager: from `open_checkpoints`.
        like: as for `restore`.
        config: as for `restore`.
        say: called with a warning for each checkpoint that was renamed.

    Raises:
        ValueError: if the newest checkpoint has another configuration, or all are damaged.
    """
    damaged: dict[int, DamagedCheckpointError] = {}
    for step in sorted(manager.all_steps(), reverse=True):
        try:
            found = restore(manager, step, like, config)
        except DamagedCheckpointError as error:
            damaged[step] = error
            continue
        for other, damage in damaged.items():
            say(
                f"Warning: {damage}. Renamed to {set_aside(manager, other).name}, "
                f"resuming from {step} updates."
            )
        return step, *found
    for newest in damaged.values():
        raise DamagedCheckpointError(
            f"{newest}. No older one is readable. "
            f"Move {manager.directory} away and use --resume to restart."
        ) from newest
    return None


def newest_host(
    manager: ocp.CheckpointManager, step: int, say: Callable[[str], None]
) -> tuple[int, HostData] | None:
    """Return (updates, host) of the newest readable checkpoint of more than `step` updates.

    The state is not read. Damaged checkpoints are renamed, as by `restore_newest`.
    """
    while (newest := manager.latest_step() or 0) > step:
        try:
            return newest, read_host(manager, newest)
        except DamagedCheckpointError as error:
            say(f"Warning: {error}. Renamed to {set_aside(manager, newest).name}.")
    return None


def set_aside(manager: ocp.CheckpointManager, step: int) -> Path:
    """Rename a damaged checkpoint, which then no longer counts as one. Return its new path."""
    folder = Path(manager.directory)
    names = (f"damaged-{step}{f'-{i}' if i else ''}" for i in range(10_000))
    free = next(folder / name for name in names if not (folder / name).exists())
    if jax.process_index() == 0:
        (folder / str(step)).rename(free)
    multihost_utils.sync_global_devices(free.name)  # no process reads before it is renamed
    manager.reload()
    return free
