"""What every benchmark shares: options, how a program is timed, on what it ran, processes, tables."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import jaxlib
from rich.table import Column, Table

from wdjax.checks import require, require_known


class Parser(argparse.ArgumentParser):
    """The command line of a benchmark: rows by name; --repeats and --json unless `repeats` is 0; what else is added."""

    def __init__(
        self,
        words: str,
        rows: Collection[str] = (),
        usual: Collection[str] = (),
        repeats: int = 5,
        **options: Any,
    ) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(
            description=words, formatter_class=formatter, allow_abbrev=False, **options
        )
        self.rows = rows
        if rows:
            known = f"rows to measure: {', '.join(rows)} (default: {', '.join(usual) or 'all'})"
            self.add_argument("rows", nargs="*", default=usual or rows, metavar="ROW", help=known)
        if repeats:
            runs = f"timed runs per row, at least 1 (default: {repeats})"
            self.add_argument("--repeats", type=int, default=repeats, help=runs)
            self.add_argument(
                "--json", type=Path, metavar="FILE", help="also write all numbers to this file"
            )

    def error(self, message: str) -> NoReturn:
        """Ends with one sentence and exit status 2."""
        self.exit(2, f"{self.prog}: {message}\n")

    def parse(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Returns the options; `error` where an option or a row is unknown, or a number below 1."""
        parsed, unknown = self.parse_known_args(arguments)
        try:
            for name in unknown:
                require_known(
                    "option",
                    name,
                    [option for option in self._option_string_actions if option != "-h"],
                )
            for name in parsed.rows if self.rows else ():
                require_known("row", name, self.rows)
            for name, value in vars(parsed).items():
                for number in value if isinstance(value, list) else [value]:
                    require(
                        type(number) is not int or number >= 1,
                        f"--{name.replace('_', '-')}",
                        number,
                        "at least 1",
                    )
        except ValueError as error:
            self.error(str(error))
        return parsed


def rates(program: Callable[[], Any], repeats: int, env_steps: int, passes: int) -> dict[str, Any]:
    """Returns the times of `repeats` calls after a warm-up, until their results are ready, and the rates of the median
    one, by name; a call is so many env steps and passes (updates, rollouts or steps of all replicas)."""
    jax.block_until_ready(program())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(program())
        seconds.append(time.perf_counter() - start)
    median, spread = median_and_spread(seconds)
    return {
        "env_steps_per_second": env_steps / median,
        "ms_per_pass": 1e3 * median / passes,
        "spread": spread,
        "seconds": seconds,
    }


def median_and_spread(seconds: list[float]) -> tuple[float, float]:
    """Returns the median, and (max - min) / median."""
    median = statistics.median(seconds)
    return median, (max(seconds) - min(seconds)) / median


def machine() -> str:
    """Returns the device and the versions."""
    device = jax.devices()[0]
    precision = jax.config.jax_default_matmul_precision or "default"
    return (
        f"{device.device_kind} ({device.platform}), jax {jax.__version__}, jaxlib {jaxlib.__version__}, "
        f"Python {platform.python_version()}, matmul precision {precision}"
    )


def short(value: float | None) -> str:
    """Returns a number with three digits and its thousands in a letter: 42.6 k, 1.20 M, 17.3 G; "-" for None."""
    if value is None:
        return "-"
    sizes = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1, ""))
    size, letter = next(pair for pair in sizes if value >= pair[0] * 0.9995 or pair[0] == 1)
    scaled = value / size
    return f"{scaled:,.{max(0, 2 - sum(scaled >= limit for limit in (9.995, 99.95)))}f}{letter}"


def command(
    module: str, arguments: Iterable[str], variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Returns the command line and the environment of a process of its own that runs a benchmark of this very wdjax,
    whatever the current folder is.

    Args:
        module: of this package.
        arguments: of its command line.
        variables: over those of the environment; an empty one is left out.
    """
    home = Path(sys.modules["wdjax"].__file__).parents[1]
    path = filter(None, (str(home), os.environ.get("PYTHONPATH")))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables}
    line = [sys.executable, "-P", "-m", f"wdjax.experiments.benchmarks.{module}", *arguments]
    return line, {name: value for name, value in environ.items() if value}


def start(module: str, arguments: Iterable[str], variables: Mapping[str, str]) -> Any:
    """Runs such a process to its end. Returns what it printed as its last line, in JSON.

    Raises:
        subprocess.CalledProcessError: where it ends with another status than 0.
    """
    line, environ = command(module, arguments, variables)
    ended = subprocess.run(line, stdout=subprocess.PIPE, text=True, env=environ, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def write_json(path: Path | None, words: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes what was measured, and on what in words, to a file, where one is asked for."""
    if path is not None:
        path.write_text(json.dumps({"machine": words, "rows": rows}, indent=1), encoding="utf8")


def make_table(
    columns: Iterable[str], rows: Iterable[Iterable[str]], title: str | None = None
) -> Table:
    """Returns a table: the first column holds names, the others numbers."""
    name, *numbers = columns
    headers = (Column(name, no_wrap=True), *(Column(number, justify="right") for number in numbers))
    shown = Table(*headers, title=title, title_justify="left")
    for row in rows:
        shown.add_row(*row)
    return shown
