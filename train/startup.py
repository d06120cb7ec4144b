"""What shortens the time until a run begins."""

import contextlib
import gc
import threading
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Holds off the search for garbage: what is imported and traced stays, and Python would look through it time and
    again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def wake_device() -> None:
    """Makes a first key, in a thread: jax finds its devices and a GPU reserves its memory, which takes seconds, and the
    program that makes keys is compiled, which no cache holds."""
    chosen = jax.config.jax_default_device  # may be this thread's own

    def make_key() -> None:
        missing_or_full = RuntimeError  # is said again, where the device is needed
        with contextlib.suppress(missing_or_full), jax.default_device(chosen):
            jax.random.key(0)

    threading.Thread(target=make_key).start()


def device_of_new_arrays() -> jax.Device:
    """Returns where jax puts an array that nobody places, as `jax.default_device` says; without making one."""
    chosen = jax.config.jax_default_device
    return jax.local_devices(backend=chosen)[0] if chosen is None or isinstance(chosen, str) else chosen
