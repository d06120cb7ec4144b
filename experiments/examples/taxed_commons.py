"""Two-level learning: PPO harvesters of a shared stock and an A2C planner that taxes them.

    python -m wdjax.experiments.examples.taxed_commons
    python -m wdjax.experiments.examples.taxed_commons commons.png  # also draw episodes

The same program trains a second run in which the planner cannot tax, because the highest tax level
is a traced parameter. Both runs are compared with the exact solution
(docs/environments/commons.md).
"""

import dataclasses
import functools
import sys
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.envs import TaxedCommons
from wdjax.envs.commons.exact import best_policy, without_tax
from wdjax.train import Learner, TrainState, evaluate, load_config, make_learner, record_episode

HIGHEST_LEVELS = (0, 3)  # highest tax level without and with a planner


def train(seed: int = 0, num_updates: int | None = None) -> tuple[Learner, list[TrainState]]:
    """Train the preset without and with a planner and return (learner, both states)."""
    learner = make_learner(load_config("taxed_commons"))
    num_updates = learner.config.num_updates if num_updates is None else num_updates
    start = learner.init(jax.random.key(seed))
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), start)
    states = states.replace(
        env_params=states.env_params.replace(highest_level=jnp.array(HIGHEST_LEVELS))
    )
    states, _ = jax.vmap(functools.partial(learner.run, num_updates=num_updates))(states)
    return learner, [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(2)]


def welfare(learner: Learner, state: TrainState) -> float:
    """Return the welfare of a greedy episode, in coins."""
    return float(
        evaluate(learner, state, jax.random.key(1), 1, greedy=True).episode_return["planner"][0]
    )


def draw(path: str, learner: Learner, states: list[TrainState]) -> None:
    """Draw an episode of each run, one below the other."""
    from PIL import Image

    from wdjax.drawing.raster import picture
    from wdjax.rendering import make_scene

    pictures = []
    for state, name in zip(states, ("without a planner", "with a planner"), strict=True):
        episode = record_episode(learner, state, jax.random.key(1), greedy=True).states
        scene = make_scene(learner.env, episode, learner.env_params)
        caption = f"{name}: welfare {welfare(learner, state):.0f}"
        pictures.append(
            picture(
                dataclasses.replace(scene, captions=[caption] * scene.num_frames), size=(750, 300)
            )
        )
    Image.fromarray(np.concatenate(pictures)).save(path)


def main(arguments: list[str]) -> None:
    """Train, compare the welfare with the exact solution, and draw if a file is named."""
    learner, states = train()
    env, params = cast(TaxedCommons, learner.env), learner.env_params
    exact = [solve(env, params).welfare(params) for solve in (without_tax, best_policy)]
    names = ("without a planner", "with a planner")
    solutions = ("the equilibrium", "the planner's optimum")
    for state, best, name, solution in zip(states, exact, names, solutions, strict=True):
        reached = welfare(learner, state)
        print(f"{name}: welfare {reached:.1f}, {reached / best:.0%} of {solution}, {best:.1f}")
    for path in arguments[:1]:
        draw(path, learner, states)


if __name__ == "__main__":
    main(sys.argv[1:])
