"""Choices that depend on the backend: kernels, compilation and copies to the host."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def on_cpu() -> bool:
    """Return whether jax computes on the CPU by default. Its devices share cores and memory."""
    return jax.default_backend() == "cpu"


def on_gpu() -> bool:
    """Return whether jax computes on GPUs by default."""
    return jax.default_backend() == "gpu"


def cuda_or_default(cuda: Callable, default: Callable, *operands: Any) -> Any:
    """Call `cuda` on NVIDIA GPUs, and an equivalent function on other devices."""
    return jax.lax.platform_dependent(*operands, cuda=cuda, default=default)


def quick_jit(function: Callable) -> Callable:
    """Jit a function that runs once: on CPUs, it compiles faster but runs slower."""
    options = {"xla_backend_optimization_level": 0} if on_cpu() else None
    return jax.jit(function, compiler_options=options)


def to_host(values: Any) -> Any:
    """Convert jax arrays to NumPy arrays, which must not be written to.

    On a CPU, `np.asarray` avoids the asynchronous copy that `jax.device_get` starts for each array.
    """
    if on_cpu():
        return jax.tree.map(np.asarray, values)
    return jax.device_get(values)
