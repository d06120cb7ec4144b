"""Runs rows of the learning table again and checks them against what is stored of them.

    python -m wdjax.experiments.reference                       # all rows; names of rows: only these
    python -m wdjax.experiments.reference acrobot --update      # stores the numbers, curves and bands anew
    python -m wdjax.experiments.reference --redraw              # the pictures and README.md, from what is stored

The exit status is 1 where a number misses its target or lies outside of its stored band. Of a row is stored: its preset
as it was, seeds, env steps, times, machine, every number of every seed, its band, and the curves of the training.
"""

import argparse
import importlib.metadata
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from wdjax.checks import did_you_mean
from wdjax.experiments.benchmarks.timing import machine
from wdjax.experiments.reference.report import describe, write_report
from wdjax.experiments.reference.rows import ROWS, Row
from wdjax.experiments.sweep.population import compile_population, most_devices
from wdjax.train import load_config, make_learner
from wdjax.train.config.reading import read_yaml
from wdjax.train.learner.learner import Learner
from wdjax.train.load import preset_path

FOLDER = Path(__file__).parent
CURVE_POINTS = 60
EVALUATION = 1  # folded into a seed's key: its fresh episodes


def main(arguments: list[str] | None = None) -> None:
    """Reruns the rows named on the command line, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m wdjax.experiments.reference", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; none: all")
    parser.add_argument("--update", action="store_true", help="store what was measured, where it meets its targets")
    parser.add_argument("--redraw", action="store_true", help="run nothing: write pictures and README.md anew")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are stored (default: with wdjax)")
    parsed = parser.parse_args(arguments)
    for name in parsed.rows:
        if name not in ROWS:
            parser.error(f"unknown row {name!r}: {did_you_mean(name, ROWS)}")
    problems = [] if parsed.redraw else [p for name in parsed.rows or ROWS for p in rerun(name, parsed)]
    if parsed.update or parsed.redraw:
        write_report(parsed.folder)
    if problems:
        raise SystemExit(1)


def rerun(name: str, parsed: argparse.Namespace) -> list[str]:
    """Measures a row, prints its numbers and stores them if asked. Returns what is wrong with them, in sentences."""
    row, stored = ROWS[name], read_result(name, parsed.folder)
    result = measure(row)
    problems = misses(name, row, result)
    if not parsed.update:
        problems += leaves_band(name, result, stored)
    print(describe(name, result), *problems, sep="\n", flush=True)
    if parsed.update and not problems:
        write_result(name, result, parsed.folder)
    return problems


def measure(row: Row) -> dict[str, Any]:
    """Trains the seeds of a row, side by side in one program, and measures each. Returns what is stored of it."""
    learner = make_learner(load_config(row.preset, devices=1))  # the seeds are spread, not the replicas of each
    num_updates, devices = learner.config.num_updates, most_devices(row.seeds)
    keys = jax.vmap(jax.random.key)(jnp.arange(row.seeds))
    states = jax.block_until_ready(jax.vmap(learner.init)(keys))
    start = time.perf_counter()
    program = compile_population(learner.setup, states, num_updates, devices)
    compiled = time.perf_counter()
    states, metrics = jax.block_until_ready(program(states))
    ended = time.perf_counter()
    curves = [{name: np.asarray(values[i]) for name, values in metrics.items()} for i in range(row.seeds)]
    measured = []
    for i, (own, key) in enumerate(zip(curves, keys, strict=True)):
        state = jax.device_put(jax.tree.map(lambda leaf, i=i: leaf[i], states), jax.devices()[0])
        measured.append(row.measure(learner, state, own, jax.random.fold_in(key, EVALUATION)))
    return {
        "preset": row.preset,
        "config": read_yaml(preset_path(row.preset)),
        "seeds": row.seeds,
        "env_steps_per_seed": num_updates * learner.config.env_steps_per_update,
        "seconds": round(ended - compiled, 1),
        "compile_seconds": round(compiled - start, 1),
        "machine": f"{f'{devices} x ' * (devices > 1)}{machine()}, {os.cpu_count()} CPU cores",
        "versions": {name: importlib.metadata.version(name) for name in ("flax", "optax", "numpy")},
        "numbers": {name: summarize([one[name] for one in measured]) for name in row.targets},
        "curve": curve(learner, curves),
    }


def summarize(values: list[float]) -> dict[str, Any]:
    """Returns a number's values of all seeds, their mean and its band: where the mean of as many other seeds may lie.

    The band is mean +- 4 s sqrt(2 / n), at least 2 % of the mean either way: s the deviation of n seeds, so that
    s sqrt(2 / n) is that of the difference of two such means. Results on other machines are like those of other seeds.
    """
    numbers = np.array(values, np.float64)
    mean = float(numbers.mean())
    with np.errstate(invalid="ignore"):  # of an infinite number the deviation is NaN
        spread = float(numbers.std(ddof=1)) if len(values) > 1 else 0.0
    width = max(4 * spread * np.sqrt(2 / len(values)), 0.02 * abs(mean))
    return {
        "mean": rounded(mean),
        "band": [rounded(mean - width), rounded(mean + width)],
        "per_seed": [rounded(value) for value in values],
    }


def rounded(value: float) -> float:
    """Returns a number with six significant digits."""
    return float(f"{value:.6g}")


def curve(learner: Learner, metrics: list[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Returns the training return of each policy: mean, smallest and largest over seeds, in up to CURVE_POINTS bins of
    updates; null where a seed has no episode that ended there."""
    num_updates = learner.config.num_updates
    bins = np.array_split(np.arange(num_updates), min(CURVE_POINTS, num_updates))
    points: dict[str, Any] = {"env_steps": [int(part[-1] + 1) * learner.config.env_steps_per_update for part in bins]}
    for policy in learner.config.policies:
        by_seed = np.array([[mean_return(one, policy, part) for part in bins] for one in metrics])  # [seeds, points]
        points[policy] = {
            name: [None if np.isnan(value) else rounded(value) for value in over(by_seed, axis=0)]
            for name, over in (("mean", np.mean), ("smallest", np.min), ("largest", np.max))
        }
    return points


def mean_return(metrics: Mapping[str, np.ndarray], policy: str, updates: np.ndarray) -> float:
    """Returns the mean return of the episodes that ended in these updates, NaN where none did."""
    episodes = metrics["episodes"][updates]
    if not episodes.sum():
        return float("nan")
    ended = episodes > 0
    return float(np.average(metrics[f"{policy}/episode_return"][updates][ended], weights=episodes[ended]))


def misses(name: str, row: Row, result: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for every number that misses its target, and for a run of too many env steps."""
    problems = []
    if row.within is not None and result["env_steps_per_seed"] > row.within:
        problems.append(f"{name}: ran for {result['env_steps_per_seed']:,} env steps: must be within {row.within:,}")
    for number, target in row.targets.items():
        if target is None:
            continue
        values = result["numbers"][number]
        judged = {f"seed {seed}": value for seed, value in enumerate(values["per_seed"])}
        for who, value in (judged if target.every_seed else {"mean": values["mean"]}).items():
            if not target.met(value):
                problems.append(f"{name}: {number}, {who}, is {value:,.6g}: must be {target.words()}")
    return problems


def leaves_band(name: str, result: Mapping[str, Any], stored: Mapping[str, Any] | None) -> list[str]:
    """Returns a sentence for every number whose mean over seeds is outside of the stored band."""
    if stored is None:
        return [f"{name}: nothing is stored: store it with --update"]
    problems = []
    for number, values in result["numbers"].items():
        if number not in stored["numbers"]:
            problems.append(f"{name}: {number}: nothing is stored: store it with --update")
            continue
        low, high = stored["numbers"][number]["band"]
        if not low <= values["mean"] <= high:
            words = f"outside of the stored band {low:,.6g} .. {high:,.6g}"
            problems.append(f"{name}: {number}, mean, is {values['mean']:,.6g}: {words}")
    return problems


def read_result(name: str, folder: Path = FOLDER) -> dict[str, Any] | None:
    """Returns what is stored of a row, or None."""
    path = folder / "results" / f"{name}.yaml"
    return read_yaml(path) if path.exists() else None


def write_result(name: str, result: Mapping[str, Any], folder: Path) -> None:
    path = folder / "results" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"# Measured by: python -m wdjax.experiments.reference {name} --update\n"
    path.write_text(head + yaml.safe_dump(dict(result), sort_keys=False, width=120, default_flow_style=None), "utf8")
