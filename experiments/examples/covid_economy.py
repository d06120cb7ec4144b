"""Covid-19 and the economy: compare a trained planner and trained states with constant policies.

    python -m wdjax.experiments.examples.covid_economy                     # train five states
    python -m wdjax.experiments.examples.covid_economy runs/covid_economy  # load a trained run

The example evaluates the greedy policies and every constant alternative: one of the 11 stringency
levels for all states, or one of the 21 subsidies for the planner, while the other side keeps its
trained policy. If training found an equilibrium, no constant policy scores higher. The deaths,
unemployment and stringency of every state are drawn in covid_curves.png, together with the real
policy if the calibration file contains one.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from wdjax.envs.covid import CovidEconomy, load_policy
from wdjax.envs.covid.measures import Deviations, find_deviations, play_episode, play_levels
from wdjax.train import Learner, TrainState, load_config, load_run, make_learner


def greedy(learner: Learner, state: TrainState, name: str) -> Callable[[Any], jax.Array]:
    """Return the greedy policy: a function from observations (leaves [n, ...]) to actions."""
    policy = learner.setup.policies[name]
    return lambda obs: policy.distribution.mode(policy.apply(state.policies[name], obs)[0])


@jax.jit(static_argnums=0)
def deviations(learner: Learner, state: TrainState) -> Deviations:
    """Compute the returns of both sides with trained and with constant policies."""
    return find_deviations(
        cast(CovidEconomy, learner.env),
        learner.env_params,
        greedy(learner, state, "state"),
        greedy(learner, state, "planner"),
    )


def episodes(learner: Learner, state: TrainState) -> dict[str, Any]:
    """Return the states [T, ...] of an episode with the trained and, if known, the real policy."""
    env, params = cast(CovidEconomy, learner.env), learner.env_params
    states, planner = greedy(learner, state, "state"), greedy(learner, state, "planner")

    def act(obs: Any, _: Any) -> dict[str, jax.Array]:
        return {"state": states(obs["state"]), "planner": planner(obs["planner"])}

    played = {"trained": jax.jit(lambda: play_episode(env, params, act)[0])()}
    if env.calibration_file:
        levels = load_policy(env.calibration_file)
        real = jax.jit(lambda: play_levels(env, params, levels)[0])()
        played["real policy, no subsidies"] = jax.tree.map(lambda leaf: leaf[: len(levels)], real)
    return {name: jax.device_get(states) for name, states in played.items()}


def describe(found: Deviations, num_states: int) -> str:
    """Format the returns of both sides and of their best constant policies."""
    level, subsidy = int(np.argmax(found.states_by_level)), int(np.argmax(found.planner_by_subsidy))
    best, best_planner = found.states_by_level.max() / num_states, found.planner_by_subsidy.max()
    return (
        f"states: {found.states / num_states:.2f} each; "
        f"always level {level}: {best:.2f} ({found.states_gain:+.2%})\n"
        f"planner: {found.planner:.2f}; "
        f"always subsidy {subsidy}: {best_planner:.2f} ({found.planner_gain:+.2%})"
    )


def main(run: str = "") -> None:
    """Load or train a run, print the comparison and draw the curves."""
    from wdjax.envs.covid.drawing import save_curves

    if run:
        learner, state = load_run(run)
    else:
        learner = make_learner(load_config("covid_small"))
        state, _ = learner.run(
            learner.init(jax.random.key(0)), num_updates=learner.config.num_updates
        )
    print(describe(deviations(learner, state), learner.env.groups["state"]))
    path = Path(run) / "covid_curves.png"
    save_curves(path, learner.env, learner.env_params, episodes(learner, state))
    print(f"curves: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
