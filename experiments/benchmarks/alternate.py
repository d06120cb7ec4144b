"""Time programs in alternation: rows of the suite, and scripts of other libraries.

    python -m wdjax.experiments.benchmarks.alternate theirs.py tag_gridworld
    python -m wdjax.experiments.benchmarks.alternate "theirs.py cartpole 1000" cartpole_10k --small
    python -m wdjax.experiments.benchmarks.alternate "tag_gridworld devices=1" \\
        "tag_gridworld devices=2 num_envs=4000"

A program is a row of `wdjax bench` (its training, or else its stepping) with changed fields of its
configuration, or a Python file with arguments. The file defines

    def build(*arguments): return description, env_steps, call

where `call()` advances `env_steps` env steps and returns when its results are ready.

Each program has a separate process. All programs are compiled and called once, then run in
alternation, A B C A B C. Rates are computed from median times. "x first" is the median, over the
repeats, of the speed divided by the speed of the first program; "by CPU time" uses the CPU time of
all threads. A program that fails is reported with its error.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import runpy
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import jax

from wdjax.checks import require_known
from wdjax.experiments.benchmarks.measure import compile_program, make_program
from wdjax.experiments.benchmarks.rows import STEPPING, TRAINING, WORKLOADS
from wdjax.experiments.benchmarks.timing import (
    Parser,
    Result,
    column,
    machine,
    median_and_spread,
    report,
    short,
)
from wdjax.yaml_reader import read_yaml_value

Built = tuple[str, int, Callable[[], Any]]  # (description, env steps of a call, call)

COLUMNS = {
    "row": column("row"),
    "env steps/s": column("env_steps_per_second", short),
    "spread": column("spread", "{:.0%}".format),
    "x first": column("x_first_by_seconds", "{:.3g}".format),
    "by CPU time": column("x_first_by_cpu_seconds", "{:.3g}".format),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the programs named on the command line."""
    parser = Parser(__doc__)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM", help="a row or a file, see above")
    parsed = parser.parse(arguments)
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the processes share the device
    report(alternate(parsed.programs, parsed.small, parsed.repeats), COLUMNS, parsed.json)


def alternate(programs: Sequence[str], small: bool, repeats: int) -> Iterator[dict[str, Any]]:
    """Build the programs together, call them in alternation and yield the numbers of each."""
    with contextlib.ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        processes = [stack.enter_context(ProcessPoolExecutor(1, spawn)) for _ in programs]
        started = [
            process.submit(start, program, small)
            for process, program in zip(processes, programs, strict=True)
        ]
        results = [result_of(future) for future in started]
        for _ in range(repeats):
            for process, result in zip(processes, results, strict=True):
                if "error" not in result:
                    turn = result_of(process.submit(call))
                    if "error" in turn:
                        result["error"] = turn["error"]
                    result.setdefault("turns", []).append(turn)
    for program, result in zip(programs, results, strict=True):
        yield {"row": program, **result, **numbers(result, results[0])}


def result_of(future: Future) -> dict[str, Any]:
    """Return the answer of a process, or its `error`."""
    try:
        return future.result()
    except Exception as error:  # a library may raise anything; the other programs continue
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def numbers(result: Result, first: Result) -> dict[str, Any]:
    """Return the rate of a program, and its speed relative to the first one by both clocks."""
    if "error" in result:
        return {}
    median, spread = median_and_spread([turn["seconds"] for turn in result["turns"]])
    rates = {"env_steps_per_second": result["env_steps"] / median, "spread": spread}
    for clock in ("seconds", "cpu_seconds") if result is not first and "error" not in first else ():
        pairs = zip(first["turns"], result["turns"], strict=True)
        ratio = statistics.median(theirs[clock] / ours[clock] for theirs, ours in pairs)
        rates[f"x_first_by_{clock}"] = ratio * result["env_steps"] / first["env_steps"]
    return rates


# --- in the process of a program ---

_CALLS: list[Callable[[], Any]] = []  # the program of this process


def start(program: str, small: bool) -> dict[str, Any]:
    """Build a program and call it once. Return its description, env steps and machine."""
    jax.config.update("jax_enable_compilation_cache", False)
    name, *arguments = shlex.split(program)
    if name.endswith(".py"):
        build = runpy.run_path(name)["build"]
        words, env_steps, function = build(*map(read_yaml_value, arguments))
    else:
        words, env_steps, function = build_row(name, arguments, small)
    function()
    _CALLS[:] = [function]
    where = f"{machine()}, {os.cpu_count()} CPU cores"
    return {"workload": words, "env_steps": env_steps, "machine": where}


def build_row(name: str, arguments: Sequence[str], small: bool) -> Built:
    """Build a row of the suite with changes FIELD=VALUE, as the suite times it."""
    require_known("row", name, WORKLOADS)
    row = WORKLOADS[name]
    pairs = (argument.partition("=") for argument in arguments)
    changes = {field: read_yaml_value(value) for field, _, value in pairs}
    full, reduced = {**row.changes, **changes}, {**row.small, **changes}
    row = dataclasses.replace(row, changes=full, small=reduced)
    program = make_program(row, TRAINING if TRAINING in row.tiers else STEPPING, small)
    compiled = compile_program(program)
    inputs = jax.block_until_ready(jax.jit(program.start)())
    return program.words, program.env_steps, lambda: jax.block_until_ready(compiled(*inputs))


def call() -> dict[str, float]:
    """Call the program of this process. Return its seconds and the CPU seconds of all threads."""
    start, cpu_start = time.perf_counter(), time.process_time()
    _CALLS[0]()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
    }


if __name__ == "__main__":
    main()
