"""Time and memory of tag_continuous as a world gets more agents, at the same density.

    python -m wdjax.experiments.benchmarks.agents --picture docs/agents.png --json agents.json
    python -m wdjax.experiments.benchmarks.agents --small

One agent in a hundred is a tagger. Everything else is as in the preset tag_continuous, with
rollouts of 10 steps and the ten nearest agents in each observation. Memory is the compiler's
estimate for the program. "slope" is the slope of the time since the row before, both axes
logarithmic: 0 if more agents cost nothing, 1 if the time grows with their number.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from wdjax.experiments.benchmarks.measure import make_program, measure_program
from wdjax.experiments.benchmarks.rows import STEPPING, TRAINING, Workload, crowd
from wdjax.experiments.benchmarks.timing import Parser, column, report, short

SIZES = {
    STEPPING: (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000),
    TRAINING: (10, 30, 100, 300, 1_000, 3_000, 10_000),
}
MOST = 3_000  # agents at sizes for a CPU
COLUMNS = {
    "row": column("row"),
    "agents": column("agents", "{:,}".format),
    "ms": column("ms_per_pass", "{:.3g}".format),
    "slope": column("slope", "{:.2f}".format),
    "agent steps/s": column("agent_steps_per_second", short),
    "memory, MB": column("bytes", lambda size: f"{size / 1e6:,.0f}"),
}


def main() -> None:
    """Measure all sizes, print a table, and draw it if asked."""
    parser = Parser(__doc__)
    parser.add_argument("--envs", type=int, default=50, help="replicas (default: 50)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the curves there")
    parser.add_argument("--redraw", type=Path, metavar="FILE", help="draw the numbers of this file")
    parsed = parser.parse()
    if parsed.redraw:
        results = json.loads(parsed.redraw.read_text(encoding="utf8"))
    else:
        jax.config.update("jax_enable_compilation_cache", False)
        num_envs = 1 if parsed.small else parsed.envs
        cases = [
            (tier, n)
            for tier, sizes in SIZES.items()
            for n in sizes
            if not parsed.small or n <= MOST
        ]
        results = report(measure(cases, num_envs, parsed.repeats), COLUMNS, parsed.json)
    if parsed.picture:
        draw(results, parsed.picture)


def measure(cases: Iterable[tuple[str, int]], num_envs: int, repeats: int) -> Iterator[Any]:
    """Compile and time the programs one after the other, and yield their numbers."""
    before: Mapping[str, Any] = {"row": ""}
    for tier, agents in cases:
        program = make_program(workload(agents, num_envs), tier)
        numbers = {"row": tier, **measure_program(program, repeats)}
        numbers["bytes"] = numbers["compiled_bytes"]["all"]
        if before["row"] == tier:
            rise = math.log(numbers["ms_per_pass"] / before["ms_per_pass"])
            numbers["slope"] = rise / math.log(agents / before["agents"])
        yield numbers
        before = numbers


def workload(agents: int, num_envs: int) -> Workload:
    """Return a world of tag_continuous with one agent for every four units of area."""
    taggers, side = max(1, agents // 100), 2.0 * agents**0.5
    changes = {
        **crowd(taggers, agents - taggers, side),
        "env_params.num_other_agents_observed": min(10, agents - 1),
        "num_envs": num_envs,
        "rollout_length": 10,
    }
    return Workload(changes, {}, "tag_continuous", num_updates=2)


def draw(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the time and the memory of both tiers against the number of agents."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(f"More agents in a world ({results[0]['machine'].split(' (')[0]})", fontsize=11)
    axes = figure.subplots(1, 2)
    names = {STEPPING: "a step", TRAINING: "an update of 10 steps"}
    for tier, own in itertools.groupby(results, lambda result: result["row"]):
        rows = list(own)
        agents = [row["agents"] for row in rows]
        axes[0].loglog(agents, [row["ms_per_pass"] for row in rows], "o-", ms=4, label=names[tier])
        axes[1].loglog(agents, [row["bytes"] / 1e6 for row in rows], "o-", ms=4, label=names[tier])
    for panel, label in zip(axes, ("time (ms)", "memory (MB)"), strict=True):
        panel.set_xlabel("agents")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
