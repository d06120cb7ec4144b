"""Covid-19 and the economy: states and a federal planner learn together; then each side tries what else it could do.

    python -m wdjax.experiments.examples.covid_economy                        # trains five synthetic states first
    python -m wdjax.experiments.examples.covid_economy runs/covid_economy     # of a run: `wdjax train covid_economy`

Played greedily, nobody should gain by always choosing the same: all states together one of the 11 levels, the planner
one of the 21 subsidies, against the other side as it was trained. Also draws deaths, unemployment and stringency of
every state, beside those of the real policy where the calibration's file has it, into covid_curves.png.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wdjax.envs.covid import load_policy
from wdjax.envs.covid.measures import Deviations, find_deviations, play_episode, play_levels
from wdjax.train import Learner, TrainState, load_config, load_run, make_learner


def greedy(learner: Learner, state: TrainState, name: str) -> Callable[[Any], jax.Array]:
    """Returns a policy's most likely actions as a function of what its agents observe, leaves [n, ...]."""
    policy = learner.setup.policies[name]
    return lambda obs: policy.distribution.mode(policy.apply(state.policies[name], obs)[0])


@jax.jit(static_argnums=0)
def deviations(learner: Learner, state: TrainState) -> Deviations:
    """Returns the returns of both sides, and what constant choices would bring them."""
    return find_deviations(
        learner.env,
        learner.env_params,
        greedy(learner, state, "state"),
        greedy(learner, state, "planner"),
    )


def episodes(learner: Learner, state: TrainState) -> dict[str, Any]:
    """Returns the states of an episode, leaves [T, ...]: as trained, and under the real policy where it is known."""
    env, params = learner.env, learner.env_params
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
    """Returns the returns and the best constant choices in words."""
    level, subsidy = int(np.argmax(found.states_by_level)), int(np.argmax(found.planner_by_subsidy))
    best, best_planner = found.states_by_level.max() / num_states, found.planner_by_subsidy.max()
    return (
        f"states: {found.states / num_states:.2f} each; always level {level}: {best:.2f} ({found.states_gain:+.2%})\n"
        f"planner: {found.planner:.2f}; always subsidy {subsidy}: {best_planner:.2f} ({found.planner_gain:+.2%})"
    )


def main(run: str = "") -> None:
    """Loads a run, or trains, and tells what was learned."""
    from wdjax.envs.covid.drawing import save_curves

    if run:
        learner, state = load_run(run)
    else:
        learner = make_learner(load_config("covid_small"))
        state, _ = learner.run(
            learner.init(jax.random.key(0)), num_updates=learner.config.num_updates
        )
    print(describe(deviations(learner, state), learner.env.num_states))
    path = Path(run) / "covid_curves.png"
    save_curves(path, learner.env, learner.env_params, episodes(learner, state))
    print(f"curves: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
