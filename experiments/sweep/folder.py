"""The folder of a sweep: sweep.yaml says what was asked for, and what may go on in it."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from wdjax.train.config.reading import read_yaml, read_yaml_value
from wdjax.train.storage.folder import flat, hold_file, write_whole, writing


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
    with writing(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        write_whole(file, yaml.safe_dump(dict(asked), sort_keys=False, allow_unicode=True))


@contextlib.contextmanager
def hold_folder(workdir: Path) -> Iterator[None]:
    """Keeps other sweeps out of a folder until the block ends, or the process does: the lock is the kernel's.

    Raises:
        BlockingIOError: where another sweep holds it.
    """
    with hold_file(workdir / "sweep.yaml", "another sweep is running"):
        yield


def require_same(what: str, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the first thing that differs, where `what` was begun with something else."""
    old, new = flat(begun), flat(read_yaml_value(yaml.safe_dump(dict(asked))))
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            raise ValueError(f"{name} = {new.get(name)!r}: {what} was begun with {old.get(name)!r}")
