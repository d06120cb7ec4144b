"""The results of a sweep: one table as CSV and as JSON lines, and the learning curves of its values as a picture."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from wdjax.experiments.over_seeds import LEVEL, interval_of_mean, probability_of_improvement
from wdjax.experiments.sweep.members import Member, Point, Row
from wdjax.files import write_text
from wdjax.train import read_metrics

from wdjax.train.host.plots import as_label, count_env_steps, write_figure

MOST_CURVES = 10  # of the best values: matplotlib has ten colours
CAPTION = (
    "score: mean ± sample standard deviation over seeds; IQM: interquartile mean over seeds [95 % interval]; "
    "P(best > this): probability that a seed of the first row scores higher than a seed of this row"
)


def final_table(members: Sequence[Member], rows: Sequence[Row], metric: str | None) -> list[Row]:
    """Returns a row for every member that has been trained: its values and seed, its score, and its last chunk.

    The score is the metric's last known value: in a chunk in which no episode ends there is none.
    """
    last = {row["member"]: row for row in rows}
    scores = last_known(rows, metric) if metric else {}
    table = []
    for member in members:
        if member.number in last:
            numbers = {name: value for name, value in last[member.number].items() if name != "member"}
            score = {"score": scores.get(member.number)} if metric else {}
            table.append({"member": member.number, **member.values, "seed": member.config.seed, **score, **numbers})
    return table


def last_known(rows: Sequence[Row], metric: str) -> dict[int, float | None]:
    """Returns member -> the last value of a metric that is not null; None where there is none, or with bad numbers."""
    known: dict[int, float | None] = {}
    for row in rows:
        value = row.get(metric)
        known[row["member"]] = known.get(row["member"]) if value is None else value
        if row.get("bad_numbers"):
            known[row["member"]] = None
    return known


def best_member(table: Sequence[Row]) -> Row | None:
    """Returns the row with the highest score, the first of several; None where no row has one."""
    scored = [row for row in table if row.get("score") is not None]
    return max(scored, key=lambda row: row["score"]) if scored else None


def write_table(workdir: Path, table: Sequence[Row]) -> None:
    """Writes table.csv, a field without a number empty and lists as JSON, and table.jsonl, an object a line."""
    names = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    as_json = lambda value: json.dumps(value) if isinstance(value, (dict, list, tuple)) else value  # noqa: E731
    writer.writerows({name: as_json(value) for name, value in row.items()} for row in table)
    write_text(workdir / "table.csv", text.getvalue(), sync=True)
    lines = "".join(json.dumps(row) + "\n" for row in table)
    write_text(workdir / "table.jsonl", lines, sync=True)


def read_table(workdir: str | Path) -> list[Row]:
    """Read the table of the sweep in `workdir`. Raises FileNotFoundError if there is none."""
    return read_metrics(Path(workdir) / "table.jsonl")


def varied_fields(members: Sequence[Member]) -> list[str]:
    """Returns the fields that differ between members."""
    first = members[0].values
    return [name for name in first if any(member.values[name] != first[name] for member in members)]


def point_words(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns "learning_rate 0.001, length 0.5": the values of some fields, by the last part of their names."""
    return ", ".join(f"{name.split('.')[-1]} {_short(values[name])}" for name in names) or "all members"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def point_table(members: Sequence[Member], table: Sequence[Row]) -> Table:
    """Returns what is printed of a grid: the scores of the best values, over their seeds, and how likely a seed of the
    first line scores higher than one of theirs."""
    names = varied_fields(members)
    scores: dict[int, list[float]] = {}
    for row in table:
        own = scores.setdefault(members[row["member"]].point, [])
        own += [] if row["score"] is None else [row["score"]]
    values = {member.point: member.values for member in members}
    known = sorted((point for point in scores if scores[point]), key=lambda point: -np.mean(scores[point]))
    printed = Table(*(name.split(".")[-1] for name in names), caption=CAPTION, caption_justify="left")
    for column in ("score ± SD", "IQM", "P(best > this)", "seeds"):
        printed.add_column(column, justify="right")
    for point in known[:MOST_CURVES]:
        own = np.array(scores[point])
        middle, low, high = interval_of_mean(own)
        better = "" if point == known[0] else f"{probability_of_improvement(np.array(scores[known[0]]), own):.2f}"
        interval = "[-]" if np.isnan(low) else f"[{low:.4g}, {high:.4g}]"
        deviation = f" ± {own.std(ddof=1):.2f}" if len(own) > 1 else ""
        words = (f"{own.mean():.2f}{deviation}", f"{middle:.4g} {interval}", better, str(len(own)))
        printed.add_row(*(_short(values[point][name]) for name in names), *words)
    return printed


def curves_by_point(
    members: Sequence[Member], rows: Sequence[Row], metric: str
) -> list[tuple[Point, np.ndarray, np.ndarray]]:
    """Return (values, env steps [K], metric [seeds, K]) of every point, of its seeds with a number.

    Env steps at which one of these seeds has no number are left out.
    """
    values = {(row["member"], row["env_steps"]): row.get(metric) for row in rows}
    curves = []
    for point in dict.fromkeys(member.point for member in members):
        own = [member for member in members if member.point == point]
        steps = sorted({step for number, step in values if number in {member.number for member in own}})
        if steps:
            found = [[values.get((member.number, step)) for step in steps] for member in own]
            found = np.array(found, float)
            found = found[~np.isnan(found).all(axis=1)]
            known = ~np.isnan(found).any(axis=0)
            curves.append((own[0].values, np.array(steps)[known], found[:, known]))
    return curves


def draw_curves(
    path: Path, members: Sequence[Member], rows: Sequence[Row], metrics: Sequence[str], title: str
) -> Path | None:
    """Draws a panel for each metric: the interquartile mean over seeds of every point, and its 95 % interval as a band;
    of many points those that end highest in the first. Returns the path, or None where there is nothing to draw."""
    from matplotlib.figure import Figure

    panels = [(metric, curves_by_point(members, rows, metric)) for metric in metrics]
    if not panels or not panels[0][1]:
        return None
    shown, held, names = best_points(panels[0][1]), len(panels[0][1]), varied_fields(members)
    figure = Figure(figsize=(8, 1 + 4 * len(panels)), layout="constrained")
    figure.suptitle(title if len(shown) == held else f"{title} (best {len(shown)} of {held})")
    for axes, (metric, curves) in zip(np.ravel(figure.subplots(len(panels), 1)), panels, strict=True):
        seeds = max(len(curves[place][2]) for place in shown)
        for place in shown:
            values, steps, found = curves[place]
            mean, low, high = np.array([interval_of_mean(seeds) for seeds in found.T]).reshape(-1, 3).T
            fewer = f" ({len(found)} seeds)" if len(found) < seeds else ""
            marker = "o" if len(steps) == 1 else None
            (line,) = axes.plot(steps, mean, label=as_label(f"{point_words(values, names)}{fewer}"), marker=marker)
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        if seeds > 1:
            words = f"band: {LEVEL:.0%} interval of the IQM over {seeds} seeds"
            axes.fill_between([], [], [], color="grey", alpha=0.3, linewidth=0, label=words)
        axes.set_ylabel(f"{metric}, IQM over seeds" if seeds > 1 else metric)
        count_env_steps(axes)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    write_figure(figure, path, dpi=120)
    return path


def best_points(curves: Sequence[tuple[Point, np.ndarray, np.ndarray]]) -> list[int]:
    """Returns the places of the curves that end highest, at most MOST_CURVES of them, in their own order."""
    ends = [found[:, -1].mean() if found.size else -np.inf for _, _, found in curves]
    return sorted(np.argsort(-np.array(ends), kind="stable")[:MOST_CURVES].tolist())


def draw_history(path: Path, table: Sequence[Row], names: Sequence[str], title: str) -> Path:
    """Draws a population's scores and below them the values of each field, a line for each member. Returns the path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 3 * (1 + len(names))), layout="constrained")
    figure.suptitle(title)
    members = sorted({row["member"] for row in table})
    for axes, name in zip(figure.subplots(1 + len(names), 1, sharex=True), ("score", *names), strict=True):
        for member in members:
            own = [(row["env_steps"], row[name]) for row in table if row["member"] == member and row[name] is not None]
            axes.plot(*zip(*own, strict=True), linewidth=1, alpha=0.7) if own else None
        positive = name != "score" and all(row[name] > 0 for row in table)
        axes.set(ylabel=name, yscale="log" if positive else "linear")
        axes.grid(alpha=0.3)
    count_env_steps(axes)
    write_figure(figure, path, dpi=120)
    return path
