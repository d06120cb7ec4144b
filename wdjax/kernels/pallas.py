"""All that our kernels take from Pallas and its Triton: a JAX without them, or another way to Triton, is this file's.

Pallas is imported when a kernel is first asked for, and not before: JAX deprecated its Triton in 0.11
(docs/explanation/triton.md), and without it games, training and evaluation are plain XLA's.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import jax

# MLIR's bindings look for Triton's dialect by its name, `tt`, under which jaxlib has no module, and do so anew for each
# value of a kernel: half of the time that lowering one takes. What they have found they do not look for again.
DIALECT = "jaxlib.mlir.dialects.tt"


@functools.cache
def why_missing() -> str | None:
    """Returns why kernels cannot be made by this JAX, in words, or None where they can."""
    try:
        _pallas()
    except (ImportError, AttributeError) as error:
        return f"this JAX has no Pallas for Triton ({error})"
    return None


@functools.cache
def _pallas() -> tuple[Any, Any]:
    """Returns Pallas and its Triton, with all that is used of them."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    _ = (
        pallas.pallas_call,
        pallas.program_id,
        pallas.ds,
        triton.CompilerParams,
        triton.load,
        triton.store,
    )
    _ = triton.approx_tanh, triton.debug_barrier
    try:
        if importlib.util.find_spec(DIALECT) is None:
            from jaxlib.triton import dialect

            sys.modules[DIALECT] = dialect
    except ImportError:  # in another jaxlib it may lie elsewhere
        pass
    return pallas, triton


def call(
    kernel: Callable[..., None],
    name: str,
    out_shape: Any,
    grid: tuple[int, ...],
    warps: int,
    stages: int,
    interpret: bool,
) -> Callable[..., Any]:
    """Returns a function of arrays that runs a kernel: `kernel(*refs of inputs, *refs of outputs)` for each of a grid.

    Args:
        out_shape: of what it writes, ShapeDtypeStructs.
        warps: of a program, 32 lanes each.
        stages: of loads that run ahead in a loop.
        interpret: step by step in XLA, on any device, for tests.
    """
    pallas, triton = _pallas()
    params = triton.CompilerParams(num_warps=warps, num_stages=stages)
    return pallas.pallas_call(
        kernel,
        out_shape=out_shape,
        grid=grid,
        compiler_params=params,
        interpret=interpret,
        name=name,
    )


def program_id() -> jax.Array:
    """Returns which of the grid's programs this is, along its only axis."""
    return _pallas()[0].program_id(0)


def span(start: Any, size: int) -> Any:
    """Returns the places from `start` on, as an index of a ref: pallas.ds."""
    return _pallas()[0].ds(start, size)


def load(ref: Any, mask: jax.Array | None = None, other: Any = None) -> jax.Array:
    """Reads the places of `ref.at[...]`; `other` where the mask is False."""
    return _pallas()[1].load(ref, mask=mask, other=other)


def store(ref: Any, value: jax.Array, mask: jax.Array | None = None) -> None:
    """Writes the places of `ref.at[...]` where the mask is True."""
    _pallas()[1].store(ref, value, mask=mask)


def debug_barrier() -> None:
    """Lets the lanes of a program wait for each other's writes."""
    _pallas()[1].debug_barrier()


def approx_tanh(x: jax.Array) -> jax.Array:
    """tanh in one instruction, with an error of 2^-11."""
    return _pallas()[1].approx_tanh(x)


def cdiv(a: int, b: int) -> int:
    """Returns a / b, rounded up."""
    return -(-a // b)
