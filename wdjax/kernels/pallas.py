"""Access to Pallas and its Triton backend. No other module imports Pallas from JAX.

Pallas is imported on first use. JAX 0.11 deprecated the Triton backend of Pallas (see
docs/explanation/triton.md). In a JAX without this backend, environments, training and evaluation
run in plain XLA.
"""

import contextlib
import contextvars
import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Workaround for slow lowering: MLIR's bindings import the Triton dialect by its name, `tt`. jaxlib
# has no module of that name, so they repeat the failing import for each value in a kernel. Remove
# this once jaxlib contains the module.
DIALECT = "jaxlib.mlir.dialects.tt"

_INTERPRETED = contextvars.ContextVar("interpreted", default=False)  # while a kernel is traced

MAX_NUMBERS = 2**31 - 1  # numbers in an array that a kernel can index by int32


@functools.cache
def why_missing() -> str | None:
    """Return the reason why this JAX cannot build kernels, or None if it can."""
    try:
        _pallas()
    except (ImportError, AttributeError) as error:
        return f"this JAX has no Pallas for Triton ({error})"
    return None


@functools.cache
def _pallas() -> tuple[Any, Any]:
    """Import Pallas and its Triton backend, and apply the workaround for `DIALECT`.

    Raises:
        ImportError, AttributeError: if this JAX lacks a module or function that is used here.
    """
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    _ = (
        pallas.pallas_call,
        pallas.program_id,
        pallas.ds,
        pallas.when,
        triton.CompilerParams,
        triton.load,
        triton.store,
        triton.approx_tanh,
        triton.debug_barrier,
    )
    with contextlib.suppress(ImportError):  # another jaxlib may not have this module
        if importlib.util.find_spec(DIALECT) is None:
            from jaxlib.triton import dialect

            sys.modules[DIALECT] = dialect
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
    """Return a function of arrays that launches a kernel.

    Args:
        kernel: body of one program, called as `kernel(*input_refs, *output_refs)`.
        name: name of the kernel in profiles.
        out_shape: ShapeDtypeStructs of the outputs.
        grid: number of programs along each axis.
        warps: warps per program, 32 lanes each.
        stages: pipeline stages of the loads in a loop.
        interpret: run step by step in XLA, on any device, for tests.
    """
    pallas, triton = _pallas()
    params = triton.CompilerParams(num_warps=warps, num_stages=stages)

    def body(*refs: Any) -> None:
        token = _INTERPRETED.set(interpret)
        try:
            kernel(*refs)
        finally:
            _INTERPRETED.reset(token)

    return pallas.pallas_call(
        body,
        out_shape=out_shape,
        grid=grid,
        compiler_params=params,
        interpret=interpret,
        name=name,
    )


def over_members(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Return launch(1, *operands) as a function of pytrees of arrays.

    Under `vmap` it is launch(members, *operands) for each member: the members of a population share
    the multiprocessors of a GPU, so that a member may need fewer programs.
    """
    one = jax.custom_batching.custom_vmap(functools.partial(launch, 1))

    @one.def_vmap
    def of_members(members: int, batched: list, *operands: Any) -> tuple:
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, tuple(batched))
        outputs = jax.vmap(functools.partial(launch, members), in_axes=axes)(*operands)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return one


def program_id(axis: int = 0) -> jax.Array:
    """Return the index of this program along an axis of the grid."""
    return _pallas()[0].program_id(axis)


def when(condition: jax.Array, function: Callable[[], None]) -> None:
    """Call a function, which may load and store, in programs with a condition."""
    _pallas()[0].when(condition)(function)


def span(start: Any, size: int) -> Any:
    """Return a slice of `size` positions from `start`, as an index of a ref (`pallas.ds`)."""
    return _pallas()[0].ds(start, size)


def load(ref: Any, mask: jax.Array | None = None, other: Any = None) -> jax.Array:
    """Load from `ref.at[...]` where the mask is True; the result is `other` elsewhere."""
    return _pallas()[1].load(ref, mask=mask, other=other)


def store(ref: Any, value: jax.Array, mask: jax.Array | None = None) -> None:
    """Store to `ref.at[...]` where the mask is True."""
    _pallas()[1].store(ref, value, mask=mask)


def debug_barrier() -> None:
    """Make the lanes of a program wait for each other's writes."""
    _pallas()[1].debug_barrier()


def approx_tanh(x: jax.Array) -> jax.Array:
    """Compute tanh in one instruction, with an error of 2^-11; exactly where interpreted."""
    return jnp.tanh(x) if _INTERPRETED.get() else _pallas()[1].approx_tanh(x)


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)
