"""wdjax compared with WarpDrive, PureJaxRL and gymnax on the same workloads, measured in alternation.

    python -m wdjax.experiments.benchmarks.peers --peers-path PATH         # on a GPU, about three minutes
    python -m wdjax.experiments.benchmarks.peers cartpole_10k --small      # sizes for a CPU; with the installed gymnax

tag_gridworld, tag_continuous: whole updates of WarpDrive's own yaml, with its CUDA kernels and with numba.
cartpole_ppo (10,000 replicas x 128 steps, 4 epochs x 4 minibatches; also 4 x 128, with 256 seeds and with one): whole
runs, from a key to the trained state, by PureJaxRL's ppo.py, and by wdjax with the same hyperparameters.
Environments with a size: random play in gymnax by scans of 200 steps with fresh resets, returning the sums of all
observations, rewards and end flags; in wdjax by a scan of `VectorEnv.step`, and by `wdjax.play`.

warp_drive.py and purejaxrl.py describe where the baselines are searched (PATH/NAME, then installed packages). gymnax
1.0 is in PATH/gymnax with gymnasium (`pip install --no-deps --target`). Matrix products are tf32 on a GPU and float32
on a CPU.

Each library has a separate process. All programs of a row are compiled and called once, then run in alternation, A B C
A B C. Rates are computed from median times. A speedup is the median, over the repetitions, of the baseline's time per
env step divided by wdjax's; "by CPU time" uses the CPU time of all threads instead. A baseline that does not start is
reported with its error.
"""

import contextlib
import json
import os
import statistics
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wdjax.console import Console
from wdjax.experiments.benchmarks.peer_programs import ROWS, WARP_DRIVE
from wdjax.experiments.benchmarks.timing import (
    Parser,
    command,
    machine,
    make_table,
    median_and_spread,
    short,
    write_json,
)

LIMIT = 120.0  # seconds until a process that does not answer is ended
SHARED = {"wdjax.play": "wdjax"}  # program -> whose process it shares


class Worker:
    """A process of one library, which is asked in JSON and answers in JSON (peer_programs.py)."""

    def __init__(self, path: Path | None) -> None:
        arguments, environ = command("peer_programs", [str(path.resolve())] if path else [], {
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # processes share the card
            "PYTHONDONTWRITEBYTECODE": "1",  # WarpDrive writes modules of its own, twice a second if need be
        })  # fmt: skip
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True, env=environ)

    def ask(self, *request: Any) -> None:
        """Sends a request; nothing happens where the process has ended, which `answer` says."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Returns the answer to the oldest request without one; `error` where the process ended or is silent."""
        timer = threading.Timer(LIMIT, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        return (
            json.loads(line)
            if line
            else {"error": f"its process ended with status {self.process.wait()}"}
        )

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):  # a request that it has not read
            self.process.communicate()


def main(arguments: list[str] | None = None) -> None:
    """Measures the rows named on the command line, or all, and prints a table."""
    parser = Parser(__doc__, ROWS)
    parser.add_argument(
        "--peers-path", type=Path, metavar="PATH", help="folder with one subfolder per baseline"
    )
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parsed = parser.parse(arguments)
    if parsed.peers_path is not None and not parsed.peers_path.is_dir():
        parser.error(f"--peers-path = {str(parsed.peers_path)!r}: must be a folder")
    workers: dict[str, Worker] = {}
    results = []
    try:
        for row in parsed.rows:
            results += measure(row, workers, parsed.peers_path, parsed.small, parsed.repeats)
            write_json(parsed.json, "unfinished", results)
            for name in (
                WARP_DRIVE.keys() & workers.keys()
            ):  # a second game in one process would play the first
                workers.pop(name).close()
    finally:
        for worker in workers.values():
            worker.close()
    words = f"{machine()}, {os.cpu_count()} CPU cores{', small sizes' if parsed.small else ''}"
    print(words)
    columns = (
        "row",
        "program",
        "env steps/s",
        "spread",
        "wdjax speedup",
        "wdjax.play speedup",
        "by CPU time",
    )
    Console(width=180).print(make_table(columns, map(cells, results)))
    for result in results:
        if "error" in result:
            print(f"{result['row']}, {result['program']}: {result['error']}")
    write_json(parsed.json, words, results)


def measure(
    row: str, workers: dict[str, Worker], path: Path | None, small: bool, repeats: int
) -> list[dict[str, Any]]:
    """Times the programs of a row by turns, in the processes of their libraries, which are started where there is none.

    Returns:
        the numbers of every program, or its `error`; each is printed as a line.
    """
    asked: dict[str, Worker] = {}
    for name in ROWS[row]:
        library = SHARED.get(name, name)
        if library not in workers or workers[library].process.poll() is not None:
            workers[library] = Worker(path)
        asked[name] = workers[library]
        asked[name].ask(row, name, small)  # all compile at the same time
    found = {name: worker.answer() for name, worker in asked.items()}
    ready = {name: worker for name, worker in asked.items() if "error" not in found[name]}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ready}
    for _ in range(repeats):
        for name in turns:
            ready[name].ask(row, name, small)
            turns[name].append(ready[name].answer())
    for name, answers in tuple(turns.items()):
        if failed := [answer for answer in answers if "error" in answer]:
            found[name] = failed[0]
            del turns[name]
    results = [
        {"row": row, "program": name, **found[name], **numbers(name, found, turns)}
        for name in found
    ]
    for result in results:
        print(*cells(result), result.get("error", ""), sep="  ", flush=True)
    return results


def numbers(
    name: str, found: Mapping[str, Any], turns: Mapping[str, list[dict[str, float]]]
) -> dict[str, Any]:
    """Returns the times of a program, and of a peer how many times as fast wdjax's programs are."""
    if name not in turns:
        return {}
    seconds, work = ([turn[clock] for turn in turns[name]] for clock in ("seconds", "cpu_seconds"))
    median, spread = median_and_spread(seconds)
    rate = found[name]["env_steps"] / median
    result = {
        "env_steps_per_second": rate,
        "spread": spread,
        "seconds": seconds,
        "cpu_seconds": work,
    }
    for own in ("wdjax", "wdjax.play"):
        if own in turns and not name.startswith("wdjax"):
            steps = (
                found[own]["env_steps"] / found[name]["env_steps"]
            )  # a call of wdjax may be more of them
            for clock in ("seconds", "cpu_seconds"):
                pairs = zip(turns[name], turns[own], strict=True)
                ratio = statistics.median(theirs[clock] / ours[clock] for theirs, ours in pairs)
                result[f"{own} faster by {clock}"] = ratio * steps
    return result


def cells(result: Mapping[str, Any]) -> list[str]:
    """Returns a result's cells of the table."""
    if "error" in result:
        return [result["row"], result["program"], "-", "-", "-", "-", "-"]
    ratios = (
        "wdjax faster by seconds",
        "wdjax.play faster by seconds",
        "wdjax faster by cpu_seconds",
    )
    shown = (f"{result[ratio]:.2f}" if ratio in result else "" for ratio in ratios)
    rate, spread = short(result["env_steps_per_second"]), f"{result['spread']:.0%}"
    return [result["row"], result["program"], rate, spread, *shown]


if __name__ == "__main__":
    main()
