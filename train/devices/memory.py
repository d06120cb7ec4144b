"""How much memory a compiled program takes, how much there is, and what becomes of it in a long run."""

import contextlib
import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import jax

from wdjax.kernels.backend import on_cpu

SHARE = 0.8  # of what is free: XLA's own count leaves out collectives and fragmentation, and others need some too
_TRIM_THRESHOLD, _ARENA_MAX = -1, -8  # of glibc's malloc.h


def bytes_needed(program: Any) -> int:
    """Returns how much memory a compiled program takes on each device: arguments, results and what is between, and a
    copy of the arguments, which is being saved in the background."""
    found = program.memory_analysis()
    shared = found.alias_size_in_bytes  # donated arguments that are results
    return (
        2 * found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
        + found.generated_code_size_in_bytes - shared
    )  # fmt: skip


def bytes_free(num_devices: int = 1) -> int:
    """Returns SHARE of the bytes that a device has left; of a CPU, whose devices share them, one of so many's part."""
    stats = jax.local_devices()[0].memory_stats() or {}
    free = (
        stats["bytes_limit"] - stats.get("bytes_in_use", 0)
        if "bytes_limit" in stats
        else host_memory()
    )
    return int(SHARE * free) // (num_devices if on_cpu() else 1)


def host_memory() -> int:
    """Returns the bytes that this machine has to give: what is available, and at most what a container may have."""
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = [os.sysconf("SC_PHYS_PAGES") * page]
    with contextlib.suppress(
        OSError, ValueError, IndexError
    ):  # Linux: free, or in use only to cache files
        lines = Path("/proc/meminfo").read_text(encoding="utf8").splitlines()
        sizes.append(
            next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        )
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf8")))
    return min(sizes)


def share_memory() -> None:
    """Has all threads take memory from four places: glibc gives each its own, and of what orbax's threads, new for
    every save, leave there, 11 kB a save were never used again. Only threads that begin later do so. From one place it
    was no less memory a save, but XLA's threads left 290 MB more there (1,200 saves, nothing given back)."""
    _call_glibc("mallopt", _ARENA_MAX, 4)


def give_back_memory() -> None:
    """Gives back to the system what has been freed: glibc keeps what lies below something in use. A run with 500 saves
    holds 40 MB less by it, of 270 MB that are its own, for 1 ms a save. What lies above, in the places of threads, is
    not looked at: they give it back themselves from now on where it is over 128 kB, not twice the largest block that
    was ever freed, by which a run's memory went up and down by 5 MB."""
    _call_glibc("malloc_trim", 0)
    _call_glibc("mallopt", _TRIM_THRESHOLD, 2**17)


def _call_glibc(name: str, *numbers: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # another C library has none of this
        getattr(_c_library(), name)(*numbers)


@functools.cache  # every one has types of its own
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
