"""Parts of the comparison rows: edits of scripts, hyperparameters, presets and measures."""

from collections.abc import Mapping
from typing import Any

from wdjax.experiments.reference.peers.programs import (
    GREEDY,
    RETURN,
    SAMPLED,
    TRAINING,
    Ours,
    Published,
    Theirs,
)

Programs = dict[str, Ours | Theirs | Published]
# commits of the checkouts
COMMITS = {"JaxMARL": "c793d09", "purejaxql": "47af6d7", "purejaxrl": "31756b1"}
URLS = {
    "JaxMARL": "https://github.com/FLAIROx/JaxMARL",
    "purejaxql": "https://github.com/mttga/purejaxql",
    "purejaxrl": "https://github.com/luchris429/purejaxrl",
}
# no call of wandb, and metrics of every seed in the result
SILENT = ("jax.experimental.io_callback(callback, None, metric)", "None")
REPORTS = (
    'return {"runner_state": runner_state}',
    'return {"runner_state": runner_state, "metrics": metric}',
)
METRICS = ("return runner_state, None", "return runner_state, metrics")
BY_AGENT = (
    "metric = jax.tree.map(lambda x: x.mean(), metric)",
    "metric = jax.tree.map(lambda x: x.reshape(-1, env.num_agents).mean(0), metric)",
)
EPISODES = (  # of every step, so that the ended episodes are known
    "metrics.update({k: v.mean() for k, v in infos.items()})",
    "metrics.update(infos)",
)
PADDED = (
    ("pad(x[a]) for", "pad(x[a], max_dim) for"),
    ("z.shape[:-1] + [length - z.shape[-1]]", "(*z.shape[:-1], length - z.shape[-1])"),
)
# `done` of gymnax 1.0 as of older versions
ONE_DONE = ("LogWrapper(env)", "LogWrapper(env)\n    env.step = with_one_done(env.step)")
ONE_DONE_INSIDE = (
    'gymnax.make(config["ENV_NAME"])',
    'gymnax.make(config["ENV_NAME"])\n    env.step = with_one_done(env.step)',
)


def to_zero(learning_rate: float) -> dict[str, Any]:
    """Return a linear schedule from a learning rate to 0."""
    return {"fraction": [[0, learning_rate], [1, 0.0]]}


def epsilon(last: float, fraction: float) -> dict[str, Any]:
    """Return a linear schedule from 1 to `last` over a fraction of the run."""
    return {"fraction": [[0, 1.0], [fraction, last]]}


NETWORK = {"layer_norm": False, "recurrent_size": 0, "head_hidden_sizes": [], "encoder": "flat",
           "initializer": "orthogonal", "shared_trunk": True}  # fmt: skip
PPO = {
    "algorithm": "PPO", "gamma": 0.99, "gae_lambda": 0.95, "epochs": 4, "minibatches": 4,
    "clip": 0.2, "value_clip": 0.2, "value_coefficient": 0.25, "entropy_coefficient": 0.01,
    "normalize_advantage": True, "max_grad_norm": 0.5, "optimizer": "adam",
    "optimizer_epsilon": 1e-5,
}  # fmt: skip
PQN = {
    "algorithm": "PQN", "optimizer": "radam", "optimizer_epsilon": 1e-8, "epochs": 4,
    "minibatches": 16, "reward_scale": 1.0, "mixer": "none", "normalize_observation": False,
}  # fmt: skip
RNN = NETWORK | {"hidden_sizes": [128], "recurrent_size": 128, "head_hidden_sizes": [128]}
MAPPO = {"algorithm": "MAPPO", "critic_observes": True, "normalize_value": False}
TRAINING_RETURN = (RETURN, TRAINING, TRAINING)
GREEDY_RETURN = (RETURN, GREEDY, GREEDY)
SAMPLED_RETURN = (RETURN, SAMPLED, SAMPLED)


def preset(
    env: str,
    num_envs: int,
    rollout_length: int,
    policies: Mapping[str, Any],
    env_params: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a preset."""
    return {
        "env": env, "env_params": dict(env_params or {}), "num_envs": num_envs,
        "rollout_length": rollout_length, "policies": dict(policies),
    }  # fmt: skip
