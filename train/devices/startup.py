"""What shortens the time until a run begins."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from wdjax.checks import one_line
from wdjax.train.devices.memory import share_memory


def in_thread(function: Callable, *arguments: Any) -> Future:
    """Begins a call in a thread of its own."""
    thread = ThreadPoolExecutor(1)
    called = thread.submit(function, *arguments)
    thread.shutdown(wait=False)
    return called


def wake_device() -> Future[list[jax.Device]]:
    """Begins, in a thread, to find jax's devices and to make a first key: a GPU reserves its memory, which takes
    seconds, and the program that makes keys is compiled, which is too quick for the cache.

    Returns:
        what will hold the devices. Ask for its result() before anything else of jax that computes: that raises OSError
        where a device cannot be used. jax says so only once, and whoever asks again gets the CPU.
    """
    share_memory()
    chosen = jax.config.jax_default_device  # may be this thread's own

    def make_key() -> None:
        with jax.default_device(chosen):
            jax.random.key(0)

    pool = ThreadPoolExecutor(1)
    devices = pool.submit(find_devices)
    pool.submit(
        make_key
    )  # nobody asks how it went: a device that is full says so again, where it is needed
    pool.shutdown(wait=False)
    return devices


def find_devices() -> list[jax.Device]:
    """Return jax's devices, or raise OSError if those named by JAX_PLATFORMS cannot be used."""
    try:
        return jax.devices()
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # AssertionError without a word: of cuda without jax's CUDA plugin
        names = jax.config.jax_platforms
        reason = (
            one_line(error) if str(error) else "jax finds no such device or lacks the plugin for it"
        )
        remedy = 'Unset JAX_PLATFORMS, set it to cpu, or install jax for the device (pip install "jax[cuda12]")'
        named = names and names != "cpu"  # else jax itself names the platform that it tried
        raise OSError(
            f"JAX_PLATFORMS = {names}: {reason}. {remedy}." if named else reason
        ) from error
