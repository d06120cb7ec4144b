"""Files in a folder that a stranger may have filled: written whole and never through a link, read only if regular."""

import contextlib
import errno
import functools
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

LINK = "is a link or a pipe. wdjax does not write through links inside a run folder. Replace it."
MOST_BYTES = 2**26  # limit for files that are read in one piece; metrics.jsonl may be larger


@contextlib.contextmanager
def new_file(path: str | Path, mode: str = "wb", sync: bool = False) -> Iterator[IO[Any]]:
    """Open a new file that replaces `path` when the block ends without an error, and is deleted otherwise.

    It is made in the same folder under a random name, exclusively, so that nothing is written through a link.

    Args:
        mode: "wb", or "w" for UTF-8 text.
        sync: wait until the disk has the content before the file is replaced.
    """
    path = Path(path)
    partial = path.with_name(f".wdjax-{secrets.token_hex(4)}.tmp")
    text = {} if "b" in mode else {"encoding": "utf8", "newline": ""}
    try:
        with open(partial, mode.replace("w", "x"), **text) as stream:
            yield stream
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if getattr(error, "filename", None) == str(partial):
            error.filename, error.filename2 = str(path), None
        raise


def make_folder_inside(folder: Path) -> Path:
    """Make a folder inside a run folder. Raises ValueError where it is a link, which may lead anywhere."""
    if folder.is_symlink():
        raise ValueError(f"{folder}: {LINK}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_regular(
    path: str | Path, mode: str = "rb", most: int | None = None, **options: Any
) -> IO[Any]:
    """Open a regular file: never a pipe or a device, and to write never a link.

    Raises:
        OSError: where it cannot be opened.
        ValueError: where it is no regular file, or holds more than `most` bytes.
    """
    follow = 0 if mode in ("r", "rb") else os.O_NOFOLLOW
    # opening a pipe waits for its other end
    opener = functools.partial(_open, flags_too=follow | os.O_NONBLOCK)
    try:
        stream = open(path, mode, opener=opener, **options)  # noqa: SIM115  (returned)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise ValueError(f"{path}: {LINK}") from None
        raise
    found = os.fstat(stream.fileno())
    if stat.S_ISREG(found.st_mode) and (most is None or found.st_size <= most):
        return stream
    stream.close()
    size = "" if most is None else f" of at most {most:,} bytes"
    raise ValueError(f"{path}: must be a regular file{size}")


def _open(path: str, flags: int, flags_too: int) -> int:
    return os.open(path, flags | flags_too, 0o666)


def read_text(path: str | Path, most: int = MOST_BYTES, errors: str = "strict") -> str:
    """Return the UTF-8 text in a regular file. Raises as `open_regular`."""
    with open_regular(path, "r", most, encoding="utf8", errors=errors) as stream:
        return stream.read()


def write_text(path: str | Path, text: str, sync: bool = False) -> None:
    """Write a UTF-8 text as `new_file` does."""
    with new_file(path, "w", sync) as stream:
        stream.write(text)
