"""Shortcuts at the start of a run: device initialization and garbage collection."""

import gc
import threading

import jax
import numpy as np
import pytest

from wdjax.lazy import no_garbage_collection
from wdjax.train import load_config, make_learner
from wdjax.train.devices.startup import find_devices, wake_device


def wake():
    """Initialize the device and wait for it."""
    before = set(threading.enumerate())
    assert wake_device().result() == jax.devices()
    for thread in set(threading.enumerate()) - before:
        thread.join()


def test_failing_device_is_not_replaced_by_the_cpu(monkeypatch):
    """jax raises this once, and returns the CPU at the next call."""

    def refuse():
        raise RuntimeError("Unable to initialize backend 'cuda':\n(set JAX_PLATFORMS='' ...)")

    monkeypatch.setattr(jax, "devices", refuse)
    with pytest.raises(OSError, match=r"^Unable to initialize backend 'cuda': \(set JAX_PLATFORMS"):
        make_learner(load_config("cartpole_ppo"))


def test_full_device_does_not_raise_during_initialization(monkeypatch):
    called, errors = threading.Event(), []

    def refuse(*_):
        called.set()
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(jax.random, "key", refuse)
    monkeypatch.setattr(threading, "excepthook", errors.append)
    wake()
    assert called.is_set()
    assert not errors


@pytest.mark.slow  # clears caches that other tests need
@pytest.mark.parametrize("chosen", [None, "cpu", 1])
def test_creation_of_keys_is_compiled_during_initialization(chosen, caplog):
    jax.clear_caches()
    with jax.default_device(jax.devices()[chosen] if chosen == 1 else chosen), jax.log_compiles():
        wake()
        caplog.clear()
        key = jax.random.key(7)
    assert "Compiling" not in caplog.text
    np.testing.assert_array_equal(jax.random.key_data(key), [0, 7])


def test_garbage_collection_is_enabled_again():
    with no_garbage_collection():
        assert not gc.isenabled()
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), no_garbage_collection():
        raise ZeroDivisionError
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            AssertionError(),
            "jax finds no such device or lacks the plugin for it. Unset JAX_PLATFORMS",
        ),
        (
            RuntimeError("Unable to initialize backend"),
            "Unable to initialize backend. Unset JAX_PLATFORMS",
        ),
    ],
)
def test_missing_device_raises(error, reason, monkeypatch):
    def devices():
        raise error

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setattr(type(jax.config), "jax_platforms", "cuda")
    with pytest.raises(OSError, match=f"^JAX_PLATFORMS = cuda: {reason}"):
        find_devices()
