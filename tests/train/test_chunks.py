"""A run's first program and its first state."""

import jax
import numpy as np
import pytest
from tiny_runs import small_config

from wdjax.train import make_learner
from wdjax.train.chunks import abstract_state, compile_and_init

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("backend", ["cpu", "gpu"])  # gpu: in a thread of its own
def test_what_is_drawn_meanwhile_is_what_the_program_takes(backend, monkeypatch):
    learner = make_learner(small_config(kernels=False))
    key, like = jax.random.key(5), abstract_state(learner)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: backend)
        state, program, seconds = compile_and_init(learner, like, key, 2)
    first = learner.init(key)
    for own, other in zip(jax.tree.leaves(state.policies), jax.tree.leaves(first.policies), strict=True):
        np.testing.assert_array_equal(own, other)
    assert seconds > 0
    assert int(program(state)[0].num_updates) == 2


def test_it_lies_where_jax_is_told_to_draw():
    learner, other = make_learner(small_config()), jax.devices()[1]
    with jax.default_device(other):
        like = abstract_state(learner)
    assert {leaf.sharding for leaf in jax.tree.leaves(like.policies)} == {jax.sharding.SingleDeviceSharding(other)}
