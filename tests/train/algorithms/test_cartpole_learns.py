"""The preset cartpole_ppo reaches its documented return."""

import functools

import jax
import numpy as np
import pytest

from wdjax.train import load_config, make_learner

SEEDS, WINDOW = 8, 5


@pytest.mark.slow
def test_cartpole_reaches_475_with_every_seed():
    """Mean return of the episodes that ended in the last 5 updates, within 150 k env steps."""
    config = load_config("cartpole_ppo")
    learner = make_learner(config)
    states = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), SEEDS))
    run = functools.partial(learner.run, num_updates=150_000 // config.env_steps_per_update)
    _, metrics = jax.jit(jax.vmap(run))(states)
    episodes = np.asarray(metrics["episodes"], np.float64)
    returns = np.nan_to_num(np.asarray(metrics["agent/episode_return"], np.float64)) * episodes
    total, count = (
        np.apply_along_axis(np.convolve, 1, sums, np.ones(WINDOW), "valid")
        for sums in (returns, episodes)
    )
    best = np.max(total / np.maximum(count, 1), axis=1)
    assert np.all(best >= 475), best
