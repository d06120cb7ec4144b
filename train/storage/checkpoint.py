"""Checkpoints (orbax): the whole TrainState, and beside it what the host needs to go on. No pickle."""

import contextlib
import errno
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from wdjax.checks import one_line
from wdjax.files import MOST_BYTES, make_folder_inside, read_json
from wdjax.train.config.facts import in_env_steps
from wdjax.train.config.schema import TrainConfig
from wdjax.train.config.trust import require_trusted, with_own
from wdjax.train.devices.memory import give_back_memory
from wdjax.train.state.hypers import run_hypers
from wdjax.train.state.registry import read_config
from wdjax.train.state.state import TrainState
from wdjax.train.storage.folder import (
    require_checkpoint_path,
    require_same_run,
    write_whole,
    writing,
)
from wdjax.train.storage.orbax_workarounds import LocalPath, silence, stop_leaks

_BEGINNING = (
    threading.Lock()
)  # one save begins at a time: orbax counts them in a variable of the process
_HELD: weakref.WeakKeyDictionary[ocp.CheckpointManager, int] = (
    weakref.WeakKeyDictionary()
)  # their folders, opened
_READ_BACK: weakref.WeakSet[ocp.CheckpointManager] = (
    weakref.WeakSet()
)  # of which a checkpoint has been read back
SIZES = "sizes.json"  # in the folder of a checkpoint: file -> bytes
RENAMED = {  # leaf in a checkpoint of 0.2 -> leaf of this version
    r"^(hypers/[^/]+/)(?:options|ddpg)/": r"\1",
    r"^policies/([^/]+)/past/": r"opponents/pools/\1/networks/",
    r"^policies/([^/]+)/standings/": r"opponents/pools/\1/standings/",
    r"^memory/([^/]+)/member$": r"opponents/blocks/\1/active",
    r"^memory/([^/]+)/since$": r"opponents/blocks/\1/since",
}


class DamagedCheckpointError(ValueError):
    """A checkpoint that was whole once cannot be read."""


@contextlib.contextmanager
def open_checkpoints(folder: Path, keep: int | None) -> Iterator[ocp.CheckpointManager]:
    """Gives a manager of a folder that keeps the `keep` newest checkpoints; at the end waits for the last save.

    Args:
        keep: None: only to read; nothing in the folder is touched.

    Raises:
        OSError: where the folder cannot be made, or the last checkpoint could not be saved.
        ValueError: where no checkpoint in the folder could be read, or holds a pipe, a device or a link to a folder.
    """
    require_checkpoint_path(folder)
    require_regular_files(folder)
    silence()
    stop_leaks()
    # Several processes wait for each other by names, which two managers that save at once must not share.
    names = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=folder.name)
    if keep is None:
        options = ocp.CheckpointManagerOptions(read_only=True, multiprocessing_options=names)
    else:  # temporary folders are what a run left that was killed while it saved
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, cleanup_tmp_directories=True, multiprocessing_options=names
        )
        with writing(folder):
            make_folder_inside(folder)
    manager = ocp.CheckpointManager(
        LocalPath(folder.absolute()), options=options, item_names=("state", "host")
    )
    if jax.process_count() > 1 and keep is not None:
        _HELD[manager] = os.open(folder, os.O_RDONLY)  # until the process ends
    try:
        yield manager
    except BaseException:
        if (
            jax.process_count() == 1
        ):  # of several, each would wait here for the others, who may be waiting for it
            with contextlib.suppress(
                Exception
            ):  # what is under way already says more than what closing would
                manager.close()
        raise
    with saving(manager):
        manager.close()
        if keep is not None:
            write_sizes(manager, last=True)


def save(
    manager: ocp.CheckpointManager, step: int, state: TrainState, host: dict[str, Any]
) -> None:
    """Starts to save a state under the number of its updates, in the background; nothing where it is there already.

    Args:
        state: which nobody may donate to a program: on the CPU orbax reads the very buffers.
        host: what JSON holds: the place in metrics.jsonl, the best score, the configuration.

    Raises:
        OSError: where this checkpoint or the one before could not be saved, and where there is a newer one: orbax would
            skip this one silently.
    """
    if step in manager.all_steps():
        return
    finish(manager)
    give_back_memory()
    items = ocp.args.Composite(state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(host))
    with _BEGINNING, saving(manager):
        if not manager.save(step, args=items):
            raise FileExistsError(
                f"cannot save a checkpoint of {step} updates: a newer one exists, of {manager.latest_step()} updates"
            )


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
        if jax.process_count() > 1:
            wait_while_it_is_there(manager)
        manager.wait_until_finished()
        write_sizes(manager)


def wait_while_it_is_there(manager: ocp.CheckpointManager) -> None:
    """Waits for a save of several processes. Raises OSError where the folder goes meanwhile, even if orbax makes it
    anew: each process would wait for the others' part for ten minutes."""
    while manager.is_saving_in_progress():
        os.stat(manager.directory)
        if manager in _HELD and os.fstat(_HELD[manager]).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(manager.directory))
        time.sleep(0.05)


@contextlib.contextmanager
def saving(manager: ocp.CheckpointManager) -> Iterator[None]:
    """Makes of whatever goes wrong while a checkpoint is saved one sentence, an OSError."""
    try:
        yield
    except Exception as error:  # orbax raises what its threads and tensorstore do: of any type
        whole = [
            int(path.name) for path in Path(manager.directory).glob("*") if path.name.isdecimal()
        ]
        good = max(whole, default=None)
        rest = (
            "No checkpoint is complete." if good is None
            else f"The checkpoint of {good} updates is complete: continue from it with --resume."
        )  # fmt: skip
        raise OSError(
            f"could not save a checkpoint in {manager.directory} ({reason(error)}). {rest}"
        ) from error


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
    host, name = read_host(manager, step), _name(manager, step)
    if config is not None and "config" in host:
        try:
            require_trusted("it", host["config"], with_own((), config))
            begun = read_config(host["config"])
        except (ValueError, TypeError) as error:
            raise type(error)(f"{name}: {error}") from error
        require_same_run(begun, config, f"{name} was saved with")
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def with_place(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or first)

    target = jax.tree.map(with_place, like)
    stored = as_stored(Path(manager.directory) / str(step), target, name, config is not None)
    found = by_place(_read(manager, step, state=ocp.args.StandardRestore(stored))["state"])
    moved = {renamed(place): leaf for place, leaf in found.items() if renamed(place) != place}
    leaves = (
        found | moved
    )  # of an option with the name of a hyperparameter of all policies in 0.2, the option's value
    if missing := by_place(target).keys() - leaves.keys():
        leaves |= configured_hypers(config, target, missing)
    state = jax.tree.unflatten(
        jax.tree.structure(target), [leaves[place] for place in by_place(target)]
    )
    # members of a sweep, with more axes, may have stopped at bad numbers before the others
    if (
        isinstance(state, TrainState)
        and state.num_updates.ndim == 0
        and int(state.num_updates) != step
    ):
        raise DamagedCheckpointError(
            f"{name} is damaged: it contains the state after {int(state.num_updates)} updates"
        )
    return state, host


def as_stored(folder: Path, target: TrainState, name: str, may_lack_hypers: bool) -> Any:
    """Return the leaves of a state in the tree that a checkpoint has.

    orbax also keeps where there was nothing (None), which another version of wdjax may not know, or have more of. A
    hyperparameter that this version does not have is read and dropped; one that the checkpoint does not have is left
    out (`configured_hypers`).

    Raises:
        DamagedCheckpointError: where the checkpoint has other leaves.
    """
    tree = read_tree(folder, name)
    own, held = by_place(target), [(renamed(place), leaf) for place, leaf in by_place(tree).items()]
    names = {place for place, _ in held}
    required = {place for place in own if not (may_lack_hypers and place.startswith("hypers/"))}
    unknown = {place for place in names - own.keys() if not place.startswith("hypers/")}
    other = sorted(required - names | unknown)
    if other:
        words = f"{other[0]} {'is missing' if other[0] in own else 'is unexpected'} ({len(other)} differences)"
        raise DamagedCheckpointError(
            f"{name} is damaged, or from another configuration or wdjax version: {words}"
        )
    dropped = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)  # noqa: E731
    stored = [own[place] if place in own else dropped(leaf) for place, leaf in held]
    return jax.tree.unflatten(jax.tree.structure(tree), stored)


def renamed(place: str) -> str:
    """Return where this version keeps a leaf of a checkpoint."""
    for old, new in RENAMED.items():
        place = re.sub(old, new, place)
    return place


def configured_hypers(
    config: TrainConfig, target: TrainState, places: Collection[str]
) -> dict[str, jax.Array]:
    """Return the configured values of hyperparameters that a checkpoint does not have, like the leaves of `target`."""
    values = by_place({"hypers": run_hypers(in_env_steps(config, config.total_env_steps))})
    shapes = by_place(target)

    def place(at: str) -> jax.Array:
        return jax.device_put(jnp.broadcast_to(values[at], shapes[at].shape), shapes[at].sharding)

    return {at: place(at) for at in places}


def read_tree(folder: Path, name: str) -> Any:
    """Return the tree of a checkpoint's state, with the metadata of each array. Raises DamagedCheckpointError."""
    try:
        return ocp.PyTreeCheckpointHandler().metadata(LocalPath(folder) / "state").tree
    except Exception as error:  # orbax raises what its threads and tensorstore do: of any type
        raise DamagedCheckpointError(f"{name} is damaged: {reason(error)}") from error


def by_place(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by their places in it, "policies/runner/params/policy_head/bias"."""
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in
            jax.tree_util.tree_leaves_with_path(tree)}  # fmt: skip


def read_host(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    """Returns what the host needs to go on from a checkpoint whose files are as long as they were.

    Raises:
        DamagedCheckpointError: where they are not, and where somebody has edited them.
    """
    name = _name(manager, step)
    require_sizes(Path(manager.directory) / str(step), name)
    host = _read(manager, step, host=ocp.args.JsonRestore())["host"]
    if not isinstance(host, Mapping):
        raise DamagedCheckpointError(f"{name} is damaged: host/metadata is not a mapping")
    absent = {
        "metrics_size": None,
        "best_score": None,
        "best_updates": None,
        "deterministic": False,
    }
    host = {**host, **{field: absent[field] for field in absent if field not in host}}
    number, size, updates = host["best_score"], host["metrics_size"], host["best_updates"]
    right = {
        "metrics_size": type(size) is int and size >= 0,
        "best_score": number is None or type(number) in (int, float),
        "best_updates": updates is None or type(updates) is int,
        "deterministic": isinstance(host["deterministic"], bool),
        "config": isinstance(host.get("config", {}), Mapping),
    }
    for field in (field for field in right if not right[field]):
        raise DamagedCheckpointError(
            f"{name} is damaged: host/metadata contains {field} = {host[field]!r}"
        )
    return host


def _name(manager: ocp.CheckpointManager, step: int) -> str:
    return f"checkpoint {manager.directory}/{step}"


def _read(manager: ocp.CheckpointManager, step: int, **items: Any) -> Any:
    try:
        return manager.restore(step, args=ocp.args.Composite(**items))
    except Exception as error:  # orbax raises what its threads and tensorstore do: of any type
        words = f"{_name(manager, step)} is damaged, or from another configuration or wdjax version: {reason(error)}"
        raise DamagedCheckpointError(words) from error


def restore_newest(
    manager: ocp.CheckpointManager,
    like: TrainState,
    config: TrainConfig | None,
    say: Callable[[str], Any],
) -> tuple[int, TrainState, dict[str, Any]] | None:
    """Returns (step, state, host) of the newest checkpoint that can be read, or None where there is no checkpoint.

    Newer ones that are damaged are set aside, for the run will come to their updates again; nothing is deleted.

    Args:
        config: as for `restore`.
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
            say(
                f"Warning: {error}. Renamed to {set_aside(manager, other).name}, resuming from {step} updates."
            )
        return step, *found
    for error in damaged.values():  # the newest
        rest = (
            f"No older one is readable. Move {manager.directory} away and use --resume to restart."
        )
        raise DamagedCheckpointError(f"{error}. {rest}") from error
    return None


def newest_host(
    manager: ocp.CheckpointManager, step: int, say: Callable[[str], Any]
) -> tuple[int, dict[str, Any]] | None:
    """Returns (updates, host) of the newest checkpoint, if it is one of more updates than `step`, without its state.
    Those that are damaged are set aside, as by `restore_newest`."""
    while (newest := manager.latest_step() or 0) > step:
        try:
            return newest, read_host(manager, newest)
        except DamagedCheckpointError as error:
            say(f"Warning: {error}. Renamed to {set_aside(manager, newest).name}.")
    return None


def set_aside(manager: ocp.CheckpointManager, step: int) -> Path:
    """Renames a checkpoint such that it counts as one no more. Returns its new path."""
    folder = Path(manager.directory)
    free = next(
        path
        for i in range(10_000)
        if not (path := folder / f"damaged-{step}{f'-{i}' if i else ''}").exists()
    )
    if jax.process_index() == 0:
        (folder / str(step)).rename(free)
    multihost_utils.sync_global_devices(
        free.name
    )  # of several processes none looks before it is done
    manager.reload()
    return free


def write_sizes(manager: ocp.CheckpointManager, last: bool = False) -> None:
    """Write the sizes of a checkpoint's files into it, so that a truncated one is found before it is read.

    The first and the `last` checkpoint of a manager are read back before: the host data and the metadata of the arrays,
    in 15 ms for 57 arrays. Not each: orbax does not free all memory that it reads metadata with. Nor of several
    processes: to orbax, a read is a barrier of all of them.
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
            write_whole(folder / SIZES, json.dumps(_sizes(folder)))


def require_regular_files(folder: Path) -> None:
    """Raise DamagedCheckpointError where orbax would wait for a pipe, or read a device or too large a metadata file."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with contextlib.suppress(
                FileNotFoundError
            ):  # a run that goes on deletes its older checkpoints
                size = path.stat().st_size
                whole = path.is_file() and (
                    path.parent.name == "d" or size <= MOST_BYTES
                )  # d: the arrays
                if not whole and path.exists() and (path.is_symlink() or not path.is_dir()):
                    raise DamagedCheckpointError(
                        f"{path}: must be a regular file of at most {MOST_BYTES:,} bytes"
                    )


def require_sizes(folder: Path, name: str) -> None:
    """Raises DamagedCheckpointError where a file of a checkpoint is missing or not as long as it was."""
    file = folder / SIZES
    if not file.exists():
        return  # the run was killed before it came to note them: orbax finds out by itself, in more words
    try:
        expected = read_json(file)
    except ValueError as error:
        raise DamagedCheckpointError(f"{name} is damaged: {SIZES} is not valid JSON") from error
    if not isinstance(expected, Mapping) or any(
        type(size) is not int for size in expected.values()
    ):
        raise DamagedCheckpointError(f"{name} is damaged: {SIZES} does not contain file sizes")
    found = _sizes(folder)
    for path, size in expected.items():
        if found.get(path) != size:
            holds = "is missing" if path not in found else f"has {found[path]:,} of {size:,} bytes"
            raise DamagedCheckpointError(f"{name} is damaged: {path} {holds}")


def _sizes(folder: Path) -> dict[str, int]:
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith((SIZES, ".wdjax-"))
    )
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}
