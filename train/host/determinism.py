"""Bit-identical training on GPUs; on CPUs it always is."""

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
    """Return whether XLA uses deterministic operations, by `make_deterministic` or the variable XLA_FLAGS."""
    return FLAG in os.environ.get("XLA_FLAGS", "").split()


def forgets_determinism(before: bool) -> bool:
    """Whether a run that was deterministic before goes on where it is not."""
    return before and not is_deterministic() and not on_cpu()
