"""Ctrl-C, SIGTERM and SIGHUP, which end a run after the current chunk, saved."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from wdjax.console import Console

STOPPED = 130  # exit status of all processes of a run that a signal stopped


@contextlib.contextmanager
def stop_signals(console: Console) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C, SIGTERM or SIGHUP sets. The next Ctrl-C interrupts.

    SIGHUP, sent when the terminal closes, is ignored under nohup.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return

    def request(number: int, frame: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()
        # during another print, or after the terminal has closed
        with contextlib.suppress(RuntimeError, OSError):
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
        for number, handler in before.items():  # None: a handler that Python did not install
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
