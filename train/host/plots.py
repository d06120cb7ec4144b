"""The learning curves of a run, and who was beaten in it, as pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdjax.train.storage.metrics_log import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"tagger": "#C843C3", "runner": "#245EB6"}  # as in the animation; other policies take matplotlib's own


def save_curves(run: str | Path, title: str = "") -> Path | None:
    """Draws curves.png of a run from its metrics.jsonl. Returns its path; None where there is no line."""
    from matplotlib.figure import Figure

    run = Path(run)
    file = run / "metrics.jsonl"
    rows = read_metrics(file) if file.exists() else []
    if not rows:
        return None
    policies = [name.split("/")[0] for name in rows[0] if name.endswith("/episode_return") and name.count("/") == 1]
    trained = [name for name in policies if f"{name}/entropy" in rows[0]]
    statistics = [name for name in rows[0] if name.startswith("episode_") and not name.startswith("episode_length")]
    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True)
    figure.suptitle(title or run.name)
    returns = {name: f"{name}/episode_return" for name in policies}
    draw_curves(panels[0, 0], rows, returns, "mean episode return [reward]")
    draw_evaluations(panels[0, 0], rows, policies)
    if statistics:
        label = "mean per episode [count]"
        draw_curves(panels[0, 1], rows, {name.removeprefix("episode_"): name for name in statistics}, label)
    else:
        draw_curves(panels[0, 1], rows, {"length": "episode_length"}, "mean episode length [env steps]")
    if trained:
        draw_curves(panels[1, 0], rows, {name: f"{name}/entropy" for name in trained}, "policy entropy [nats]")
        explained = {name: f"{name}/explained_variance" for name in trained}
        draw_curves(panels[1, 1], rows, explained, "explained variance of the value")
        panels[1, 1].set_ylim(-1.05, 1.05)
    else:  # critics of actions
        draw_curves(panels[1, 0], rows, {name: f"{name}/q_mean" for name in policies}, "mean action value [reward]")
        losses = {name: f"{name}/critic_loss" for name in policies}
        draw_curves(panels[1, 1], rows, losses, "critic's mean squared error [reward²]")
    for panel in panels[1]:
        panel.set_xlabel("env steps")
    path = run / "curves.png"
    figure.savefig(path, dpi=120)
    return path


def save_opponents(run: str | Path, title: str = "") -> Path | None:
    """Draws opponents.png of a run from its metrics.jsonl: how often the others beat whoever played in the place of a
    policy, and with which return. Returns its path; None where nobody did."""
    from matplotlib.figure import Figure

    run = Path(run)
    file = run / "metrics.jsonl"
    rows = read_metrics(file) if file.exists() else []
    found = [name.split("/", 2) for name in (rows[0] if rows else ()) if "/opponent_win_rate/" in name]
    policies = list(dict.fromkeys(policy for policy, _, _ in found))
    if not policies:
        return None
    figure = Figure(figsize=(10, 3.5 * len(policies)), layout="constrained")
    panels = figure.subplots(len(policies), 2, sharex=True, squeeze=False)
    figure.suptitle(title or run.name)
    for axes, policy in zip(panels, policies, strict=True):
        who = [name for owner, _, name in found if owner == policy]
        for panel, what, label in zip(axes, ("win_rate", "return"), ("win rate", "return [reward]"), strict=True):
            curves = {name: f"{policy}/opponent_{what}/{name}" for name in who}
            draw_curves(panel, rows, curves, f"the others' {label}")
        axes[0].set(title=f"in the place of {policy}", ylim=(-0.05, 1.05))
    for axes in panels[-1]:
        axes.set_xlabel("env steps")
    path = run / "opponents.png"
    figure.savefig(path, dpi=120)
    return path


def _tail(name: str, length: int = 36) -> str:
    """Returns the end of a name that a legend has no room for: a run's whole path would leave none for its curves."""
    return name if len(name) <= length else f"…{name[1 - length :]}"


def draw_curves(axes: "Axes", rows: Sequence[dict[str, Any]], curves: dict[str, str], label: str) -> None:
    """Draws one line for each of {name in the legend: field of the rows}; rows where the field is null are left out."""
    for name, field in curves.items():
        points = [(row["env_steps"], row[field]) for row in rows if row.get(field) is not None]
        marker = "o" if len(points) == 1 else None
        axes.plot(*zip(*points, strict=True), label=name, color=COLORS.get(name), marker=marker) if points else None
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(axes.lines, [_tail(line.get_label()) for line in axes.lines])


def draw_evaluations(axes: "Axes", rows: Sequence[dict[str, Any]], policies: Sequence[str]) -> None:
    """Adds what evaluations found, where there are any: dots joined by dashes, in the colour of the policy's curve."""
    colors = {line.get_label(): line.get_color() for line in axes.lines}
    for name in policies:
        field = f"eval/{name}/episode_return"
        points = [(row["env_steps"], row[field]) for row in rows if row.get(field) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), "o--", label=f"{name}, evaluated", color=colors.get(name), alpha=0.7)
    if axes.lines:
        axes.legend()
