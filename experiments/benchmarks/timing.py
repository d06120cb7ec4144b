"""Tools shared by all benchmarks: command line, timing, child processes, JSON files and tables."""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import jaxlib
from rich.table import Column, Table

from wdjax.checks import require, require_known
from wdjax.console import Console

Result = Mapping[str, Any]  # the numbers of one measurement by name
Columns = Mapping[str, Callable[[Result], str]]  # header -> text of a cell; KeyError if it is empty


class Parser(argparse.ArgumentParser):
    """Command line with row names, if any, and --repeats, --small and --json if `timed`."""

    def __init__(
        self,
        description: str,
        rows: Collection[str] = (),
        timed: bool = True,
        **options: Any,
    ) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(
            description=description, formatter_class=formatter, allow_abbrev=False, **options
        )
        self.rows = rows
        if rows:
            known = f"rows to measure: {', '.join(rows)} (default: all)"
            self.add_argument("rows", nargs="*", default=rows, metavar="ROW", help=known)
        if timed:
            repeats = "timed runs per row, at least 1 (default: 5)"
            self.add_argument("--repeats", type=int, default=5, help=repeats)
            self.add_argument("--small", action="store_true", help="sizes for a CPU")
            file = "also write all numbers to this file"
            self.add_argument("--json", type=Path, metavar="FILE", help=file)

    def error(self, message: str) -> NoReturn:
        """Exit with one sentence and status 2."""
        self.exit(2, f"{self.prog}: {message}\n")

    def parse(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse the arguments; `error` for an unknown option or row and for integers below 1."""
        parsed, unknown = self.parse_known_args(arguments)
        options = [option for option in self._option_string_actions if option != "-h"]
        try:
            for name in unknown:
                require_known("option", name, options)
            for name in parsed.rows if self.rows else ():
                require_known("row", name, self.rows)
            for name, value in vars(parsed).items():
                for number in value if isinstance(value, list) else [value]:
                    allowed = type(number) is not int or number >= 1
                    require(allowed, f"--{name.replace('_', '-')}", number, "at least 1")
        except ValueError as error:
            self.error(str(error))
        return parsed


def median_and_spread(seconds: list[float]) -> tuple[float, float]:
    """Return the median, and (max - min) / median."""
    median = statistics.median(seconds)
    return median, (max(seconds) - min(seconds)) / median


def machine() -> str:
    """Return the device and the versions as text."""
    device = jax.devices()[0]
    precision = jax.default_matmul_precision.value or "default"
    return (
        f"{device.device_kind} ({device.platform}), jax {jax.__version__}, jaxlib "
        f"{jaxlib.__version__}, "
        f"Python {platform.python_version()}, matmul precision {precision}"
    )


def short(value: float | None) -> str:
    """Return a number with three digits and a unit: 42.6 k, 1.20 M, 17.3 G; "-" for None."""
    if value is None:
        return "-"
    sizes = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1, ""))
    size, letter = next(pair for pair in sizes if value >= pair[0] * 0.9995 or pair[0] == 1)
    scaled = value / size
    return f"{scaled:,.{max(0, 2 - sum(scaled >= limit for limit in (9.995, 99.95)))}f}{letter}"


def in_new_process(
    function: Callable[..., Any], *arguments: Any, variables: Mapping[str, str] | None = None
) -> Any:
    """Call a module-level function in a new process of this installation of wdjax.

    Args:
        function: function with JSON arguments and a JSON result.
        *arguments: its arguments.
        variables: environment variables to set; an empty value unsets one.

    Raises:
        subprocess.CalledProcessError: if the process exits with another status than 0.
    """
    code = (
        f"import json, sys; from {function.__module__} import {function.__name__} as function\n"
        "print(json.dumps(function(*json.loads(sys.argv[1]))))"
    )
    home = Path(str(sys.modules["wdjax"].__file__)).parents[1]
    path = os.pathsep.join(filter(None, (str(home), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": path, **(variables or {})}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in environ.items() if value},
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def column(name: str, show: Callable[[Any], str] = str) -> Callable[[Result], str]:
    """Return the cell of a table that shows one number of a result."""
    return lambda result: show(result[name])


def report(results: Iterable[Result], columns: Columns, path: Path | None = None) -> list[Result]:
    """Print each result when it is measured, then tables of all; write them to `path` after each.

    Results with the same "table" share a table of that title. A table omits empty columns.

    Returns:
        all results.
    """
    done: list[Result] = []
    for result in results:
        done.append(result)
        cells = cells_of(result, columns)
        numbers = (f"{name}: {text}" for name, text in cells.items() if name != "row")
        failed = [f"failed: {result['error']}"] if "error" in result else []
        workload = [result["workload"]] if "workload" in result else []
        print("   ", ", ".join([cells["row"], *numbers, *workload, *failed]), flush=True)
        if path is not None:
            path.write_text(json.dumps(done, indent=1), encoding="utf8")
    console = Console(width=None if sys.stdout.isatty() else 180)
    for words in dict.fromkeys(result.get("machine", machine()) for result in done):
        console.print(words, soft_wrap=True, highlight=False)
    for title in dict.fromkeys(result.get("table") for result in done):
        console.print(make_table([r for r in done if r.get("table") == title], columns, title))
    return done


def cells_of(result: Result, columns: Columns) -> dict[str, str]:
    """Return header -> text of the columns for which a result has numbers."""
    cells = {}
    for name, show in columns.items():
        with contextlib.suppress(KeyError):
            cells[name] = show(result)
    return cells


def make_table(results: Sequence[Result], columns: Columns, title: str | None = None) -> Table:
    """Return a table of results; its first column holds names, the others numbers."""
    rows = [cells_of(result, columns) for result in results]
    first, *others = [name for name in columns if any(name in row for row in rows)]
    headers = (Column(first, no_wrap=True), *(Column(name, justify="right") for name in others))
    table = Table(*headers, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(row.get(name, "-") for name in (first, *others)))
    return table
