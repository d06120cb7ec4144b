"""The picture of taxed_commons: the stock as a line over time, each day's catch as a bar, the tax as a shade behind."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from wdjax.envs.history import since_reset

STOCK, CATCH, TAX = "#245EB6", "#C843C3", "#7A7A7A"
LIGHT, DARK = 0.15, 0.6  # of the shade, at the lowest tax above 0 and the highest


def draw_commons(axes: Axes, env: Any, state: Any, params: Any, history: Any = None) -> None:
    """Draws one state of taxed_commons.

    Args:
        axes: empty matplotlib axes.
        env: a TaxedCommons.
        state: its state; arrays of NumPy or JAX.
        params: its params.
        history: the states before this one, oldest first, leaves with a leading [H]: the line and the bars before it.
    """
    states = since_reset(state, history)
    time, stock, level = states.time, states.stock, states.level
    caught = states.catch.sum(axis=-1)
    shades = shade_of(np.arange(env.num_levels))
    for t, own in zip(time, level, strict=True):
        if t > 0 and own > 0:
            axes.axvspan(t - 1, t, color=TAX, alpha=shades[own], linewidth=0, zorder=0)
    axes.bar(time - 0.5, caught, width=0.8, color=CATCH, zorder=2)
    axes.plot(time, stock, color=STOCK, linewidth=2, zorder=3)
    axes.plot(time[-1:], stock[-1:], "o", color=STOCK, markersize=8, markeredgecolor="white", zorder=4, clip_on=False)

    length, tax = int(params.episode_length), float(params.tax_step)
    axes.set(xlim=(0, length), ylim=(0, int(params.capacity)), xlabel="step", ylabel="fish")
    now = f"{stock[-1]} fish, tax {tax * level[-1]:.2f}, {caught[-1]} caught"
    axes.set_title(f"step {time[-1]} of {length}: {now}")
    handles = [Line2D([], [], color=STOCK, marker="o", label="stock"), Patch(color=CATCH, label="catch of the day")]
    taxes = range(1, int(params.highest_level) + 1)
    handles += [Patch(color=TAX, alpha=shades[own], linewidth=0, label=f"tax {tax * own:.2f}") for own in taxes]
    axes.legend(handles=handles, fontsize=9, frameon=False, loc="upper left", bbox_to_anchor=(1.03, 1.0),
                borderaxespad=0.0)  # fmt: skip


def shade_of(level: np.ndarray) -> np.ndarray:
    """Returns how dark each level of the tax is drawn, as an alpha: the higher the darker."""
    return LIGHT + (DARK - LIGHT) * (level - 1) / max(1, level[-1] - 1)
