"""Runs that take a second, and comparisons of runs."""

import jax
import numpy as np

from wdjax.train import TrainState, load_config, load_run, read_metrics

TIMING = (
    "seconds",
    "seconds_per_update",
    "compile_seconds",
    "env_steps_per_second",
    "agent_steps_per_second",
)


def small_config(**changes):
    """Return a run of 6 updates with one policy: one update per chunk, a checkpoint every 2."""
    base = {
        "num_envs": 8,
        "rollout_length": 16,
        "total_env_steps": 6 * 128,
        "updates_per_chunk": 1,
        "checkpoint_every": 2,
        "eval_episodes": 4,
        "policies.agent.network.hidden_sizes": [8],
        # in env steps, so that the schedule does not depend on the length of the run
        "policies.agent.learning_rate": [[0, 2.5e-3], [150_000, 1e-4]],
    }
    return load_config("cartpole_ppo", **(base | changes))


def numbers(state: TrainState):
    """Return all leaves as NumPy arrays, with keys as their words."""

    def is_key(leaf):
        return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)

    return [
        np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        for leaf in jax.tree.leaves(state)
    ]


def logged(folder):
    """Return the rows of metrics.jsonl without timings."""
    return [
        {name: value for name, value in row.items() if name not in TIMING}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def assert_same_run(folder_a, folder_b):
    """Assert that checkpoints and metrics.jsonl agree bit for bit, except for timings."""
    leaves = [numbers(load_run(folder)[1]) for folder in (folder_a, folder_b)]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_array_equal(a, b)
    assert logged(folder_a) == logged(folder_b)
