"""Device memory of a run does not grow with the number of updates, except for metrics."""

import jax
import pytest

from wdjax.train import load_config, make_learner


@pytest.fixture(scope="module")
def learner():
    return make_learner(load_config("cartpole", num_envs=8, rollout_length=16))


def memory(learner, num_updates):
    state = jax.eval_shape(learner.init, jax.random.key(0))
    return learner.run.lower(state, num_updates=num_updates).compile().memory_analysis()


@pytest.mark.slow
def test_memory_does_not_grow_except_for_metrics(learner, quick_compile):
    """Compare 10 with 10,000 updates.

    Arguments are equal. Results grow by one scalar of 4 bytes per metric and update, and
    temporaries by at most as much.
    """
    few, many = memory(learner, 10), memory(learner, 10_000)
    assert many.argument_size_in_bytes == few.argument_size_in_bytes > 0
    _, metrics = jax.eval_shape(learner.update, jax.eval_shape(learner.init, jax.random.key(0)))
    assert {(leaf.shape, leaf.dtype.itemsize) for leaf in metrics.values()} == {((), 4)}
    grown = many.output_size_in_bytes - few.output_size_in_bytes
    assert grown == len(metrics) * 4 * (10_000 - 10)
    assert 0 < few.temp_size_in_bytes <= many.temp_size_in_bytes <= few.temp_size_in_bytes + grown
