"""The folder of a run: its configuration, its lock, and files that are written atomically."""

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from wdjax.checks import require
from wdjax.files import open_regular, try_lock, write_text
from wdjax.metric_names import EVALUATED
from wdjax.train.config.env_params import complete_env_params
from wdjax.train.config.facts import Fraction, in_env_steps
from wdjax.train.config.schema import TrainConfig
from wdjax.train.config.trust import require_trusted, with_own
from wdjax.train.state.registry import read_config
from wdjax.train.storage.switches import require_same_switches, switches
from wdjax.version import __version__
from wdjax.yaml_reader import flat, read_yaml

CONFIG = "config.yaml"  # file in the folder of a run
VERSION = "wdjax"  # field of config.yaml: the version that wrote it
LOOK = 0.1  # seconds; a report locks the file of a sweep for an instant
MADE_WITH = "made_with"  # field of config.yaml: versions and device of the last process

SPEED = ("rollout_unroll", "search_products")  # fields that change the speed of a run only
# fields that may change when a run is resumed
RESUMABLE = (
    *SPEED,
    "total_env_steps",
    "stop_at",
    "checkpoint_every_updates",
    "checkpoint_every",
    "keep_checkpoints",
    "devices",
    "on_bad_numbers",
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """Kind of a folder: a run or a sweep."""

    name: str
    command: str
    locked: str  # file that is locked during training
    busy: str  # message if it is locked


RUN = Kind("run", "wdjax train", "metrics.jsonl", "another run is training")
SWEEP = Kind("sweep", "wdjax sweep", "sweep.yaml", "another sweep is running")
_SIGNS = {"sweep.yaml": SWEEP, "members.json": SWEEP, CONFIG: RUN, "checkpoints": RUN}


def make_folder(workdir: Path, kind: Kind, resume: bool) -> bool:
    """Create the folder of a run or a sweep. Return whether it exists already.

    Raises:
        FileExistsError: if the folder contains the other kind, or this kind and `resume` is False.
        OSError: if the folder cannot be written.
        ValueError: if checkpoints in it could not be read back.
    """
    require_checkpoint_path(workdir)
    held = next((own for sign, own in _SIGNS.items() if (workdir / sign).exists()), None)
    if held not in (None, kind):
        raise FileExistsError(
            f"{workdir} contains a {held.name} of {held.command}. Use another --workdir."
        )
    if held and not resume:
        raise FileExistsError(
            f"{workdir} already contains a {kind.name}. "
            "Resume it (--resume, in Python resume=True) or use another --workdir."
        )
    with writing(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
    return held is not None


def require_checkpoint_path(folder: Path) -> None:
    """Raise ValueError if checkpoints in this folder could be written but not read back.

    Tensorstore replaces a backslash with a slash, orbax "gs:/" with "gs://", and both need UTF-8.
    """
    path = f"{folder.absolute()}/"
    if "\\" in path or "gs:/" in path or path != path.encode(errors="replace").decode():
        raise ValueError(
            f"workdir = {str(folder)!r}: the full path must be UTF-8 text without a backslash or a "
            "part that ends in 'gs:' (for checkpoints). Use another folder."
        )


def prepare_folder(workdir: Path, config: TrainConfig, resume: bool) -> None:
    """Create the folder of a new run with config.yaml.

    A run to resume is not changed before it trains; `require_own_run` checks its configuration.

    Args:
        workdir: folder of the run.
        config: configuration of the run.
        resume: whether to resume the run in the folder.

    Raises:
        ValueError: if a policy of a new run is named "eval".
        FileNotFoundError: if the folder contains checkpoints without a configuration.
        OSError: as `make_folder`, or if another process is training in the folder.
    """
    file = workdir / CONFIG
    require(
        file.exists() or not (config.evaluates and EVALUATED in config.policies),
        "policies",
        EVALUATED,
        f"another name, as {EVALUATED}/... are the metrics of evaluations",
    )
    begun = make_folder(workdir, RUN, resume)
    if begun and not file.exists():
        raise FileNotFoundError(
            f"{file} is missing. Restore it from a checkpoint: copy the value of 'config' in its "
            "host/metadata (JSON)."
        )
    with hold_folder(workdir), writing(workdir):
        if not begun:
            write_config(workdir, config)


@contextlib.contextmanager
def hold_folder(workdir: Path, kind: Kind = RUN) -> Iterator[Callable[[], None]]:
    """Lock a folder until the block or the process ends, so that no other run trains in it.

    The lock is on a file of the folder. The kernel holds it (on NFS the server, for all hosts):
    a killed process leaves no lock. Reading is always possible.

    Args:
        workdir: the folder.
        kind: kind of the folder.

    Yields:
        A function that creates the file and locks it again, if it was deleted.

    Raises:
        BlockingIOError: if another process holds the lock; also from the function.
    """
    with contextlib.ExitStack() as stack:

        def lock() -> None:
            with writing(workdir):  # opened to append: NFS locks only writable files
                stream = stack.enter_context(open_regular(workdir / kind.locked, "ab"))
            busy = try_lock(stream) is False  # without locks, two runs can use one folder
            if busy:  # also while a report looks at a sweep
                time.sleep(LOOK)
                busy = try_lock(stream) is False
            if busy:
                raise BlockingIOError(
                    f"{workdir}: {kind.busy} there. Wait for it or use another --workdir."
                )

        lock()
        yield lock


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise any OSError in the block with the name of the folder."""
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"workdir = {folder}: must be a writable folder ({error.strerror})"
        ) from error


def write_yaml(file: Path, values: Mapping[str, object]) -> None:
    """Write a YAML file atomically: after a crash, it has its old or its new content."""
    text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
    write_text(file, text, sync=True)


def require_same_run(old: TrainConfig, new: TrainConfig, where: str) -> None:
    """Raise ValueError, with the first field that differs, for another configuration.

    Args:
        old: configuration that the run was started with.
        new: configuration to resume it with.
        where: text before the old value: "the run in runs/a was started with".
    """
    new = with_size_of(old, new)
    before, after = (flat(plain_config(complete_env_params(config))) for config in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if name.split(".")[0] not in RESUMABLE and before.get(name) != after.get(name):
            raise ValueError(f"{name} = {after.get(name)!r}: {where} {before.get(name)!r}")


def require_own_run(workdir: Path, config: TrainConfig, trust: Collection[str]) -> TrainConfig:
    """Return the configuration with the chunk size of the run in a folder.

    Raises:
        ValueError: if another configuration or other settings of jax started the run, or the folder
            is not shared by all processes.
    """
    exists = (workdir / CONFIG).exists()
    require(exists, "workdir", str(workdir), "a folder that all processes share")
    begun, run = load_run_config(workdir, trust), f"the run in {workdir}"
    require_same_run(begun, config, f"{run} was started with")
    require_same_switches(read_made_with(workdir), run)
    return with_size_of(begun, config)


def with_size_of(old: TrainConfig, new: TrainConfig) -> TrainConfig:
    """Return the new configuration, with the chunk size of the old one unless it has one."""
    return dataclasses.replace(
        new, updates_per_chunk=new.updates_per_chunk or old.updates_per_chunk
    )


def run_config(
    config: TrainConfig, workdir: Path, resume: bool, trust: Collection[str] = ()
) -> TrainConfig:
    """Return the configuration of a run in a folder, with schedules in env steps.

    A resumed run keeps its original schedules, even if its length changed. Raises as
    `load_run_config`.
    """
    new = in_env_steps(config, config.total_env_steps)
    if new is config or not resume or not (workdir / CONFIG).is_file():
        return new
    old = load_run_config(workdir, with_own(trust, config))
    return in_env_steps(config, config.total_env_steps, old)


def load_run_config(run_folder: str | Path, trust: Collection[str] = ()) -> TrainConfig:
    """Return the configuration of a run from its folder.

    Args:
        run_folder: folder of the run.
        trust: modules from which it may import code (config/trust.py).

    Raises:
        FileNotFoundError: if there is none.
        ValueError, TypeError: if it is invalid, or names code in other modules.
    """
    file = Path(run_folder) / CONFIG
    require_held(run_folder)
    values = trusted_values(file, trust)
    try:
        return read_config(values)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{file}: {error}") from error


def require_held(run_folder: str | Path) -> None:
    """Raise FileNotFoundError for a folder without a run, with the folder that was meant."""
    file, usual = Path(run_folder) / CONFIG, Path("runs") / run_folder
    best = Path(run_folder) / "best"  # written by wdjax sweep
    if not file.is_file():
        near = f": did you mean {usual}?" if (usual / CONFIG).is_file() else ""
        near = f". Use {best}" if (best / CONFIG).is_file() else near
        raise FileNotFoundError(f"{run_folder} contains no run: {file} is missing{near}")


def trusted_values(file: Path, trust: Collection[str]) -> dict[str, Any]:
    """Return the raw fields of a config.yaml. Raise ValueError for untrusted modules."""
    values = without_version(read_yaml(file))
    require_trusted(f"{file}: the run", values, trust)
    return values


def without_version(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.yaml without VERSION and MADE_WITH."""
    return {name: value for name, value in values.items() if name not in (VERSION, MADE_WITH)}


def write_config(folder: Path, config: TrainConfig) -> None:
    """Write config.yaml of a run, with the versions and the device of this process."""
    values = {VERSION: __version__, MADE_WITH: made_with(), **plain_config(config)}
    write_yaml(folder / CONFIG, values)


def read_made_with(run_folder: Path) -> object:
    """Return the versions and the device of the last process (`made_with`), None before 0.2."""
    return read_yaml(run_folder / CONFIG).get(MADE_WITH)


def made_with() -> dict[str, object]:
    """Return the versions, the device and the settings that affect the numbers of a run."""
    device = jax.devices()[0]
    cpu = f"CPU ({platform.machine()}, {os.cpu_count()} cores)"
    libraries = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in libraries},
        "system": platform.system(),
        "device": cpu if device.platform == "cpu" else device.device_kind,
        **switches(),
    }


def plain_config(config: TrainConfig) -> dict[str, Any]:
    """Return a configuration as nested mappings and lists, for YAML and JSON.

    Args:
        config: the configuration; `from_mapping` reads the result back.
    """
    values = dataclasses.asdict(config)
    for own in (*values["policies"].values(), *values["teams"].values()):
        own |= own.pop("options")
    for name in [name for team in config.teams.values() for name in team.policies]:
        del values["policies"][name]["algorithm"]  # its team has one
    return plain_value(values)


def plain_value(value: Any) -> Any:
    """Return nested mappings, tuples and NumPy values as values that YAML writes without tags."""
    if isinstance(value, Fraction):
        return {"fraction": plain_value(list(value))}
    if isinstance(value, dict):
        return {name: plain_value(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_value(item) for item in value]
    is_array = isinstance(value, np.generic | np.ndarray | jax.Array)
    return np.asarray(value).tolist() if is_array else value
