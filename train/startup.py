"""What shortens the time until a run begins."""

import contextlib
import gc
import threading
from collections.abc import Iterator

import jax

from wdjax.checks import one_line


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
    """Has jax find its devices, and makes a first key in a thread: a GPU reserves its memory, which takes seconds, and
    the program that makes keys is compiled, which is too quick for the cache.

    Raises:
        OSError: where jax cannot use a device that it is made for, or was told to use.
    """
    try:
        jax.devices()  # not in the thread: jax says but once that a GPU fails, and then computes on the CPU
    except RuntimeError as error:
        raise OSError(one_line(error)) from error
    chosen = jax.config.jax_default_device  # may be this thread's own

    def make_key() -> None:
        full = RuntimeError  # is said again, where the device is needed
        with contextlib.suppress(full), jax.default_device(chosen):
            jax.random.key(0)

    threading.Thread(target=make_key).start()
