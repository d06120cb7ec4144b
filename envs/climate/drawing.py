"""Drawing of RICE-N: four plots of climate and economy over the years."""

from typing import Any

import numpy as np

from wdjax.drawing import Plot, Scene, Series

START_YEAR = 2015


def world_scene(env: Any, states: Any, params: Any) -> Scene:
    """Return the scene of a rice episode (`Env.scene`): curves over the years."""
    time = np.asarray(states.time)
    stages = 3 if env.negotiation else 1
    years = START_YEAR + float(params.step_years) * (time // stages)
    acted = time >= stages  # flows are undefined before the first activity step
    air, ocean = np.asarray(states.temperature).T

    def flow(values) -> np.ndarray:
        return np.where(acted, values, np.nan)

    output, consumption = (
        flow(np.asarray(leaf).sum(axis=1)) for leaf in (states.output, states.consumption)
    )
    rates = [
        Series(
            flow(rate.mean(axis=1)), color, label, flow(rate.min(axis=1)), flow(rate.max(axis=1))
        )
        for rate, color, label in (
            (np.asarray(states.saving), "orange", "saving"),
            (np.asarray(states.mitigation), "green", "mitigation"),
        )
    ]
    if env.negotiation:
        rates.append(Series(flow(np.asarray(states.treaty.floor).mean(axis=1)), "ink", "agreed"))
    carbon = np.asarray(states.carbon)[:, 0]
    warm = [Series(air, "red", "air"), Series(ocean, "blue", "deep ocean")]
    money = [Series(output, "ink", "output"), Series(consumption, "grey", "consumption")]
    plots = [
        Plot("°C above 1750", warm, years, _range(air, ocean, usual=8)),
        Plot("carbon in the air [GtC]", [Series(carbon, "red")], years, _range(carbon, usual=6000)),
        Plot("trillion USD a year", money, years, _range(output, usual=600)),
        Plot("rates: mean and range", rates, years, (0.0, 1.0)),
    ]
    last = int(params.episode_length)
    captions = [
        f"{year:.0f}, step {t} of {last}: {warmth:.2f} °C"
        + (f", {produced:.0f} trillion USD a year" if is_flow else "")
        for year, t, warmth, produced, is_flow in zip(years, time, air, output, acted, strict=True)
    ]
    return Scene([], captions, time=time, plots=plots)


def _range(*values: np.ndarray, usual: float) -> tuple[float, float]:
    """Return axis limits that include 0, `usual`, and 1.1 times each finite value."""
    data = np.concatenate(values)
    data = data[np.isfinite(data)]
    return min(0.0, 1.1 * data.min(initial=0.0)), max(1.1 * data.max(initial=0.0), usual)
