"""The rows of the learning table: which preset, over how many seeds, what is measured and what it has to reach."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from wdjax.train import cross_play, evaluate
from wdjax.train.learner.learner import Learner
from wdjax.train.state.state import TrainState

Measured = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Target:
    """What a number has to reach: its mean over seeds, or the number of every seed."""

    limit: float
    at_least: bool = True
    """else at most"""
    every_seed: bool = False

    def words(self) -> str:
        side = "at least" if self.at_least else "at most"
        return f"{side} {self.limit:,.6g}" + (" for every seed" if self.every_seed else "")

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclasses.dataclass(frozen=True)
class Row:
    """One row: `measure(learner, state, metrics, key)` of each seed gives the numbers that `targets` names."""

    preset: str
    measure: Callable[[Learner, TrainState, Mapping[str, np.ndarray], jax.Array], Measured]
    """of a trained state, its metrics of all updates [num_updates], and a key for episodes"""
    targets: dict[str, Target | None]
    """number -> what the learning table asks for; None: nothing, its band is checked all the same"""
    seeds: int = 5
    """they train side by side in one program"""
    within: int | None = None
    """env steps that the run may take, where the table says so"""
    note: str = ""
    """what a reader of its curve must know"""
    quick: bool = False
    """whether the slow-marked test reruns it: seconds on a CPU"""


def greedy_return(
    learner: Learner, state: TrainState, metrics: Mapping[str, np.ndarray], key: jax.Array, episodes: int = 1_000
) -> Measured:
    """Returns the mean return of whole episodes from fresh starts, with the most likely actions."""
    [returns] = evaluate(learner, state, key, episodes, greedy=True).episode_return.values()
    return {RETURN: float(returns.mean())}


def steps_until(
    learner: Learner, state: TrainState, metrics: Mapping[str, np.ndarray], key: jax.Array, level: float
) -> Measured:
    """Returns the env steps after which the training return was `level`, infinity where it never was; see
    `first_reached`."""
    [name] = learner.config.policies
    update = first_reached(metrics[f"{name}/episode_return"], metrics["episodes"], level)
    return {f"env steps until {level:g}": (update + 1) * learner.config.env_steps_per_update}


def first_reached(episode_return: np.ndarray, episodes: np.ndarray, level: float, window: int = 5) -> float:
    """Returns the first update at which the mean return of the episodes that ended in it and in the `window` - 1 before
    it is at least `level`, or infinity.

    Args:
        episode_return: [num_updates], of the episodes that ended in an update; NaN where none did.
        episodes: [num_updates], their number.
    """
    total = np.where(episodes > 0, episode_return, 0.0) * episodes
    for update in range(window - 1, len(total)):
        last = slice(update + 1 - window, update + 1)
        if episodes[last].sum() > 0 and total[last].sum() / episodes[last].sum() >= level:
            return update
    return math.inf


def against_others(
    learner: Learner, state: TrainState, metrics: Mapping[str, np.ndarray], key: jax.Array, episodes: int, greedy: bool,
    scripts: Sequence[str] = (),
) -> Measured:  # fmt: skip
    """Returns what trained taggers do to random runners, random taggers to trained runners, and random to random; then
    what scripts do, on either side, against those who were trained."""
    cells = cross_play(learner, state, key, episodes, greedy, opponents=("random", *scripts))
    runners = learner.env.groups["runner"]
    left = {cell: float((runners - episodes.episode_info["tags"]).mean()) for cell, episodes in cells.items()}
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


RETURN = "greedy return"
ROWS: dict[str, Row] = {
    "cartpole": Row(
        "cartpole_ppo", functools.partial(steps_until, level=475.0),
        {"env steps until 475": Target(150_000, at_least=False, every_seed=True)}, seeds=8, quick=True,
    ),
    "acrobot": Row("acrobot_ppo", greedy_return, {RETURN: Target(-85, every_seed=True)}, within=500_000),
    "mountain_car": Row("mountain_car_ppo", greedy_return, {RETURN: Target(-115)}, within=5_000_000),
    "continuous_mountain_car_ddpg": Row(
        "continuous_mountain_car_ddpg", greedy_return, {RETURN: Target(92)}, within=1_000_000,
        note="A point is the mean of the episodes that ended in that stretch: the first has only the short ones, "
        "whose goal was reached soon, hence the start near 88 and the fall when the long ones end. The actions of "
        "training are noisy; the row's number is of greedy ones.",
    ),
    "pendulum_ddpg": Row("pendulum_ddpg", greedy_return, {RETURN: Target(-170)}, within=1_000_000, quick=True),
    "pendulum_ppo": Row("pendulum_ppo", greedy_return, {RETURN: Target(-170)}, within=1_000_000),
    "tag_gridworld": Row(
        "tag_gridworld_ppo", functools.partial(against_others, episodes=1_000, greedy=True),
        {
            "last step of trained taggers": Target(40, at_least=False),
            "runners left by trained taggers": None,
            "trained runners left": Target(0.95),
            "random runners left by random taggers": None,
        },
        seeds=20,  # of 100, one takes 83 steps where most take 22
    ),
    "tag_continuous": Row(
        "tag_continuous_ppo",
        functools.partial(against_others, episodes=64, greedy=False, scripts=("chase_nearest", "flee_nearest")),
        {
            "runners left by trained taggers": Target(0, at_least=False),
            "last step of trained taggers": Target(180, at_least=False),
            "trained runners left": Target(93),
            "random runners left by random taggers": None,
            "trained runners left by chase_nearest": Target(88),
            "flee_nearest left by trained taggers": Target(0, at_least=False),
            "last step against flee_nearest": Target(150, at_least=False),
        },
        note="Both curves are returns of training games, whose opponents change: until 6.5 M env steps nine games in "
        "ten are against the runners' first, random selves; from 7 M on three in ten, and in half of them the taggers "
        "are their first selves. That is the cliff: who plays changes there, not how well the taggers hunt.",
    ),
}  # fmt: skip
