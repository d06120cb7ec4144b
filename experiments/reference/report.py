"""What is stored of the rows as pictures and as README.md: nothing there is written by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wdjax.experiments.reference.rows import ROWS
from wdjax.train.config.reading import read_yaml
from wdjax.train.host.plots import COLORS

HEAD = """# Reference curves

Written by `python -m wdjax.experiments.reference --redraw` from `results/`: do not edit.

Each row of the learning table: a preset that `wdjax train` runs, measured over several seeds. A number is the mean
over seeds, with the smallest and the largest of a seed in brackets; a band is where the mean of a rerun must lie (four
standard deviations of the difference between two such means). "Greedy return" is that of 1,000 fresh episodes of each
seed, with the most likely actions. Training is the wall time of all seeds together, without compiling: too long where
the machine had other work besides.

    python -m wdjax.experiments.reference                   # runs every row again and checks it; or rows by name
    python -m wdjax.experiments.reference ROW --update      # stores it anew
"""
TABLE = """
| Row | Preset | Seeds | Env steps a seed | Number | Must be | Measured | Band | Training | Machine |
|---|---|---|---|---|---|---|---|---|---|
"""


def write_report(folder: Path) -> None:
    """Writes README.md and plots/ROW.png of all rows that are stored in a folder."""
    stored = {name: read_yaml(path) for name in ROWS if (path := folder / "results" / f"{name}.yaml").exists()}
    (folder / "plots").mkdir(exist_ok=True)
    for name, result in stored.items():
        draw(name, result, folder / "plots" / f"{name}.png")
    (folder / "README.md").write_text(readme(stored), encoding="utf8")


def readme(stored: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the text of README.md."""
    lines = [line for name, result in stored.items() for line in table_lines(name, result)]
    plots = [
        f"\n## {name}\n\n    python -m wdjax.experiments.reference {name}\n    wdjax train {result['preset']}\n\n"
        f"![{name}: training return, mean and range over {result['seeds']} seeds](plots/{name}.png)\n"
        for name, result in stored.items()
    ]
    return HEAD + TABLE + "\n".join(lines) + "\n" + "".join(plots)


def table_lines(name: str, result: Mapping[str, Any]) -> list[str]:
    """Returns a line for each number of a row; what they share stands in the first."""
    shared = [name, f"`{result['preset']}`", str(result["seeds"]), f"{result['env_steps_per_seed']:,}"]
    end = [f"{result['seconds']:,.0f} s", result["machine"]]
    lines = []
    for number, values in result["numbers"].items():
        target = ROWS[name].targets.get(number)
        low, high, smallest, largest = map(words, (*values["band"], min(values["per_seed"]), max(values["per_seed"])))
        measured = f"{words(values['mean'])} ({smallest} .. {largest})"
        cells = [number, target.words() if target else "-", measured, f"{low} .. {high}"]
        lines.append(f"| {' | '.join([*shared, *cells, *end])} |")
        shared, end = [""] * len(shared), [""] * len(end)
    return lines


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
        target = ROWS[name].targets.get(number)
        must = f"; must be {target.words()}" if target else ""
        lines.append(f"    {number}: {words(values['mean'])} (seeds: {per_seed}){must}")
    return "\n".join(lines)


def draw(name: str, result: Mapping[str, Any], path: Path) -> None:
    """Draws the training return of every policy, mean and range over seeds."""
    from matplotlib.figure import Figure

    steps = result["curve"]["env_steps"]
    policies = [policy for policy in result["curve"] if policy != "env_steps"]
    figure = Figure(figsize=(3 + 3 * len(policies), 3), layout="constrained")
    [panels] = figure.subplots(1, len(policies), squeeze=False)
    figure.suptitle(f"{name}: {result['preset']}, {result['seeds']} seeds", fontsize=10)
    for axes, policy in zip(panels, policies, strict=True):
        own = result["curve"][policy]
        rows = zip(steps, own["smallest"], own["mean"], own["largest"], strict=True)
        known = [row for row in rows if None not in row]  # null where no episode ended
        at, smallest, mean, largest = zip(*known, strict=True)
        color = COLORS.get(policy, "#245EB6")
        axes.fill_between(at, smallest, largest, color=color, alpha=0.2, linewidth=0)
        axes.plot(at, mean, color=color)
        axes.set_xlabel("env steps")
        axes.set_ylabel("training return" if len(policies) == 1 else f"training return, {policy}")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=80)
