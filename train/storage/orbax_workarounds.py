"""Workarounds for orbax and tensorstore (0.12 and 0.1.86): messages for every array of a failed save, memory that is
never freed, and paths that are parsed as patterns and URLs."""

import asyncio
import functools
import glob
import logging
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import tensorstore
from etils.epath import gpath

try:  # for every save it makes specs of stores and reads statistics
    from orbax.checkpoint._src.serialization import tensorstore_utils
except ImportError:  # not in this version
    tensorstore_utils = types.ModuleType("tensorstore_utils")


class LocalPath(gpath.PosixGPath):
    """A local path for orbax, taken literally: etils globs "[0]" in the folder too, and reads /s3/a as a URL."""

    _uri_scheme = None

    def glob(self, pattern: str) -> Iterator["LocalPath"]:
        return (self / name for name in glob.glob(pattern, root_dir=os.fspath(self)))


@functools.cache  # once in a process: the threads may log long after the call that failed
def silence() -> None:
    """Suppress the messages of a checkpoint's threads about errors that its manager raises anyway."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax also logs every step
    logging.getLogger("asyncio").addFilter(lambda record: not _of_orbax(record))
    hook = sys.unraisablehook

    def report(unraisable: Any) -> None:
        closed = "Event loop is closed" in str(
            unraisable.exc_value
        )  # of an array that is not awaited any more
        read = asyncio.iscoroutine(unraisable.object) and _from_orbax(unraisable.exc_traceback)
        if not (closed or read):
            hook(unraisable)

    sys.unraisablehook = report


def _of_orbax(record: logging.LogRecord) -> bool:
    words = record.getMessage()  # OCDBT: tensorstore's format, in which orbax writes
    return (
        "orbax" in words
        or "OCDBT" in words
        or (bool(record.exc_info) and _from_orbax(record.exc_info[2]))
    )


def _from_orbax(trace: Any) -> bool:
    return any("orbax" in frame.filename for frame in traceback.extract_tb(trace))


@functools.cache
def stop_leaks() -> None:
    """Keep orbax from requesting JSON from tensorstore, which leaks the strings (up to 0.1.86): 360 bytes for each
    array of a save and 15 kB for its statistics. A run of a week would grow by gigabytes."""
    if hasattr(tensorstore_utils, "get_tensorstore_raw_bytes"):  # unused statistics
        tensorstore_utils.get_tensorstore_raw_bytes = lambda *_, **__: 0
    if hasattr(tensorstore_utils, "ts"):
        tensorstore_utils.ts = _Instead(
            tensorstore, KvStore=_Instead(tensorstore.KvStore, Spec=_spec)
        )
    for name in ("_add_ocdbt_write_options", "add_ocdbt_write_options"):
        if hasattr(tensorstore_utils, name):
            setattr(tensorstore_utils, name, _uncompressed(getattr(tensorstore_utils, name)))


class _Instead:
    """An object with some attributes replaced."""

    def __init__(self, original: Any, **attributes: Any):
        self._original = original
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _uncompressed(add_options: Callable) -> Callable:
    """Return a function that adds the options of an array store without compressing its index (42 kB more for 60
    arrays): each thread that compresses takes 3.7 MB, which tensorstore keeps."""

    @functools.wraps(add_options)
    def add(spec: dict[str, Any], *arguments: Any, **named: Any) -> None:
        add_options(spec, *arguments, **named)
        spec["config"] = {**spec["config"], "compression": None}

    return add


def _spec(spec: Any) -> Any:
    """Return `KvStore.Spec(spec)`; for a folder, an object whose JSON is the spec itself."""
    if isinstance(spec, dict) and spec.keys() == {"driver", "path"} and spec["driver"] == "file":
        return types.SimpleNamespace(to_json=lambda: dict(spec))
    return tensorstore.KvStore.Spec(spec)
