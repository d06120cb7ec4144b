"""Which cards run kernels, and who is told what they do."""

import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from wdjax.kernels import pallas

MIN_CAPABILITY = 8.0  # of NVIDIA's, Ampere (2020): where Triton begins

_FAILED: list[str] = []  # why this process goes without kernels, in words, where it does
_HEARD: contextvars.ContextVar[dict[str, str | None] | None] = contextvars.ContextVar(
    "heard", default=None
)


def why_no_kernels() -> str | None:
    """Returns why a run has no kernels, in words, or None: all of its GPUs are NVIDIA's of compute capability 8.0 or
    more, and this JAX can make kernels.

    Said before anything is traced: XLA would refuse the whole program. On machines without a GPU, kernels may still be
    compiled for another, and `platform_dependent` leaves them out.
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
            return f"{card} is no NVIDIA GPU"
        if float(capability) < MIN_CAPABILITY:
            return f"{card} has compute capability {capability}: kernels want {MIN_CAPABILITY}"
    return pallas.why_missing()


def why_not_lowered(function: Callable[..., Any], *operands: Any) -> str | None:
    """Returns why the kernels in a function are refused for this machine's card, or None where they are not: found by
    lowering them, in as long as that takes, for what is traced into kernels without a table of what they know."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), operands)
    try:
        jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",))
    except Exception as error:  # of many kinds: each would end the run when that is lowered
        return str(error).strip().splitlines()[0]
    return None


@contextlib.contextmanager
def giving_up_kernels(why: str) -> Iterator[None]:
    """Has this process go without kernels, in here and, unless that raises, from then on; `why` in words."""
    _FAILED.append(why)
    jax.clear_caches()  # of what was traced with them
    try:
        yield
    except BaseException:
        _FAILED.pop()
        raise


@contextlib.contextmanager
def listening() -> Iterator[dict[str, str | None]]:
    """Gives what is decided while programs are traced in here: what there is to do -> why plain XLA does it, None where
    a kernel does."""
    heard: dict[str, str | None] = {}
    token = _HEARD.set(heard)
    try:
        yield heard
    finally:
        _HEARD.reset(token)


def decide(what: str, why_not: str | None) -> bool:
    """Returns whether a kernel does something, that is whether nothing speaks against it, and tells who listens."""
    heard = _HEARD.get()
    if heard is not None:
        heard[what] = why_not
    return why_not is None
