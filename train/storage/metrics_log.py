"""metrics.jsonl: one JSON object a chunk, always with the same fields; null stands for a number that is not known."""

import contextlib
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def summarize(
    metrics: Mapping[str, Any], info_ratios: Mapping[str, tuple[str, str]] | None = None
) -> dict[str, float | int | None]:
    """Returns one number for each metric of a chunk of updates, null where it is not finite.

    `episodes` are summed. Of names that end in _max and _min (or in _max/i and _min/i), the largest and the smallest.
    What is over episodes is that over all episodes of the chunk; means over the live rows of a rollout are weighted
    with `live_fraction`, returns and win rates against WHO with `opponent_games/WHO`; all else is the mean over the
    updates. Updates without a number (NaN) are left out.

    Args:
        metrics: name -> [num_updates].
        info_ratios: of the environment.
    """
    values = {name: np.asarray(array, np.float64) for name, array in metrics.items()}
    weights = {name: values["episodes"] * values[f"episode_{by}"] for name, (_, by) in (info_ratios or {}).items()}
    summary: dict[str, float | int | None] = {"episodes": int(values["episodes"].sum())}
    for name in values:
        if name != "episodes":
            summary[name] = finite(_of_chunk(name, values, weights))
    return summary


def _of_chunk(name: str, values: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray]) -> float:
    policy, _, last = re.sub(r"/\d+$", "", name).rpartition("/")  # without the component: "agent/action_max/0"
    of_pool = re.fullmatch(r"([^/]+)/(opponent_[a-z_]+)/(.+)", name)
    if of_pool:  # WHO may be a run's path, which says nothing of what is counted
        policy, last, who = of_pool.groups()
    over_episodes = last.startswith("episode_")
    if over_episodes:
        weight = values["episodes"]
    elif name in weights:
        weight = weights[name]
    elif last in ("opponent_return", "opponent_win_rate"):
        weight = values[f"{policy}/opponent_games/{who}"]
    else:
        weight = values.get(f"{policy}/live_fraction") if last.endswith("_mean") else None
    numbers = values[name]
    weight = np.ones(len(numbers)) if weight is None else weight
    known = (weight > 0) & ~np.isnan(numbers)  # NaN where there was nothing to report
    numbers, weight = numbers[known], weight[known]
    if not len(numbers):
        return math.nan
    if last.endswith("_max"):
        return float(numbers.max())
    if last.endswith("_min"):
        return float(numbers.min())
    if over_episodes and last.endswith("_std"):  # of all episodes: their means may differ between updates
        means = values[name.removesuffix("_std")][known]
        square = np.average(numbers**2 + means**2, weights=weight) - np.average(means, weights=weight) ** 2
        return float(np.sqrt(max(square, 0.0)))
    return float(np.average(numbers, weights=weight))


def finite(value: float) -> float | None:
    """Returns the number, or None where it is not finite: JSON has neither NaN nor infinities."""
    return value if math.isfinite(value) else None


def whole_lines(path: Path, size: int) -> int:
    """Return the bytes of the whole lines among the first `size` bytes of a metrics.jsonl, 0 where there is none."""
    return path.read_bytes()[:size].rfind(b"\n") + 1 if path.exists() else 0


class MetricsLog:
    """The file, open for appending. Checkpoints hold its `size` in bytes: a resumed run cuts back to that.

    Args:
        path: of the file.
        size: bytes of it that are kept, whole lines only.
    """

    def __init__(self, path: Path, size: int):
        self.path = path
        self.size = whole_lines(path, size)
        self._file = self._open(self.size)

    def _open(self, size: int) -> io.FileIO:
        file = open(self.path, "a+b", buffering=0)  # noqa: SIM115  (closed by `close`)
        file.truncate(size)
        return file

    def is_gone(self) -> bool:
        """Whether somebody has deleted the file, or put another in its place: nobody would find what is written."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True

    def write_again(self) -> None:
        """Writes a file that is gone again, from what this process still holds open of it. Raises OSError."""
        old = self._file
        old.seek(0)
        lines = old.readall()[: self.size]
        with self._writing():
            self._file = self._open(0)
            old.close()
            self._append(lines)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one object and hands it to the operating system. Raises OSError where that does not take it."""
        line = (json.dumps(row) + "\n").encode()
        with self._writing():
            self._append(line)
        self.size += len(line)

    def _append(self, rest: bytes) -> None:
        while rest:  # a disk that is full in the middle takes the first half and refuses the other
            rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Waits until the disk has what was written: a checkpoint must not know of lines that a power cut takes."""
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
            raise type(error)(f"could not write {self.path} ({error.strerror}): go on with --resume") from error


@contextlib.contextmanager
def open_log(path: Path, size: int, say: Callable[[str], Any]) -> Iterator[MetricsLog]:
    """Gives the log of what goes on from a checkpoint, and says where lines are lost that the checkpoint knows of."""
    tell_lost_lines(path, size, say)
    with contextlib.closing(MetricsLog(path, size)) as log:
        yield log


def tell_lost_lines(path: Path, size: int, say: Callable[[str], Any]) -> None:
    """Warn where a metrics.jsonl lacks lines of the first `size` bytes, which a checkpoint covers."""
    if missing := size - whole_lines(path, size):
        say(f"Warning: {path} is {missing:,} bytes short: its last lines are lost")


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Returns the objects of a metrics.jsonl, without a last line of which only a part is there (yet).

    Args:
        path: of the file, or of the folder of a run.

    Raises:
        ValueError: naming file and line, for one that is no JSON, or no object.
    """
    path, rows = Path(path), []
    path = path / "metrics.jsonl" if path.is_dir() else path
    text = path.read_text(encoding="utf8", errors="replace")  # what is no text is no JSON, and has a line
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if line.endswith("\n"):
                raise ValueError(f"{path}, line {number}, is no JSON: {error}") from error
            break
        if not isinstance(rows[-1], dict):
            raise ValueError(f"{path}, line {number}, must hold a mapping, not {rows[-1]!r}")
    return rows
