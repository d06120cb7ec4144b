"""Callbacks, which are called after every chunk, and goals (`stop_at`) that end a run."""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wdjax.checks import require, require_known
from wdjax.named import find_named
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.loop import Row


class Run(Protocol):
    """The `run` argument of callbacks: the Trainer, or a `MemberRun` in a sweep."""

    @property
    def workdir(self) -> Path:
        """The run's folder."""

    @property
    def config(self) -> TrainConfig:
        """The run's configuration."""

    def stop(self) -> None:
        """End the run after the current chunk, and save it."""


Callback = Callable[[Any, Row], object]
"""callback(run, row): `run` is a `Run`; returning True ends the run"""

# The loggers by name; any other callback is named by its import path, "package.module:name".
LOGGERS = {
    "csv": "wdjax.train.host.loggers:CSVLogger",
    "tensorboard": "wdjax.train.host.loggers:TensorBoardLogger",
    "wandb": "wdjax.train.host.loggers:WandbLogger",
}


_DELAYED = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


@dataclass(frozen=True)
class MemberRun:
    """The `run` argument of callbacks in a sweep: one member, with its folder and configuration."""

    workdir: Path  # folder of the member inside the sweep; created when something is written
    config: TrainConfig
    ending: threading.Event

    def stop(self) -> None:
        """End the whole sweep after the current chunk, and save it."""
        self.ending.set()


def make_callbacks(given: Sequence[Callback | str]) -> tuple[Callback, ...]:
    """Return callbacks from functions, names in LOGGERS and import paths; classes are instantiated.

    Raises:
        ValueError: if a name is unknown (the message has the closest name) or repeated.
        TypeError: if a callback is not a plain function or callable object.
        ImportError: if the library of a logger is not installed.
    """
    require(
        isinstance(given, Iterable) and not isinstance(given, str),
        "callbacks",
        given,
        "a list of functions, logger names and import paths",
        TypeError,
    )
    names = [name for name in given if isinstance(name, str)]
    is_unique = len(set(names)) == len(names)
    require(is_unique, "callbacks", names, "unique: a repeated name would write each row twice")
    return tuple(map(_make_callback, given))


def _make_callback(given: Callback | str) -> Callback:
    custom = 'a custom callback is "package.module:name"'
    found = find_named("callback", given, LOGGERS, custom) if isinstance(given, str) else given
    require(callable(found), "callback", given, "a function of (trainer, row)", TypeError)
    made = found() if isinstance(found, type) else found
    delayed = any(check(function) for function in (made, type(made).__call__) for check in _DELAYED)
    require(not delayed, "callback", _name(made), "a plain function, without `async` or `yield`")
    return made


def _name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", type(callback).__name__)


def call_callbacks(callbacks: Sequence[Callback], run: Run, row: Row) -> bool:
    """Call every callback. Return whether one ends the run. Errors have a note with its name."""
    asked = []
    for callback in callbacks:
        try:
            asked.append(_asks_for_end(callback(run, row)))
        except Exception as error:  # of any type: user code
            error.add_note(f"raised by the callback {_name(callback)}")
            raise
    return any(asked)


def _asks_for_end(answer: Any) -> bool:
    """Return whether a callback's result is a true boolean of Python, NumPy or jax."""
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError(
            "the callback returned a coroutine, which is never awaited. Use a plain function."
        )
    scalar = np.shape(answer) == () and getattr(answer, "dtype", None) == np.bool_
    return answer is True or (scalar and bool(answer))


def close_callbacks(callbacks: Sequence[Callback]) -> None:
    """Call `close` of the callbacks that have it."""
    for callback in callbacks:
        getattr(callback, "close", lambda: None)()


def goals_reached(stop_at: Mapping[str, float], *rows: Row) -> bool:
    """Return whether all metrics of `stop_at` reach their thresholds in one of the rows."""
    reached = lambda value, threshold: value is not None and value >= threshold  # noqa: E731
    return bool(stop_at) and any(
        all(reached(row.get(name), threshold) for name, threshold in stop_at.items())
        for row in rows
    )


def require_goals(stop_at: Mapping[str, float], metrics: Sequence[str]) -> None:
    """Raise ValueError for a metric of `stop_at` that no row has, with the closest name."""
    for name in stop_at:
        require_known("metric in stop_at", name, metrics)


def goals_in_words(stop_at: Mapping[str, float]) -> str:
    """Return the thresholds as text: "stop_at agent/episode_return 475"."""
    return f"stop_at {', '.join(f'{name} {value:g}' for name, value in stop_at.items())}"
