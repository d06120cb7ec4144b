"""A run's folder: whose run it holds, who may write there, and files that are whole or not there."""

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from wdjax.checks import require
from wdjax.files import open_regular, write_text
from wdjax.metric_names import EVALUATED
from wdjax.train.config.env_params import complete_env_params
from wdjax.train.config.facts import Fraction, in_env_steps
from wdjax.train.config.schema import TrainConfig
from wdjax.train.config.trust import require_trusted, with_own
from wdjax.train.state.registry import read_config
from wdjax.train.storage.switches import require_same_switches, switches
from wdjax.version import __version__
from wdjax.yaml_reader import flat, read_yaml

try:
    import fcntl
except ImportError:  # Windows has no such locks: there nothing keeps two runs out of one folder
    fcntl = None  # type: ignore[assignment]

CONFIG = "config.yaml"  # of a run, in its folder
VERSION = "wdjax"  # the line of config.yaml that says which version wrote it
MADE_WITH = "made_with"  # what else it says of whoever trained last: versions, and the device

# What may differ between a run and its resumption: how long, and how it is looked after.
RESUMABLE = (
    "total_env_steps", "stop_at", "checkpoint_every_updates", "checkpoint_every", "keep_checkpoints", "devices",
    "on_bad_numbers", "search_products",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a folder may hold: a run, or a sweep."""

    name: str
    command: str
    locked: str  # the file that is locked while it goes on
    busy: str  # who has locked it, in words


RUN = Kind("run", "wdjax train", "metrics.jsonl", "another run is training")
SWEEP = Kind("sweep", "wdjax sweep", "sweep.yaml", "another sweep is running")
_SIGNS = {"sweep.yaml": SWEEP, "members.json": SWEEP, CONFIG: RUN, "checkpoints": RUN}


def make_folder(workdir: Path, kind: Kind, resume: bool) -> bool:
    """Makes the folder of a run or of a sweep. Returns whether it was begun there before.

    Raises:
        FileExistsError: where the folder holds the other kind, or this kind and `resume` is false.
        OSError: where it cannot be written.
        ValueError: where checkpoints in it could not be read.
    """
    require_checkpoint_path(workdir)
    held = next((own for sign, own in _SIGNS.items() if (workdir / sign).exists()), None)
    if held not in (None, kind):
        raise FileExistsError(
            f"{workdir} contains a {held.name} of {held.command}. Use another --workdir."
        )
    if held and not resume:
        words = "Resume it (--resume, in Python resume=True) or use another --workdir."
        raise FileExistsError(f"{workdir} already contains a {kind.name}. {words}")
    with writing(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
    return held is not None


def require_checkpoint_path(folder: Path) -> None:
    """Raise ValueError if checkpoints in this folder could be written but not read back.

    Tensorstore replaces a backslash with a slash, orbax "gs:/" with "gs://", and both need UTF-8.
    """
    path = f"{folder.absolute()}/"
    if "\\" in path or "gs:/" in path or path != path.encode(errors="replace").decode():
        words = (
            "must be UTF-8 text without a backslash or a part that ends in 'gs:' (for checkpoints)"
        )
        raise ValueError(f"workdir = {str(folder)!r}: the full path {words}. Use another folder.")


def prepare_folder(
    workdir: Path, config: TrainConfig, resume: bool, trust: Collection[str] = ()
) -> None:
    """Makes a run's folder and writes config.yaml, or checks that the run in it is the one to resume: then nothing is
    written before it trains on.

    Args:
        trust: as for `load_run_config`, beside the modules that `config` names.

    Raises:
        ValueError: where it holds a run of another configuration; for a new run with a policy named "eval".
        FileNotFoundError: where it holds checkpoints, but not what configuration they have.
        OSError: as `make_folder`, and where another process is training there.
    """
    file = workdir / CONFIG
    collides = config.evaluates and EVALUATED in config.policies and not file.exists()
    require(
        not collides,
        "policies",
        EVALUATED,
        f"another name, as {EVALUATED}/... are the metrics of evaluations",
    )
    begun = make_folder(workdir, RUN, resume)
    if begun and not file.exists():
        raise FileNotFoundError(
            f"{file} is missing. Restore it from a checkpoint: copy the value of 'config' in its host/metadata (JSON)."
        )
    if begun:
        old = load_run_config(workdir, with_own(trust, config))
        require_same_run(old, config, f"the run in {workdir} was started with")
    with hold_folder(workdir), writing(workdir):
        if not begun:
            write_config(workdir, config)


@contextlib.contextmanager
def hold_folder(workdir: Path, kind: Kind = RUN) -> Iterator[Callable[[], None]]:
    """Keeps other runs, or sweeps, out of a folder until the block ends, or the process does, however it ends.

    The lock is the kernel's, on a file of the folder (on NFS the server's, so that other hosts see it): nothing is left
    behind by a process that was killed, and who only reads is not kept out. It goes with its file: gives a function
    that makes the file and locks it again, for when somebody has deleted it.

    Raises:
        BlockingIOError: where another holds it; the function that it gives, too.
    """
    with contextlib.ExitStack() as stack:

        def lock() -> None:
            with writing(workdir):  # opened to append: NFS gives no lock to who may not write
                stream = stack.enter_context(open_regular(workdir / kind.locked, "ab"))
            try:
                if fcntl is not None:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                words = f"{kind.busy} there. Wait for it or use another --workdir."
                raise BlockingIOError(f"{workdir}: {words}") from None
            except OSError:
                pass  # a file system without locks: better a run that nothing guards than none

        lock()
        yield lock


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Says in a sentence where a folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"workdir = {folder}: must be a writable folder ({error.strerror})"
        ) from error


def write_whole(file: Path, text: str) -> None:
    """Writes a text file such that, whenever the process or the machine dies, the old one is there or the new one."""
    write_text(file, text, sync=True)


def require_same_run(old: TrainConfig, new: TrainConfig, where: str) -> None:
    """Raises ValueError, naming the first field that differs, where a run was started with another configuration.

    Args:
        where: what has the old one, in words: "the run in runs/a was started with".
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
    shared = (workdir / CONFIG).exists()
    require(shared, "workdir", str(workdir), "a folder that all processes share")
    begun, run = load_run_config(workdir, trust), f"the run in {workdir}"
    require_same_run(begun, config, f"{run} was started with")
    require_same_switches(read_made_with(workdir), run)
    return with_size_of(begun, config)


def with_size_of(old: TrainConfig, new: TrainConfig) -> TrainConfig:
    """Returns the configuration with which a run goes on, with the size of chunks that it has found."""
    return dataclasses.replace(
        new, updates_per_chunk=new.updates_per_chunk or old.updates_per_chunk
    )


def run_config(
    config: TrainConfig, workdir: Path, resume: bool, trust: Collection[str] = ()
) -> TrainConfig:
    """Return the configuration with which a run is started or resumed in a folder: schedules are in env steps.

    A resumed run keeps the schedules that it was started with, whatever its length is now. Raises as `load_run_config`.
    """
    new = in_env_steps(config, config.total_env_steps)
    if new is config or not resume or not (workdir / CONFIG).is_file():
        return new
    return in_env_steps(
        config, config.total_env_steps, load_run_config(workdir, with_own(trust, config))
    )


def load_run_config(run_folder: str | Path, trust: Collection[str] = ()) -> TrainConfig:
    """Returns the configuration of a run from its folder.

    Args:
        trust: modules of one's own that it may name (config/trust.py).

    Raises:
        FileNotFoundError: where there is none.
        ValueError, TypeError: where it is no configuration, or names other modules.
    """
    file = Path(run_folder) / CONFIG
    require_held(run_folder)
    values = trusted_values(file, trust)
    try:
        return read_config(values)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{file}: {error}") from error


def require_held(run_folder: str | Path) -> None:
    """Raises FileNotFoundError where a folder holds no run, naming the one of this name where runs are written."""
    file, usual = Path(run_folder) / CONFIG, Path("runs") / run_folder
    if not file.is_file():
        near = f": did you mean {usual}?" if (usual / CONFIG).is_file() else ""
        raise FileNotFoundError(f"{run_folder} contains no run: {file} is missing{near}")


def trusted_values(file: Path, trust: Collection[str]) -> dict[str, Any]:
    """Returns the raw fields of a config.yaml; raises ValueError where they name modules that nobody trusts."""
    values = without_version(read_yaml(file))
    require_trusted(f"{file}: the run", values, trust)
    return values


def without_version(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config.yaml without those that say what wrote it; older ones have none."""
    return {name: value for name, value in values.items() if name not in (VERSION, MADE_WITH)}


def dump_config(config: TrainConfig) -> str:
    """Returns a configuration as YAML, which `load_config` reads back; the order of policies stays."""
    return yaml.safe_dump(plain_config(config), sort_keys=False, allow_unicode=True)


def write_config(folder: Path, config: TrainConfig) -> None:
    """Writes config.yaml of a run, with the versions and the device of who writes it."""
    head = yaml.safe_dump(
        {VERSION: __version__, MADE_WITH: made_with()}, sort_keys=False, allow_unicode=True
    )
    write_whole(folder / CONFIG, head + dump_config(config))


def read_made_with(run_folder: Path) -> Any:
    """Return what config.yaml of a run holds of the process that trained last (`made_with`), None in older ones."""
    return read_yaml(run_folder / CONFIG).get(MADE_WITH)


def made_with() -> dict[str, Any]:
    """Return the versions, the device and the settings that numbers depend on beside a configuration."""
    libraries = {
        name: importlib.metadata.version(name)
        for name in ("jax", "jaxlib", "flax", "optax", "numpy")
    }
    device = jax.devices()[0]
    kind = (
        device.device_kind
        if device.platform != "cpu"
        else f"CPU ({platform.machine()}, {os.cpu_count()} cores)"
    )
    return {
        "python": platform.python_version(),
        **libraries,
        "system": platform.system(),
        "device": kind,
        **switches(),
    }


def plain_config(config: TrainConfig) -> dict[str, Any]:
    """Return a configuration as nested dicts and lists of plain values, as in YAML and JSON.

    Args:
        config: the configuration. `load_config` reads its plain form back.
    """
    values = dataclasses.asdict(config)
    for own in (*values["policies"].values(), *values["teams"].values()):
        own |= own.pop("options")
    return _plain(values)


def _plain(value: Any) -> Any:
    """Returns nested mappings, tuples and NumPy values as what YAML writes without tags."""
    if isinstance(value, Fraction):
        return {"fraction": _plain(list(value))}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return (
        np.asarray(value).tolist()
        if isinstance(value, np.generic | np.ndarray | jax.Array)
        else value
    )
