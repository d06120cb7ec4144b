"""The lowest path over an energy surface: compare a trained policy with the exact optimum.

    python -m wdjax.experiments.examples.reaction_path
    python -m wdjax.experiments.examples.reaction_path --surface quartic cerjan_miller --seeds 5

The example trains the preset reaction_mueller_brown on each surface, with several seeds in one
program. Training uses random starts and short episodes. The evaluation plays one greedy episode per
seed with the default start and settings of the surface. A seed solves the surface if its return is
within 1 % of the best possible return and the highest energy on its path equals the energy of the
lowest pass.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import wdjax
from wdjax.envs.reaction import exact
from wdjax.train import load_config, make_learner, record_episode

FIVE = ("mueller_brown", "quartic", "cerjan_miller", "corrugated_morse", "mueller_brown_fine")


def train(surface: str, seeds: int, env_steps: int | None) -> tuple[list[Any], int]:
    """Train all seeds and return (states, env steps per seed)."""
    changes: dict[str, Any] = {"env_params.surface": surface, "devices": 1}
    changes |= {"total_env_steps": env_steps} if env_steps else {}
    config = load_config("reaction_mueller_brown", **changes)
    learner = make_learner(config)
    states = jax.vmap(learner.init)(jax.vmap(jax.random.key)(jnp.arange(seeds)))
    states, _ = jax.vmap(functools.partial(learner.run, num_updates=config.num_updates))(states)
    members = [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(seeds)]
    return members, config.num_updates * config.env_steps_per_update


def walk(surface: str, states: list[Any]) -> list[exact.Answer]:
    """Return the greedy path of each state, with the default settings of the surface."""
    config = load_config("reaction_mueller_brown", devices=1)
    env, params = wdjax.make("reaction_one_atom", surface=surface)
    evaluator = make_learner(dataclasses.replace(config, env_params={"surface": surface}))
    paths = []
    for state in states:
        state = state.replace(env_params=jax.tree.map(jnp.asarray, params))
        episode = record_episode(evaluator, state, jax.random.key(0), greedy=True)
        cells = np.asarray(episode.states.position)
        top = max(float(env.table.energies[tuple(cell)]) for cell in cells - env.table.offset)
        paths.append(exact.Answer(float(np.sum(episode.reward)), cells, top))
    return paths


def report(surface: str, seeds: int, env_steps: int | None) -> list[exact.Answer]:
    """Train on one surface and print how many seeds find the optimum."""
    answers = exact.exact_params(wdjax.make("reaction_one_atom", surface=surface)[0])
    best, lowest = exact.best_return(answers), exact.lowest_pass(answers)
    states, steps = train(surface, seeds, env_steps)
    paths = walk(surface, states)
    solved = [
        path.value >= 0.99 * best.value and abs(path.top - lowest.value) < 1e-9 for path in paths
    ]
    print(f"{surface}: best return {best.value:.3f}, lowest pass {lowest.value:.6g}")
    for path in paths:
        print(
            f"    return {path.value:8.3f} in {len(path.path) - 1:3} steps, "
            f"highest energy {path.top:.6g}"
        )
    print(f"    solved by {sum(solved)} of {seeds} seeds; {steps:,} env steps each", flush=True)
    return paths


def save_picture(path: str, surface: str, cells: np.ndarray) -> None:
    """Draw a path [K, 3] and a path over the lowest pass on the surface."""
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


def main(
    surface: tuple[str, ...] = ("mueller_brown",),
    seeds: int = 1,
    env_steps: int | None = None,
    output: str | None = None,
) -> None:
    """Train on surfaces and compare the learned paths with the exact optimum.

    Args:
        surface: built-in surfaces, or all (five surfaces).
        seeds: number of seeds, trained in one program.
        env_steps: env steps per seed; None: as in the preset.
        output: .png file for a picture of the first path on the first surface.
    """
    surfaces = FIVE if surface == ("all",) else surface
    paths = [report(name, seeds, env_steps)[0] for name in surfaces]
    if output:
        save_picture(output, surfaces[0], paths[0].path)


if __name__ == "__main__":
    tyro.cli(main)
