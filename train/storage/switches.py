"""Settings of jax and XLA that a run's numbers depend on, stored and compared on resume."""

import os
from collections.abc import Mapping, Sequence

import jax

from wdjax.kernels.backend import on_cpu

KEYS = "jax_default_prng_impl"  # type of random keys, without which a checkpoint cannot be read
# settings that must not change in a run
REQUIRED = (KEYS, "jax_threefry_partitionable", "jax_enable_x64")
_ROUNDING = "jax_default_matmul_precision"
FLAG = "--xla_gpu_deterministic_ops=true"  # of --deterministic, stored as "deterministic"


def make_deterministic() -> None:
    """Restrict XLA to deterministic operations, which can be slower.

    On CPUs, training is always deterministic. XLA reads this setting once: call this function
    before the first jax computation of the process.
    """
    if not is_deterministic():
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()


def is_deterministic() -> bool:
    """Return whether XLA uses deterministic operations (`make_deterministic` or XLA_FLAGS)."""
    return FLAG in os.environ.get("XLA_FLAGS", "").split()


def switches() -> dict[str, object]:
    """Return name -> value of the settings in this process, for YAML."""
    flags = sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag != FLAG)
    return {
        **{name: getattr(jax.config, name) for name in (*REQUIRED, _ROUNDING)},
        "XLA_FLAGS": " ".join(flags),
        "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", ""),
        "deterministic": is_deterministic(),
    }


def require_same_switches(stored: object, what: str, names: Sequence[str] = REQUIRED) -> None:
    """Raise ValueError for a setting that differs from the stored one, with the value to set.

    Args:
        stored: `switches` of the run, and other names. Missing names are ignored (wdjax 0.2.0).
        what: description of the run, for the message.
        names: settings to compare.
    """
    for name, old, new in _changed(stored, names):
        raise ValueError(
            f"{name} = {new!r}: {what} was started with {old!r}. "
            f"Set {name.upper()}={old}, in Python jax.config.update({name!r}, {old!r})."
        )


def switch_warnings(stored: object) -> list[str]:
    """Return a warning for every setting that changes rounding and differs from the stored one."""
    names = [_ROUNDING, "XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"] + ["deterministic"] * (not on_cpu())
    return [
        f"Warning: {name} = {new!r}, was {old!r}: "
        "results are not bit-identical to an uninterrupted run"
        for name, old, new in _changed(stored, names)
    ]


def _changed(stored: object, names: Sequence[str]) -> list[tuple[str, object, object]]:
    here, old = switches(), stored if isinstance(stored, Mapping) else {}
    return [
        (name, old[name], here[name]) for name in names if old.get(name, here[name]) != here[name]
    ]
