"""A scan over time for many replicas of a small program, in one kernel where there is an NVIDIA GPU."""

from collections.abc import Callable
from typing import Any

import jax

from wdjax.kernels.scan import scan_kernel
from wdjax.kernels.support import decide, why_no_kernels


def scan_replicas(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    length: int | None = None,
) -> tuple[Any, Any]:
    """Steps N replicas through time, each for itself: `lax.scan(jax.vmap(step), carry, xs, length)`.

    On NVIDIA GPUs one kernel does it all, with what is carried in registers, so that no step launches anything. It is
    made from the jaxpr of `step`; where that has something that the kernel cannot do (`why_no_kernel` tells), and on
    other devices, it is the scan. Random bits are the same; floats agree up to the rounding of fused multiplications,
    divisions, transcendental functions and, in small networks, matrix products (in the default precision, like XLA's).
    The kernel has no derivative, and runs whole on every device: shard replicas by `jax.shard_map` around it.

    A branch by `lax.cond` (or `wdjax.vector.when_any`) is left out in the steps in which no replica of a block of 32
    takes it: what is dear and rare, as a reset is, belongs in one. The calls of a `lax.map` are made side by side, as
    if each replica were several: what agents do alike, as their network, is then in the kernel once.

    Args:
        step: (carry, x) -> (carry, output), of one replica; pytrees of small arrays and typed keys. What it closes over
            is the same for all replicas, and may be large where it is read by index: it stays in memory.
        carry: leaves [N, ...].
        xs: leaves [T, N, ...], or None.
        length: T, needed where xs is None.

    Returns:
        (carry, outputs): leaves [N, ...] and [T, N, ...].
    """

    def simple(carry: Any, xs: Any) -> tuple[Any, Any]:
        return jax.lax.scan(jax.vmap(step), carry, xs, length)

    def kernel(carry: Any, xs: Any) -> tuple[Any, Any]:
        try:
            return scan_replicas_kernel(step, carry, xs, length)
        except NotImplementedError as error:
            decide("scan_replicas", str(error))
            return simple(carry, xs)

    if not decide("scan_replicas", why_no_kernels()):
        return simple(carry, xs)
    return jax.lax.platform_dependent(carry, xs, cuda=kernel, default=simple)


def scan_replicas_kernel(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    length: int | None = None,
    interpret: bool = False,
) -> tuple[Any, Any]:
    """`scan_replicas` as a kernel. `interpret`: step by step in XLA, on any device, for tests.

    Raises:
        NotImplementedError: for what has no place in the kernel, naming it.
    """

    def one(tree, axes) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[axes:], leaf.dtype), tree)

    closed, shape = jax.make_jaxpr(step, return_shape=True)(one(carry, 1), one(xs, 2))
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
    """Returns what keeps `scan_replicas` from being a kernel, on this machine's cards if there are any, in words, or
    None where nothing does."""
    why = why_no_kernels()
    if why is not None:
        return why
    try:
        jax.eval_shape(lambda carry, xs: scan_replicas_kernel(step, carry, xs, length), carry, xs)
    except NotImplementedError as error:
        return str(error)
    return None
