"""Memory of compiled programs, free memory, and memory that allocators keep in long runs."""

import contextlib
import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import jax

from wdjax.kernels.backend import on_cpu

# usable share of free memory: XLA's count omits collectives and fragmentation
SHARE = 0.8
_TRIM_THRESHOLD, _ARENA_MAX = -1, -8  # constants of glibc's malloc.h


def bytes_needed(program: Any) -> int:
    """Return the memory that a compiled program needs on each device, in bytes.

    It includes arguments, results, temporary arrays, and a copy of the arguments for checkpoints.
    """
    found = program.memory_analysis()
    arguments = 2 * found.argument_size_in_bytes - found.alias_size_in_bytes  # donated arguments
    results = found.output_size_in_bytes + found.temp_size_in_bytes
    return arguments + results + found.generated_code_size_in_bytes


def bytes_free(num_devices: int = 1) -> int:
    """Return the usable free memory of a device in bytes, 80 % of its free memory.

    Args:
        num_devices: number of devices of the run; the devices of a CPU share its memory.
    """
    stats = jax.local_devices()[0].memory_stats() or {}
    limit = stats.get("bytes_limit")
    free = host_memory() if limit is None else limit - stats.get("bytes_in_use", 0)
    return int(SHARE * free) // (num_devices if on_cpu() else 1)


def host_memory() -> int:
    """Return the available memory of this machine in bytes, up to the limit of a container."""
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = [os.sysconf("SC_PHYS_PAGES") * page]
    with contextlib.suppress(OSError, ValueError, IndexError):  # Linux: including file caches
        lines = Path("/proc/meminfo").read_text(encoding="utf8").splitlines()
        available = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        sizes.append(next(int(kilobytes) * 1024 for kilobytes in available))
    with contextlib.suppress(OSError, ValueError):  # "max" if there is no limit
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf8")))
    return min(sizes)


def share_memory() -> None:
    """Limit glibc to four memory arenas, for threads that start later.

    By default, each thread has an arena. The threads of orbax are new in each save, and left 11 kB
    per save in their arenas that were never used again. With one arena, XLA's threads left 290 MB
    more in it over 1,200 saves.
    """
    _call_glibc("mallopt", _ARENA_MAX, 4)


def give_back_memory() -> None:
    """Return freed memory to the system, which takes 1 ms.

    glibc keeps free blocks below a used one: a run with 500 saves and 270 MB needs 40 MB less. The
    arenas of threads are not trimmed; these release blocks above 128 kB themselves, instead of
    twice the largest block freed before, which made memory fluctuate by 5 MB.
    """
    _call_glibc("malloc_trim", 0)
    _call_glibc("mallopt", _TRIM_THRESHOLD, 2**17)


def _call_glibc(name: str, *numbers: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # another C library
        getattr(_c_library(), name)(*numbers)


@functools.cache  # each `CDLL` object has separate function types
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
