"""Scaling of one update: time and memory against the number of replicas, rollout length, agents and policies.

    python -m wdjax.experiments.benchmarks.growth --json growth.json --picture docs/growth.png     # on a GPU
    python -m wdjax.experiments.benchmarks.growth replicas --small                                 # sizes for a CPU
    python -m wdjax.experiments.benchmarks.growth --redraw growth.json --picture docs/growth.png   # only draw

replicas, rollout_length: cartpole with A2C, 32-32. agents: tag_gridworld with A2C, 32-32, partial observations and one
shared policy. policies: the same environment with 15 taggers and 1 runner divided among the policies. Whole updates are
timed as in the suite (median over repeats). Memory is the compiler's estimate for the program: arguments, results and
temporaries. "slope" is the slope of the time since the previous point on logarithmic axes: 0 means constant time, 1
means time proportional to the size.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from wdjax.console import Console
from wdjax.experiments.benchmarks.measure import compiled_bytes, learner_program
from wdjax.experiments.benchmarks.rows import TRAINING, WORKLOADS
from wdjax.experiments.benchmarks.timing import (
    Parser,
    machine,
    make_table,
    rates,
    short,
    write_json,
)
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.programs import compile_lowered
from wdjax.train.load import change_config, load_config

NUM_UPDATES = 10  # in a timed program
CURVES: dict[str, tuple[int, ...]] = {
    "replicas": (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000),
    "rollout_length": (1, 4, 16, 64, 256, 1_024),
    "agents": (2, 5, 10, 30, 100, 300, 1_000),
    "policies": (1, 2, 4, 8),
}
MOST = {
    "replicas": 10_000,
    "rollout_length": 256,
    "agents": 100,
    "policies": 8,
}  # at sizes for a CPU


def config_of(curve: str, size: int, small: bool = False) -> TrainConfig:
    """Returns the configuration of a point; small: with a hundredth of the replicas, but on their own curve."""
    if curve in ("replicas", "rollout_length"):
        changes = {"num_envs": size} if curve == "replicas" else {"rollout_length": size}
        few = {"num_envs": 100} if small and curve != "replicas" else {}
        return change_config(
            WORKLOADS["cartpole_a2c"].config(), **{"rollout_unroll": 1, **few, **changes}
        )
    taggers = size - 1 if curve == "agents" else 15
    config = load_config(
        "tag_gridworld", devices=1, num_envs=20 if small else 2_000, rollout_length=10,
        **{"env_params.num_taggers": taggers, "env_params.use_full_observation": False},
    )  # fmt: skip
    return split(config, size, taggers) if curve == "policies" else config


def title_of(curve: str, config: TrainConfig) -> str:
    """Returns what stays as it is along a curve, in words."""
    steps = f"rollouts of {config.rollout_length}"
    fixed = {"replicas": f"{config.num_envs:,} replicas", "rollout_length": steps}
    fixed.pop(curve, None)
    agents = ["16 agents"] if curve == "policies" else []
    return f"{config.env}: {', '.join([*agents, *fixed.values()])}"


def split(config: TrainConfig, number: int, taggers: int) -> TrainConfig:
    """Returns a configuration in which so many policies share the agents evenly; the runner is the last one's."""
    [shared] = config.policies.values()
    bounds = [k * (taggers + 1) // number for k in range(number + 1)]
    policies = {
        f"policy_{k}": dataclasses.replace(shared, agents=(
            f"tagger[{bounds[k]}:{min(bounds[k + 1], taggers)}]", *["runner"] * (k == number - 1)
        ))
        for k in range(number)
    }  # fmt: skip
    return dataclasses.replace(config, policies=policies)


def main(arguments: list[str] | None = None) -> None:
    """Measures the curves named on the command line, or all, and prints a table of each; draws them where asked."""
    parser = Parser(__doc__, CURVES)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the curves to this file")
    parser.add_argument(
        "--redraw",
        type=Path,
        metavar="FILE",
        help="draw the numbers of this file without measuring",
    )
    parsed = parser.parse(arguments)
    if parsed.redraw:
        stored = json.loads(parsed.redraw.read_text(encoding="utf8"))
        words, results = stored["machine"], stored["rows"]
    else:
        jax.config.update("jax_enable_compilation_cache", False)
        words = f"{machine()}{', small sizes' if parsed.small else ''}"
        results = measure(
            parsed.rows,
            parsed.small,
            parsed.repeats,
            lambda done: write_json(parsed.json, words, done),
        )
    print(words)
    for curve in dict.fromkeys(result["curve"] for result in results):
        own = [result for result in results if result["curve"] == curve]
        Console(width=120).print(make_table((curve, *COLUMNS), map(cells, own), own[0]["title"]))
    write_json(parsed.json, words, results)
    if parsed.picture:
        draw(results, words, parsed.picture)


def measure(
    curves: Sequence[str],
    small: bool,
    repeats: int,
    keep: Callable[[list[dict[str, Any]]], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """Compiles all points, several at a time on a GPU's host, and times one after the other.

    Args:
        keep: is told what is there so far after each point.

    Returns:
        the numbers of every point.
    """
    sizes = {curve: [n for n in CURVES[curve] if not small or n <= MOST[curve]] for curve in curves}
    configs = {(curve, n): config_of(curve, n, small) for curve in curves for n in sizes[curve]}
    programs = [learner_program(TRAINING, config, NUM_UPDATES) for config in configs.values()]
    threads = 1 if jax.default_backend() == "cpu" else 8
    results: list[dict[str, Any]] = []
    with ThreadPoolExecutor(threads) as pool:
        lowered = (
            jax.jit(program.function).lower(*jax.eval_shape(program.start)) for program in programs
        )
        compiled = [
            pool.submit(compile_lowered, one, p.options)
            for one, p in zip(lowered, programs, strict=True)
        ]
        for (curve, size), program, future in zip(configs, programs, compiled, strict=True):
            function = future.result()
            numbers = {
                "curve": curve, "size": size, "title": title_of(curve, configs[curve, size]), "workload": program.words,
                "bytes": compiled_bytes(function)["all"],
            }  # fmt: skip
            try:
                state = jax.block_until_ready(jax.jit(program.start)())
                numbers |= rates(
                    lambda f=function, s=state: f(*s), repeats, program.env_steps, NUM_UPDATES
                )
            except jax.errors.JaxRuntimeError as error:  # memory, at the largest
                numbers["error"] = str(error).splitlines()[0]
            results.append(numbers | slope(results, numbers))
            print(curve, *cells(results[-1]), sep="  ", flush=True)
            keep(results)
    return results


def slope(before: Sequence[Mapping[str, Any]], point: Mapping[str, Any]) -> dict[str, float]:
    """Returns the slope of the time between the last point and this one of a curve, both axes logarithmic."""
    if (
        not before
        or before[-1]["curve"] != point["curve"]
        or "error" in before[-1]
        or "error" in point
    ):
        return {}
    rise = math.log(point["ms_per_pass"] / before[-1]["ms_per_pass"])
    return {"slope": rise / math.log(point["size"] / before[-1]["size"])}


COLUMNS = ("ms per update", "spread", "slope", "memory, MB", "env steps/s")


def cells(result: Mapping[str, Any]) -> list[str]:
    """Returns a point's cells of the table."""
    memory = (
        f"{result['bytes'] / 1e6:,.3g}"
        if result["bytes"] < 1e9
        else f"{result['bytes'] / 1e6:,.0f}"
    )
    if "error" in result:
        return [f"{result['size']:,}", "-", "-", "-", memory, result["error"]]
    rise = f"{result['slope']:.2f}" if "slope" in result else ""
    speed = short(result["env_steps_per_second"])
    return [
        f"{result['size']:,}",
        f"{result['ms_per_pass']:.3g}",
        f"{result['spread']:.0%}",
        rise,
        memory,
        speed,
    ]


def draw(results: Sequence[Mapping[str, Any]], words: str, path: Path) -> None:
    """Draws a panel for each curve: time of an update and memory of its program, all axes logarithmic."""
    from matplotlib.figure import Figure

    curves = list(dict.fromkeys(result["curve"] for result in results))
    figure = Figure(figsize=(9, 3.4 * math.ceil(len(curves) / 2)), layout="constrained")
    figure.suptitle(f"Scaling of one update ({words.split(' (')[0]})", fontsize=11)
    for number, curve in enumerate(curves):
        own = [result for result in results if result["curve"] == curve and "error" not in result]
        sizes = [result["size"] for result in own]
        axes = figure.add_subplot(math.ceil(len(curves) / 2), 2, number + 1)
        memory = axes.twinx()
        axes.loglog(sizes, [r["ms_per_pass"] for r in own], "o-", color="#245EB6", markersize=4)
        memory.loglog(
            sizes,
            [r["bytes"] / 1e6 for r in own],
            "s--",
            color="#C2571A",
            markersize=3,
            linewidth=1,
        )
        axes.set_title(own[0]["title"], fontsize=9)
        axes.set_xlabel(curve.replace("_", " ") + (" (steps)" if curve == "rollout_length" else ""))
        axes.set_ylabel("time per update (ms)", color="#245EB6")
        memory.set_ylabel("memory (MB)", color="#C2571A")
        axes.grid(alpha=0.3)
        for scale in (
            axes,
            memory,
        ):  # a curve that stays within a decade would have one label, or none
            low, high = scale.get_ylim()
            scale.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
        if sizes[-1] < 20:
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
