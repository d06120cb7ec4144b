"""Reference rows: preset, number of seeds, measured numbers and targets."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from wdjax.train import Episodes, Learner, TrainState, cross_play, evaluate

Measured = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Target:
    """Target for the mean over seeds, or for every seed."""

    limit: float
    at_least: bool = True
    """False: `limit` is an upper bound"""
    every_seed: bool = False

    def words(self) -> str:
        side = "at least" if self.at_least else "at most"
        return f"{side} {self.limit:,.6g}" + (" for every seed" if self.every_seed else "")

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclasses.dataclass(frozen=True)
class Row:
    """One reference row; `measure(learner, state, metrics, key)` returns numbers by name."""

    preset: str
    measure: Callable[..., Measured]
    """called with a trained state, its metrics [num_updates] and a key for episodes"""
    targets: dict[str, Target | None]
    """name of a number -> target; None: no target, only its band is checked"""
    seeds: int = 5
    """number of seeds, trained together in one program"""
    within: int | None = None
    """maximum number of env steps, or None"""
    note: str = ""
    """note printed below the curve"""


def greedy_return(
    learner: Learner,
    state: TrainState,
    metrics: Mapping[str, np.ndarray],
    key: jax.Array,
    episodes: int = 1_000,
) -> Measured:
    """Return the mean return of complete fresh episodes with the most likely actions."""
    [returns] = evaluate(learner, state, key, episodes, greedy=True).episode_return.values()
    return {RETURN: float(returns.mean())}


def steps_until(
    learner: Learner,
    state: TrainState,
    metrics: Mapping[str, np.ndarray],
    key: jax.Array,
    level: float,
) -> Measured:
    """Return the env steps until the training return reached `level`; see `first_reached`."""
    [name] = learner.config.policies
    update = first_reached(metrics[f"{name}/episode_return"], metrics["episodes"], level)
    return {f"env steps until {level:g}": (update + 1) * learner.config.env_steps_per_update}


def first_reached(
    episode_return: np.ndarray, episodes: np.ndarray, level: float, window: int = 5
) -> float:
    """Return the first update with a mean return over `window` updates of `level`, or infinity.

    Args:
        episode_return: [num_updates], mean return of the episodes that ended in an update; NaN
            without any.
        episodes: [num_updates], number of these episodes.
        level: return to reach.
        window: number of updates to average over.
    """
    total = np.where(episodes > 0, episode_return, 0.0) * episodes
    for update in range(window - 1, len(total)):
        last = slice(update + 1 - window, update + 1)
        if episodes[last].sum() > 0 and total[last].sum() / episodes[last].sum() >= level:
            return update
    return math.inf


def against_others(
    learner: Learner, state: TrainState, metrics: Mapping[str, np.ndarray], key: jax.Array,
    episodes: int, greedy: bool,
    scripts: Sequence[str] = (),
) -> Measured:  # fmt: skip
    """Evaluate trained, random and scripted policies of taggers and runners against each other."""
    cells = cross_play(learner, state, key, episodes, greedy, opponents=("random", *scripts))
    left = {cell: runners_left(learner, episodes) for cell, episodes in cells.items()}
    last = {cell: float(episodes.episode_length.mean()) for cell, episodes in cells.items()}
    by_script = {}
    for name in scripts:
        if learner.env.scripts[name][0] == "tagger":
            by_script[f"trained runners left by {name}"] = left[name, "trained"]
        else:
            by_script[f"{name} left by trained taggers"] = left["trained", name]
            by_script[f"last step against {name}"] = last["trained", name]
    return {
        "runners left by trained taggers": left["trained", "random"],
        "last step of trained taggers": last["trained", "random"],
        "trained runners left": left["random", "trained"],
        "random runners left by random taggers": left["random", "random"],
        **by_script,
    }


def runners_left(learner: Learner, episodes: Episodes) -> float:
    """Return the mean number of runners at the end of episodes of Tag."""
    return float((learner.env.groups["runner"] - episodes.episode_info["tags"]).mean())


RETURN = "greedy return"
ROWS: dict[str, Row] = {
    "cartpole": Row(
        "cartpole_ppo", functools.partial(steps_until, level=475.0),
        {"env steps until 475": Target(150_000, at_least=False, every_seed=True)}, seeds=8,
    ),
    "acrobot": Row("acrobot_ppo", greedy_return, {RETURN: Target(-85, every_seed=True)},
        within=500_000),
    "mountain_car": Row("mountain_car_ppo", greedy_return, {RETURN: Target(-115)},
        within=5_000_000),
    "continuous_mountain_car_ddpg": Row(
        "continuous_mountain_car_ddpg", greedy_return, {RETURN: Target(92)}, within=1_000_000,
        note="Each point is the mean return of the episodes that ended in that bin. The first "
             "bin contains only short "
        "episodes, which reached the goal early, so the curve starts near 88 and falls when "
        "longer episodes end. "
        "Training actions include exploration noise; the greedy return is measured without it.",
    ),
    "cartpole_dqn": Row("cartpole_dqn", greedy_return,
        {RETURN: Target(475, every_seed=True)}, within=300_000),
    "pendulum_ddpg": Row("pendulum_ddpg", greedy_return, {RETURN: Target(-170)}, within=1_000_000),
    "pendulum_sac": Row("pendulum_sac", greedy_return,
        {RETURN: Target(-150, every_seed=True)}, within=60_000),
    "pendulum_ppo": Row("pendulum_ppo", greedy_return, {RETURN: Target(-170)}, within=1_000_000),
    "tag_gridworld": Row(
        "tag_gridworld_ppo", functools.partial(against_others, episodes=1_000, greedy=True),
        {
            "last step of trained taggers": Target(40, at_least=False),
            "runners left by trained taggers": None,
            "trained runners left": Target(0.95),
            "random runners left by random taggers": None,
        },
        seeds=20,  # few seeds are slow: one of 100 took 83 steps, most took 22
    ),
    "tag_continuous": Row(
        "tag_continuous_ppo",
        functools.partial(against_others, episodes=64, greedy=False,
            scripts=("chase_nearest", "flee_nearest")),
        {
            "runners left by trained taggers": Target(0, at_least=False),
            "last step of trained taggers": Target(180, at_least=False),
            "trained runners left": Target(93),
            "random runners left by random taggers": None,
            "trained runners left by chase_nearest": Target(88),
            "flee_nearest left by trained taggers": Target(0, at_least=False),
            "last step against flee_nearest": Target(150, at_least=False),
        },
        note="The opponents of both policies change during training, which causes the steps "
             "in the curves. Until 6.5 M "
        "env steps, the runners of nine of ten episodes are the first, random ones. From 7 M "
        "on it is three of ten, "
        "and in half of the episodes the taggers are the first ones. The steps do not measure "
        "how well taggers hunt.",
    ),
}  # fmt: skip
