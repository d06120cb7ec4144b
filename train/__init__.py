"""Learning: configurations, the learner, evaluation, and the host's side of a run."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdjax.train.algorithms.on_policy.returns import gae
    from wdjax.train.config.schema import DDPGConfig, NetworkConfig, PolicyConfig, TrainConfig
    from wdjax.train.evaluation.episodes import Episodes, statistics
    from wdjax.train.evaluation.evaluate import cross_play, evaluate
    from wdjax.train.evaluation.players import Player
    from wdjax.train.evaluation.trajectory import Trajectory, record_episode, save_episode
    from wdjax.train.host.failures import BadNumbersError
    from wdjax.train.host.plots import save_curves
    from wdjax.train.learner.bad_numbers import describe_bad_numbers
    from wdjax.train.learner.learner import Learner, make_learner
    from wdjax.train.load import list_presets, load_config, load_run
    from wdjax.train.networks.encoders import register_encoder
    from wdjax.train.state.state import TrainState, with_hypers
    from wdjax.train.storage.metrics_log import read_metrics
    from wdjax.train.trainer import Trainer

# Public name -> the module that holds it, imported when the name is first used.
_HOME = {
    "BadNumbersError": "host.failures",
    "DDPGConfig": "config.schema",
    "Episodes": "evaluation.episodes",
    "Learner": "learner.learner",
    "NetworkConfig": "config.schema",
    "Player": "evaluation.players",
    "PolicyConfig": "config.schema",
    "TrainConfig": "config.schema",
    "TrainState": "state.state",
    "Trainer": "trainer",
    "Trajectory": "evaluation.trajectory",
    "cross_play": "evaluation.evaluate",
    "describe_bad_numbers": "learner.bad_numbers",
    "evaluate": "evaluation.evaluate",
    "gae": "algorithms.on_policy.returns",
    "list_presets": "load",
    "load_config": "load",
    "load_run": "load",
    "make_learner": "learner.learner",
    "read_metrics": "storage.metrics_log",
    "record_episode": "evaluation.trajectory",
    "register_encoder": "networks.encoders",
    "save_curves": "host.plots",
    "save_episode": "evaluation.trajectory",
    "statistics": "evaluation.episodes",
    "with_hypers": "state.state",
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
