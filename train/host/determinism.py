"""Runs that repeat themselves bit for bit on a GPU, as they do on a CPU anyway."""

import os

import jax

from wdjax.train.storage.switches import DETERMINISTIC as FLAG


def make_deterministic() -> None:
    """Has XLA take only operations that give the same bits in every run, some of them slower; a CPU has no others.

    XLA reads this once, when jax computes for the first time in a process: call it before.
    """
    if not is_deterministic():
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()


def is_deterministic() -> bool:
    """Whether XLA was told so, here or in the environment variable XLA_FLAGS."""
    return FLAG in os.environ.get("XLA_FLAGS", "").split()


def forgets_determinism(before: bool) -> bool:
    """Whether a run that was deterministic before goes on where it is not."""
    return before and not is_deterministic() and jax.default_backend() != "cpu"
