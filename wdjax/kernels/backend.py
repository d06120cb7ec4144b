"""Choices that depend on the backend: kernels, compilation and copies to the host."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

CUDA, OTHER = "cuda", "other"
platform = jax.make_user_context(None)
"""devices for which functions are traced: CUDA (NVIDIA GPUs), OTHER, or None if both are possible.
jax does not use a function that it traced with one value where another value holds"""


def on_cpu() -> bool:
    """Return whether jax computes on the CPU by default. Its devices share cores and memory."""
    return jax.default_backend() == "cpu"


def on_gpu() -> bool:
    """Return whether jax computes on GPUs by default."""
    return jax.default_backend() == "gpu"


def cuda_or_default(cuda: Callable, default: Callable, *operands: Any) -> Any:
    """Call `cuda` on NVIDIA GPUs, and an equivalent function on other devices.

    Both are traced, unless `platform` says which one is needed.
    """
    if platform.value is not None:
        return (cuda if platform.value == CUDA else default)(*operands)
    return jax.lax.platform_dependent(
        *operands, cuda=traced_for(CUDA, cuda), default=traced_for(OTHER, default)
    )


def traced_for(value: str, function: Callable) -> Callable:
    """Return a function that is traced for a platform: CUDA or OTHER."""

    def traced(*operands: Any) -> Any:
        with platform(value):
            return function(*operands)

    return traced


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
