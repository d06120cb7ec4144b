"""Safe access to files in untrusted folders.

New files are written atomically, writes never follow symbolic links, and only regular files are
read.
"""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

LINK = "is a link or a pipe. wdjax does not write through links inside a run folder. Replace it."
SWEEP_FILE = "sweep.yaml"  # contains everything that the numbers of a sweep depend on
MOST_BYTES = 2**26  # limit for files that are read at once; metrics.jsonl may be larger


@contextlib.contextmanager
def new_file(path: str | Path, mode: str = "wb", sync: bool = False) -> Iterator[IO[Any]]:
    """Open a new file that replaces `path` when the block succeeds and is deleted otherwise.

    The file has a random name in the same folder and is created exclusively, so that
    writing never follows a symbolic link.

    Args:
        path: the file to create or replace.
        mode: "wb", or "w" for UTF-8 text.
        sync: whether to flush the content to disk before replacing the file.
    """
    path = Path(path)
    partial = path.with_name(f".wdjax-{secrets.token_hex(4)}.tmp")
    encoding, newline = (None, None) if "b" in mode else ("utf8", "")
    try:
        with open(partial, mode.replace("w", "x"), encoding=encoding, newline=newline) as stream:
            yield stream
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(partial):
            error.filename, error.filename2 = str(path), None
        raise


def make_folder_inside(folder: Path) -> Path:
    """Create a folder inside a run folder; raise ValueError if it is a symbolic link."""
    if folder.is_symlink():
        raise ValueError(f"{folder}: {LINK}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_regular(
    path: str | Path, mode: str = "rb", most: int | None = None, **options: Any
) -> IO[Any]:
    """Open a regular file. Pipes and devices are rejected; symbolic links only when writing.

    Args:
        path: the file.
        mode: as for `open`.
        most: limit of the file's size in bytes; None for no limit.
        **options: further options of `open`.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is not a regular file, or larger than `most` bytes.
    """
    # O_NONBLOCK: opening a pipe would wait for its other end
    more = os.O_NONBLOCK | (0 if mode in ("r", "rb") else os.O_NOFOLLOW)
    opener = lambda path, flags: os.open(path, flags | more, 0o666)  # noqa: E731
    try:
        stream = open(path, mode, opener=opener, **options)  # noqa: SIM115  (returned)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise ValueError(f"{path}: {LINK}") from None
        raise
    status = os.fstat(stream.fileno())
    if stat.S_ISREG(status.st_mode) and (most is None or status.st_size <= most):
        return stream
    stream.close()
    size = "" if most is None else f" of at most {most:,} bytes"
    raise ValueError(f"{path}: must be a regular file{size}")


def try_lock(stream: IO[Any], shared: bool = False) -> bool | None:
    """Lock an open file until it is closed, by flock.

    Args:
        stream: the file.
        shared: whether others may hold shared locks of the file.

    Returns:
        Whether the file is locked; False if another process holds a lock, None if the system
        (Windows, some network file systems) has no such locks.
    """
    try:
        import fcntl

        fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, ImportError):
        return None
    return True


def read_text(path: str | Path, most: int = MOST_BYTES, errors: str = "strict") -> str:
    """Return the UTF-8 text of a regular file; raises the errors of `open_regular`."""
    with open_regular(path, "r", most, encoding="utf8", errors=errors) as stream:
        return stream.read()


def read_json(file: Path) -> Any:
    """Return the content of a JSON file. Raise ValueError, naming the file, for invalid JSON."""
    try:
        return json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error


def find_files(folder: Path, name: str) -> list[Path]:
    """Return the paths of all files with a name inside a folder, sorted.

    Folders of checkpoints are skipped: they appear and vanish during training.
    """
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [inside for inside in folders if inside != "checkpoints"]
        found += [Path(place, name)] * (name in files)
    return sorted(found)


def require_fields(file: Path, content: Any, **kinds: type) -> None:
    """Raise ValueError, naming the file, unless its content has these fields with these types."""
    for name, kind in kinds.items():
        if not (isinstance(content, Mapping) and isinstance(content.get(name), kind)):
            raise ValueError(f"{file} is damaged: it must contain {name}, a {kind.__name__}")


def write_text(path: str | Path, text: str, sync: bool = False) -> None:
    """Write UTF-8 text atomically, like `new_file`."""
    with new_file(path, "w", sync) as stream:
        stream.write(text)
