"""Terminal output with control characters escaped, since names and values may be untrusted."""

import errno
import io
import os
import sys
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from wdjax.checks import printable


class Unbroken(io.FileIO):
    """A file descriptor that drops output once its reader, a pipe or a terminal, is gone."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return len(memoryview(data).cast("B"))


def keep_output() -> None:
    """Keep the process alive when stdout or stderr is closed, or its terminal or pipe is gone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):  # replaced by a notebook or a test
            continue
        if stream is None:  # closed before Python started: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf8"))  # noqa: SIM115
            continue
        raw = Unbroken(stream.fileno(), "w", closefd=False)
        output: Any = raw if stream.write_through else io.BufferedWriter(raw)  # PYTHONUNBUFFERED
        same = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        setattr(sys, name, io.TextIOWrapper(output, stream.encoding, stream.errors, **same))


def show(text: Any) -> None:
    """Print a text with control characters escaped, and flush the output."""
    print(printable(text), flush=True)


def table_console(**options: Any) -> "Console":
    """Return a console for tables, which are 160 columns wide where the output is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 160, **options)


class Console(rich.console.Console):
    """Rich console without markup and emoji codes, with control characters escaped."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
