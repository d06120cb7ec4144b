"""A run's first program and its first state."""

import gc

import jax
import numpy as np
import pytest
from tiny_runs import small_config

from wdjax.train import load_config, make_learner
from wdjax.train.chunks import abstract_state, compile_and_init, compiler_options, lower_chunk

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("backend", ["cpu", "gpu"])  # gpu: in a thread of its own
def test_what_is_drawn_meanwhile_is_what_the_program_takes(backend, monkeypatch):
    learner = make_learner(small_config(kernels=False))
    like = abstract_state(learner)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: backend)
        state, program, seconds = compile_and_init(learner, like, 5, 2)
    first = learner.init(jax.random.key(5))
    for own, other in zip(jax.tree.leaves(state.policies), jax.tree.leaves(first.policies), strict=True):
        np.testing.assert_array_equal(own, other)
    assert seconds > 0
    assert int(program(state)[0].num_updates) == 2


def test_it_lies_where_jax_is_told_to_draw():
    learner, other = make_learner(small_config()), jax.devices()[1]
    with jax.default_device(other):
        like = abstract_state(learner)
    assert {leaf.sharding for leaf in jax.tree.leaves(like.policies)} == {jax.sharding.SingleDeviceSharding(other)}


@pytest.mark.parametrize("preset", ["cartpole_ppo", "pendulum_ddpg", "tag_small"])
def test_nothing_is_put_on_the_device_before_the_first_program_is_lowered(preset):
    config = load_config(preset, num_envs=8)
    with jax.transfer_guard("disallow"):  # in this thread: the device wakes up in another
        learner = make_learner(config)
        lower_chunk(learner, abstract_state(learner), 1)


@pytest.mark.parametrize(("kernels", "backend"), [(True, "gpu"), (False, "gpu"), (True, "cpu")])
def test_xla_tries_no_other_products_where_kernels_do_them(kernels, backend, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: backend)
        options = compiler_options(make_learner(small_config(kernels=kernels)).setup)
    assert bool(options) == (kernels and backend == "gpu")
    jax.jit(lambda: 0, compiler_options=options)()  # options that XLA did not know would be refused


def test_garbage_is_collected_again_after_tracing():
    learner = make_learner(small_config())
    like = abstract_state(learner)
    lower_chunk(learner, like, 1)
    assert gc.isenabled()
    with pytest.raises(AttributeError):
        lower_chunk(learner, None, 1)
    assert gc.isenabled()
    gc.disable()
    try:
        lower_chunk(learner, like, 1)
        assert not gc.isenabled()
    finally:
        gc.enable()
