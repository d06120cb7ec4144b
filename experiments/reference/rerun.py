"""Runs rows of the learning table again, checks them against what is stored of them, and writes README.md of that.

    python -m wdjax.experiments.reference                       # all rows; names of rows: only these
    python -m wdjax.experiments.reference acrobot --update      # stores the numbers, curves and bands anew
    python -m wdjax.experiments.reference --redraw              # the pictures and README.md, from what is stored

The exit status is 1 where a number misses its target or lies outside of its stored band. Of a row is stored: its preset
as it was, seeds, env steps, times, machine, every number of every seed, its band, the curves of the training, and what
its first seed has learned (`wdjax eval reference:ROW`).
"""

import argparse
import dataclasses
import importlib.metadata
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from wdjax.experiments.benchmarks.timing import Parser, machine
from wdjax.experiments.over_seeds import LEVEL, interval_of_mean
from wdjax.experiments.reference.rows import ROWS, Row
from wdjax.experiments.sweep.population import compile_population, most_devices
from wdjax.train import load_config, make_learner
from wdjax.train.config.facts import Fraction
from wdjax.train.config.reading import read_yaml
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.chunks import play
from wdjax.train.host.plots import COLORS, count_env_steps, name_panel
from wdjax.train.learner.learner import Learner
from wdjax.train.learner.saved import save_learned
from wdjax.train.load import preset_path
from wdjax.train.state.metric import values_of
from wdjax.train.state.state import TrainState
from wdjax.train.storage.folder import flat

FOLDER = Path(__file__).parent
CURVE_POINTS = 60
# What a stored curve holds, and what a legend calls it: ((line, words), (ends of the band, words)).
INTERVAL = ("iqm", "interquartile mean"), ("low", "high", f"{LEVEL:.0%} interval")
RANGE = ("mean", "mean"), ("smallest", "largest", "range of the seeds")
EVALUATION = 1  # folded into a seed's key: its fresh episodes
HEAD = """# Reference curves

Written by `python -m wdjax.experiments.reference --redraw` from `results/`: do not edit.

Each row of the learning table: a preset that `wdjax train` runs, measured over several seeds. A number is the mean
over seeds, with the smallest and the largest of a seed in brackets; IQM is the interquartile mean over seeds (of fewer
than four the mean) with its 95 % interval by a stratified bootstrap (Agarwal et al. 2021); a band is where the mean of
a rerun must lie (four standard deviations of the difference between two such means). "Greedy return" is that of 1,000
fresh episodes of each seed, with the most likely actions. Training is the wall time of all seeds together, without
compiling: too long where the machine had other work besides.

    python -m wdjax.experiments.reference                   # runs every row again and checks it; or rows by name
    python -m wdjax.experiments.reference ROW --update      # stores it anew
"""
TABLE = """
| Row | Preset | Seeds | Env steps a seed | Number | Must be | Measured | IQM [95 %] | Band | Training | Machine |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def main(arguments: list[str] | None = None) -> None:
    """Reruns the rows named on the command line, or all; writes README.md and plots/ROW.png of all that are stored."""
    parser = Parser(__doc__, ROWS, repeats=0, prog="python -m wdjax.experiments.reference")
    parser.add_argument("--update", action="store_true", help="store what was measured, where it meets its targets")
    parser.add_argument("--redraw", action="store_true", help="run nothing: write pictures and README.md anew")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are stored (default: with wdjax)")
    parsed = parser.parse(arguments)
    problems = [] if parsed.redraw else [problem for name in parsed.rows for problem in rerun(name, parsed)]
    if parsed.update or parsed.redraw:
        stored = {name: result for name in ROWS if (result := read_result(name, parsed.folder))}
        (parsed.folder / "plots").mkdir(exist_ok=True)
        for name, result in stored.items():
            draw(name, result, parsed.folder / "plots" / f"{name}.png")
        (parsed.folder / "README.md").write_text(readme(stored), encoding="utf8")
    if problems:
        raise SystemExit(1)


def rerun(name: str, parsed: argparse.Namespace) -> list[str]:
    """Measures a row, prints its numbers and stores them if asked. Returns what is wrong with them, in sentences."""
    row, stored = ROWS[name], read_result(name, parsed.folder)
    result, first = measure(row)
    problems = misses(name, row, result)
    if not parsed.update:
        problems += leaves_band(name, result, stored)
    print(describe(name, result), *problems, sep="\n", flush=True)
    if parsed.update and not problems:
        path = parsed.folder / "results" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = f"# Measured by: python -m wdjax.experiments.reference {name} --update\n"
        path.write_text(head + yaml.safe_dump(result, sort_keys=False, width=120, default_flow_style=None), "utf8")
        save_learned(parsed.folder / "policies" / f"{name}.npz", first)
    return problems


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """What seeds 0, 1, 2, ... of a run have learned, side by side in one program."""

    learner: Learner
    keys: jax.Array  # [seeds]
    states: list[TrainState]
    metrics: list[Mapping[str, np.ndarray]]  # of each seed, [num_updates]
    seconds: float
    compile_seconds: float
    devices: int


def train(config: TrainConfig, seeds: int) -> Trained:
    """Trains seeds of a run; those are spread over devices, not the replicas of each."""
    learner = make_learner(config)
    num_updates, devices = learner.config.num_updates, most_devices(seeds)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    states = jax.block_until_ready(jax.vmap(learner.init)(keys))
    program, compile_seconds = compile_population(learner.setup, states, num_updates, devices)
    played = play(program, states, num_updates)
    metrics = [{name: values[i] for name, values in values_of(played.metrics).items()} for i in range(seeds)]
    one = [jax.tree.map(lambda leaf, i=i: leaf[i], played.state) for i in range(seeds)]
    states = [jax.device_put(state, jax.devices()[0]) for state in one]
    return Trained(learner, keys, states, metrics, played.seconds, compile_seconds, devices)


def measure(row: Row) -> tuple[dict[str, Any], TrainState]:
    """Trains the seeds of a row and measures each. Returns (what is stored of it, the state of its first seed)."""
    trained = train(load_config(row.preset, devices=1), row.seeds)
    learner, devices = trained.learner, trained.devices
    runs = zip(trained.states, trained.metrics, trained.keys, strict=True)
    measured = [row.measure(learner, state, own, jax.random.fold_in(key, EVALUATION)) for state, own, key in runs]
    result = {
        "preset": row.preset,
        "config": what_is_learned(row.preset),
        "seeds": row.seeds,
        "env_steps_per_seed": learner.config.num_updates * learner.config.env_steps_per_update,
        "seconds": round(trained.seconds, 1),
        "compile_seconds": round(trained.compile_seconds, 1),
        "machine": f"{f'{devices} x ' * (devices > 1)}{machine()}, {os.cpu_count()} CPU cores",
        "versions": {name: importlib.metadata.version(name) for name in ("flax", "optax", "numpy")},
        "numbers": {name: summarize([one[name] for one in measured]) for name in row.targets},
        "curve": curve(learner, trained.metrics),
    }
    return result, trained.states[0]


def what_is_learned(preset: str) -> dict[str, Any]:
    """Return a preset, schedules in env steps, without what decides no number that is learned."""
    raw = read_yaml(preset_path(preset))
    learned = {name: value for name, value in raw.items() if name != "checkpoint_every"}
    return schedules_in_env_steps(learned, raw["total_env_steps"])


def schedules_in_env_steps(raw: Any, total: int) -> Any:
    """Return the raw fields of a preset with schedules in env steps: results that are stored hold them so."""
    if not isinstance(raw, dict):
        return raw
    if raw.keys() == {"fraction"}:
        return [list(point) for point in Fraction(raw["fraction"]).in_env_steps(total)]
    return {name: schedules_in_env_steps(value, total) for name, value in raw.items()}


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
    """Returns the training return of each policy: interquartile mean over seeds with the ends of its interval, in up to
    CURVE_POINTS bins of updates; null where a seed has no episode that ended there."""
    num_updates = learner.config.num_updates
    bins = np.array_split(np.arange(num_updates), min(CURVE_POINTS, num_updates))
    points: dict[str, Any] = {"env_steps": [int(part[-1] + 1) * learner.config.env_steps_per_update for part in bins]}
    for policy in learner.config.policies:
        by_seed = np.array([[mean_return(one, policy, part) for part in bins] for one in metrics])  # [seeds, points]
        by_seed[:, np.isnan(by_seed).any(axis=0)] = np.nan
        found = np.array([interval_of_mean(seeds) for seeds in by_seed.T])
        points[policy] = {
            name: [None if np.isnan(value) else rounded(value) for value in values]
            for name, values in zip(("iqm", "low", "high"), found.T, strict=True)
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


def readme(stored: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the text of README.md: a line for each number of a row, of which the first holds what they share."""
    text, plots = HEAD + TABLE, ""
    for name, result in stored.items():
        shared = [name, f"`{result['preset']}`", str(result["seeds"]), f"{result['env_steps_per_seed']:,}"]
        end = [f"{result['seconds']:,.0f} s", result["machine"]]
        for number, values in result["numbers"].items():
            target = ROWS[name].targets.get(number)
            low, high, least, most = map(words, (*values["band"], min(values["per_seed"]), max(values["per_seed"])))
            must, measured = target.words() if target else "-", f"{words(values['mean'])} ({least} .. {most})"
            middle = "{} [{}, {}]".format(*map(words, interval_of_mean(values["per_seed"]))).replace("nan", "-")
            cells = [number, must, measured, middle, f"{low} .. {high}"]
            text += f"| {' | '.join([*shared, *cells, *end])} |\n"
            shared, end = [""] * len(shared), [""] * len(end)
        plots += (
            f"\n## {name}\n\n    python -m wdjax.experiments.reference {name}\n    wdjax train {result['preset']}\n\n"
            f"![{name}: training return and its band over {result['seeds']} seeds](plots/{name}.png)\n"
        )
        plots += f"\n{textwrap.fill(ROWS[name].note, 120)}\n" if ROWS[name].note else ""
    return text + plots


def words(value: float) -> str:
    """Returns a number as a table shows it."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def describe(name: str, result: Mapping[str, Any]) -> str:
    """Returns the numbers of a row as lines for a terminal."""
    lines = [
        f"{name}: preset {result['preset']}, {result['seeds']} seeds of {result['env_steps_per_seed']:,} env steps, "
        f"{result['seconds']:.0f} s (and {result['compile_seconds']:.0f} s to compile) on {result['machine']}"
    ]
    for number, values in result["numbers"].items():
        per_seed = " ".join(words(value) for value in values["per_seed"])
        must = f"; must be {target.words()}" if (target := ROWS[name].targets.get(number)) else ""
        lines.append(f"    {number}: {words(values['mean'])} (seeds: {per_seed}){must}")
    return "\n".join(lines)


def knots(policy: Mapping[str, Any], last: float) -> dict[tuple[float, ...], list[str]]:
    """Returns the env steps before `last` at which schedules of a policy, as YAML holds it, have another slope -> the
    fields that do so there."""
    turns: dict[tuple[float, ...], list[str]] = {}
    for field, value in flat(policy).items():
        if isinstance(value, list) and value and all(isinstance(pair, list) for pair in value):
            turns.setdefault(tuple(float(step) for step, _ in value if 0 < step < last), []).append(field)
    turns.pop((), None)
    return turns


def draw(name: str, result: Mapping[str, Any], path: Path) -> None:
    """Draws the training return of every policy with its band (rows stored before bands were intervals hold a range),
    where its schedules turn, and what greedy play came to in the end, where the row measures it."""
    from matplotlib.figure import Figure

    steps = np.array(result["curve"]["env_steps"])
    policies = [policy for policy in result["curve"] if policy != "env_steps"]
    figure = Figure(figsize=(3 + 3 * len(policies), 3), layout="constrained")
    [panels] = figure.subplots(1, len(policies), squeeze=False)
    figure.suptitle(f"{name}: {result['preset']}, {result['seeds']} seeds", fontsize=10)
    for axes, policy in zip(panels, policies, strict=True):
        own = {name: np.array(values, float) for name, values in result["curve"][policy].items()}  # null: NaN
        color = COLORS.get(policy, "#245EB6")
        (middle, line), (low, high, band) = INTERVAL if "iqm" in own else RANGE
        known = ~np.isnan(own[middle])  # of long episodes few bins hold an end
        at = steps[known]
        axes.fill_between(at, own[low][known], own[high][known], color=color, alpha=0.2, linewidth=0, label=band)
        axes.plot(at, own[middle][known], color=color, label=line)
        turns = knots(result["config"]["policies"][policy], steps[:-1].max(initial=0))
        for dashes, (at, fields) in zip((":", "--", "-."), turns.items(), strict=False):
            for i, knot in enumerate(at):
                words = None if i else "turns: " + ",\n".join(fields)
                axes.axvline(knot, color="#7A7F87", linewidth=0.9, linestyle=dashes, label=words)
        if greedy := result["numbers"].get("greedy return"):
            seeds = np.array(greedy["per_seed"])
            axes.plot(np.full(len(seeds), steps[-1]), seeds, "o", color="#E07B00", markersize=4, clip_on=False,
                      label="greedy play in the end, a dot a seed")  # fmt: skip
        count_env_steps(axes)
        name_panel(axes, f"training return{f', {policy}' if len(policies) > 1 else ''} [reward]")
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=80)
