"""Pareto front of climate and economy for worlds with different carbon prices.

    python -m wdjax.experiments.examples.rice_pareto front.png

The reward of a region in `rice` is its utility, minus `carbon_price` for its emissions, plus
`output_bonus` for its output. Both parameters are traced, so a sweep over them is one vmapped
program (`wdjax sweep` is the equivalent on the command line). The plot shows each trained world on
the two published indices, together with worlds in which all regions keep one saving rate and one
mitigation rate for a century, and the two published extremes.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import wdjax
from wdjax.experiments.sweep import sweep
from wdjax.train import load_config

# utility per GtCO2; at the highest price, emissions cost more than they can earn
PRICES = (0.0, 0.003, 0.03, 0.3)
BONUSES = (0.0, 0.1)  # utility per trillion USD
COLORS = ("#2E8B57", "#D1495B")  # one per bonus
EXTREMES = {"all saved": (10, 0), "all mitigated": (0, 10)}


def constant_worlds(saving: jax.Array, mitigation: jax.Array) -> np.ndarray:
    """Return (climate, economic) indices [2, worlds] at constant levels [worlds], without trade."""
    (env, params), key = wdjax.make("rice"), jax.random.key(0)  # the key has no effect

    def play(saving: jax.Array, mitigation: jax.Array) -> jax.Array:
        heads = jnp.zeros((env.num_regions, len(env.nvec)), jnp.int32)
        action = {"region": heads.at[:, 0].set(saving).at[:, 1].set(mitigation)}

        def step(state: Any, _: object) -> tuple[Any, jax.Array]:
            _, state, *_, info = env.step(key, state, action, params)
            return state, jnp.stack([info["climate_index"], info["economic_index"]])

        return jax.lax.scan(step, env.reset(key, params)[1], length=20)[1].sum(axis=0)

    return np.asarray(jax.jit(jax.vmap(play, out_axes=1))(saving, mitigation))


def trained_worlds(num_updates: int = 40) -> list[dict[str, Any]]:
    """Train one world per price and bonus in one program and return the rows of the sweep table."""
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
    """Return which of the points [2, N] are Pareto optimal (higher is better), [N] bool."""
    as_good = (points[:, :, None] >= points[:, None]).all(axis=0)  # [N, N]: i compared with j
    better = as_good & (points[:, :, None] > points[:, None]).any(axis=0)
    return np.logical_not(better.any(axis=0))


def draw(path: str, rows: list[dict[str, Any]]) -> None:
    """Plot the economic index of all worlds against the climate index."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.add_subplot()
    levels = np.meshgrid(np.arange(10), np.arange(10))
    grid = constant_worlds(*(jnp.asarray(level.ravel()) for level in levels))
    axes.scatter(
        grid[0], grid[1], s=8, color="#BBBBBB", label="equal, constant rates in all regions"
    )
    extremes = constant_worlds(*jnp.array(list(EXTREMES.values())).T)
    axes.scatter(
        extremes[0], extremes[1], marker="*", s=120, color="#444444", label="published extremes"
    )
    for x, y, name in zip(*extremes, EXTREMES, strict=True):
        axes.annotate(name, (x, y), (8, 6), textcoords="offset points", fontsize=8)
    for bonus, color in zip(BONUSES, COLORS, strict=False):
        worlds = [row for row in rows if row["env_params.output_bonus"] == bonus]
        x, y = indices(worlds)
        axes.plot(x, y, "o-", color=color, label=f"trained, output bonus {bonus:g}")
        for row, place in zip(worlds, zip(x, y, strict=True), strict=True):
            axes.annotate(
                f"{row['env_params.carbon_price']:g}",
                place,
                (5, 4),
                textcoords="offset points",
                fontsize=8,
            )
    front = indices(rows)[:, pareto(indices(rows))]
    front = front[:, np.argsort(front[0])]
    axes.plot(
        *front,
        ":",
        color="#444444",
        linewidth=1.2,
        zorder=0,
        label="Pareto front of trained worlds",
    )
    axes.set(xlabel="climate index", ylabel="economic index", xlim=(-0.05, 1.2), ylim=(-0.05, 1.1))
    axes.set_title("27 regions, 2015 to 2115, labeled with the carbon price")
    axes.legend(fontsize=8, loc="lower left", frameon=False)
    figure.savefig(path, dpi=100)


def indices(rows: list[dict[str, Any]]) -> np.ndarray:
    """Return the (climate, economic) indices [2, N] of the rows of a sweep table."""
    return np.array(
        [[row[f"episode_{name}_index"] for row in rows] for name in ("climate", "economic")]
    )


def main(path: str = "front.png") -> None:
    """Train the worlds, print their indices and draw the Pareto front."""
    rows = trained_worlds()
    points = indices(rows)
    for row, (climate, economic), on_front in zip(rows, points.T, pareto(points), strict=True):
        price, bonus = row["env_params.carbon_price"], row["env_params.output_bonus"]
        print(
            f"carbon price {price:<5g}  output bonus {bonus:<3g}  climate {climate:.2f}  "
            f"economy {economic:.2f}{'  on the front' if on_front else ''}"
        )
    draw(path, rows)
    print(f"Wrote {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
