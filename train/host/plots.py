"""Pictures of a run: learning curves, and results against opponents."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdjax.drawing.figures import (
    as_label,
    as_svg,
    count_env_steps,
    name_panel,
    panel_colors,
    tail,
    widen_covered,
    without_picture,
    write_figure,
)
from wdjax.metric_names import LENGTHS, policies_of, summed_over, user_space
from wdjax.train.config.facts import is_scheduled
from wdjax.train.host.loop import Row
from wdjax.train.state.registry import known_fields
from wdjax.train.storage.metrics_log import rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXPLAINED = "explained variance of the value function [1 = perfect]"
WIN_RATE = "win rate against each opponent"


def import_drawing() -> None:
    """Import the modules for drawing, which takes as long as drawing."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401


def draw_pictures(run: Path, title: str, say: Callable[[str], None]) -> None:
    """Draw curves.png, and opponents.png of a run with opponents; report their paths."""
    with without_picture("curves.png", say):
        curves = save_curves(run, title)
        say(f"Wrote {curves}" if curves else f"No curves: {run}/metrics.jsonl is empty")
    with without_picture("opponents.png", say):
        if opponents := save_opponents(run, title):
            say(f"Wrote {opponents}")


def save_curves(run: str | Path, title: str = "") -> Path | None:
    """Draw the learning curves of a run to curves.png, from its metrics.jsonl.

    Args:
        run: folder of the run.
        title: title of the figure; by default the name of the folder.

    Returns:
        The path of the picture; None if metrics.jsonl is missing or empty.
    """
    run, rows = Path(run), rows_of(run)
    if not rows:
        return None
    path = run / "curves.png"
    write_figure(draw_run(rows, title or run.name), path, dpi=120)
    return path


def thinned(rows: Sequence[Row], most: int = 2_000) -> Sequence[Row]:
    """Return at most `most` rows of a run, with the first and the last one."""
    return rows if len(rows) <= most else thinned([*rows[:-1:2], rows[-1]], most)


def draw_run(rows: Sequence[Row], title: str = "", most: int | None = None) -> "Figure":
    """Return a figure of the quantities of a run, in two columns.

    Args:
        rows: rows of metrics.jsonl, at least one.
        title: title of the figure.
        most: maximum number of panels; None: all.
    """
    figure = draw_panels(rows, title, dict(list(quantities(rows).items())[:most]))
    draw_evaluations(figure.axes[0], rows, policies_of(rows[0]))
    return figure


def draw_panels(rows: Sequence[Row], title: str, shown: Mapping[str, dict[str, str]]) -> "Figure":
    """Return a figure with a panel for each quantity, in two columns.

    Args:
        rows: rows of metrics.jsonl.
        title: title of the figure.
        shown: label with unit -> {name in the legend: field of the rows}.
    """
    from matplotlib.figure import Figure

    columns = min(len(shown), 2)
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(5.0 * columns, 3.5 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, squeeze=False)
    figure.suptitle(title)
    for panel, (label, curves) in zip(panels.flat, shown.items(), strict=False):
        draw_curves(panel, rows, curves, label)
        if label.startswith((EXPLAINED, WIN_RATE)):
            panel.set_ylim(-1.05 if label == EXPLAINED else -0.05, 1.05)
    for panel in panels.flat[len(shown) :]:
        panel.set_axis_off()
    for panel in panels.flat[max(len(shown) - columns, 0) : len(shown)]:
        count_env_steps(panel)
        panel.tick_params(labelbottom=True)  # also above an empty panel
    return figure


def quantities(rows: Sequence[Row], unit: str | None = None) -> dict[str, dict[str, str]]:
    """Return the quantities to draw: label with unit -> {name in the legend: field of the rows}.

    Hyperparameters are drawn if a schedule has changed them. Policies are in the order of the rows,
    which is the order of the configuration.

    Args:
        rows: rows of metrics.jsonl, at least one.
        unit: unit of returns; None: `summed_over` the first row.
    """
    first = rows[0]
    policies = policies_of(first)
    trained = [name for name in policies if f"{name}/entropy" in first]
    of = lambda names, field: {name: f"{name}/{field}" for name in names}  # noqa: E731
    unit = summed_over(first) if unit is None else unit
    returns = f"mean episode return [reward{unit and f', {unit}'}]"
    found = {returns: of(policies, "episode_return")}
    space = f"{user_space(policies)}/"
    sums = [name for name in first if name.startswith(("episode_", space)) and name not in LENGTHS]
    if sums:
        short = [name.removeprefix("episode_").removeprefix(space) for name in sums]
        found["environment metrics [mean per episode]"] = {
            own if short.count(own) == 1 else name: name
            for name, own in zip(sums, short, strict=True)
        }
    else:
        found["mean episode length [env steps]"] = {"length": "episode_length"}
    if trained:
        found["policy entropy [nats]"] = of(trained, "entropy")
        found[EXPLAINED] = of(trained, "explained_variance")
    else:  # critics of actions
        found["mean Q value [reward]"] = of(policies, "q_mean")
        found["critic mean squared error [reward²]"] = of(policies, "critic_loss")
    scheduled = {path for path, field in known_fields().items() if is_scheduled(field)}
    for field in first:
        policy, _, name = field.partition("/")
        if policy in policies and name in scheduled:
            values = [row[field] for row in rows if row.get(field) is not None]
            if values and max(values) - min(values) > 1e-6 * max(map(abs, values)):
                found.setdefault(f"{name.replace('_', ' ')} (scheduled)", {})[policy] = field
    return found


class LiveCurve:
    """The episode returns of a run during training, as a curve.

    Args:
        read: returns the rows of metrics.jsonl; called once, when the first picture is needed.
    """

    def __init__(self, read: Callable[[], Sequence[Row]]):
        self._read = read
        self._rows: Sequence[Row] | None = None

    def add(self, row: Row) -> None:
        """Append a new row."""
        if self._rows is not None:
            self._rows = thinned([*self._rows, row])

    def svg(self) -> str:
        """Return the curve as an SVG element; "" without rows, or if it cannot be drawn."""
        self._rows = self._read() if self._rows is None else self._rows
        with contextlib.suppress(Exception):  # a picture must not end training
            return svg_of_run(self._rows)
        return ""


def svg_of_run(rows: Sequence[Row]) -> str:
    """Return the episode returns of a run as an SVG element, "" without rows."""
    return as_svg(draw_run(thinned(rows), most=1)) if rows else ""


def save_opponents(run: str | Path, title: str = "") -> Path | None:
    """Draw win rates and returns against the opponents of each policy to opponents.png.

    Args:
        run: folder of the run.
        title: title of the figure; by default the name of the folder.

    Returns:
        The path of the picture; None for a run without opponents.
    """
    run, rows = Path(run), rows_of(run)
    labels = {"win_rate": WIN_RATE, "return": "return [reward] against each opponent"}
    shown: dict[str, dict[str, str]] = {}
    for field in rows[0] if rows else ():
        policy, kind, name = (*field.split("/", 2), "", "")[:3]
        if kind == "opponent_win_rate" and name and policy in policies_of(rows[0]):
            for metric, label in labels.items():
                curves = shown.setdefault(f"{label} in place of {policy}", {})
                curves[name] = f"{policy}/opponent_{metric}/{name}"
    if not shown:
        return None
    path = run / "opponents.png"
    write_figure(draw_panels(rows, title or run.name, shown), path, dpi=120)
    return path


def draw_curves(axes: "Axes", rows: Sequence[Row], curves: dict[str, str], label: str) -> None:
    """Draw {name in the legend: field of the rows} as lines, and the legend."""
    colors = panel_colors(curves, policies_of(rows[0]))
    for name, field in curves.items():
        draw_line(axes, rows, field, name, color=colors[name])
    widen_covered(axes.lines)
    name_panel(axes, label)
    draw_legend(axes)


def draw_evaluations(axes: "Axes", rows: Sequence[Row], policies: Sequence[str]) -> None:
    """Add the results of evaluations, as dots and dashes in the color of the policy's curve."""
    colors = {line.get_label(): line.get_color() for line in axes.lines}
    style = {"marker": "o", "linestyle": "--", "alpha": 0.7}
    for name in policies:
        field, color = f"eval/{name}/episode_return", colors.get(as_label(name))
        draw_line(axes, rows, field, f"{name}, evaluated", color=color, **style)
    draw_legend(axes)


def draw_line(axes: "Axes", rows: Sequence[Row], field: str, name: str, **style: Any) -> None:
    """Draw the values of a field over env steps. A single one gets a marker."""
    points = [(row["env_steps"], row[field]) for row in rows if row.get(field) is not None]
    if points:
        marker = {"marker": "o"} if len(points) == 1 else {}
        axes.plot(*zip(*points, strict=True), label=as_label(name), **{**marker, **style})


def draw_legend(axes: "Axes") -> None:
    """Draw a legend of all lines, if there are any."""
    if axes.lines:
        axes.legend(axes.lines, [tail(str(line.get_label())) for line in axes.lines])
