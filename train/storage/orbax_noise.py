"""What orbax's and tensorstore's threads print beside what they raise: a screen for every array of a failed save."""

import asyncio
import functools
import logging
import sys
import traceback
from typing import Any


@functools.cache  # once in a process: the threads may speak long after the call that failed
def silence() -> None:
    """Leaves out what a checkpoint's threads say about errors that its manager raises anyway."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax tells every step it takes, too
    logging.getLogger("asyncio").addFilter(lambda record: not _of_orbax(record))
    hook = sys.unraisablehook

    def report(unraisable: Any) -> None:
        closed = "Event loop is closed" in str(unraisable.exc_value)  # nobody waits for that array any more
        read = asyncio.iscoroutine(unraisable.object) and _from_orbax(unraisable.exc_traceback)
        if not (closed or read):
            hook(unraisable)

    sys.unraisablehook = report


def _of_orbax(record: logging.LogRecord) -> bool:
    words = record.getMessage()  # OCDBT: tensorstore's format, in which orbax writes
    return "orbax" in words or "OCDBT" in words or (bool(record.exc_info) and _from_orbax(record.exc_info[2]))


def _from_orbax(trace: Any) -> bool:
    return any("orbax" in frame.filename for frame in traceback.extract_tb(trace))
