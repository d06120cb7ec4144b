"""Training speed: env steps a second of whole updates (rollout and learning), by workload.

    python -m wdjax.experiments.benchmarks.training                 # all rows, on the default device
    python -m wdjax.experiments.benchmarks.training tag_gridworld --repeats 9 --json out.json
    python -m wdjax.experiments.benchmarks.training --small         # a tenth and less of the replicas, for a CPU

A row is a preset and changes to it. Timed is one program of several updates, after a warm-up, until its results are
ready; the median of the repeats counts.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jaxlib

from wdjax.train import TrainConfig, load_config, make_learner

# Row -> (preset, changes, changes for --small, updates in one timed program).
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "tag_gridworld": ("tag_gridworld", {}, {"num_envs": 200}, 10),
    "tag_continuous": ("tag_continuous", {}, {"num_envs": 8, "rollout_length": 25}, 4),
    "cartpole": ("cartpole", {"num_envs": 10_000, "rollout_length": 50, "reset": "fresh"}, {"num_envs": 1_000}, 20),
}


def main() -> None:
    """Measures the rows named on the command line, or all, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; none: all")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each row, at least 1")
    parser.add_argument("--json", help="also write the results to this file")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - set(ROWS)
    if unknown or arguments.repeats < 1:
        parser.error(f"rows must be of {', '.join(ROWS)}, repeats at least 1")
    print(f"{machine()}", flush=True)
    results = [measure(name, arguments.small, arguments.repeats) for name in arguments.rows or ROWS]
    if arguments.json:
        with open(arguments.json, "w", encoding="utf8") as file:
            json.dump({"machine": machine(), "rows": results}, file, indent=1)


def measure(name: str, small: bool, repeats: int) -> dict[str, Any]:
    """Compiles and times one row. Returns its numbers, which are also printed."""
    preset, changes, small_changes, num_updates = ROWS[name]
    config = load_config(preset, **(changes | small_changes if small else changes))
    learner = make_learner(config)
    state = jax.block_until_ready(learner.init(jax.random.key(0)))
    start = time.perf_counter()
    program = learner.run.lower(state, num_updates=num_updates).compile()
    compile_seconds = time.perf_counter() - start
    median, spread = median_seconds(lambda: program(state), repeats)
    agents = sum(policy.assignment.num_agents for policy in learner.setup.policies.values())
    env_steps = num_updates * config.env_steps_per_update / median
    stats = jax.devices()[0].memory_stats() or {}
    row = {
        "row": name, "workload": workload(config, agents), "env_steps_per_second": env_steps,
        "agent_steps_per_second": env_steps * agents, "ms_per_update": 1e3 * median / num_updates,
        "spread": spread, "compile_seconds": compile_seconds,
        "peak_memory_gb": stats.get("peak_bytes_in_use", 0) / 1e9,  # of the process so far; 0: not known
    }  # fmt: skip
    print(
        f"{name}: {row['workload']}\n"
        f"    {env_steps:,.0f} env steps/s, {row['agent_steps_per_second']:,.0f} agent steps/s, "
        f"{row['ms_per_update']:.2f} ms an update (spread {row['spread']:.0%} of {repeats} runs), "
        f"compile {compile_seconds:.1f} s, peak memory {row['peak_memory_gb']:.2f} GB",
        flush=True,
    )
    return row


def median_seconds(program: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Returns the median time of a call after a warm-up, until its results are ready, and (max - min) / median."""
    jax.block_until_ready(program())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(program())
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    return median, (max(seconds) - min(seconds)) / median


def workload(config: TrainConfig, agents: int) -> str:
    """Returns what a row does, in words."""
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


if __name__ == "__main__":
    main()
