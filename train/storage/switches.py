"""Settings of jax and XLA that a run's numbers depend on: stored with it, and compared when it is resumed."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

KEYS = "jax_default_prng_impl"  # the form of random keys: a checkpoint cannot be read with another
REQUIRED = (
    KEYS,
    "jax_threefry_partitionable",
    "jax_enable_x64",
)  # with another value the run is another one
_ROUNDING = "jax_default_matmul_precision"
_VARIABLES = ("XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")
# stored with every checkpoint, and compared there
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def switches() -> dict[str, Any]:
    """Return name -> value of the settings in this process, as YAML holds them."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag != DETERMINISTIC]
    tf32 = os.environ.get("NVIDIA_TF32_OVERRIDE", "")
    of_jax = {name: getattr(jax.config, name) for name in (*REQUIRED, _ROUNDING)}
    return {**of_jax, "XLA_FLAGS": " ".join(sorted(flags)), "NVIDIA_TF32_OVERRIDE": tf32}


def require_same_switches(stored: Any, what: str, names: Sequence[str] = REQUIRED) -> None:
    """Raise ValueError, naming the setting and the value to set, where one differs from the stored ones.

    Args:
        stored: `switches` of the run, among other names; a name that is missing is not compared (wdjax 0.2.0).
        what: description of the run, for the message.
        names: settings to compare.
    """
    for name, old, new in _changed(stored, names):
        how = f"Set {name.upper()}={old}, in Python jax.config.update({name!r}, {old!r})"
        raise ValueError(f"{name} = {new!r}: {what} was started with {old!r}. {how}.")


def switch_warnings(stored: Any) -> list[str]:
    """Return a warning for every setting that changes rounding and differs from the stored one."""
    changed = _changed(stored, (_ROUNDING, *_VARIABLES))
    words = "results are not bit-identical to an uninterrupted run"
    return [f"Warning: {name} = {new!r}, was {old!r}: {words}" for name, old, new in changed]


def _changed(stored: Any, names: Sequence[str]) -> list[tuple[str, Any, Any]]:
    here, stored = switches(), stored if isinstance(stored, Mapping) else {}
    return [
        (name, stored[name], here[name])
        for name in names
        if name in stored and stored[name] != here[name]
    ]
