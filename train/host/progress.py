"""What a run says of itself: what will run, and how far it has come."""

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

# two pictures of the bar in a notebook: one takes some 0.1 s, while the device trains
SECONDS_BETWEEN = 2.0

GO_ON = " Continue with the same command and --resume."


def announce(console: Console, env: str, num_devices: int, what: str, workdir: Path) -> None:
    """Says what will run, and where."""
    several = f"{num_devices} x " if num_devices > 1 else ""
    console.print(
        f"{env} on {several}{jax.devices()[0].device_kind}: {what}, in {workdir}", soft_wrap=True
    )


def announce_run(
    console: Console, given: TrainConfig, config: TrainConfig, workdir: Path, num_devices: int
) -> None:  # fmt: skip
    """Report the length of a run, and its schedules that end elsewhere than the run (`schedule_warnings`)."""
    steps = config.num_updates * config.env_steps_per_update
    more = f" ({config.total_env_steps:,} rounded up)" if steps > config.total_env_steps else ""
    words = f"{config.num_updates:,} updates of {config.env_steps_per_update:,} env steps, {steps:,} in total{more}"
    announce(console, config.env, num_devices, words, workdir)
    for words in schedule_warnings(given, config):
        console.print(words, soft_wrap=True)


def schedule_warnings(given: TrainConfig, config: TrainConfig) -> Iterator[str]:
    """Yield a warning for every schedule in env steps of a trainable policy that ends elsewhere than the run.

    Args:
        given: the configuration as it was written, where schedules in fractions of the run fit by themselves.
        config: the same with all schedules in env steps, as the run uses them.
    """
    total = config.total_env_steps
    for name, policy in config.policies.items():
        written = {field: value for field, _, value in leaves(given.policies[name])}
        for field, (*_, last), points in leaves(policy) if policy.trainable else ():
            source = written.get(field)
            fits = isinstance(source, Fraction) and source.in_env_steps(total) == points
            if (
                fits
                or not is_scheduled(last)
                or isinstance(points, float | int)
                or len(points) == 1
            ):
                continue
            if (end := points[-1][0]) != total:
                at_end = float(np.interp(total, *zip(*points, strict=True)))
                words = f"ends at env step {end:,.0f}, but the run ends at {total:,}, where its value is {at_end:g}"
                yield f"Warning: policies.{name}.{field} {words}. Use fractions of the run to fit any length."


def nothing_to_do(config: TrainConfig, done: int) -> str:
    """Return the message of a run that has `done` updates, all that its configuration asks for or more."""
    steps, total = (updates * config.env_steps_per_update for updates in (done, config.num_updates))
    more = "To train longer, raise total_env_steps and use --resume (in Python resume=True)."
    return f"The run already has {steps:,} of {total:,} env steps: nothing to do. {more}"


@contextlib.contextmanager
def progress_bar(
    console: Console, total: int, done: int, picture: Callable[[], str] = lambda: ""
) -> Iterator[Callable[[int, str], None]]:
    """Shows how far something is; gives a function of (how far, in words), to call after every chunk.

    Args:
        console: where; in a notebook the output of the cell, which needs no ipywidgets.
        total, done: of what is to be done, and was before.
        picture: returns HTML that a notebook shows under the words.
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
    # What a notebook's `!wdjax train` or a log is given in place of a terminal keeps every picture of the bar.
    kept = "JPY_PARENT_PID" in os.environ or not console.file.isatty()
    with Progress(
        *columns, console=console, refresh_per_second=1 / SECONDS_BETWEEN if kept else 10
    ) as progress:
        task = progress.add_task(_first_word(total, done), total=total, completed=done)
        yield lambda completed, words: progress.update(task, completed=completed, description=words)


def _first_word(total: int, done: int) -> str:
    return "compiling" if done < total else "done"


def notebook_display() -> Callable[..., Any] | None:
    """Returns IPython's `display` where this runs in a notebook's kernel, else None. IPython is not imported for it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:  # a terminal has none
        return None
    return importlib.import_module("IPython.display").display


@contextlib.contextmanager
def notebook_bar(
    display: Callable[..., Any], total: int, done: int, picture: Callable[[], str]
) -> Iterator[Callable[[int, str], None]]:
    """`progress_bar` in a notebook: one output, written anew after a chunk, every SECONDS_BETWEEN at most, and last."""
    begun = shown = time.monotonic()
    completed, words = done, _first_word(total, done)

    def bundle() -> dict[str, str]:
        rest = (time.monotonic() - begun) * (total - completed) / max(completed - done, 1)
        left = (
            f", {datetime.timedelta(seconds=round(rest))} left" if done < completed < total else ""
        )
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
    """Return the summary of a finished run: speed, time that was not spent on training, and fused kernels.

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
    return f"{env_steps:,} env steps in {total:.1f} s ({speed}): {waited}.{f' {kernels}.' * bool(kernels)}"


def early_end(config: TrainConfig, done: int, by_signal: bool, ended_by: str) -> str:
    """Return the message of a run that ended and was saved after `done` updates.

    Args:
        ended_by: reason, if it was not a signal; "": another process ended the run.
    """
    how = "Stopped" if by_signal else f"Ended by {ended_by or 'another process'}"
    steps = f"{done * config.env_steps_per_update:,} of {config.total_env_steps:,} env steps"
    return f"{how} and saved after {steps}.{GO_ON if by_signal else ''}"


def words_of_run(config: TrainConfig, row: Mapping[str, Any]) -> str:
    """Returns what the bar of a run says after a chunk: env steps, env steps/s and mean episode returns."""
    returns = {name: row[f"{name}/episode_return"] for name in config.policies}
    words = [f"{name} {'-' if mean is None else f'{mean:.2f}'}" for name, mean in returns.items()]
    steps = f"{row['env_steps']:,} env steps ({row['env_steps_per_second']:,.0f}/s)"
    return f"{steps}, return {', '.join(words)}"
