"""The front of climate against economy: worlds with other prices of carbon and of output, trained as one program.

    python -m wdjax.experiments.examples.rice_pareto front.png

What a region of `rice` is paid is its own utility, less `carbon_price` for each ton that it emits, plus `output_bonus`
for what it produces. Both are traced, so that a sweep of them is one vmapped program (`wdjax sweep` does the same from
the command line). Each trained world is a point on the two published indices; beside them stand worlds in which every
region keeps to the same saving and mitigation for a century, again one program, and the two published extremes.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import wdjax
from wdjax.experiments.sweep import sweep
from wdjax.train import load_config

# utility per GtCO2; the highest is more than anybody can earn with it
PRICES = (0.0, 0.003, 0.03, 0.3)
BONUSES = (0.0, 0.1)  # utility per trillion USD
COLORS = ("#2E8B57", "#D1495B")  # of the worlds of each bonus
EXTREMES = {"all saved": (10, 0), "all mitigated": (0, 10)}


def constant_worlds(saving: jax.Array, mitigation: jax.Array) -> np.ndarray:
    """Returns (climate, economic) index [2, worlds] of levels [worlds] that all regions keep to; nobody trades."""
    env, params = wdjax.make("rice")

    def play(saving: jax.Array, mitigation: jax.Array) -> jax.Array:
        heads = jnp.zeros((env.num_regions, len(env.nvec)), jnp.int32)
        action = {"region": heads.at[:, 0].set(saving).at[:, 1].set(mitigation)}

        def step(state: Any, _: None) -> tuple[Any, jax.Array]:
            _, state, *_, info = env.step(None, state, action, params)
            return state, jnp.stack([info["climate_index"], info["economic_index"]])

        return jax.lax.scan(step, env.reset(None, params)[1], length=20)[1].sum(axis=0)

    return np.asarray(jax.jit(jax.vmap(play, out_axes=1))(saving, mitigation))


def trained_worlds(num_updates: int = 40) -> list[dict[str, Any]]:
    """Trains a world for each price and bonus, all in one program. Returns the rows of the sweep's table."""
    config = load_config("rice_ppo")
    steps = num_updates * config.env_steps_per_update
    changes = {
        "total_env_steps": steps,
        "policies.region.learning_rate": [[[0, 3e-3], [steps, 5e-4]]],
    }
    return sweep(
        config, {"env_params.carbon_price": PRICES, "env_params.output_bonus": BONUSES, **changes}
    )


def pareto(points: np.ndarray) -> np.ndarray:
    """Returns which of points [2, N] no other is better than in one index and no worse in the other, [N] bool."""
    as_good = (points[:, :, None] >= points[:, None]).all(axis=0)  # [N, N]: i against j
    better = as_good & (points[:, :, None] > points[:, None]).any(axis=0)
    return ~better.any(axis=0)


def draw(path: str, rows: list[dict[str, Any]]) -> None:
    """Draws the worlds on their two indices."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.add_subplot()
    levels = np.meshgrid(np.arange(10), np.arange(10))
    grid = constant_worlds(*(jnp.asarray(level.ravel()) for level in levels))
    axes.scatter(*grid, s=8, color="#BBBBBB", label="everybody saves and mitigates at one rate")
    extremes = constant_worlds(*jnp.array(list(EXTREMES.values())).T)
    axes.scatter(*extremes, marker="*", s=120, color="#444444", label="the published extremes")
    for x, y, name in zip(*extremes, EXTREMES, strict=True):
        axes.annotate(name, (x, y), (8, 6), textcoords="offset points", fontsize=8)
    for bonus, color in zip(BONUSES, COLORS, strict=False):
        own = [row for row in rows if row["env_params.output_bonus"] == bonus]
        x, y = indices(own)
        axes.plot(x, y, "o-", color=color, label=f"trained, output bonus {bonus:g}")
        for row, place in zip(own, zip(x, y, strict=True), strict=True):
            axes.annotate(
                f"{row['env_params.carbon_price']:g}",
                place,
                (5, 4),
                textcoords="offset points",
                fontsize=8,
            )
    front = indices(rows)[:, pareto(indices(rows))]
    front = front[:, np.argsort(front[0])]
    axes.plot(*front, ":", color="#444444", linewidth=1.2, zorder=0, label="front of the trained")
    axes.set(xlabel="climate index", ylabel="economic index", xlim=(-0.05, 1.2), ylim=(-0.05, 1.1))
    axes.set_title("27 regions, 2015 to 2115; numbers: price of carbon")
    axes.legend(fontsize=8, loc="lower left", frameon=False)
    figure.savefig(path, dpi=100)


def indices(rows: list[dict[str, Any]]) -> np.ndarray:
    """Returns (climate index, economic index) [2, N] of the rows of a sweep's table."""
    return np.array(
        [[row[f"episode_{name}_index"] for row in rows] for name in ("climate", "economic")]
    )


def main(path: str = "front.png") -> None:
    """Trains, prints the indices of every world, marks those on the front, draws."""
    rows = trained_worlds()
    points = indices(rows)
    for row, (climate, economic), on_front in zip(rows, points.T, pareto(points), strict=True):
        prices = f"carbon price {row['env_params.carbon_price']:<5g}  output bonus {row['env_params.output_bonus']:<3g}"
        print(
            f"{prices}  climate {climate:.2f}  economy {economic:.2f}{'  on the front' if on_front else ''}"
        )
    draw(path, rows)
    print(f"Wrote {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
