"""A custom encoder: taggers encode their neighbors as a vector or as a set.

    python -m wdjax.experiments.examples.own_network
    python -m wdjax.experiments.examples.own_network attention

Every encoder trains on a small game of Tag for the same number of env steps, with three seeds in
one program. The runners move randomly, and the hidden layers after the encoder are the same. The
example prints the number of tags per episode in the last quarter of training.
"""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from wdjax.envs.tag.continuous import split_observation
from wdjax.train import TrainConfig, load_config, make_learner, register_encoder

SEEDS = 3
ENV_STEPS = 48_000


class Nearby(nnx.Module):
    """Sum of encoded neighbors, weighted by exp(-distance / reach) with learned reaches."""

    needs_raw = True  # zeros mark absent agents, so observations must not be normalized

    def __init__(self, observation_space, width=64, num_own=1, *, rngs):
        self.num_own = num_own  # number of features of the agent itself (`env.num_own`)
        others, _, own = split_observation(jnp.zeros(observation_space.shape), num_own)
        self.layer = nnx.Linear(others.shape[-1], width, rngs=rngs)
        self.log_reach = nnx.Param(jnp.zeros(width))
        self.num_features = width + own.shape[-1]

    def __call__(self, obs):
        # [..., k, 7], [..., k], [..., num_own]
        others, present, own = split_observation(obs, self.num_own)
        distance = jnp.linalg.norm(others[..., :2] + 1e-6, axis=-1, keepdims=True)
        scale = jnp.exp(-self.log_reach[...]).reshape((1,) * (distance.ndim - 1) + (-1,))
        weight = jnp.where(present[..., None], jnp.exp(-distance * scale), 0.0)
        pooled = jnp.sum(weight * jax.nn.relu(self.layer(others)), axis=-2)
        return jnp.concatenate([pooled, own], axis=-1)


register_encoder("nearby", Nearby)


def game(encoder: str) -> TrainConfig:
    """Return a configuration that trains taggers with this encoder against frozen runners."""
    changes: dict[str, Any] = {
        # observations as in WarpDrive
        "env_params.egocentric": False,
        "env_params.observe_own_motion": False,
        "num_envs": 32,
        "total_env_steps": ENV_STEPS,
        "policies.tagger.learning_rate": 3e-3,
        "policies.tagger.network.encoder": encoder,
        "policies.runner.trainable": False,
    }
    return load_config("tag_small", **changes)


def tags(encoder: str) -> tuple[np.ndarray, int]:
    """Train SEEDS runs and return (tags per episode [SEEDS, updates], number of parameters)."""
    learner = make_learner(game(encoder))
    states = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), SEEDS))
    train = functools.partial(learner.run, num_updates=learner.config.num_updates)
    states, metrics = jax.jit(jax.vmap(train))(states)
    params = jax.tree.leaves(states.policies["tagger"].params)
    return np.asarray(metrics["tagger/episode_return"]), sum(leaf.size for leaf in params) // SEEDS


if __name__ == "__main__":
    encoders = sys.argv[1:] or ("flat", "deep_sets", "nearby")
    for encoder in encoders:
        values, size = tags(encoder)
        first = np.nanmean(values[:, :3])  # NaN where no episode ended
        last = np.nanmean(values[:, -(values.shape[1] // 4) :], axis=1)
        error = last.std(ddof=1) / np.sqrt(SEEDS)
        print(
            f"{encoder:10} {size:6,} parameters: {first:.2f} tags at first, "
            f"{last.mean():.2f} +- {error:.2f} at the end"
        )
