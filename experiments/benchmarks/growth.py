"""Scaling of one update: time and memory against replicas, rollout length, agents and policies.

    python -m wdjax.experiments.benchmarks.growth --json growth.json --picture docs/growth.png
    python -m wdjax.experiments.benchmarks.growth replicas --small                 # sizes for a CPU

replicas, rollout_length: cartpole with A2C, 32-32. agents: tag_gridworld with A2C, 32-32, partial
observations and one shared policy. policies: the same environment with 15 taggers and 1 runner
divided among the policies. Whole updates are timed as in the suite (median over repeats). Memory is
the compiler's estimate for the program: arguments, results and temporaries. "slope" is the slope of
the time since the previous point on logarithmic axes: 0 means constant time, 1 means time
proportional to the size.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from wdjax.experiments.benchmarks.measure import learner_program, measure_program
from wdjax.experiments.benchmarks.rows import TRAINING, WORKLOADS
from wdjax.experiments.benchmarks.timing import Parser, Result, column, report, short
from wdjax.train import TrainConfig, load_config

NUM_UPDATES = 10  # per timed program
CURVES: dict[str, tuple[int, ...]] = {
    "replicas": (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000),
    "rollout_length": (1, 4, 16, 64, 256, 1_024),
    "agents": (2, 5, 10, 30, 100, 300, 1_000),
    "policies": (1, 2, 4, 8),
}
LARGEST = {"replicas": 10_000, "rollout_length": 256, "agents": 100, "policies": 8}  # with --small
COLUMNS = {
    "row": column("size", "{:,}".format),
    "ms per update": column("ms_per_pass", "{:.3g}".format),
    "spread": column("spread", "{:.0%}".format),
    "slope": column("slope", "{:.2f}".format),
    "memory, bytes": lambda result: short(result["compiled_bytes"]["all"]),
    "env steps/s": column("env_steps_per_second", short),
}


def config_of(curve: str, size: int, small: bool = False) -> TrainConfig:
    """Return the configuration of a point, with few replicas if `small`."""
    if curve in ("replicas", "rollout_length"):
        config = WORKLOADS["cartpole_a2c"].config(small)
        field = "num_envs" if curve == "replicas" else "rollout_length"
        sized: dict[str, Any] = {field: size}
        return dataclasses.replace(config, rollout_unroll=1, **sized)
    taggers = size - 1 if curve == "agents" else 15
    changes: dict[str, Any] = {
        "env_params.num_taggers": taggers,
        "env_params.use_full_observation": False,
    }
    num_envs = 20 if small else 2_000
    config = load_config(
        "tag_gridworld", devices=1, num_envs=num_envs, rollout_length=10, **changes
    )
    return split(config, size, taggers) if curve == "policies" else config


def title_of(curve: str, config: TrainConfig) -> str:
    """Return the sizes that a curve keeps fixed as text."""
    steps = f"rollouts of {config.rollout_length}"
    fixed = {"replicas": f"{config.num_envs:,} replicas", "rollout_length": steps}
    fixed.pop(curve, None)
    agents = ["16 agents"] if curve == "policies" else []
    return f"{config.env}, {curve}: {', '.join([*agents, *fixed.values()])}"


def split(config: TrainConfig, number: int, taggers: int) -> TrainConfig:
    """Divide the agents evenly among policies; the last one controls the runner."""
    [shared] = config.policies.values()
    bounds = [k * (taggers + 1) // number for k in range(number + 1)]
    policies = {}
    for k in range(number):
        agents = [f"tagger[{bounds[k]}:{min(bounds[k + 1], taggers)}]"]
        agents += ["runner"] * (k == number - 1)
        policies[f"policy_{k}"] = dataclasses.replace(shared, agents=tuple(agents))
    return dataclasses.replace(config, policies=policies)


def main(arguments: list[str] | None = None) -> None:
    """Measure the curves named on the command line, or all, and draw them on request."""
    parser = Parser(__doc__, CURVES)
    picture = "draw the curves to this file"
    parser.add_argument("--picture", type=Path, metavar="FILE", help=picture)
    parsed = parser.parse(arguments)
    jax.config.update("jax_enable_compilation_cache", False)
    points = measure(parsed.rows, parsed.small, parsed.repeats)
    results = report(points, COLUMNS, parsed.json)
    if parsed.picture:
        draw(results, parsed.picture)


def measure(curves: Sequence[str], small: bool, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the numbers of every point of the curves."""
    for curve in curves:
        last: dict[str, Any] = {}
        for size in CURVES[curve]:
            if small and size > LARGEST[curve]:
                continue
            config = config_of(curve, size, small)
            numbers = measure_program(learner_program(TRAINING, config, NUM_UPDATES), repeats)
            point = {"curve": curve, "size": size, "table": title_of(curve, config), **numbers}
            last = point | slope(last, point)
            yield last


def slope(before: Result, point: Result) -> dict[str, float]:
    """Return the slope of the time between two points on logarithmic axes, if both have a time."""
    if "ms_per_pass" not in before or "ms_per_pass" not in point:
        return {}
    rise = math.log(point["ms_per_pass"] / before["ms_per_pass"])
    return {"slope": rise / math.log(point["size"] / before["size"])}


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw time and memory of an update against size, one panel per curve, logarithmic axes."""
    from matplotlib.figure import Figure

    results = [result for result in results if "error" not in result]
    curves = list(dict.fromkeys(result["curve"] for result in results))
    rows = math.ceil(len(curves) / 2)
    figure = Figure(figsize=(9, 3.4 * rows), layout="constrained")
    figure.suptitle(f"Scaling of one update ({results[0]['machine'].split(' (')[0]})", fontsize=11)
    for number, curve in enumerate(curves, 1):
        points = [result for result in results if result["curve"] == curve]
        sizes = [point["size"] for point in points]
        axes = figure.add_subplot(rows, 2, number)
        memory = axes.twinx()
        times = [point["ms_per_pass"] for point in points]
        sizes_in_mb = [point["compiled_bytes"]["all"] / 1e6 for point in points]
        axes.loglog(sizes, times, "o-", color="#245EB6", markersize=4)
        memory.loglog(sizes, sizes_in_mb, "s--", color="#C2571A", markersize=3, linewidth=1)
        axes.set_title(points[0]["table"], fontsize=9)
        axes.set_xlabel(curve.replace("_", " ") + (" (steps)" if curve == "rollout_length" else ""))
        axes.set_ylabel("time per update (ms)", color="#245EB6")
        memory.set_ylabel("memory (MB)", color="#C2571A")
        axes.grid(alpha=0.3)
        for scale in (axes, memory):  # whole decades, so that every axis has at least two labels
            low, high = scale.get_ylim()
            scale.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
        if sizes[-1] < 20:
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
