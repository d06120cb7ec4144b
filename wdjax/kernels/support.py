"""Decide whether kernels can be used, and record these decisions."""

import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from wdjax.kernels import pallas
from wdjax.kernels.backend import cuda_or_default

MIN_CAPABILITY = 8.0  # compute capability, NVIDIA Ampere (2020): the minimum for Triton

_FAILED: list[str] = []  # reasons why this process has disabled kernels
_POLICY: contextvars.ContextVar[str | None] = contextvars.ContextVar("policy", default=None)
_HEARD: contextvars.ContextVar[dict[str, str | None] | None] = contextvars.ContextVar(
    "heard", default=None
)


def why_no_kernels() -> str | None:
    """Return the reason why kernels cannot be used, or None if they can.

    Every GPU must be an NVIDIA GPU of compute capability 8.0 or higher, JAX must include Pallas
    for Triton, and `giving_up_kernels` must not have disabled kernels. This is checked before
    tracing, because XLA would reject the whole program.

    Machines without a GPU pass the check, so that kernels can be compiled for another machine.
    `platform_dependent` then selects plain XLA on the CPU.
    """
    if _FAILED:
        return _FAILED[-1]
    for device in jax.devices():
        card, capability = (
            getattr(device, "device_kind", "a card"),
            str(getattr(device, "compute_capability", "")),
        )
        if getattr(device, "platform", "gpu") == "cpu":
            continue
        if not re.fullmatch(r"\d+\.\d+", capability):
            return f"{card} is not an NVIDIA GPU"
        if float(capability) < MIN_CAPABILITY:
            return f"{card} has compute capability {capability}: kernels require {MIN_CAPABILITY}"
    return pallas.why_missing()


def why_not_lowered(function: Callable[..., Any], *operands: Any) -> str | None:
    """Return the reason why kernels in a function cannot be lowered for CUDA, or None if they can.

    The function is lowered to find out, which takes as long as any lowering. This is for kernels
    that trace custom code and have no table of supported primitives.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), operands)
    try:
        jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",))
    except Exception as error:  # lowering raises exceptions of many types
        return str(error).strip().splitlines()[0]
    return None


@contextlib.contextmanager
def giving_up_kernels(why: str) -> Iterator[None]:
    """Disable kernels inside this context and, unless it raises, for the rest of the process.

    Args:
        why: the reason, which `why_no_kernels` then returns.
    """
    _FAILED.append(why)
    jax.clear_caches()  # discard functions traced with kernels
    try:
        yield
    except BaseException:
        _FAILED.pop()
        raise


@contextlib.contextmanager
def listening() -> Iterator[dict[str, str | None]]:
    """Collect the decisions made while programs are traced inside this context.

    Yields:
        A dict from each task, such as "nearest neighbours", to None if a kernel performs it, or to
        the reason why plain XLA performs it.
    """
    heard: dict[str, str | None] = {}
    token = _HEARD.set(heard)
    try:
        yield heard
    finally:
        _HEARD.reset(token)


def decide(what: str, why_not: str | None) -> bool:
    """Return whether a kernel performs a task, and record this for `listening`.

    Args:
        what: the task, for example "nearest neighbours".
        why_not: the reason to use plain XLA, or None to use a kernel.
    """
    heard = _HEARD.get()
    if heard is not None:
        heard[what] = why_not
    return why_not is None


def kernel_or_plain(
    what: str, why_not: str | None, by_kernel: Callable, plain: Callable, *operands: Any
) -> Any:
    """Call `by_kernel` on NVIDIA GPUs and `plain` elsewhere, and record this for `listening`.

    If `by_kernel` cannot be traced, `plain` is called on all devices. Errors that do not depend on
    kernels recur in it.

    Args:
        what: the task, for example "nearest neighbours".
        why_not: a reason to call only `plain`, or None.
        by_kernel: function of the operands that contains a kernel.
        plain: equivalent function without it.
        operands: pytrees of arrays.
    """
    if decide(what, why_not):
        try:
            return cuda_or_default(by_kernel, plain, *operands)
        except Exception as error:  # such as a custom `act` that requires keys
            decide(what, (str(error).strip() or type(error).__name__).splitlines()[0])
    return plain(*operands)


@contextlib.contextmanager
def kernels_for(policy: str | None) -> Iterator[None]:
    """Compute parts of a policy's network, such as its memory, by kernels inside this context.

    Args:
        policy: its name in decisions (`listening`); None: plain XLA.
    """
    token = _POLICY.set(policy)
    try:
        yield
    finally:
        _POLICY.reset(token)


def uses_kernel(part: str, why_not: str | None) -> bool:
    """Return whether a kernel computes a part of a network, and record this for `listening`.

    Args:
        part: the part, for example "memory".
        why_not: the reason to use plain XLA, or None to use a kernel.
    """
    policy = _POLICY.get()
    return policy is not None and decide(f"{part} of {policy}", why_not)
