"""Compilation of a run's first program, and its first state."""

import dataclasses
import gc
import types

import jax
import numpy as np
import pytest
from tiny_runs import small_config

from wdjax.kernels.backend import CUDA, OTHER, platform
from wdjax.train import load_config, make_learner
from wdjax.train.host import programs as chunks
from wdjax.train.host.programs import (
    LIBRARIES,
    ONE_BY_ONE,
    ONE_WAY,
    SIDE_BY_SIDE,
    compile_and_init,
    compile_lowered,
    compiler_options,
    finish_chunk,
    known_platform,
    lower_chunk,
)
from wdjax.train.learner import setup as setups
from wdjax.train.learner.init import abstract_state

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(scope="module")
def plain_learner():
    return make_learner(small_config(kernels=False))


# gpu: in a separate thread
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_state_initialized_during_compilation_fits_the_program(backend, plain_learner, monkeypatch):
    learner = plain_learner
    like = abstract_state(learner.setup)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: backend)
        meanwhile = []
        state, program, seconds = compile_and_init(learner, like, 5, 2, lambda: meanwhile.append(1))
    assert len(meanwhile) == (backend == "gpu")
    first = learner.init(jax.random.key(5))
    for leaf, other in zip(
        jax.tree.leaves(state.policies), jax.tree.leaves(first.policies), strict=True
    ):
        np.testing.assert_array_equal(leaf, other)
    assert seconds > 0
    assert int(program(state, np.int32(2))[0].num_updates) == 2


def test_state_larger_than_memory_raises_before_initialization():
    changes = {"policies.runner.opponents": {}, "policies.runner.past_selves": 10**9}
    learner = make_learner(load_config("tag_small", num_envs=2, **changes))
    with pytest.raises(
        ValueError, match=r"state size in bytes = \d{13,}: must be at most \d+, the free memory"
    ):
        compile_and_init(learner, abstract_state(learner.setup), 0, 1)


def test_state_is_on_the_default_device():
    learner, other = make_learner(small_config()), jax.devices()[1]
    with jax.default_device(other):
        like = abstract_state(learner.setup)
    assert {leaf.sharding for leaf in jax.tree.leaves(like.policies)} == {
        jax.sharding.SingleDeviceSharding(other)
    }


@pytest.mark.parametrize(
    ("default", "new", "expected"),
    [
        ("cpu", "cpu", OTHER),
        ("gpu", "gpu", CUDA),
        ("gpu", "cpu", None),  # jax.default_device
        ("tpu", "tpu", OTHER),
    ],
)
def test_programs_are_traced_for_the_devices_of_new_arrays(default, new, expected, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: default)
    device = types.SimpleNamespace(platform=new)
    monkeypatch.setattr(chunks, "device_of_new_arrays", lambda: device)
    assert known_platform() == expected


def test_the_platform_of_gpus_without_kernels_is_not_known(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    device = types.SimpleNamespace(platform="gpu")
    monkeypatch.setattr(chunks, "device_of_new_arrays", lambda: device)
    monkeypatch.setattr(chunks, "why_no_kernels", lambda: "kernels failed")
    assert known_platform() is None


def test_a_chunk_is_traced_for_known_devices(monkeypatch):
    found = []
    monkeypatch.setattr(chunks, "run_up_to", lambda *_: found.append(platform.value))
    learner = make_learner(small_config())
    lower_chunk(learner, abstract_state(learner.setup), 1)
    assert found == [OTHER]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["cartpole_ppo", "pendulum_ddpg", "tag_small"])
def test_lowering_transfers_nothing_to_the_device(preset):
    config = load_config(preset, num_envs=8)
    # in this thread: another one initializes the device
    with jax.transfer_guard("disallow_explicit"):
        learner = make_learner(config)
        lower_chunk(learner, abstract_state(learner.setup), 1)


def test_device_is_initialized_before_tracing(monkeypatch):
    called = []
    devices = types.SimpleNamespace(result=lambda: called.append("wake"))
    monkeypatch.setattr(setups, "wake_device", lambda: devices)
    monkeypatch.setattr(setups, "require_rules", lambda *_: called.append("trace"))
    make_learner(small_config())
    assert called == ["wake", "trace"]


def options_of(learner, backend, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: backend)
        return compiler_options(learner.setup)


def learner_with_kernels(monkeypatch, **changes):
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        return make_learner(small_config(devices=1, **changes))


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("search", [True, False])
def test_compiler_options_for_products_on_a_gpu(kernels, search, monkeypatch):
    learner = learner_with_kernels(monkeypatch, kernels=kernels, search_products=search)
    options = options_of(learner, "gpu", monkeypatch)
    assert ONE_WAY.items() <= options.items()
    assert ("xla_gpu_enable_triton_gemm" in options) == kernels
    assert (LIBRARIES.items() <= options.items()) == (not kernels and not search)
    jax.jit(lambda: 0, compiler_options=options)()  # unknown options would raise
    assert not options_of(learner, "cpu", monkeypatch)


def test_compiler_options_without_kernels(monkeypatch):
    learner = learner_with_kernels(monkeypatch)
    expected = {**ONE_WAY, **SIDE_BY_SIDE}
    with jax.default_matmul_precision("highest"):
        assert options_of(learner, "gpu", monkeypatch) == expected
    policy = learner.setup.policies["agent"]
    engine = dataclasses.replace(policy.engine, shape=None, reason="none")
    plain = dataclasses.replace(policy, name="plain", engine=engine)
    setup = dataclasses.replace(learner.setup, policies={"agent": policy, "plain": plain})
    assert options_of(dataclasses.replace(learner, setup=setup), "gpu", monkeypatch) == expected


def test_compiler_options_of_populations(monkeypatch):
    setup = learner_with_kernels(monkeypatch).setup
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler_options(setup, alone=False) == {**ONE_WAY, **SIDE_BY_SIDE}


def test_unknown_compiler_options_are_ignored():
    lowered = jax.jit(lambda: 7).lower()
    assert compile_lowered(lowered, {"xla_gpu_no_such_option": True}, free=0)() == 7


@pytest.mark.parametrize("num_devices", [1, 2])
def test_launches_are_concurrent(num_devices, monkeypatch):
    learner = learner_with_kernels(monkeypatch)
    setup = dataclasses.replace(learner.setup, num_devices=num_devices)
    options = options_of(dataclasses.replace(learner, setup=setup), "gpu", monkeypatch)
    assert SIDE_BY_SIDE.items() <= options.items()


def test_tracing_disables_garbage_collection_and_compilation_uses_options(monkeypatch):
    learner, collecting = make_learner(small_config()), []
    monkeypatch.setattr(
        chunks, "compiler_options", lambda setup: {"xla_gpu_enable_triton_gemm": False}
    )
    monkeypatch.setattr(chunks, "run_up_to", lambda *_: collecting.append(gc.isenabled()))
    lowered, options, _ = lower_chunk(learner, abstract_state(learner.setup), 1)
    given = Lowered(needed=10)
    finish_chunk(given, options, 0.0)
    assert given.options == [{"xla_gpu_enable_triton_gemm": False}]
    assert collecting == [False]
    assert callable(finish_chunk(lowered, options, 0.0)[0])


class Program(int):
    """A program that needs a number of bytes."""

    def memory_analysis(self):
        return types.SimpleNamespace(
            argument_size_in_bytes=0,
            output_size_in_bytes=0,
            temp_size_in_bytes=int(self),
            generated_code_size_in_bytes=0,
            alias_size_in_bytes=0,
        )


class Lowered:
    """Compiles to a program that needs `needed` bytes, or half with sequential launches."""

    def __init__(self, needed):
        self.needed, self.options = needed, []

    def compile(self, compiler_options):
        self.options.append(compiler_options)
        return Program(
            self.needed // 2 if ONE_BY_ONE.items() <= compiler_options.items() else self.needed
        )


@pytest.mark.parametrize(("needed", "compiled"), [(100, 100), (101, 50)])
def test_launches_are_sequential_without_memory_for_concurrent_ones(needed, compiled):
    lowered = Lowered(needed)
    assert compile_lowered(lowered, {"other": True, **SIDE_BY_SIDE}, free=100) == compiled
    assert (
        lowered.options
        == [{"other": True, **SIDE_BY_SIDE}, {"other": True, **ONE_BY_ONE}][: 1 + (needed > 100)]
    )
    # without an option that saves memory
    assert compile_lowered(Lowered(1000), {"other": True}, free=100) == 1000


@pytest.mark.slow
def test_garbage_collection_is_restored_after_tracing(monkeypatch):
    monkeypatch.setattr(chunks, "run_up_to", lambda setup, most, state, num_updates: state.key)
    learner = make_learner(small_config())
    like = abstract_state(learner.setup)
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
