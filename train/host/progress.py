"""Messages of a run: its size and device at the start, its progress, and a summary."""

import contextlib
import datetime
import html
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from wdjax.console import Console
from wdjax.train.config.facts import Fraction, is_scheduled, leaves
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.loop import Row

SECONDS_BETWEEN = 2.0  # between pictures of the bar in a notebook, which take about 0.1 s each

GO_ON = " Continue with the same command and --resume."


def announce(console: Console, env: str, num_devices: int, what: str, workdir: Path) -> None:
    """Print the environment, the devices, the work (`what`) and the folder."""
    several = f"{num_devices} x " if num_devices > 1 else ""
    console.print(
        f"{env} on {several}{jax.devices()[0].device_kind}: {what}, in {workdir}", soft_wrap=True
    )


def announce_run(
    console: Console, given: TrainConfig, config: TrainConfig, workdir: Path, num_devices: int
) -> None:  # fmt: skip
    """Print the length of a run, and warnings about its schedules (`schedule_warnings`)."""
    steps = config.num_updates * config.env_steps_per_update
    more = f" ({config.total_env_steps:,} rounded up)" if steps > config.total_env_steps else ""
    announce(
        console,
        config.env,
        num_devices,
        f"{config.num_updates:,} updates of {config.env_steps_per_update:,} env steps, "
        f"{steps:,} in total{more}",
        workdir,
    )
    for warning in schedule_warnings(given, config):
        console.print(warning, soft_wrap=True)


def schedule_warnings(given: TrainConfig, config: TrainConfig) -> Iterator[str]:
    """Yield a warning for each schedule that does not end with the run.

    Only schedules in env steps of trainable policies are checked.

    Args:
        given: configuration of the run as written; schedules in fractions of the run always fit.
        config: the same with all schedules in env steps.
    """
    total = config.total_env_steps
    for name, policy in config.policies.items():
        written = {field: value for field, _, value in leaves(given.policies[name])}
        for field, (*_, last), points in leaves(policy) if policy.trainable else ():
            source = written.get(field)
            fits = isinstance(source, Fraction) and source.in_env_steps(total) == points
            constant = not is_scheduled(last) or isinstance(points, float | int) or len(points) == 1
            if fits or constant or (end := points[-1][0]) == total:
                continue
            steps, values = zip(*points, strict=True)
            yield (
                f"Warning: policies.{name}.{field} ends at env step {end:,.0f}, but the run ends "
                f"at {total:,}, where its value is {np.interp(total, steps, values):g}. Use "
                "fractions of the run to fit any length."
            )


def nothing_to_do(config: TrainConfig, done: int) -> str:
    """Return the message of a run that is complete after `done` updates."""
    steps, total = (updates * config.env_steps_per_update for updates in (done, config.num_updates))
    return (
        f"The run already has {steps:,} of {total:,} env steps: nothing to do. "
        "To train longer, raise total_env_steps and use --resume (in Python resume=True)."
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
    display = notebook_display()
    if display is not None:
        with notebook_bar(display, total, done, picture) as show:
            yield show
        return
    words = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(bar_width=16), words, TimeRemainingColumn(compact=True))
    # without a terminal, as in a log or `!wdjax train` in a notebook, all pictures of the bar stay
    kept = "JPY_PARENT_PID" in os.environ or not console.file.isatty()
    with Progress(
        *columns, console=console, refresh_per_second=1 / SECONDS_BETWEEN if kept else 10
    ) as progress:
        task = progress.add_task(_first_word(total, done), total=total, completed=done)
        yield lambda completed, words: progress.update(task, completed=completed, description=words)


def _first_word(total: int, done: int) -> str:
    return "compiling" if done < total else "done"


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` in the kernel of a notebook, else None, without importing it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:  # in a terminal
        return None
    return importlib.import_module("IPython.display").display


@contextlib.contextmanager
def notebook_bar(
    display: Callable[..., Any], total: int, done: int, picture: Callable[[], str]
) -> Iterator[Callable[[int, str], None]]:
    """Show a `progress_bar` in a notebook: one output, replaced at most every SECONDS_BETWEEN."""
    begun = shown = time.monotonic()
    completed, words = done, _first_word(total, done)

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


def last_words(
    env_steps: int, chunks: float, waits: Mapping[str, float], total: float, kernels: str
) -> str:
    """Return the summary of a run: speed, seconds without training, and fused kernels.

    Args:
        env_steps: steps of this call.
        chunks: seconds in which the device trained.
        waits: name -> seconds; the rest up to `total` is evaluation and checkpoints.
        total: seconds of this call.
        kernels: `words_of_kernels`.
    """
    rest = {**waits, "evaluation and checkpoints": max(total - chunks - sum(waits.values()), 0.0)}
    longest = sorted(rest.items(), key=lambda wait: -wait[1])
    waited = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in longest)
    speed = f"{env_steps / chunks:,.0f}/s while training" if chunks else "no update was left"
    end = f" {kernels}." if kernels else ""
    return f"{env_steps:,} env steps in {total:.1f} s ({speed}): {waited}.{end}"


def early_end(config: TrainConfig, done: int, by_signal: bool, ended_by: str) -> str:
    """Return the message of a run that ended early, and was saved.

    Args:
        config: configuration of the run.
        done: number of updates.
        by_signal: whether a signal ended the run.
        ended_by: otherwise, the reason; "": another process ended the run.
    """
    how = "Stopped" if by_signal else f"Ended by {ended_by or 'another process'}"
    return (
        f"{how} and saved after {done * config.env_steps_per_update:,} of "
        f"{config.total_env_steps:,} env steps.{GO_ON if by_signal else ''}"
    )


def words_of_run(config: TrainConfig, row: Row) -> str:
    """Return the text of the bar after a chunk: env steps, env steps/s and mean returns."""
    returns = {name: row[f"{name}/episode_return"] for name in config.policies}
    words = [f"{name} {'-' if mean is None else f'{mean:.2f}'}" for name, mean in returns.items()]
    return (
        f"{row['env_steps']:,} env steps ({row['env_steps_per_second']:,.0f}/s), "
        f"return {', '.join(words)}"
    )
