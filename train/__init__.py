"""Learning: configurations, the learner, evaluation, and the host's side of a run."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdjax.train.algorithms.on_policy.returns import gae
    from wdjax.train.algorithms.on_policy.update import OnPolicy
    from wdjax.train.config.facts import traced
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
    from wdjax.train.rollout.draws import sample_blocks
    from wdjax.train.state.algorithm import Algorithm
    from wdjax.train.state.registry import register_algorithm
    from wdjax.train.state.rows import Rows
    from wdjax.train.state.state import Memory, PolicyState, TrainState, with_hypers
    from wdjax.train.storage.metrics_log import read_metrics
    from wdjax.train.trainer import Trainer

# The module that holds them -> public names; it is imported when one of them is first used.
_NAMES = {
    "algorithms.on_policy.returns": "gae",
    "algorithms.on_policy.update": "OnPolicy",
    "config.facts": "traced",
    "config.schema": "DDPGConfig NetworkConfig PolicyConfig TrainConfig",
    "evaluation.episodes": "Episodes statistics",
    "evaluation.evaluate": "cross_play evaluate",
    "evaluation.players": "Player",
    "evaluation.trajectory": "Trajectory record_episode save_episode",
    "host.failures": "BadNumbersError",
    "host.plots": "save_curves",
    "learner.bad_numbers": "describe_bad_numbers",
    "learner.learner": "Learner make_learner",
    "load": "list_presets load_config load_run",
    "networks.encoders": "register_encoder",
    "rollout.draws": "sample_blocks",
    "state.algorithm": "Algorithm",
    "state.registry": "register_algorithm",
    "state.rows": "Rows",
    "state.state": "Memory PolicyState TrainState with_hypers",
    "storage.metrics_log": "read_metrics",
    "trainer": "Trainer",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Algorithm", "BadNumbersError", "DDPGConfig", "Episodes", "Learner", "Memory", "NetworkConfig", "OnPolicy",
    "Player", "PolicyConfig", "PolicyState", "Rows", "TrainConfig", "TrainState", "Trainer", "Trajectory",
    "cross_play", "describe_bad_numbers", "evaluate", "gae", "list_presets", "load_config", "load_run",
    "make_learner", "read_metrics", "record_episode", "register_algorithm", "register_encoder", "sample_blocks",
    "save_curves", "save_episode", "statistics", "traced", "with_hypers",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"wdjax.train.{_HOME[name]}"), name)
    raise AttributeError(f"module 'wdjax.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
