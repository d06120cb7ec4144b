"""Damaged checkpoints: files that are missing, truncated or not regular."""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from wdjax.checks import one_line
from wdjax.files import MOST_BYTES, read_json

SIZES = "sizes.json"  # file in the folder of a checkpoint: name of each file -> bytes
MOST_CHARACTERS = 200  # maximum length of a message of another library
ARRAYS = "d"  # folder of the files with arrays, which may be large


class DamagedCheckpointError(ValueError):
    """A checkpoint cannot be read, although it was completely written."""


def reason(error: BaseException) -> str:
    """Return the message of the deepest cause of an error of orbax or tensorstore, shortened."""
    while error.__cause__ is not None and str(error.__cause__):
        error = error.__cause__
    message = one_line(error)
    if number := getattr(error, "errno", None) or re.search(r"os_error_code='(\d+)'", message):
        return os.strerror(number if isinstance(number, int) else int(number[1]))
    return message if len(message) <= MOST_CHARACTERS else f"{message[:MOST_CHARACTERS]} ..."


def require_regular_files(folder: Path) -> None:
    """Raise DamagedCheckpointError for files that orbax must not read.

    It would wait for a pipe, and read a device or an oversized metadata file.
    """
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            # a run that is training deletes its older checkpoints
            with contextlib.suppress(FileNotFoundError):
                size = path.stat().st_size
                whole = path.is_file() and (path.parent.name == ARRAYS or size <= MOST_BYTES)
                if not whole and path.exists() and (path.is_symlink() or not path.is_dir()):
                    raise DamagedCheckpointError(
                        f"{path}: must be a regular file of at most {MOST_BYTES:,} bytes"
                    )


def require_sizes(folder: Path, name: str) -> None:
    """Raise DamagedCheckpointError if a file of a checkpoint is missing or has another size."""
    file = folder / SIZES
    if not file.exists():
        return  # the run was killed before it wrote the sizes; orbax detects the rest
    try:
        expected = read_json(file)
    except ValueError as error:
        raise DamagedCheckpointError(f"{name} is damaged: {SIZES} is not valid JSON") from error
    is_mapping = isinstance(expected, Mapping)
    if not (is_mapping and all(type(size) is int for size in expected.values())):
        raise DamagedCheckpointError(f"{name} is damaged: {SIZES} does not contain file sizes")
    found = file_sizes(folder)
    for path, size in expected.items():
        if found.get(path) != size:
            holds = "is missing" if path not in found else f"has {found[path]:,} of {size:,} bytes"
            raise DamagedCheckpointError(f"{name} is damaged: {path} {holds}")


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file of a checkpoint, by its path in the folder."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith((SIZES, ".wdjax-"))
    }
