"""Measure the benchmark suite, or some of its rows.

    wdjax bench                                    all rows at full size on a GPU, about 30 minutes
    wdjax bench --small                            sizes for a CPU
    wdjax bench tag_gridworld cartpole_10k         rows by name, in all of their tiers
    wdjax bench --tier training --json out.json    one tier; also write the numbers as JSON

An env step advances one replica once, with all its agents; an agent step advances one agent once. A
time (ms) is for one update (training), one rollout (inference) or one step of all replicas
(stepping): the median over repeats of one compiled program after a warm-up, until its results are
ready. Each row runs in a separate process. Peak memory is measured by the device if it keeps a
count (marked *, for the whole process). Otherwise it is the compiler's estimate for the program:
arguments, results and temporaries. The targets "must" and "aim" are for one NVIDIA H200.
"""

import argparse
import functools
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from wdjax.checks import require_known
from wdjax.experiments.benchmarks import runs, startup
from wdjax.experiments.benchmarks.measure import measure_row
from wdjax.experiments.benchmarks.rows import RUNS, STARTUP, TIER_TITLES, TIERS, WORKLOADS
from wdjax.experiments.benchmarks.timing import (
    Parser,
    Result,
    column,
    in_new_process,
    report,
    short,
)
from wdjax.train import list_presets

TIERS_OF = {**{name: row.tiers for name, row in WORKLOADS.items()}, STARTUP: (STARTUP,)}
TIERS_OF |= {preset: (*TIERS_OF.get(preset, ()), RUNS) for preset in list_presets()}


def bench(arguments: Sequence[str]) -> None:
    """Measure rows, print each when it is ready and a table of each tier at the end.

    Args:
        arguments: command line, see `wdjax bench --help`.

    Raises:
        ValueError: if a tier is unknown, or a row is not in the tier.
        SystemExit: with status 2 if a row or an option is unknown or a number is out of range; with
            status 1 at the end if a row failed.
    """
    parsed = parse(arguments)
    rows = choose(parsed.rows, parsed.tier)
    if parsed.json is not None:
        parsed.json.parent.mkdir(parents=True, exist_ok=True)
        parsed.json.open("a").close()  # fail before anything is measured
    results = report(measure_all(rows, parsed), COLUMNS, parsed.json)
    if any("error" in result for result in results):
        raise SystemExit(1)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = Parser(__doc__, TIERS_OF, prog="wdjax bench")
    tiers = f"of {', '.join(TIERS)} (default: all)"
    parser.add_argument("--tier", nargs="+", default=[], metavar="TIER", help=tiers)
    parser.add_argument(
        "--compile-only", action="store_true", help="measure only compile time and memory"
    )
    return parser.parse(arguments)


def choose(names: Sequence[str], tiers: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (row, tier) pairs to measure, tier by tier; without tiers, all tiers."""
    for tier in tiers:
        require_known("tier", tier, TIERS)
    names = list(dict.fromkeys(names))
    pairs = [(name, tier) for tier in tiers or TIERS for name in names if tier in TIERS_OF[name]]
    if not pairs:
        allowed = [tier for tier in TIERS if any(tier in TIERS_OF[name] for name in names)]
        raise ValueError(
            f"--tier {' '.join(tiers)}: must be a tier of {', '.join(names)} ({', '.join(allowed)})"
        )
    return pairs


def measure_all(
    rows: Sequence[tuple[str, str]], parsed: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the numbers of each (row, tier)."""
    for i, (name, tier) in enumerate(rows, 1):
        print(f"[{i}/{len(rows)}] {name}, {tier}", flush=True)
        small = ", small sizes" if parsed.small else ""
        place = {"row": name, "tier": tier, "table": f"{TIER_TITLES[tier]}{small}"}
        yield place | measure_apart(name, tier, parsed)


def measure_apart(name: str, tier: str, parsed: argparse.Namespace) -> dict[str, Any]:
    """Measure a row in a new process. Return its numbers, or `error` if that failed."""
    try:
        if tier == STARTUP:
            return startup.measure(parsed.repeats)
        if tier == RUNS:
            return runs.measure(name, runs.SHORT if parsed.small else runs.SECONDS)
        repeats = 0 if parsed.compile_only else parsed.repeats
        return in_new_process(measure_row, name, tier, parsed.small, repeats)
    except subprocess.CalledProcessError as error:
        return {"error": f"the process ended with status {error.returncode}"}


def memory(result: Result) -> str:
    """Return the peak memory in GB, with a star if the device measured it."""
    return f"{result['peak_bytes'] / 1e9:.3g}{'*' * (result['peak_bytes_from'] == 'device')}"


def stage(name: str, result: Result) -> str:
    """Return the seconds of a stage of the start-up with an empty and with a filled cache."""
    return f"{result['cold'][name]:.2f} / {result['warm'][name]:.2f}"


COLUMNS = {
    "row": column("row"),
    "env steps/s": column("env_steps_per_second", short),
    "agent steps/s": column("agent_steps_per_second", short),
    "ms": column("ms_per_pass", "{:.3g}".format),
    "spread": column("spread", "{:.0%}".format),
    "program alone": column("alone", short),
    "ratio": column("ratio", "{:.2f}".format),
    "updates per chunk": column("updates_per_chunk", "{:,}".format),
    "chunks": column("chunks"),
    "compile, s": column("compile_seconds", "{:.1f}".format),
    "start to end of first chunk, s": column("from_start", "{:.1f}".format),
    "peak memory, GB": memory,
    "others": column("others", short),
    "must": column("must", short),
    "aim": column("aim", short),
    "of must": column("of_must", "{:.2f}".format),
} | {f"{name}, s": functools.partial(stage, name) for name in ("total", *startup.STAGES, "must")}
