"""Functions that shorten the start of a run."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import jax

from wdjax.checks import one_line
from wdjax.train.devices.memory import share_memory

T = TypeVar("T")


def in_thread(function: Callable[..., T], *arguments: object) -> "Future[T]":
    """Call a function in a new thread."""
    thread = ThreadPoolExecutor(1)
    called = thread.submit(function, *arguments)
    thread.shutdown(wait=False)
    return called


def wake_device() -> Future[list[jax.Device]]:
    """Initialize jax's devices and compile the program of random keys, in a thread.

    A GPU takes seconds to reserve its memory. The program of keys compiles too fast to be cached.

    Returns:
        A future of the devices. Call its `result` before any computation with jax: it raises
        OSError if a device cannot be used. jax raises this only once, and then uses the CPU.
    """
    share_memory()
    # the default may differ between threads
    default = jax.config.jax_default_device  # type: ignore[attr-defined]  # added at run time

    def make_key() -> None:
        with jax.default_device(default):
            jax.random.key(0)

    pool = ThreadPoolExecutor(1)
    devices = pool.submit(find_devices)
    pool.submit(make_key)  # errors recur at the next use of the device
    pool.shutdown(wait=False)
    return devices


def find_devices() -> list[jax.Device]:
    """Return jax's devices, or raise OSError if those named by JAX_PLATFORMS cannot be used."""
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:
        names = jax.config.jax_platforms  # type: ignore[attr-defined]  # added at run time
        # jax without its CUDA plugin raises an AssertionError without a message
        reason = one_line(error) or "jax finds no such device or lacks the plugin for it"
        if not names or names == "cpu":  # jax itself names the platform
            raise OSError(reason) from error
        raise OSError(
            f"JAX_PLATFORMS = {names}: {reason}. Unset JAX_PLATFORMS, set it to cpu, or "
            'install jax for the device (pip install "jax[cuda12]").'
        ) from error
