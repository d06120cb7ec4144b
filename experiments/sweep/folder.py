"""The folder of a sweep: sweep.yaml says what was asked for, and what may go on in it."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from wdjax.experiments.sweep.turns import replace_file
from wdjax.train.load import read_yaml, read_yaml_value

try:
    import fcntl
except ImportError:  # Windows has no such locks: there nothing keeps two sweeps out of one folder
    fcntl = None  # type: ignore[assignment]


def prepare_folder(workdir: Path, asked: Mapping[str, Any], resume: bool) -> None:
    """Makes a sweep's folder and writes sweep.yaml, or checks that the sweep in it is the one to resume.

    Args:
        asked: everything that decides the sweep's numbers, as YAML holds it.

    Raises:
        FileExistsError: where the folder holds a sweep, or a run, and `resume` is false.
        ValueError: where it holds another sweep, naming the first thing that differs.
    """
    file = workdir / "sweep.yaml"
    if (workdir / "config.yaml").exists():
        raise FileExistsError(f"{workdir} holds a run of wdjax train: name another --workdir")
    if file.exists():
        if not resume:
            raise FileExistsError(f"{workdir} holds a sweep already: resume it (--resume), or name another --workdir")
        require_same(f"the sweep in {workdir}", read_yaml(file), asked)
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        replace_file(file, yaml.safe_dump(dict(asked), sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise type(error)(f"workdir = {workdir}: must be a folder that can be written ({error.strerror})") from error


@contextlib.contextmanager
def hold_folder(workdir: Path) -> Iterator[None]:
    """Keeps other sweeps out of a folder until the block ends, or the process does: the lock is the kernel's.

    Raises:
        BlockingIOError: where another sweep holds it.
    """
    with open(workdir / "sweep.yaml", "ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            words = "another sweep is running there at this moment: wait for it, or name another --workdir"
            raise BlockingIOError(f"{workdir}: {words}") from None
        except OSError:
            pass  # a file system without locks: better a sweep that nothing guards than none
        yield


def require_same(what: str, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the first thing that differs, where `what` was begun with something else."""
    old, new = flat(begun), flat(read_yaml_value(yaml.safe_dump(dict(asked))))
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            raise ValueError(f"{name} = {new.get(name)!r}: {what} was begun with {old.get(name)!r}")


def flat(values: Any, path: str = "") -> dict[str, Any]:
    """Returns dotted name -> value of nested mappings."""
    if not isinstance(values, Mapping):
        return {path: values}
    return {k: v for name, item in values.items() for k, v in flat(item, f"{path}.{name}" if path else name).items()}
