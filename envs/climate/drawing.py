"""Pictures of a climate economy: what the world did until now, in four small plots over the years."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from wdjax.envs.history import since_reset

WARM, COLD, MONEY, SPENT, SAVED, ABATED = "#D1495B", "#3C7EA6", "#444444", "#9A9A9A", "#C98A1B", "#2E8B57"
START_YEAR = 2015
PLACES = {"upper left": (0.02, 0.56), "upper right": (0.56, 0.56), "lower left": (0.02, 0), "lower right": (0.56, 0)}
SIZE = (0.42, 0.36)  # of a plot, as a share of the axes, as its place is


def draw_world(axes: Axes, env: Any, state: Any, params: Any, history: Any = None) -> None:
    """Draws the curves of a world up to one state of rice.

    Args:
        axes: empty matplotlib axes.
        env: a Rice.
        state: its state; arrays of NumPy or JAX.
        params: its params.
        history: the states before this one, oldest first, leaves with a leading [H]: the curves; without it they are
            points.
    """
    states = since_reset(state, history)
    stages = 3 if env.negotiation else 1
    years = START_YEAR + float(params.step_years) * (states.time // stages)
    last = START_YEAR + float(params.step_years) * (int(params.episode_length) // stages)
    span, acted = (START_YEAR, max(last, years[-1])), states.time >= stages  # flows are of an activity step
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)

    warm = _panel(axes, "upper left", span, "temperature [°C above 1750]", 8, states.temperature)
    _curve(warm, years, states.temperature[:, 0], WARM, "air")
    _curve(warm, years, states.temperature[:, 1], COLD, "deep ocean")
    carbon = _panel(axes, "upper right", span, "carbon in the air [GtC]", 6000, states.carbon[:, :1])
    _curve(carbon, years, states.carbon[:, 0], WARM)
    output, consumption = states.output.sum(axis=1), states.consumption.sum(axis=1)
    money = _panel(axes, "lower left", span, "trillion USD a year", 600, output)
    _curve(money, years[acted], output[acted], MONEY, "output")
    _curve(money, years[acted], consumption[acted], SPENT, "consumption")
    rates = _panel(axes, "lower right", span, "rates: mean and range", 1, np.ones(1))
    rates.set_yticks([0, 0.5, 1])
    for rate, color, label in ((states.saving, SAVED, "saving"), (states.mitigation, ABATED, "mitigation")):
        _curve(rates, years[acted], rate[acted].mean(axis=1), color, label)
        rates.fill_between(years[acted], rate[acted].min(axis=1), rate[acted].max(axis=1), color=color, alpha=0.15)
    if env.negotiation:
        _curve(rates, years[acted], states.treaty.floor[acted].mean(axis=1), ABATED, "agreed", linestyle=":")
    for panel in (warm, money, rates):
        panel.legend(loc="upper left", fontsize=7, frameon=False, handlelength=1.2, borderaxespad=0.1, ncols=3,
                     columnspacing=0.8)  # fmt: skip

    step, of = int(state.time), int(params.episode_length)
    words = f"{years[-1]:.0f}, step {step} of {of}: {states.temperature[-1, 0]:.2f} °C"
    axes.set_title(words + (f", {output[-1]:.0f} trillion USD a year" if acted[-1] else ""))


def _panel(axes: Axes, place: str, span: tuple[float, float], label: str, usual: float, values: np.ndarray) -> Axes:
    """Returns an empty plot; its height is the usual one, or what the values need."""
    panel = axes.inset_axes((*PLACES[place], *SIZE))
    panel.set(xlim=span, ylim=(min(0, 1.1 * values.min()), max(1.3 * values.max(), usual)))
    panel.set_title(label, fontsize=8, loc="left", pad=3)
    panel.tick_params(labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)
    return panel


def _curve(panel: Axes, years: np.ndarray, values: np.ndarray, color: str, label: str = "", **style: Any) -> None:
    style = {"color": color, "linewidth": 1.6, "markersize": 3, "marker": "o" if len(years) == 1 else None, **style}
    panel.plot(years, values, label=label, **style)
