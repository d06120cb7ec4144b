"""Measure the benchmark suite, or some of its rows.

    wdjax bench                                    all rows at full size, for a GPU, about 30 minutes
    wdjax bench --small                            sizes for a CPU
    wdjax bench tag_gridworld cartpole_10k         rows by name, in all of their tiers
    wdjax bench --tier training --json out.json    one tier; also write the numbers as JSON

An env step advances one replica once, with all its agents; an agent step advances one agent once. A time is the median
over repeats of one compiled program after a warm-up, until its results are ready. Each row runs in a separate process.
Peak memory is measured by the device if it keeps a count (marked *, for the whole process). Otherwise it is the
compiler's estimate for the program: arguments, results and temporaries. The targets "must" and "aim" are for one NVIDIA
H200.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from wdjax.checks import require_known
from wdjax.console import Console
from wdjax.experiments.benchmarks import runs, startup
from wdjax.experiments.benchmarks.rows import (
    INFERENCE,
    RUNS,
    STARTUP,
    STEPPING,
    TIER_WORDS,
    TIERS,
    TRAINING,
    WORKLOADS,
)
from wdjax.experiments.benchmarks.timing import Parser, make_table, short, start
from wdjax.train import list_presets

TIERS_OF = {**{name: row.tiers for name, row in WORKLOADS.items()}, STARTUP: (STARTUP,)}
TIERS_OF |= {preset: (*TIERS_OF.get(preset, ()), RUNS) for preset in list_presets()}
PER = {
    STEPPING: "per step",
    INFERENCE: "per rollout",
    TRAINING: "per update",
}  # unit of the times of a tier


def bench(arguments: Sequence[str]) -> None:
    """Measures rows, prints each as it is ready and a table of each tier at the end.

    Args:
        arguments: of the command line, see `wdjax bench --help`.

    Raises:
        ValueError: for an unknown tier and a row that the tier has not.
        SystemExit: with status 2 for another row or option, or a number out of range; with status 1 at the end, where a
            row could not be measured.
    """
    parsed = parse(arguments)
    rows = chosen(parsed.rows, parsed.tier)
    if parsed.json is not None:
        parsed.json.parent.mkdir(parents=True, exist_ok=True)
        parsed.json.open(
            "a"
        ).close()  # a path that cannot be written to is known before anything is measured
    results = []
    for i, (name, tier) in enumerate(rows):
        print(f"[{i + 1}/{len(rows)}] {name}, {tier}", flush=True)
        results.append(measure_apart(name, tier, parsed))
        print(f"    {line(results[-1])}", flush=True)
        if parsed.json is not None:
            parsed.json.write_text(json.dumps(results, indent=1), encoding="utf8")
    console = Console(width=None if sys.stdout.isatty() else 180)
    for words in dict.fromkeys(result["machine"] for result in results if "machine" in result):
        console.print(
            f"{words}{', small sizes' if parsed.small else ''}", soft_wrap=True, highlight=False
        )
    for tier in TIERS:
        of_tier = [result for result in results if result["tier"] == tier and "error" not in result]
        if of_tier:
            console.print(TABLES.get(tier, tier_table)(tier, of_tier))
    if any("error" in result for result in results):
        raise SystemExit(1)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the command line's options."""
    parser = Parser(__doc__, TIERS_OF, prog="wdjax bench")
    parser.add_argument(
        "--tier",
        nargs="+",
        default=[],
        metavar="TIER",
        help=f"of {', '.join(TIERS)} (default: all)",
    )
    parser.add_argument(
        "--small", action="store_true", help="sizes for a CPU: at most a tenth of the replicas"
    )
    parser.add_argument(
        "--compile-only", action="store_true", help="measure only compile time and memory"
    )
    return parser.parse(arguments)


def chosen(names: Sequence[str], tiers: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the (row, tier) pairs to measure, tier by tier; all tiers where none is named."""
    for tier in tiers:
        require_known("tier", tier, TIERS)
    named = dict.fromkeys(names)
    pairs = [(name, tier) for tier in tiers or TIERS for name in named if tier in TIERS_OF[name]]
    if not pairs:
        own = [tier for tier in TIERS if any(tier in TIERS_OF[name] for name in named)]
        raise ValueError(
            f"--tier {' '.join(tiers)}: must be a tier of {', '.join(named)} ({', '.join(own)})"
        )
    return pairs


def measure_apart(name: str, tier: str, parsed: argparse.Namespace) -> dict[str, Any]:
    """Measures a row in a process of its own. Returns its numbers, or `error` where that failed."""
    flags = ["--small"] * parsed.small + ["--compile-only"] * parsed.compile_only
    try:
        if tier == STARTUP:
            return {"row": name, "tier": tier, **startup.measure(parsed.repeats)}
        if tier == RUNS:
            return {
                "row": name,
                "tier": tier,
                **runs.measure(name, runs.SHORT if parsed.small else runs.SECONDS),
            }
        return start(
            "measure", [name, "--tier", tier, "--repeats", str(parsed.repeats), *flags], {}
        )
    except subprocess.CalledProcessError as error:
        return {
            "row": name,
            "tier": tier,
            "error": f"the process ended with status {error.returncode}",
        }


def line(result: Mapping[str, Any]) -> str:
    """Returns a row's numbers in a sentence."""
    if "error" in result:
        return f"failed: {result['error']}"
    if result["tier"] == STARTUP:
        return f"{result['cold']['total']:.1f} s, with a filled compilation cache {result['warm']['total']:.1f} s"
    if result["tier"] == RUNS:
        return runs.line(result)
    words = f"compiled in {result['compile_seconds']:.1f} s, peak memory {memory(result)} GB"
    if "env_steps_per_second" in result:
        env_steps, agent_steps, time, *_ = (show(result) for show in COLUMNS.values())
        words = f"{env_steps} env steps/s, {agent_steps} agent steps/s, {time} ms {PER[result['tier']]}, {words}"
    return f"{result['workload']}\n    {words}"


def tier_table(tier: str, results: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the measured rows of a tier as a table."""
    columns = COLUMNS | (TARGETS if any("must" in result for result in results) else {})
    names = (f"ms {PER[tier]}" if name == "ms" else name for name in columns)
    rows = (
        (result["row"], *(cell(show, result) for show in columns.values())) for result in results
    )
    return make_table(("row", *names), rows, TIER_WORDS[tier])


def cell(show: Callable[[Mapping[str, Any]], str], result: Mapping[str, Any]) -> str:
    """Returns a cell of a table; "-" where a row has no such number, for want of a target or of a run."""
    try:
        return show(result)
    except KeyError:
        return "-"


def memory(result: Mapping[str, Any]) -> str:
    """Returns the peak memory in GB, with a star where the device says so."""
    return f"{result['peak_bytes'] / 1e9:.3g}{'*' * (result['peak_bytes_from'] == 'device')}"


TABLES: dict[str, Callable[[str, Sequence[Mapping[str, Any]]], Table]] = {
    STARTUP: lambda tier, results: startup.table(results[0]),
    RUNS: lambda tier, results: runs.table(results, TIER_WORDS[tier]),
}
COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "env steps/s": lambda result: short(result["env_steps_per_second"]),
    "agent steps/s": lambda result: short(result["agent_steps_per_second"]),
    "ms": lambda result: f"{result['ms_per_pass']:.3g}",
    "spread": lambda result: f"{result['spread']:.0%}",
    "compile, s": lambda result: f"{result['compile_seconds']:.1f}",
    "peak memory, GB": memory,
}
TARGETS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "others": lambda result: short(result["others"]),
    "must": lambda result: short(result["must"]),
    "aim": lambda result: short(result["aim"]),
    "of must": lambda result: f"{result['env_steps_per_second'] / result['must']:.2f}",
}
