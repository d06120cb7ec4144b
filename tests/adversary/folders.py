"""Contents of folders: files with digests, and the state of runs and sweeps."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import yaml

SIGNS = {"sweep.yaml": "sweep", "members.json": "sweep", "config.yaml": "run", "checkpoints": "run"}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder, with the size of metrics.jsonl at its time, None if unreadable."""

    updates: int
    metrics_size: int | None


@dataclasses.dataclass(frozen=True)
class Run:
    """The folder of a run on disk."""

    kind: str  # "run", "sweep" or ""
    config: dict[str, Any]
    raw: bytes  # content of metrics.jsonl
    rows: list[dict[str, Any]]  # complete lines
    broken: list[str]  # lines that are not JSON objects
    checkpoints: list[Checkpoint]  # sorted by updates
    best: list[int]  # updates of the checkpoints in best/
    unfinished: bool  # whether temporary files or folders exist
    # rows of table.jsonl, for a sweep
    table: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def newest(self) -> int | None:
        return self.checkpoints[-1].updates if self.checkpoints else None

    @property
    def last_row(self) -> int:
        return self.rows[-1].get("updates", -1) if self.rows else 0


@dataclasses.dataclass(frozen=True)
class Disk:
    """All files below a folder, and the runs in its direct subfolders."""

    files: dict[str, str]  # path -> digest, "/" for a folder
    runs: dict[str, Run]

    def run(self, name: str) -> Run:
        return self.runs.get(name) or EMPTY

    def below(self, folder: str) -> dict[str, str]:
        return {
            path: digest
            for path, digest in self.files.items()
            if f"{path}/".startswith(f"{folder}/")
        }


EMPTY = Run("", {}, b"", [], [], [], [], False)


def look(root: Path) -> Disk:
    """Return the contents of a folder, without files at its top that start with a dot."""
    files = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if not name.startswith("."):
            files[name] = "/" if path.is_dir() else hashlib.sha1(path.read_bytes()).hexdigest()
    return Disk(
        files,
        {path.name: read(path) for path in root.iterdir() if path.is_dir() and path.name[0] != "."},
    )


def read(folder: Path) -> Run:
    kind = next((kind for sign, kind in SIGNS.items() if (folder / sign).exists()), "")
    file, log = folder / "config.yaml", folder / "metrics.jsonl"
    config = yaml.safe_load(file.read_text()) if file.is_file() else {}
    raw, rows, broken = log.read_bytes() if log.is_file() else b"", [], []
    for line in raw.splitlines(keepends=True):
        try:
            row = json.loads(line)
            (rows if isinstance(row, dict) and line.endswith(b"\n") else broken).append(row)
        except ValueError:
            broken.append(line.decode(errors="replace")[:80])
    unfinished = any("tmp" in path.name for path in folder.rglob("*"))
    checkpoints = [
        Checkpoint(step, metrics_size(folder / "checkpoints" / str(step)))
        for step in steps(folder / "checkpoints")
    ]
    file = folder / "table.jsonl"
    table = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return Run(
        kind,
        config if isinstance(config, dict) else {},
        raw,
        rows,
        broken,
        checkpoints,
        steps(folder / "best"),
        unfinished,
        table,
    )


def steps(folder: Path) -> list[int]:
    return (
        sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())
        if folder.is_dir()
        else []
    )


def metrics_size(checkpoint: Path) -> int | None:
    try:
        return json.loads((checkpoint / "host" / "metadata").read_text())["metrics_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the paths that differ."""
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


def close(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    """Return whether two tables have equal rows, with numbers equal up to rounding."""
    pairs = [
        (a.get(name), b.get(name))
        for a, b in zip(first, second, strict=False)
        for name in a.keys() | b.keys()
    ]
    return len(first) == len(second) and all(
        math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-4)
        if isinstance(a, float) and isinstance(b, float)
        else a == b
        for a, b in pairs
    )
