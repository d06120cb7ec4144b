"""Scan a small program over time in many replicas, as one kernel on NVIDIA GPUs."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from wdjax.kernels.backend import OTHER, traced_for
from wdjax.kernels.scan import scan_kernel
from wdjax.kernels.support import kernel_or_plain, why_no_kernels


def scan_replicas(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    length: int | None = None,
) -> tuple[Any, Any]:
    """Scan N independent replicas over time: `lax.scan(jax.vmap(step), carry, xs, length)`.

    On NVIDIA GPUs, a single kernel generated from the jaxpr of `step` runs the whole scan and keeps
    the carry in registers. On other devices, and if `step` contains an unsupported operation (see
    `why_no_kernel`), the plain scan runs. Both produce identical random bits. Floats may differ in
    the rounding of fused multiplications, divisions, transcendental functions and, in small
    networks, matrix products (which use the default precision, like XLA). The kernel is not
    differentiable. Each device runs all replicas it receives; shard them with `jax.shard_map`.

    Use `lax.cond` (or `wdjax.branches.when_any`) for rare, expensive work like a reset. The kernel
    runs the longer of the two branches only in steps in which at least one replica of a block of up
    to 32 replicas takes it. Use `lax.map` for identical work of many agents, such as their network.
    Its iterations run in parallel, and the kernel contains their code only once.

    Args:
        step: (carry, x) -> (carry, output) of one replica, on pytrees of small arrays and typed
            keys. All replicas share closed-over arrays. These may be large if `step` indexes them,
            because they stay in memory and not in registers.
        carry: leaves [N, ...].
        xs: leaves [T, N, ...], or None.
        length: T; required if xs is None.

    Returns:
        (carry, outputs), with leaves [N, ...] and [T, N, ...].
    """
    kernel = functools.partial(scan_replicas_kernel, step, length=length)
    plain = functools.partial(jax.lax.scan, jax.vmap(step), length=length)
    return kernel_or_plain("scan_replicas", why_no_kernels(), kernel, plain, carry, xs)


def scan_replicas_kernel(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    length: int | None = None,
    interpret: bool = False,
) -> tuple[Any, Any]:
    """Run `scan_replicas` as a kernel.

    Args:
        step: as for `scan_replicas`.
        carry: as for `scan_replicas`.
        xs: as for `scan_replicas`.
        length: as for `scan_replicas`.
        interpret: whether to interpret the kernel in XLA, on any device (for tests).

    Raises:
        NotImplementedError: if `step` contains an operation that the kernel does not support. The
            message names it.
    """

    def one(tree, axes) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[axes:], leaf.dtype), tree)

    plain = traced_for(OTHER, step)  # a kernel cannot contain other kernels
    closed, shape = jax.make_jaxpr(plain, return_shape=True)(one(carry, 1), one(xs, 2))
    flat_carry, flat_xs = jax.tree.leaves(carry), jax.tree.leaves(xs)
    num_steps = flat_xs[0].shape[0] if length is None else length
    flat = scan_kernel(closed.jaxpr, closed.consts, flat_carry, flat_xs, num_steps, interpret)
    return jax.tree.unflatten(jax.tree.structure(shape), flat)


def why_no_kernel(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    length: int | None = None,
) -> str | None:
    """Return why `scan_replicas` cannot use a kernel on this machine, or None if it can."""
    reason = why_no_kernels()
    if reason is not None:
        return reason
    try:
        jax.eval_shape(lambda carry, xs: scan_replicas_kernel(step, carry, xs, length), carry, xs)
    except NotImplementedError as error:
        return str(error)
    return None
