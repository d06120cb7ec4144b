"""Progress of long work: an announcement, and a bar in terminals, notebooks and logs."""

import contextlib
import datetime
import html
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from wdjax.console import Console

SECONDS_BETWEEN = 2.0  # between pictures of the bar in a notebook, which take about 0.1 s each


def announce(console: Console, env: str, num_devices: int, what: str, workdir: Path) -> None:
    """Print the environment, the devices, the work (`what`) and the folder."""
    several = f"{num_devices} x " if num_devices > 1 else ""
    console.print(
        f"{env} on {several}{jax.devices()[0].device_kind}: {what}, in {workdir}", soft_wrap=True
    )


@contextlib.contextmanager
def progress_bar(
    console: Console, total: int, done: int, picture: Callable[[], str] = lambda: ""
) -> Iterator[Callable[[int, str], None]]:
    """Show a progress bar.

    Args:
        console: console to draw on; in a notebook the output of the cell, without ipywidgets.
        total: number of updates.
        done: number of updates before.
        picture: returns HTML that a notebook shows below the bar.

    Yields:
        A function of (updates, text), to call after every chunk.
    """
    if console.quiet:  # rich's bar would swallow what callbacks print, too
        yield lambda completed, words: None
        return
    first = "compiling" if done < total else "done"
    display = notebook_display()
    if display is not None:
        with notebook_bar(display, total, done, first, picture) as show:
            yield show
        return
    # without a terminal, as in a log or `!wdjax train` in a notebook, all pictures of the bar stay
    kept = "JPY_PARENT_PID" in os.environ or not console.file.isatty()
    with Progress(
        BarColumn(bar_width=16),
        TextColumn("{task.description}", markup=False, table_column=Column()),  # wraps
        TimeRemainingColumn(compact=True),
        console=console,
        refresh_per_second=1 / SECONDS_BETWEEN if kept else 10,
    ) as progress:
        task = progress.add_task(first, total=total, completed=done)
        yield lambda completed, words: progress.update(task, completed=completed, description=words)


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` in the kernel of a notebook, else None, without importing it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:  # in a terminal
        return None
    return importlib.import_module("IPython.display").display


@contextlib.contextmanager
def notebook_bar(
    display: Callable[..., Any], total: int, done: int, words: str, picture: Callable[[], str]
) -> Iterator[Callable[[int, str], None]]:
    """Show a `progress_bar` in a notebook: one output, replaced at most every SECONDS_BETWEEN."""
    begun = shown = time.monotonic()
    completed = done

    def bundle() -> dict[str, str]:
        rest = (time.monotonic() - begun) * (total - completed) / max(completed - done, 1)
        left = f", {datetime.timedelta(seconds=round(rest))} left"
        left = left if done < completed < total else ""
        bar = f'<progress value="{completed}" max="{total}"></progress> {html.escape(words + left)}'
        return {"text/plain": f"{words}{left}", "text/html": f"<div>{bar}</div>{picture()}"}

    handle = display(bundle(), raw=True, display_id=True)

    def show(now: int, said: str) -> None:
        nonlocal completed, words, shown
        completed, words = now, said
        if time.monotonic() - shown >= SECONDS_BETWEEN:
            handle.update(bundle(), raw=True)
            shown = time.monotonic()

    try:
        yield show
    finally:
        handle.update(bundle(), raw=True)
