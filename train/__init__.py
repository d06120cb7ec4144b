"""Learning: configurations, the learner, evaluation, and the host's side of a run."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdjax.train.config import NetworkConfig, PolicyConfig, TrainConfig
    from wdjax.train.learner import Learner, make_learner
    from wdjax.train.load import list_presets, load_config
    from wdjax.train.returns import gae
    from wdjax.train.state import TrainState, with_hypers

# Public name -> the module that holds it, imported when the name is first used.
_HOME = {
    "Learner": "learner",
    "NetworkConfig": "config",
    "PolicyConfig": "config",
    "TrainConfig": "config",
    "TrainState": "state",
    "gae": "returns",
    "list_presets": "load",
    "load_config": "load",
    "make_learner": "learner",
    "with_hypers": "state",
}

__all__ = [
    "Learner", "NetworkConfig", "PolicyConfig", "TrainConfig", "TrainState", "gae", "list_presets", "load_config",
    "make_learner", "with_hypers",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"wdjax.train.{_HOME[name]}"), name)
    raise AttributeError(f"module 'wdjax.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
