"""Loggers: callbacks that write metrics in other formats (docs/how_to/callbacks.md).

Each logger writes to the folder of its run. With several processes, only process 0 writes.
"""

import contextlib
import csv
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from wdjax.checks import one_line, require
from wdjax.console import Console
from wdjax.files import make_folder_inside, new_file, open_regular, read_text, write_text
from wdjax.metric_names import USER, free_name
from wdjax.train.devices.processes import is_first
from wdjax.train.host.loop import Row
from wdjax.train.storage.folder import plain_config

if TYPE_CHECKING:
    from wdjax.train.host.callbacks import Run


class Logger:
    """Base class of loggers: `begin` is called before the first row of a run, `write` per row.

    `end` is called at the end. A run that resumes after it was killed writes some rows again:
    `begin` must discard stored rows with at least as many env steps as the first row.
    """

    needs: tuple[str, str] | None = None
    """library to import as `self.library`, and the extra of wdjax that installs it"""

    def __init__(self):
        self.logs: dict[Path, Any] = {}  # by folder of the run; in a sweep, one per member
        self.failed = False
        if self.needs is not None:
            self.library = _import(*self.needs)

    def __call__(self, run: "Run", row: Row) -> None:
        if not is_first() or self.failed:
            return
        with self._disabled_by_errors():
            if run.workdir not in self.logs:
                run.workdir.mkdir(parents=True, exist_ok=True)
                self.logs[run.workdir] = self.begin(run, row)
            self.write(self.logs[run.workdir], row)

    def close(self) -> None:
        """Close all logs. A later row opens the log of its run again."""
        for log in self.logs.values():
            with self._disabled_by_errors():
                self.end(log)
        self.logs.clear()

    @contextlib.contextmanager
    def _disabled_by_errors(self) -> Iterator[None]:
        """Turn an error of a logger into a warning and disable the logger; training continues."""
        try:
            yield
        except Exception as error:  # of any type, from the logger's library
            if not self.failed:
                Console(stderr=True).print(
                    f"Warning: {type(self).__name__} failed and is disabled ({one_line(error)}); "
                    "training continues",
                    highlight=False,
                    soft_wrap=True,
                )
            self.failed = True

    def begin(self, run: "Run", row: Row) -> Any:
        """Return the log that is passed to `write` and `end`."""
        raise NotImplementedError

    def write(self, log: Any, row: Row) -> None:
        raise NotImplementedError

    def end(self, log: Any) -> None:
        log.close()


class CSVLogger(Logger):
    """Write metrics.csv to the run folder: one line per chunk; unknown values are empty."""

    def begin(self, run: "Run", row: Row) -> tuple[Path, list[str]]:
        file, old = run.workdir / "metrics.csv", []
        if file.exists():
            with open_regular(file, "r", encoding="utf8", newline="") as stream:
                lines = list(csv.DictReader(stream))
            require(
                all((line.get("updates") or "").isdecimal() for line in lines),
                "metrics.csv",
                str(file),
                "a table with a column updates of whole numbers. Move it away",
            )
            old = [line for line in lines if int(line["updates"]) < row["updates"]]
        names = list(row)
        with new_file(file, "w") as stream:
            writer = _csv_writer(stream, names)
            writer.writeheader()
            writer.writerows(old)
        return file, names

    def write(self, log: tuple[Path, list[str]], row: Row) -> None:
        file, names = log
        # opened for each row, since a sweep would keep too many files open
        with open_regular(file, "a", encoding="utf8", newline="") as stream:
            _csv_writer(stream, names).writerow(row)

    def end(self, log: object) -> None:
        """Do nothing: no file is kept open."""


class TensorBoardLogger(Logger):
    """Write TensorBoard event files to the run's folder `tensorboard`: scalars over env steps."""

    needs = ("tensorboardX", "tensorboard")

    def begin(self, run: "Run", row: Row) -> Any:
        # an absolute path, since the library reads "s3:a" as a bucket
        folder = make_folder_inside(run.workdir / "tensorboard").absolute()
        # purge the rows that a killed run writes again
        return self.library.SummaryWriter(str(folder), purge_step=row["env_steps"])

    def write(self, log: Any, row: Row) -> None:
        tags: dict[str, str] = {}  # tag -> name: tensorboardX writes some characters as "_"
        for name in row:
            tag = re.sub(r"[^-/\w.]", "_", name).lstrip("/")
            tags[free_name(tag, USER, tags.__contains__)] = name
        for tag, name in tags.items():
            if isinstance(row[name], int | float):
                log.add_scalar(tag, row[name], row["env_steps"])
        log.flush()


class WandbLogger(Logger):
    """Log to a Weights & Biases run, named after the run folder, with the configuration.

    A resumed run continues it. Configure it with the usual variables: WANDB_PROJECT (default
    "wdjax"), WANDB_ENTITY, WANDB_MODE=offline.
    """

    needs = ("wandb", "wandb")

    def begin(self, run: "Run", row: Row) -> Any:
        file = run.workdir / "wandb_id"
        log = self.library.init(
            id=read_text(file) if file.exists() else None,
            resume="allow",
            reinit="create_new",
            name=run.workdir.name,
            project=os.environ.get("WANDB_PROJECT", "wdjax"),
            dir=run.workdir,
            config=plain_config(run.config),
        )
        write_text(file, log.id)
        return log

    def write(self, log: Any, row: Row) -> None:
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        log.log(numbers, step=row["env_steps"])

    def end(self, log: Any) -> None:
        log.finish()


def close_loggers(callbacks: Sequence[object]) -> None:
    """Close the logs of the loggers among callbacks: no row of these runs follows soon."""
    for callback in callbacks:
        if isinstance(callback, Logger):
            callback.close()


def _csv_writer(stream: IO[str], names: list[str]) -> csv.DictWriter:
    return csv.DictWriter(stream, names, restval="", extrasaction="ignore", lineterminator="\n")


def _import(library: str, extra: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(
            f'the callback {extra!r} needs {library}: pip install "wdjax[{extra}]"'
        ) from error
