"""PureJaxRL's own PPO (ppo.py, Lu et al., 2022), and what it is asked to do: the numbers of a run of wdjax.

Its repository is looked for in PATH/purejaxrl, where PATH is `--peers-path`, with what it imports beside it:

    git clone https://github.com/luchris429/purejaxrl PATH/purejaxrl
    pip install --no-deps --target PATH/purejaxrl gymnax==0.0.9 distrax==0.1.7 tfp-nightly \\
        dm-tree gast decorator cloudpickle six seaborn gymnasium farama-notifications
"""

import dataclasses
import functools
import importlib.metadata
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import numpy as np

from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.programs import compile_lowered, compiler_options
from wdjax.train.learner.learner import make_learner
from wdjax.train.load import load_config

GAMES = {
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "mountain_car": "MountainCar-v0",
    "continuous_mountain_car": "MountainCarContinuous-v0",
    "pendulum": "Pendulum-v1",
}
UPDATES = 976  # its 500,000 env steps are as many whole updates of 4 x 128


def own_numbers(num_envs: int = 4, num_updates: int = UPDATES) -> TrainConfig:
    """Returns wdjax's configuration with the numbers that ppo.py has for CartPole-v1: its learning rate, which falls to
    0, its clipped values, and minibatches of rows of all replicas."""
    total = num_envs * 128 * num_updates
    policy = {
        "learning_rate": [[0, 2.5e-4], [total, 0]],
        "value_clip": 0.2,
        "value_coefficient": 0.25,
    }
    return load_config(
        "cartpole_ppo", num_envs=num_envs, num_blocks=1, devices=1, rollout_length=128, total_env_steps=total,
        **{f"policies.agent.{name}": value for name, value in policy.items()},
    )  # fmt: skip


def as_purejaxrl(config: TrainConfig) -> dict[str, Any]:
    """Returns the configuration of ppo.py with the numbers of a run of one PPO policy, where ppo.py has such a number:
    it scales no observations and no rewards, always clips values, and its learning rate falls to 0."""
    [policy] = config.policies.values()
    rate = policy.learning_rate
    return {
        "ENV_NAME": GAMES[config.env],
        "NUM_ENVS": config.num_envs,
        "NUM_STEPS": config.rollout_length,
        "TOTAL_TIMESTEPS": config.num_updates * config.env_steps_per_update,
        "UPDATE_EPOCHS": policy.epochs,
        "NUM_MINIBATCHES": policy.minibatches,
        "LR": rate if isinstance(rate, (int, float)) else rate[0][1],
        "ANNEAL_LR": True,
        "GAMMA": policy.gamma,
        "GAE_LAMBDA": policy.gae_lambda,
        "CLIP_EPS": policy.clip,
        "ENT_COEF": policy.entropy_coefficient,
        "VF_COEF": 2 * policy.value_coefficient,  # of half the squared error
        "MAX_GRAD_NORM": policy.max_grad_norm,
        "ACTIVATION": policy.network.activation,
    }


def use_folder(path: Path | None, library: str) -> None:
    """Makes PATH/LIBRARY the first place where modules are looked for, where there is such a folder."""
    if path is not None and (path / library).is_dir():
        sys.path[:0] = [str(path / library)]


@functools.cache
def load(path: Path | None) -> tuple[ModuleType, str]:
    """Imports ppo.py. Returns (its module, versions in words).

    Raises:
        ImportError: where it, or what it needs, is not there.
    """
    use_folder(path, "purejaxrl")
    use_folder(path, "purejaxrl/purejaxrl")
    for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
        sys.modules.setdefault(
            name, mock.MagicMock()
        )  # its wrappers import them, for games that are not played here
    if not hasattr(
        jax.core, "get_aval"
    ):  # distrax 0.1.7 asks for it; jax 0.10 on has it by this name only
        jax.core.get_aval = jax.typeof
    import ppo

    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("gymnax", "distrax", "flax")
    )
    return ppo, f"PureJaxRL's ppo.py, {versions}"


@dataclasses.dataclass(frozen=True)
class Run:
    """A whole run, from a key to the trained state, as one compiled program: PureJaxRL's manner."""

    call: Callable[[], Any]
    """runs it; returns the trained state and the metrics"""
    compile_seconds: float
    """tracing included"""
    curve: Callable[[Any], tuple[np.ndarray, np.ndarray]]
    """of what `call` returned: (mean return of the episodes that ended in an update, their number), [seeds, updates]"""


def our_run(config: TrainConfig, seeds: int) -> Run:
    """Compiles a run of wdjax, of so many seeds side by side; 0: of one, without vmap."""
    learner, num_updates = make_learner(config), config.num_updates
    [policy] = config.policies

    def program(key: jax.Array) -> Any:
        return learner.run(learner.init(key), num_updates=num_updates)

    def curve(result: Any) -> tuple[np.ndarray, np.ndarray]:
        metrics = result[1]
        returns, episodes = (
            np.asarray(metrics[name]) for name in (f"{policy}/episode_return", "episodes")
        )
        return returns.reshape(-1, num_updates), episodes.reshape(-1, num_updates)

    options = {} if seeds else compiler_options(learner.setup)
    return compile_run(program, jax.random.key(0), seeds, options, curve)


def their_run(path: Path | None, config: TrainConfig, seeds: int) -> Run:
    """Compiles a run of PureJaxRL with the numbers of one of wdjax; its metrics are its own, of every env step."""

    def curve(result: Any) -> tuple[np.ndarray, np.ndarray]:
        metrics = result["metrics"]  # leaves [(seeds,) updates, steps, replicas]
        returns, episodes = jax.jit(ended)(
            metrics["returned_episode_returns"], metrics["returned_episode"]
        )
        return np.asarray(returns).reshape(-1, config.num_updates), np.asarray(episodes).reshape(
            -1, config.num_updates
        )

    return compile_run(
        load(path)[0].make_train(as_purejaxrl(config)), jax.random.PRNGKey(0), seeds, {}, curve
    )


def ended(returned: jax.Array, over: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (mean of the returns of the episodes that were over, NaN where none was; their number), [...], of leaves
    [..., steps, replicas]."""
    number = over.sum((-2, -1))
    return (returned * over).sum((-2, -1)) / number, number


def compile_run(
    program: Callable, key: jax.Array, seeds: int, options: Mapping[str, Any], curve: Callable
) -> Run:
    """Compiles program(key), or under vmap for so many keys split off it."""
    start = time.perf_counter()
    keys, function = (jax.random.split(key, seeds), jax.vmap(program)) if seeds else (key, program)
    compiled = compile_lowered(jax.jit(function).lower(keys), options)
    return Run(functools.partial(compiled, keys), time.perf_counter() - start, curve)
