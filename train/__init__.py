"""Learning: configurations, the learner, evaluation, and the host's side of a run."""

from typing import TYPE_CHECKING

from wdjax.lazy import import_when_used

if TYPE_CHECKING:
    from wdjax.train.algorithms.a2c import A2C
    from wdjax.train.algorithms.on_policy import OnPolicy
    from wdjax.train.algorithms.ppo import PPO
    from wdjax.train.algorithms.returns import gae
    from wdjax.train.config.env_params import complete_env_params
    from wdjax.train.config.facts import Fraction, Schedule, traced
    from wdjax.train.config.schema import NetworkConfig, PolicyConfig, TeamConfig, TrainConfig
    from wdjax.train.config.trust import custom_modules
    from wdjax.train.config.warp_drive import read_warp_drive
    from wdjax.train.devices.memory import bytes_free
    from wdjax.train.devices.processes import connect
    from wdjax.train.evaluation.episodes import Episodes, statistics
    from wdjax.train.evaluation.evaluate import cross_play, evaluate
    from wdjax.train.evaluation.players import Player
    from wdjax.train.evaluation.trained import TrainedPolicy, export_policy, trained_policy
    from wdjax.train.evaluation.trajectory import Trajectory, record_episode, save_episode
    from wdjax.train.host.callbacks import Callback
    from wdjax.train.host.failures import BadNumbersError, FailedCheckError
    from wdjax.train.host.plots import save_curves
    from wdjax.train.host.start import CompiledRun, compile_run
    from wdjax.train.learner.bad_numbers import describe_bad_numbers
    from wdjax.train.learner.learner import Learner, make_learner
    from wdjax.train.learner.saved import list_references
    from wdjax.train.live.server import play_live
    from wdjax.train.load import (
        change_config,
        list_presets,
        load_config,
        load_policy,
        load_run,
        preset_path,
        save_run,
    )
    from wdjax.train.networks.distributions import sample_blocks
    from wdjax.train.networks.encoders import register_encoder
    from wdjax.train.networks.memories import register_memory
    from wdjax.train.population.population import Population
    from wdjax.train.state.algorithm import Algorithm
    from wdjax.train.state.registry import find_algorithm, read_config, register_algorithm
    from wdjax.train.state.rows import Rows
    from wdjax.train.state.state import Memory, PolicyState, TrainState, with_hypers
    from wdjax.train.storage.curves import read_curves
    from wdjax.train.storage.folder import plain_config
    from wdjax.train.storage.metrics_log import read_metrics
    from wdjax.train.storage.switches import make_deterministic
    from wdjax.train.trainer import Trainer

__all__ = [
    "A2C", "PPO", "Algorithm", "BadNumbersError", "Callback", "CompiledRun", "Episodes",
    "FailedCheckError", "Fraction", "Learner", "Memory", "NetworkConfig", "OnPolicy", "Player",
    "PolicyConfig", "PolicyState", "Population", "Rows", "Schedule", "TeamConfig", "TrainConfig",
    "TrainState", "TrainedPolicy", "Trainer", "Trajectory", "bytes_free", "change_config",
    "compile_run", "complete_env_params", "connect", "cross_play", "custom_modules",
    "describe_bad_numbers", "evaluate", "export_policy", "find_algorithm", "gae", "list_presets",
    "list_references", "load_config", "load_policy", "load_run", "make_deterministic",
    "make_learner", "plain_config", "play_live", "preset_path", "read_config", "read_curves",
    "read_metrics", "read_warp_drive", "record_episode", "register_algorithm", "register_encoder",
    "register_memory", "sample_blocks", "save_curves", "save_episode", "save_run", "statistics",
    "traced", "trained_policy", "with_hypers",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__, _HOME = import_when_used(__name__)
