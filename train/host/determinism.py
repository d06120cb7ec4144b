"""Bit-identical training on GPUs. On CPUs, training is always deterministic."""

import os

from wdjax.kernels.backend import on_cpu
from wdjax.train.storage.switches import DETERMINISTIC as FLAG


def make_deterministic() -> None:
    """Restrict XLA to deterministic operations, which can be slower.

    XLA reads this setting once: call this function before the first jax computation of the process.
    """
    if not is_deterministic():
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()


def is_deterministic() -> bool:
    """Return whether XLA uses deterministic operations (`make_deterministic` or XLA_FLAGS)."""
    return FLAG in os.environ.get("XLA_FLAGS", "").split()


def forgets_determinism(before: bool) -> bool:
    """Return whether a run that was deterministic `before` is resumed without determinism."""
    return before and not is_deterministic() and not on_cpu()
