"""Results of a sweep: a table as CSV and JSON lines, and learning curves."""

import collections
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from wdjax.drawing.figures import CURVES, count_env_steps, write_figure
from wdjax.experiments.over_seeds import interval_of_mean, probability_of_improvement
from wdjax.experiments.report.curves import pooled, write_curves
from wdjax.experiments.sweep.members import Member, Row
from wdjax.files import write_text
from wdjax.train import read_metrics

MOST_CURVES = len(CURVES)
MOST_POINTS = 10  # printed
MOST_TRIALS = 20  # printed
CAPTION = (
    "score: mean ± sample standard deviation over seeds; "
    "IQM: interquartile mean over seeds [95 % interval]; "
    "P(best > this): probability that a seed of the first row scores higher than a seed of this row"
)


def final_table(members: Sequence[Member], rows: Sequence[Row], metric: str | None) -> list[Row]:
    """Return a row for every member with a chunk: values, seed, score, and its last chunk.

    The score is the last known value of the metric: some chunks contain no end of an episode.
    """
    last = {row["member"]: row for row in rows}
    scores = last_known(rows, metric) if metric else {}
    score = lambda own: {"score": scores[own.number]} if metric else {}  # noqa: E731
    return [
        {"member": own.number, **own.values, "seed": own.config.seed, **score(own)}
        | last[own.number]
        for own in members
        if own.number in last
    ]


def last_known(rows: Sequence[Row], metric: str) -> dict[int, float | None]:
    """Return member -> last known value of a metric; None without one, or with bad numbers."""
    known: dict[int, float | None] = {}
    for row in rows:
        value = known.get(row["member"]) if row.get(metric) is None else row[metric]
        known[row["member"]] = None if row.get("bad_numbers") else value
    return known


def best_member(table: Sequence[Row]) -> Row | None:
    """Return the row with the highest score, the first of equal ones; None without a score."""
    scored = [row for row in table if row.get("score") is not None]
    return max(scored, key=lambda row: row["score"], default=None)


def write_table(workdir: Path, table: Sequence[Row]) -> None:
    """Write table.jsonl, and table.csv with lists as JSON and empty fields for missing values."""
    names = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in table:
        nested = {n: json.dumps(v) for n, v in row.items() if isinstance(v, dict | list | tuple)}
        writer.writerow(row | nested)
    write_text(workdir / "table.csv", text.getvalue(), sync=True)
    lines = "".join(json.dumps(row) + "\n" for row in table)
    write_text(workdir / "table.jsonl", lines, sync=True)


def read_table(workdir: str | Path) -> list[Row]:
    """Read the table of the sweep in `workdir`. Raise FileNotFoundError if there is none."""
    return read_metrics(Path(workdir) / "table.jsonl")


def varied_fields(members: Sequence[Any]) -> list[str]:
    """Return the fields whose values differ between members, or between trials of a report."""
    values = [member.values for member in members]
    names = dict.fromkeys(name for own in values for name in own)
    return [name for name in names if any(own.get(name) != values[0].get(name) for own in values)]


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last parts of names of fields, or longer ones where last parts are equal."""
    last = [name.split(".")[-1] for name in names]
    return [
        short if last.count(short) == 1 else name.removeprefix("policies.")
        for short, name in zip(last, names, strict=True)
    ]


def point_words(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the values of some fields, by short names: "learning_rate 0.001, length 0.5"."""
    words = [
        f"{short} {short_value(values[name])}"
        for short, name in zip(short_names(names), names, strict=True)
    ]
    return ", ".join(words) or "all members"


def short_value(value: Any) -> str:
    """Return a value with four significant digits if it is a float."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def spread(values: Sequence[float]) -> str:
    """Return the mean ± sample standard deviation of values over seeds."""
    if not values:
        return "-"
    deviation = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{deviation}"


def point_table(members: Sequence[Member], table: Sequence[Row]) -> Table:
    """Return the table that is printed for a grid: scores of the best points over seeds."""
    names = varied_fields(members)
    values = {member.point: member.values for member in members}
    scores = collections.defaultdict(list)
    for row in table:
        if row["score"] is not None:
            scores[members[row["member"]].point].append(row["score"])
    best = sorted(scores, key=lambda point: -np.mean(scores[point]))[:MOST_POINTS]
    printed = Table(*short_names(names), caption=CAPTION, caption_justify="left")
    for column in ("score ± SD", "IQM", "P(best > this)", "seeds"):
        printed.add_column(column, justify="right")
    for point in best:
        found = np.array(scores[point])
        middle, low, high = interval_of_mean(found)
        better = probability_of_improvement(np.array(scores[best[0]]), found)
        printed.add_row(
            *(short_value(values[point][name]) for name in names),
            spread(scores[point]),
            f"{middle:.4g} " + ("[-]" if np.isnan(low) else f"[{low:.4g}, {high:.4g}]"),
            "" if point == best[0] else f"{better:.2f}",
            str(len(found)),
        )
    return printed


def rank(score: float | None, status: str) -> tuple[bool, bool, float]:
    """Return the sort key of a trial, the largest for the best one.

    Complete trials are above others, whose scores are of shorter runs. Trials without a score are
    last.
    """
    return score is not None, status == "complete", score or 0.0


def trial_table(table: Sequence[Row], names: Sequence[str]) -> Table:
    """Return the table that is printed for a search: its trials, the best ones first.

    Args:
        table: rows of the study.
        names: fields that vary.
    """
    key = lambda row: rank(row["score"], row["state"])  # noqa: E731
    best = sorted(table, key=key, reverse=True)[:MOST_TRIALS]
    few = f"; best {len(best)} of {len(table)} trials" if len(best) < len(table) else ""
    caption = f"score: mean over seeds; a pruned trial has a shorter run{few}"
    printed = Table(caption=caption, caption_justify="left")
    for column in ("trial", *short_names(names), "score", "env steps"):
        printed.add_column(column, justify="right")
    printed.add_column("state")
    for row in best:
        score, steps = row["score"], row["env_steps"]
        printed.add_row(
            str(row["trial"]),
            *(short_value(row[name]) for name in names),
            "-" if score is None else f"{score:.2f}",
            "-" if steps is None else f"{steps:,}",
            row["state"],
        )
    return printed


def draw_curves(
    path: Path, members: Sequence[Member], rows: Sequence[Row], metrics: Sequence[str], title: str
) -> Path | None:
    """Draw a panel for each metric: the interquartile mean over seeds and its 95 % interval.

    Of many points, those with the highest ends in the first panel are drawn.

    Returns:
        The path, or None if there is nothing to draw.
    """
    of_member, runs = collections.defaultdict(list), collections.defaultdict(list)
    for row in rows:
        of_member[row["member"]].append(row)
    for own in members:
        runs[own.point].append(of_member[own.number])
    curves = {
        metric: {point: pooled(own, metric) for point, own in runs.items()} for metric in metrics
    }
    first = curves[metrics[0]].items()
    ends = {point: curve.middle[-1] for point, curve in first if curve is not None}
    best = sorted(ends, key=lambda point: ends[point], reverse=True)[:MOST_CURVES]
    if not best:
        return None
    names = varied_fields(members)
    words = {own.point: point_words(own.values, names) for own in members}
    few = f" (best {len(best)} of {len(ends)})" if len(best) < len(ends) else ""
    panels = {
        metric: [(words[point], curves[metric][point]) for point in sorted(best)]
        for metric in metrics
    }
    write_curves(path, f"{title}{few}", panels)
    return path


def draw_history(path: Path, table: Sequence[Row], names: Sequence[str], title: str) -> Path:
    """Draw the scores of a population and the values of each field, a line for each member."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 3 * (1 + len(names))), layout="constrained")
    figure.suptitle(title)
    all_axes = figure.subplots(1 + len(names), 1, sharex=True)
    for axes, name in zip(all_axes, ("score", *names), strict=True):
        for member in sorted({row["member"] for row in table}):
            own = [row for row in table if row["member"] == member and row[name] is not None]
            points = [(row["env_steps"], row[name]) for row in own]
            axes.plot(*np.reshape(points, (-1, 2)).T, linewidth=1, alpha=0.7)
        positive = name != "score" and all(row[name] > 0 for row in table)
        axes.set(ylabel=name, yscale="log" if positive else "linear")
        axes.grid(alpha=0.3)
    count_env_steps(axes)
    write_figure(figure, path, dpi=120)
    return path
