"""Learning: configurations, the learner, evaluation, and the host's side of a run."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdjax.train.bad_numbers import describe_bad_numbers
    from wdjax.train.config import DDPGConfig, NetworkConfig, PolicyConfig, TrainConfig
    from wdjax.train.encoders import register_encoder
    from wdjax.train.episodes import Episodes, statistics
    from wdjax.train.evaluation import cross_play, evaluate
    from wdjax.train.failures import BadNumbersError
    from wdjax.train.learner import Learner, make_learner
    from wdjax.train.load import list_presets, load_config
    from wdjax.train.metrics_log import read_metrics
    from wdjax.train.players import Player
    from wdjax.train.plots import save_curves
    from wdjax.train.returns import gae
    from wdjax.train.state import TrainState, with_hypers
    from wdjax.train.trainer import Trainer, load_run, save_episode
    from wdjax.train.trajectory import Trajectory, record_episode

# Public name -> the module that holds it, imported when the name is first used.
_HOME = {
    "BadNumbersError": "failures",
    "DDPGConfig": "config",
    "Episodes": "episodes",
    "Learner": "learner",
    "NetworkConfig": "config",
    "Player": "players",
    "PolicyConfig": "config",
    "TrainConfig": "config",
    "TrainState": "state",
    "Trainer": "trainer",
    "Trajectory": "trajectory",
    "cross_play": "evaluation",
    "describe_bad_numbers": "bad_numbers",
    "evaluate": "evaluation",
    "gae": "returns",
    "list_presets": "load",
    "load_config": "load",
    "load_run": "trainer",
    "make_learner": "learner",
    "read_metrics": "metrics_log",
    "record_episode": "trajectory",
    "register_encoder": "encoders",
    "save_curves": "plots",
    "save_episode": "trainer",
    "statistics": "episodes",
    "with_hypers": "state",
}

__all__ = [
    "BadNumbersError", "DDPGConfig", "Episodes", "Learner", "NetworkConfig", "Player", "PolicyConfig", "TrainConfig",
    "TrainState", "Trainer", "Trajectory", "cross_play", "describe_bad_numbers", "evaluate", "gae", "list_presets",
    "load_config", "load_run", "make_learner", "read_metrics", "record_episode", "register_encoder", "save_curves",
    "save_episode", "statistics", "with_hypers",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"wdjax.train.{_HOME[name]}"), name)
    raise AttributeError(f"module 'wdjax.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
