"""metrics.jsonl: one JSON object a chunk, always with the same fields; null stands for a number that is not known."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def summarize(metrics: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Returns one number for each metric of a chunk ([num_updates] each).

    `episodes` are summed; means over episodes are weighted with how many ended in each update; of the rest, the mean.
    """
    episodes = np.asarray(metrics["episodes"])
    summary: dict[str, float | int | None] = {"episodes": int(episodes.sum())}
    for name, values in metrics.items():
        values = np.asarray(values, np.float64)
        if name.split("/")[-1].startswith("episode_"):
            total = float(np.sum(np.where(episodes > 0, values, 0.0) * episodes))
            summary[name] = finite(total / episodes.sum()) if episodes.sum() else None
        elif name != "episodes":
            summary[name] = finite(float(values.mean()))
    return summary


def finite(value: float) -> float | None:
    """Returns the number, or None where it is not finite: JSON has neither NaN nor infinities."""
    return value if math.isfinite(value) else None


class MetricsLog:
    """The file, open for appending. Checkpoints hold its `size` in bytes: a resumed run cuts back to that."""

    def __init__(self, path: Path, size: int):
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115  (closed by `close`)
        self._file.truncate(size)
        self._file.seek(size)
        self.size = size

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one object and hands it to the operating system."""
        self.size += self._file.write((json.dumps(row) + "\n").encode())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Returns the objects of a metrics.jsonl."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf8").splitlines()]
