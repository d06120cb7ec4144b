"""The file metrics.jsonl: one JSON object per chunk, with the same fields; null if unknown."""

import contextlib
import functools
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from wdjax.files import open_regular, read_text
from wdjax.train.state.aliases import Metrics
from wdjax.train.state.metric import Metric, rule_of, values_of

METRICS = "metrics.jsonl"  # file in the folder of a run
COMBINE: dict[str, Callable[..., float]] = {"sum": np.sum, "max": np.max, "min": np.min}
MOST_METRICS = 2**32  # bytes of a metrics.jsonl


def summarize(metrics: Metrics, policies: Iterable[str] = ()) -> dict[str, float | int | None]:
    """Return one number for each metric of a chunk of updates, null if it is not finite.

    A `Metric` specifies how its numbers are combined; a plain array is averaged over the updates.
    Updates without a number (NaN) are omitted.

    Args:
        metrics: name -> [num_updates], including `episodes`.
        policies: policies in the order of their metrics in the result, after all others.
    """
    values = {name: np.asarray(array, np.float64) for name, array in values_of(metrics).items()}
    summary: dict[str, float | int | None] = {"episodes": int(values["episodes"].sum())}
    for name, metric in metrics.items():
        if name != "episodes":
            summary[name] = finite(_of_chunk(values[name], rule_of(metric), values))
    place = {name: number for number, name in enumerate(policies)}
    order = sorted(summary, key=lambda name: place.get(name.partition("/")[0], -1))
    return {name: summary[name] for name in order}


def _of_chunk(numbers: np.ndarray, metric: Metric, values: Mapping[str, np.ndarray]) -> float:
    weight = math.prod((values[name] for name in metric.weight), start=np.ones(len(numbers)))
    known = (weight > 0) & ~np.isnan(numbers)  # NaN where there was nothing to report
    numbers, weight = numbers[known], weight[known]
    if not len(numbers):
        return math.nan
    average = functools.partial(np.average, weights=weight)
    if metric.over == "deviation":  # over all values; means can differ between updates
        means = values[metric.mean][known]
        square = average(numbers**2 + means**2) - average(means) ** 2
        return float(np.sqrt(max(square, 0.0)))
    return float(COMBINE.get(metric.over, average)(numbers))


def finite(value: float) -> float | None:
    """Return the number, or None if it is not finite, since JSON has neither NaN nor infinities."""
    return value if math.isfinite(value) else None


def whole_lines(path: Path, size: int) -> int:
    """Return the bytes of whole lines in the first `size` bytes of a metrics.jsonl."""
    if not path.exists():
        return 0
    with open_regular(path) as file:
        return file.read(size).rfind(b"\n") + 1


class MetricsLog:
    """The file, opened for appending. Checkpoints contain its `size` in bytes.

    A resumed run cuts the file back to that size.

    Args:
        path: path of the file.
        size: bytes to keep, whole lines only.
        say: called with a warning when the file was deleted and is written again.
        lock: locks the folder again, whose lock file may have been deleted too; None: the folder is
            not locked.
    """

    def __init__(
        self,
        path: Path,
        size: int,
        say: Callable[[str], object] = print,
        lock: Callable[[], None] | None = None,
    ):
        self.path, self._say, self._lock = path, say, lock
        self.size = whole_lines(path, size)
        self._file = self._open(self.size)

    def _open(self, size: int) -> io.FileIO:
        file = cast(io.FileIO, open_regular(self.path, "a+b", buffering=0))  # closed by `close`
        file.truncate(size)
        return file

    def restore(self) -> None:
        """Write the file again, with all its lines, if it was deleted or replaced."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno())):
                return
        if self._lock is not None:
            self._lock()  # raises an error if another run has locked the folder
        old = self._file
        old.seek(0)
        lines = old.readall()[: self.size]
        with self._writing():
            self._file = self._open(0)
            old.close()
            self._append(lines)
        self._say(
            f"Warning: {self.path} "
            "was deleted or replaced during training. It is rewritten with all its lines."
        )

    def write(self, row: Mapping[str, object]) -> None:
        """Append one object, and flush it to the operating system. Raise OSError on failure."""
        line = (json.dumps(row) + "\n").encode()
        with self._writing():
            self._append(line)
        self.size += len(line)

    def _append(self, rest: bytes) -> None:
        while rest:  # a full disk may accept a part of a line
            rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Wait until the lines are on disk, before a checkpoint refers to them."""
        with self._writing():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._file.truncate(self.size)  # whole lines only
            raise type(error)(
                f"could not write {self.path} ({error.strerror}). Continue with --resume."
            ) from error


@contextlib.contextmanager
def open_log(
    path: Path, size: int, say: Callable[[str], object], lock: Callable[[], None] | None = None
) -> Iterator[MetricsLog]:
    """Open the log of a run that continues from a checkpoint. Warn if lines are missing."""
    tell_lost_lines(path, size, say)
    with contextlib.closing(MetricsLog(path, size, say, lock)) as log:
        yield log


def tell_lost_lines(path: Path, size: int, say: Callable[[str], object]) -> None:
    """Warn if a metrics.jsonl lacks lines of the first `size` bytes, which a checkpoint covers."""
    if missing := size - whole_lines(path, size):
        say(f"Warning: {path} is {missing:,} bytes short: its last lines are lost")


def rows_of(run: str | Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl in the folder of a run, [] if it is missing."""
    file = Path(run) / METRICS
    return read_metrics(file) if file.exists() else []


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl, without an incomplete last line.

    Args:
        path: path of the file, or the folder of a run.

    Raises:
        ValueError: naming file and line, if a line is not a JSON object.
    """
    path, rows = Path(path), []
    path = path / METRICS if path.is_dir() else path
    # invalid UTF-8 is replaced, and then refused as JSON with its line
    text = read_text(path, MOST_METRICS, errors="replace")
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if line.endswith("\n"):
                raise ValueError(f"{path}, line {number}, is not valid JSON: {error}") from error
            break
        if not isinstance(rows[-1], dict):
            raise ValueError(f"{path}, line {number}, must be a mapping, not {rows[-1]!r}")
    return rows
