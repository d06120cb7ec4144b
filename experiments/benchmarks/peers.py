"""wdjax in alternation with WarpDrive, PureJaxRL and gymnax, on the same workloads.

    python -m wdjax.experiments.benchmarks.peers --peers-path PATH       # on a GPU, five minutes
    python -m wdjax.experiments.benchmarks.peers cartpole_10k --small    # sizes for a CPU

tag_gridworld, tag_continuous: whole updates of WarpDrive's own yaml, with its CUDA kernels and with
numba. cartpole_ppo (10,000 replicas x 128 steps, 4 epochs x 4 minibatches; also 4 x 128, with 256
seeds and with one): whole runs, from a key to the trained state, by PureJaxRL's ppo.py, and by
wdjax with the same hyperparameters. Environments with a size: random play in gymnax by scans of 200
steps with fresh resets, returning the sums of all observations, rewards and end flags; in wdjax by
a scan of `VectorEnv.step`, and by `wdjax.play`.

warp_drive.py and purejaxrl.py describe where the baselines are searched (PATH/NAME, then installed
packages). gymnax 1.0 is in PATH/gymnax with gymnasium (`pip install --no-deps --target`). Matrix
products are tf32 on a GPU and float32 on a CPU.

Each program has a separate process. All programs of a row are compiled and called once, then run in
alternation, A B C A B C. Rates are computed from median times. A speedup is the median, over the
repetitions, of the baseline's time per env step divided by wdjax's; "by CPU time" uses the CPU time
of all threads instead. A baseline that does not start is reported with its error.
"""

import contextlib
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wdjax.experiments.benchmarks.peer_programs import ROWS, build, call
from wdjax.experiments.benchmarks.timing import (
    Parser,
    column,
    machine,
    median_and_spread,
    report,
    short,
)

LIMIT = 120.0  # seconds for one answer of a process
OWN = ("wdjax", "wdjax.play")
COLUMNS = {
    "row": column("row"),
    "program": column("program"),
    "env steps/s": column("env_steps_per_second", short),
    "spread": column("spread", "{:.0%}".format),
    "wdjax speedup": column("wdjax faster by seconds", "{:.2f}".format),
    "wdjax.play speedup": column("wdjax.play faster by seconds", "{:.2f}".format),
    "by CPU time": column("wdjax faster by cpu_seconds", "{:.2f}".format),
}


def main(arguments: list[str] | None = None) -> None:
    """Measure the rows named on the command line, or all."""
    parser = Parser(__doc__, ROWS)
    folder = "folder with one subfolder per baseline"
    parser.add_argument("--peers-path", type=Path, metavar="PATH", help=folder)
    parsed = parser.parse(arguments)
    path = parsed.peers_path
    if path is not None and not path.is_dir():
        parser.error(f"--peers-path = {str(path)!r}: must be a folder")
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the processes share the device
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # WarpDrive rewrites its own modules within seconds
    words = f"{machine()}, {os.cpu_count()} CPU cores{', small sizes' if parsed.small else ''}"
    results = (
        {"machine": words, **result}
        for row in parsed.rows
        for result in measure(row, path and path.resolve(), parsed.small, parsed.repeats)
    )
    report(results, COLUMNS, parsed.json)


def measure(row: str, path: Path | None, small: bool, repeats: int) -> Iterator[dict[str, Any]]:
    """Time the programs of a row in alternation; yield the numbers or the `error` of each."""
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(start_process()) for name in ROWS[row]}
        started = {
            name: process.apply_async(build, (row, name, path, small))  # all compile together
            for name, process in processes.items()
        }
        found = {name: answer(result.get) for name, result in started.items()}
        turns: dict[str, list[Any]] = {name: [] for name in found if "error" not in found[name]}
        for _ in range(repeats):
            for name in list(turns):
                turn = answer(processes[name].apply_async(call).get)
                turns[name].append(turn)
                if "error" in turn:
                    found[name] = turn
                    del turns[name]
    for name in found:
        yield {"row": row, "program": name, **found[name], **numbers(name, found, turns)}


def start_process() -> Any:
    """Start a process for one program."""
    return multiprocessing.get_context("spawn").Pool(1)


def answer(get: Callable[[float], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of a process, or `error` if it ended or takes too long."""
    try:
        return get(LIMIT)
    except multiprocessing.TimeoutError:
        return {"error": f"no answer from its process within {LIMIT:.0f} s"}


def numbers(
    name: str, found: Mapping[str, Any], turns: Mapping[str, list[dict[str, float]]]
) -> dict[str, Any]:
    """Return the times of a program and, for a baseline, the speedups of wdjax's programs."""
    if name not in turns:
        return {}
    seconds, cpu_seconds = (
        [turn[clock] for turn in turns[name]] for clock in ("seconds", "cpu_seconds")
    )
    median, spread = median_and_spread(seconds)
    rate = found[name]["env_steps"] / median
    result = {
        "env_steps_per_second": rate,
        "spread": spread,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }
    for own in OWN if name not in OWN else ():
        if own in turns:
            steps = found[own]["env_steps"] / found[name]["env_steps"]  # calls may differ in length
            for clock in ("seconds", "cpu_seconds"):
                pairs = zip(turns[name], turns[own], strict=True)
                ratio = statistics.median(theirs[clock] / ours[clock] for theirs, ours in pairs)
                result[f"{own} faster by {clock}"] = ratio * steps
    return result


if __name__ == "__main__":
    main()
