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
    program that makes keys is compiled, which is too quick for the cache."""
    chosen = jax.config.jax_default_device  # may be this thread's own

    def make_key() -> None:
        missing_or_full = RuntimeError  # is said again, where the device is needed
        with contextlib.suppress(missing_or_full), jax.default_device(chosen):
            jax.random.key(0)

    threading.Thread(target=make_key).start()
