"""Time to a result for wdjax and PureJaxRL, measured together on one device.

    python -m wdjax.experiments.benchmarks.results --peers-path PATH       # on a GPU; PATH: purejaxrl.py
    python -m wdjax.experiments.benchmarks.results cartpole --seeds 1      # without PATH: installed packages

A run is one compiled program, from its key to the trained state, that returns the metrics of every update (as in
PureJaxRL). A run reaches a level when the mean return of the episodes that ended in the last 5 updates, with sampled
actions, is at least the level. The time to reach it is the time of the whole program, measured once, times the fraction
of updates until then, because all updates take equally long. Levels: 475 in cartpole; otherwise the target of the
row in the learning table minus 5 %. Several seeds run in one program under vmap, a single seed without.

For CartPole-v1 PureJaxRL uses the hyperparameters of its ppo.py, elsewhere those of wdjax's preset where it has them.
It does not normalize observations and rewards, which mountain_car needs.

BANDS lists rows of the learning table (experiments/reference) that PureJaxRL's ppo.py does not support. For them, the
time of the whole row is measured, and whether every number is within its stored band.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wdjax.console import Console
from wdjax.experiments.benchmarks.purejaxrl import Run, our_run, own_numbers, their_run
from wdjax.experiments.benchmarks.timing import Parser, machine, make_table, short, write_json
from wdjax.experiments.reference import rerun
from wdjax.experiments.reference.rows import RETURN, ROWS, first_reached
from wdjax.train.config.schema import TrainConfig
from wdjax.train.load import load_config

BANDS = ("tag_gridworld", "pendulum_ppo")


@dataclasses.dataclass(frozen=True)
class Task:
    """A level, and who runs for it."""

    level: float
    """of the mean return"""
    runs: Mapping[str, Callable[[], TrainConfig]]
    """program -> its numbers; PureJaxRL's name begins with its own"""
    seeds: tuple[int, ...]
    """how many side by side, in programs of their own"""


def task_of(row: str) -> Task:
    """Returns the task of a row of the learning table, for wdjax's preset and for PureJaxRL with its numbers."""
    target, config = (
        ROWS[row].targets[RETURN],
        functools.partial(load_config, ROWS[row].preset, devices=1),
    )
    level = target.limit - 0.05 * abs(target.limit)
    return Task(
        level,
        {"wdjax, its preset": config, "PureJaxRL, the preset's numbers": config},
        (ROWS[row].seeds,),
    )


CARTPOLE = {
    "wdjax, its preset": functools.partial(load_config, "cartpole_ppo", devices=1),
    "wdjax, PureJaxRL's numbers": own_numbers,
    "PureJaxRL, its own numbers": own_numbers,
}
TASKS = {
    "cartpole": Task(475.0, CARTPOLE, (1, 256)),
    **{row: task_of(row) for row in ("acrobot", "mountain_car")},
}


def main(arguments: list[str] | None = None) -> None:
    """Measures the rows named on the command line, or all, and prints a table."""
    parser = Parser(__doc__, (*TASKS, *BANDS), repeats=0)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write all numbers to this file"
    )
    parser.add_argument(
        "--peers-path", type=Path, metavar="PATH", help="folder with one subfolder per baseline"
    )
    parser.add_argument(
        "--only", metavar="WORDS", default="", help="only programs with this prefix: PureJaxRL"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="seed counts, one program each (default: the row's)"
    )
    parsed = parser.parse(arguments)
    jax.config.update("jax_enable_compilation_cache", False)
    print(machine(), flush=True)
    results = []
    for row in parsed.rows:
        if row in BANDS:
            results.append(learn(row))
            continue
        for seeds in parsed.seeds or TASKS[row].seeds:
            for name, config in TASKS[row].runs.items():
                if not name.startswith(parsed.only):
                    continue
                results.append(
                    {
                        "row": row,
                        "program": name,
                        **reach(name, config(), TASKS[row].level, seeds, parsed),
                    }
                )
                print(*cells(results[-1]), results[-1].get("error", ""), sep="  ", flush=True)
                write_json(parsed.json, machine(), results)
    Console(width=180).print(make_table(COLUMNS, map(cells, results)))
    write_json(parsed.json, machine(), results)


def reach(name: str, config: TrainConfig, level: float, seeds: int, parsed: Any) -> dict[str, Any]:
    """Compiles and runs a program once. Returns its numbers, or `error` where PureJaxRL cannot be had."""
    side_by_side = seeds if seeds > 1 else 0
    try:
        theirs = name.startswith("PureJaxRL")
        run = (
            their_run(parsed.peers_path, config, side_by_side)
            if theirs
            else our_run(config, side_by_side)
        )
    except (ImportError, AttributeError) as error:  # of a library that a newer jax has left behind
        return {"seeds": seeds, "error": f"{type(error).__name__}: {error}"}
    return {"seeds": seeds, "level": level, **time_to(run, config, level)}


def time_to(run: Run, config: TrainConfig, level: float) -> dict[str, Any]:
    """Runs a program and says when its seeds reached the level.

    Returns:
        share: of the seeds that reached it; steps, seconds: env steps of one seed and seconds of the program until
        then, of the median and of the slowest seed, infinite where it never did; program_seconds, compile_seconds:
        of all of it.
    """
    start = time.perf_counter()
    result = jax.block_until_ready(run.call())
    seconds = time.perf_counter() - start
    updates = np.array(
        [first_reached(*own, level) + 1 for own in zip(*run.curve(result), strict=True)]
    )
    until = {"median": float(np.median(updates)), "slowest": float(updates.max())}
    return {
        "share": float(np.isfinite(updates).mean()),
        "steps": {which: number * config.env_steps_per_update for which, number in until.items()},
        "seconds": {
            which: number / config.num_updates * seconds for which, number in until.items()
        },
        "program_seconds": seconds,
        "env_steps": config.num_updates * config.env_steps_per_update,
        "compile_seconds": run.compile_seconds,
        "updates": updates.tolist(),
    }


def learn(row: str) -> dict[str, Any]:
    """Trains a row of the learning table. Returns its seconds, and the share of its numbers that are in their bands."""
    result = rerun.measure(ROWS[row])
    print(rerun.describe(row, result), flush=True)
    outside = rerun.leaves_band(row, result, rerun.read_result(row)) + rerun.misses(
        row, ROWS[row], result
    )
    print(*outside, sep="\n" if outside else "", end="\n" if outside else "", flush=True)
    where, both = "outside of" if outside else "in", ("median", "slowest")
    same = {name: result[name] for name in ("seeds", "compile_seconds", "numbers")}
    return {
        "row": row, "program": f"wdjax, the whole row, {where} its band", "share": float(not outside),
        "steps": dict.fromkeys(both, result["env_steps_per_seed"]), "seconds": dict.fromkeys(both, result["seconds"]),
        "program_seconds": result["seconds"], **same,
    }  # fmt: skip


COLUMNS = (
    "row", "program", "seeds", "reached by", "env steps: median", "slowest", "seconds: median", "slowest",
    "with compiling", "compiling", "whole program, s",
)  # fmt: skip


def cells(result: Mapping[str, Any]) -> list[str]:
    """Returns a result's cells of the table."""
    head = [result["row"], result["program"], str(result["seeds"])]
    if "error" in result:
        return [*head, *["-"] * (len(COLUMNS) - 3)]
    compiling, slowest = result["compile_seconds"], result["seconds"]["slowest"]
    steps = [
        short(number) if np.isfinite(number) else "never" for number in result["steps"].values()
    ]
    seconds = [result["seconds"]["median"], slowest, slowest + compiling]
    shown = [f"{number:.3g}" if np.isfinite(number) else "never" for number in seconds]
    return [
        *head,
        f"{result['share']:.0%}",
        *steps,
        *shown,
        f"{compiling:.1f}",
        f"{result['program_seconds']:.3g}",
    ]


if __name__ == "__main__":
    main()
