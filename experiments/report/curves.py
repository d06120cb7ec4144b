"""Learning curves of a report; the seeds of a configuration become one line with a band."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wdjax.drawing.figures import (
    as_label,
    as_svg,
    colors_of,
    count_env_steps,
    name_panel,
    panel_colors,
    tail,
    widen_covered,
    write_figure,
)
from wdjax.experiments.over_seeds import LEVEL, interval_of_mean
from wdjax.metric_names import policies_of, summed_over
from wdjax.train.host.plots import quantities

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]  # a line of metrics.jsonl
POINTS = 100  # per line over runs with different env steps
BAND = (
    "the band is the 95 % bootstrap interval of the interquartile mean (of the mean with "
    "fewer than four seeds)"
)
SPEED = "training speed [env steps/s]"
SUMMED = "sum over its agents"  # members of a sweep do not record their number: see `summed_over`


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A quantity of one or several seeds over env steps; the ends of a missing band are NaN."""

    steps: np.ndarray  # [K] env steps
    middle: np.ndarray  # [K] value of one run, or interquartile mean
    low: np.ndarray  # [K]
    high: np.ndarray  # [K]
    seeds: int


def pooled(runs: Sequence[Sequence[Row]], field: str) -> Curve | None:
    """Return the curve of a field of metrics.jsonl over runs, or None without common env steps.

    Runs with other env steps are interpolated linearly. The curve covers the env steps that all
    runs cover.

    Args:
        runs: the rows of each run.
        field: name of the metric.
    """
    own = [
        [(row["env_steps"], row[field]) for row in rows if row.get(field) is not None]
        for rows in runs
    ]
    arrays = [np.array(points, float).T for points in own if points]  # [2, K] each
    if not arrays:
        return None
    steps = arrays[0][0]
    if any(not np.array_equal(steps, other[0]) for other in arrays):
        first, last = max(a[0, 0] for a in arrays), min(a[0, -1] for a in arrays)
        if first > last:
            return None
        steps = np.unique(np.linspace(first, last, POINTS))
    values = np.array([np.interp(steps, *array) for array in arrays])
    middle, low, high = np.array([interval_of_mean(seeds) for seeds in values.T]).T
    return Curve(steps, middle, low, high, len(arrays))


def draw_panels(groups: Mapping[str, Sequence[Sequence[Row]]], unit: str = "") -> list[str]:
    """Return the panels of a page as SVG.

    One configuration has a line for each policy. Several have a panel for each policy, with a line
    for each configuration.

    Args:
        groups: configuration -> the rows of each of its runs, at least one per run.
        unit: unit of returns after "reward"; "": `summed_over` the first rows.
    """
    several = len(groups) > 1
    found: dict[str, dict[str, str]] = {}
    all_rows = [rows for runs in groups.values() for rows in runs]
    policies = policies_of(all_rows[0][0])
    units = {summed_over(rows[0]) for rows in all_rows}
    unit = unit or (units.pop() if len(units) == 1 else "sum over agents")
    for rows in all_rows:
        shown = quantities(rows, unit) | {SPEED: {"": "env_steps_per_second"}}
        for label, curves in shown.items():
            found.setdefault(label, {}).update(curves)
    evaluated = {
        f"{name}/episode_return" for runs in groups.values() for name in policies_of(runs[0][0])
    }
    drawn = []
    for label, curves in found.items():
        panels = [{name: field} for name, field in curves.items()] if several else [curves]
        for panel in panels:
            colors = colors_of(sorted(groups)) if several else panel_colors(panel, policies)
            chosen = []
            for group, (name, field) in itertools.product(sorted(groups), panel.items()):
                line = group if several else name
                chosen.append((line, pooled(groups[group], field), "-"))
                if field in evaluated:
                    words = f"{line}, evaluated".removeprefix(", ")
                    chosen.append((words, pooled(groups[group], f"eval/{field}"), "o--"))
            name = next(iter(panel), "")
            unnamed = len(curves) > 1 or name not in label  # a policy may have a short name
            who = f", {name}" if several and unnamed else ""
            drawn.append(
                _draw(
                    label.replace(" [", f"{who} [") if "[" in label else label + who, chosen, colors
                )
            )
    return [svg for svg in drawn if svg]


def _draw(
    label: str, curves: Sequence[tuple[str, Curve | None, str]], colors: Mapping[str, str]
) -> str | None:
    """Return one panel as SVG, or None without a curve; evaluations share a line's color."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    band = False
    for name, curve, style in curves:
        if curve is not None:
            color = colors.get(name, colors.get(name.removesuffix(", evaluated"), "#245EB6"))
            band |= draw_curve(axes, tail(name), curve, color, style)
    if not axes.lines:
        return None
    widen_covered([line for line in axes.lines if line.get_linestyle() == "-"])
    if band:
        axes.fill_between(
            [],
            [],
            [],
            color="#7A7F87",
            alpha=0.3,
            linewidth=0,
            label="band: 95 % interval over seeds",
        )
    name_panel(axes, label)
    count_env_steps(axes)
    if any(name for name, _, _ in curves) or band:
        axes.legend(fontsize="small")
    return as_svg(figure)


def draw_curve(axes: "Axes", name: str, curve: Curve, color: str, style: str) -> bool:
    """Draw a line and its band. Return whether the band exists."""
    seeds = f" ({curve.seeds} seeds)" if curve.seeds > 1 else ""
    known = ~np.isnan(curve.middle)
    style = "o" if known.sum() == 1 else style
    faint = 1.0 if style == "-" else 0.7
    axes.plot(
        curve.steps[known], curve.middle[known], style,
        label=as_label(f"{name}{seeds}".strip()), color=color,
        alpha=faint, markersize=4,
    )  # fmt: skip
    ends = curve.low[known], curve.high[known]
    axes.fill_between(curve.steps[known], *ends, color=color, alpha=0.2, linewidth=0)
    return not np.isnan(curve.low).all()


def write_curves(
    file: Path, title: str, panels: Mapping[str, Sequence[tuple[str, Curve | None]]]
) -> None:
    """Draw a panel for each metric as PNG, with a line and a band for each (label, curve)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 4 * len(panels)), layout="constrained")
    figure.suptitle(title)
    all_axes = np.ravel(figure.subplots(len(panels), 1))
    for axes, (metric, curves) in zip(all_axes, panels.items(), strict=True):
        colors = colors_of(sorted(label for label, _ in curves))  # as in a report
        bands = [
            draw_curve(axes, label, curve, colors[label], "-")
            for label, curve in curves
            if curve is not None
        ]
        unit = f"\n[reward, {SUMMED}]" if metric.endswith("/episode_return") else ""
        interval = f", IQM and {LEVEL:.0%} interval" if any(bands) else ""
        axes.set_ylabel(f"{metric}{unit}{interval}")
        count_env_steps(axes)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    write_figure(figure, file, dpi=120)
