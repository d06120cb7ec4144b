"""The lowest path over an energy surface: learned, beside what is best, exactly.

    python -m wdjax.experiments.examples.reaction_path
    python -m wdjax.experiments.examples.reaction_path --surface quartic cerjan_miller --seeds 5 --output path.png

Trains the preset reaction_mueller_brown on each surface, several seeds side by side in one program. Training starts
anywhere and soon starts again; what is judged is one greedy episode of each seed by the surface's own settings, from
its own start. It attains the answer where its return is within 1 % of the best one there is, and the highest
energy on its path is that of the lowest pass.
"""

import argparse
import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import wdjax
from wdjax.envs.reaction import exact
from wdjax.train import load_config, make_learner, record_episode

FIVE = ("mueller_brown", "quartic", "cerjan_miller", "corrugated_morse", "mueller_brown_fine")


@dataclasses.dataclass(frozen=True)
class Path:
    """What one seed's policy does from the start."""

    reward: float  # sum of the episode
    cells: np.ndarray  # [K + 1, 3] int
    top: float  # highest energy on it


def train(surface: str, seeds: int, env_steps: int | None) -> tuple[list[Any], int, float]:
    """Returns (a trained state of each seed, env steps of each, seconds of all without compiling)."""
    changes = {"env_params.surface": surface, "devices": 1}
    changes |= {"total_env_steps": env_steps} if env_steps else {}
    config = load_config("reaction_mueller_brown", **changes)
    learner = make_learner(config)
    states = jax.vmap(learner.init)(jax.vmap(jax.random.key)(jnp.arange(seeds)))
    run = functools.partial(learner.run, num_updates=config.num_updates)
    program = jax.jit(jax.vmap(run)).lower(states).compile()
    began = time.perf_counter()
    states, _ = jax.block_until_ready(program(states))
    seconds = time.perf_counter() - began
    members = [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(seeds)]
    return members, config.num_updates * config.env_steps_per_update, seconds


def walk(surface: str, states: list[Any]) -> list[Path]:
    """Returns what each policy does, taking its most likely move, by the surface's own settings."""
    config = load_config("reaction_mueller_brown", devices=1)
    env, params = wdjax.make("reaction_one_atom", surface=surface)
    judge = make_learner(dataclasses.replace(config, env_params={"surface": surface}))
    paths = []
    for state in states:
        state = state.replace(env_params=jax.tree.map(jnp.asarray, params))
        episode = record_episode(judge, state, jax.random.key(0), greedy=True)
        cells = np.asarray(episode.states.position)
        top = max(float(env.table.energies[tuple(cell)]) for cell in cells - env.table.offset)
        paths.append(Path(float(np.sum(episode.reward)), cells, top))
    return paths


def report(surface: str, seeds: int, env_steps: int | None) -> list[Path]:
    """Trains on one surface and prints what was attained."""
    answers = exact.exact_params(wdjax.make("reaction_one_atom", surface=surface)[0])
    best, lowest = exact.best_return(answers), exact.lowest_pass(answers)
    states, steps, seconds = train(surface, seeds, env_steps)
    paths = walk(surface, states)
    attained = [
        path.reward >= 0.99 * best.value and abs(path.top - lowest.value) < 1e-9 for path in paths
    ]
    print(f"{surface}: best return {best.value:.3f}, lowest pass {lowest.value:.6g}")
    for path in paths:
        print(
            f"    return {path.reward:8.3f} in {len(path.cells) - 1:3} steps, highest energy {path.top:.6g}"
        )
    print(
        f"    attained by {sum(attained)} of {seeds} seeds; {steps:,} env steps each, {seconds:.0f} s",
        flush=True,
    )
    return paths


def save_picture(path: str, surface: str, cells: np.ndarray) -> None:
    """Draws a path [K, 3] over its surface, beside one of the lowest pass."""
    from wdjax.drawing import Lines
    from wdjax.envs.reaction import drawing
    from wdjax.rendering import save_scene

    env, params = wdjax.make("reaction_one_atom", surface=surface)
    table, lowest = env.table, exact.lowest_pass(exact.exact_params(env)).path
    marks = drawing.surface_marks(table, table.energies.min(axis=2)[None])
    for walked, color, width, label in (
        (lowest, 1, 2, "a lowest path"),
        (cells, 0, 3, "learned path"),
    ):
        points = drawing.places(table, drawing.with_breaks(walked[:, :2]))
        marks.append(
            Lines(points, drawing.PATHS[color], width, dashed=walked is lowest, label=label)
        )
    scene = drawing.surface_scene(table, [*marks, *drawing.end_marks(table, params)], [""])
    save_scene(path, scene, size=(792, 484))


def main() -> None:
    """Reads the command line; of several surfaces the first one's first seed is drawn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--surface",
        nargs="+",
        default=["mueller_brown"],
        help="built-in ones, or: all (five of them)",
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs side by side")
    parser.add_argument("--env-steps", type=int, help="of each seed, in the place of the preset's")
    parser.add_argument("--output", help="a picture of the first path, .png")
    asked = parser.parse_args()
    surfaces = FIVE if asked.surface == ["all"] else asked.surface
    paths = [report(surface, asked.seeds, asked.env_steps)[0] for surface in surfaces]
    if asked.output:
        save_picture(asked.output, surfaces[0], paths[0].cells)


if __name__ == "__main__":
    main()
