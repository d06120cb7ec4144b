"""Drawing of taxed_commons: the stock as a line, the catch as bars, the tax as background shade."""

from typing import Any

import numpy as np

from wdjax.drawing import BAR, Lines, Mark, Scene, Shapes, so_far

LIGHT, DARK = 0.15, 0.6  # opacity at the lowest tax above 0 and at the highest tax


def commons_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the scene of an episode (`Env.scene`), with each frame showing the steps up to it."""
    time, stock, level = (np.asarray(leaf) for leaf in (states.time, states.stock, states.level))
    caught = np.asarray(states.catch).sum(axis=-1)
    length, capacity = int(params.episode_length), int(params.capacity)
    window = so_far(time)
    frames = np.arange(len(time))
    # [frame T, step T]: whether the frame shows the step
    past = (frames >= window[:, :1]) & (frames < window[:, 1:])
    taxes = range(1, int(params.highest_level) + 1)
    shades = shade_of(np.arange(env.num_levels))
    marks: list[Mark] = [
        Shapes(
            np.where((level == tax_level) & (time > 0), time - 0.5, np.nan),
            0.0,
            BAR,
            (1.0, capacity),
            color="grey",
            opacity=past * shades[tax_level],
            label=f"tax {float(params.tax_step) * tax_level:.2f}",
        )
        for tax_level in reversed(taxes)
    ]
    marks += [
        Shapes(
            time - 0.5,
            0.0,
            BAR,
            (0.8, caught),
            color="magenta",
            opacity=past * 1.0,
            label="catch of the day",
        ),
        Lines(np.stack([time, stock], axis=-1), "blue", 2, window=window, label="stock"),
    ]
    captions = [
        f"step {t} of {length}: {fish} fish, tax {float(params.tax_step) * tax_level:.2f}, "
        f"{catch} caught"
        for t, fish, tax_level, catch in zip(time, stock, level, caught, strict=True)
    ]
    return Scene(
        marks,
        captions,
        (0.0, 0.0, length, capacity),
        time,
        equal=False,
        xlabel="step",
        ylabel="fish",
    )


def shade_of(level: np.ndarray) -> np.ndarray:
    """Return the opacity of each tax level, darker for higher taxes."""
    return LIGHT + (DARK - LIGHT) * (level - 1) / max(1, level[-1] - 1)
