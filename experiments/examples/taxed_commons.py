"""Two levels that learn together: harvesters of a shared stock by PPO, and by A2C a planner who taxes them.

    python -m wdjax.experiments.examples.taxed_commons
    python -m wdjax.experiments.examples.taxed_commons commons.png    # and draws an episode of each

The same program trains a second run beside it in which the planner may set no tax: the rule is a number among others.
Both are compared with the exact solution of the game (docs/environments/commons.md).
"""

import dataclasses
import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.envs.commons.exact import best_policy, without_tax
from wdjax.train import Learner, TrainState, evaluate, load_config, make_learner, record_episode

HIGHEST_LEVELS = (0, 3)  # of the tax: nobody plans, somebody does


def train(seed: int = 0, num_updates: int | None = None) -> tuple[Learner, list[TrainState]]:
    """Trains the preset with and without a planner, in one program. Returns (learner, the state of each)."""
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
    """Returns the welfare of an episode with the most likely actions, in coins."""
    return float(
        evaluate(learner, state, jax.random.key(1), 1, greedy=True).episode_return["planner"][0]
    )


def draw(path: str, learner: Learner, states: list[TrainState]) -> None:
    """Draws a whole episode of each run, one below the other."""
    from PIL import Image

    from wdjax.drawing.raster import picture
    from wdjax.rendering import make_scene

    pictures = []
    for state, words in zip(states, ("nobody plans", "a planner taxes"), strict=True):
        played = record_episode(learner, state, jax.random.key(1), greedy=True).states
        scene = make_scene(learner.env, played, learner.env_params)
        caption = f"{words}: welfare {welfare(learner, state):.0f}"
        pictures.append(
            picture(
                dataclasses.replace(scene, captions=[caption] * scene.num_frames), size=(750, 300)
            )
        )
    Image.fromarray(np.concatenate(pictures)).save(path)


def main(arguments: list[str]) -> None:
    """Trains, prints how good it is beside the exact solution, and draws where a file is named."""
    learner, states = train()
    env, params = learner.env, learner.env_params
    exact: list[Any] = [
        without_tax(env, params).welfare(params),
        best_policy(env, params).welfare(params),
    ]
    for state, best, words in zip(states, exact, ("without a tax", "with a planner"), strict=True):
        found, of = (
            welfare(learner, state),
            "the equilibrium" if best is exact[0] else "the planner's optimum",
        )
        print(f"{words}: welfare {found:.1f}, {found / best:.0%} of {of}, {best:.1f}")
    for path in arguments[:1]:
        draw(path, learner, states)


if __name__ == "__main__":
    main(sys.argv[1:])
