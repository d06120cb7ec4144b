"""Workarounds for orbax and tensorstore (0.12 and 0.1.86).

They print messages for every array of a failed save, never free some memory, and parse paths as
patterns and URLs.
"""

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

try:  # this module creates the specs of stores and reads statistics in each save
    from orbax.checkpoint._src.serialization import tensorstore_utils
except ImportError:  # not in this version
    tensorstore_utils = types.ModuleType("tensorstore_utils")


class LocalPath(gpath.PosixGPath):
    """A local path for orbax, without patterns and URLs.

    etils would expand "[0]" in the folder, and read /s3/a as a URL.
    """

    _uri_scheme = None

    def glob(self, pattern: str) -> Iterator["LocalPath"]:
        return (self / name for name in glob.glob(pattern, root_dir=os.fspath(self)))


@functools.cache  # permanently: threads may log long after the call that failed
def silence() -> None:
    """Suppress messages of a checkpoint's threads about errors that its manager raises, too."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax also logs every step
    logging.getLogger("asyncio").addFilter(lambda record: not _of_orbax(record))
    hook = sys.unraisablehook

    def report(unraisable: "sys.UnraisableHookArgs") -> None:
        # for an array that is no longer awaited
        closed = "Event loop is closed" in str(unraisable.exc_value)
        read = asyncio.iscoroutine(unraisable.object) and _from_orbax(unraisable.exc_traceback)
        if not (closed or read):
            hook(unraisable)

    sys.unraisablehook = report


def _of_orbax(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    named = "orbax" in message or "OCDBT" in message  # the format of tensorstore that orbax uses
    return named or (_from_orbax(record.exc_info[2]) if record.exc_info else False)


def _from_orbax(trace: types.TracebackType | None) -> bool:
    return any("orbax" in frame.filename for frame in traceback.extract_tb(trace))


@functools.cache
def stop_leaks() -> None:
    """Keep orbax from requesting JSON from tensorstore, which leaks the strings (up to 0.1.86).

    It leaks 360 bytes for each array of a save and 15 kB for its statistics: a run of a week would
    grow by gigabytes.
    """
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

    def __init__(self, original: object, **attributes: object):
        self._original = original
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)


def _uncompressed(add_options: Callable[..., None]) -> Callable[..., None]:
    """Return a function that adds the options of an array store without compressing its index.

    Each thread that compresses takes 3.7 MB, which tensorstore keeps. Without compression, the
    index of 60 arrays needs 42 kB more.
    """

    @functools.wraps(add_options)
    def add(spec: dict[str, Any], *arguments: object, **named: object) -> None:
        add_options(spec, *arguments, **named)
        spec["config"] = {**spec["config"], "compression": None}

    return add


def _spec(spec: object) -> object:
    """Return `KvStore.Spec(spec)`; for a folder, an object whose JSON is the spec itself."""
    if isinstance(spec, dict) and spec.keys() == {"driver", "path"} and spec["driver"] == "file":
        return types.SimpleNamespace(to_json=lambda: dict(spec))
    return tensorstore.KvStore.Spec(spec)
