"""Ctrl-C, SIGTERM and SIGHUP: a run ends between two chunks, and saves."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from wdjax.console import Console


@contextlib.contextmanager
def stop_signals(console: Console) -> Iterator[threading.Event]:
    """Gives an event that the first Ctrl-C, SIGTERM or SIGHUP (the terminal is closed; not under nohup, which ignores
    it) sets; a Ctrl-C after that interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals: a notebook's cell in a thread goes without
        return

    def request(number: int, frame: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()
        with contextlib.suppress(
            RuntimeError, OSError
        ):  # it came while something was printed, or nobody listens
            console.print(
                "Stopping after this chunk. Press Ctrl-C again to stop at once without saving."
            )

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():  # None: one that Python has not set, and cannot
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
