"""What every benchmark shares: how a program is timed, what a workload is in words, and on what it ran."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jaxlib

from wdjax.train.config.schema import TrainConfig


def repeat_seconds(program: Callable[[], Any], repeats: int) -> list[float]:
    """Returns the seconds of each of `repeats` calls after a warm-up, until their results are ready."""
    jax.block_until_ready(program())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(program())
        seconds.append(time.perf_counter() - start)
    return seconds


def median_and_spread(seconds: list[float]) -> tuple[float, float]:
    """Returns the median, and (max - min) / median."""
    median = statistics.median(seconds)
    return median, (max(seconds) - min(seconds)) / median


def median_seconds(program: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Returns the median time of a call after a warm-up, until its results are ready, and (max - min) / median."""
    return median_and_spread(repeat_seconds(program, repeats))


def workload(config: TrainConfig, agents: int) -> str:
    """Returns what training does, in words."""
    policies = ", ".join(
        f"{name} {policy.algorithm} {'-'.join(map(str, policy.network.hidden_sizes))}"
        f" ({policy.epochs} x {policy.minibatches} gradient steps)"
        for name, policy in config.policies.items()
    )
    return f"{config.env}, {agents} agents, {config.num_envs} envs, {config.rollout_length}-step rollouts; {policies}"


def machine() -> str:
    """Returns the device and the versions."""
    device = jax.devices()[0]
    precision = jax.config.jax_default_matmul_precision or "default"
    return (
        f"{device.device_kind} ({device.platform}), jax {jax.__version__}, jaxlib {jaxlib.__version__}, "
        f"Python {platform.python_version()}, matmul precision {precision}"
    )


def short(value: float | None) -> str:
    """Returns a number with three digits and its thousands in a letter: 42.6 k, 1.20 M, 17.3 G; "-" for None."""
    if value is None:
        return "-"
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1, "")):
        if value >= size * 0.9995 or size == 1:
            scaled = value / size
            return f"{scaled:,.{max(0, 2 - sum(scaled >= limit for limit in (9.995, 99.95)))}f}{letter}"
    raise AssertionError("unreachable")


def environment() -> dict[str, str]:
    """Returns the environment of a process that imports this very wdjax, whatever the current folder is."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
