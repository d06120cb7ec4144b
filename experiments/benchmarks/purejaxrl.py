"""PureJaxRL's own PPO (ppo.py, Lu et al., 2022) and wdjax with the same hyperparameters.

Its repository is searched in PATH/purejaxrl, where PATH is `--peers-path`, with its dependencies:

    git clone https://github.com/luchris429/purejaxrl PATH/purejaxrl
    pip install --no-deps --target PATH/purejaxrl gymnax==0.0.9 distrax==0.1.7 tfp-nightly \\
        dm-tree gast decorator cloudpickle six seaborn gymnasium farama-notifications
"""

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax

from wdjax.train import TrainConfig, load_config

STEPS = 128  # per rollout


def config_of(num_envs: int, num_updates: int) -> TrainConfig:
    """Return wdjax's configuration with ppo.py's hyperparameters for CartPole-v1.

    The learning rate falls to 0, values are clipped, and minibatches mix all replicas.
    """
    total = num_envs * STEPS * num_updates
    policy: dict[str, Any] = {
        "learning_rate": [[0, 2.5e-4], [total, 0]],
        "value_clip": 0.2,
        "value_coefficient": 0.25,
    }
    return load_config(
        "cartpole_ppo",
        num_envs=num_envs,
        num_blocks=1,
        devices=1,
        rollout_length=STEPS,
        total_env_steps=total,
        **{f"policies.agent.{name}": value for name, value in policy.items()},
    )


def settings_of(num_envs: int, num_updates: int) -> dict[str, Any]:
    """Return the settings of ppo.py for CartPole-v1, with another number of replicas or updates."""
    return {
        "ENV_NAME": "CartPole-v1",
        "NUM_ENVS": num_envs,
        "NUM_STEPS": STEPS,
        "TOTAL_TIMESTEPS": num_updates * num_envs * STEPS,
        "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": 4,
        "LR": 2.5e-4,
        "ANNEAL_LR": True,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh",
    }


def use_folder(path: Path | None, library: str) -> None:
    """Search PATH/LIBRARY first for imported modules, if the folder exists."""
    if path is not None and (path / library).is_dir():
        sys.path[:0] = [str(path / library)]


def load(path: Path | None) -> tuple[ModuleType, str]:
    """Import ppo.py. Return (its module, versions as text).

    Raises:
        ImportError: if it, or one of its dependencies, is missing.
    """
    use_folder(path, "purejaxrl")
    use_folder(path, "purejaxrl/purejaxrl")
    for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
        sys.modules.setdefault(name, mock.MagicMock())  # imported for environments not used here
    if not hasattr(jax.core, "get_aval"):  # distrax 0.1.7 needs the name that jax 0.10 removed
        vars(jax.core)["get_aval"] = jax.typeof
    import ppo

    libraries = ("gymnax", "distrax", "flax")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in libraries)
    return ppo, f"PureJaxRL's ppo.py, {versions}"
