"""Kernels are used only on GPUs that support them."""

import importlib
import importlib.machinery
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import lowered

from wdjax.kernels import pallas
from wdjax.kernels.backend import CUDA, OTHER, cuda_or_default, platform
from wdjax.kernels.support import why_no_kernels
from wdjax.neighbors import nearest_neighbors
from wdjax.replicas import scan_replicas
from wdjax.train.kernels.layers import why_unused


def set_gpus(monkeypatch, *capabilities):
    cards = [types.SimpleNamespace(compute_capability=number) for number in capabilities]
    monkeypatch.setattr("wdjax.kernels.support.jax", types.SimpleNamespace(devices=lambda: cards))


@pytest.mark.parametrize(
    ("capabilities", "why"),
    [
        (["7.5"], "has compute capability 7.5: kernels require 8.0"),
        (["8.0"], None),
        (["12.0", "9.0"], None),
        (["9.0", "7.0"], "has compute capability 7.0: kernels require 8.0"),
        (["gfx90a"], "is not an NVIDIA GPU"),
    ],
)
def test_kernels_require_compute_capability_8(monkeypatch, capabilities, why):
    set_gpus(monkeypatch, *capabilities)
    assert why_no_kernels() == (why and f"a card {why}")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert (why_unused() is None) == (why is None)


def test_kernels_can_be_lowered_on_a_machine_without_gpus():
    assert why_no_kernels() is None


@pytest.mark.parametrize(
    ("known", "traced"),
    [(None, ["cuda, cuda", "other, other"]), (CUDA, ["cuda, cuda"]), (OTHER, ["other, other"])],
)
def test_functions_for_other_devices_are_not_traced(known, traced):
    seen = []

    def inner(outside):
        return lambda x: cuda_or_default(note(f"{outside}, cuda"), note(f"{outside}, other"), x)

    def note(name):
        def function(x):
            seen.append(name)
            return x

        return function

    with platform(known):
        jax.jit(lambda x: cuda_or_default(inner("cuda"), inner("other"), x)).trace(1.0)
    assert seen == traced


def test_a_function_is_traced_again_for_another_platform():
    function = jax.jit(lambda x: cuda_or_default(jnp.sin, jnp.cos, x))
    with platform(CUDA):
        assert "sin" in lowered(function, 0.0)
    assert function(0.0) == 1.0


def find(x):
    return nearest_neighbors(x, x, x == x, 3)


def count(x):
    return scan_replicas(lambda carry, _: (carry + 1, carry), x, length=5)


@pytest.mark.parametrize("function", [find, count])
@pytest.mark.parametrize(("capability", "kernel"), [("7.5", False), ("8.0", True)])
def test_older_gpus_use_plain_xla(monkeypatch, function, capability, kernel):
    set_gpus(monkeypatch, capability)
    text = lowered(lambda x: function(x), np.zeros(40, np.float32))
    assert ("triton" in text) == kernel


def test_triton_dialect_of_mlir_is_available():
    assert pallas.why_missing() is None
    assert importlib.import_module("jaxlib.mlir.dialects.tt")


def test_lowering_a_kernel_searches_no_module(monkeypatch):
    searched = []

    class Finder(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            searched.append(name)

    numbers = np.zeros(40, np.float32)
    lowered(lambda x: count(x), numbers)  # imports that happen at first use
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert "triton" in lowered(lambda x: find(x), numbers)
    assert not [name for name in searched if name.endswith(".tt")]
