"""Throughput of a population: whole updates of many members in one program, with compile time reported separately.

    python -m wdjax.experiments.benchmarks.sweep --json sweep.json
    python -m wdjax.experiments.benchmarks.sweep --small         # sizes for a CPU

Members are runs of the preset cartpole_ppo (4 replicas, 128 steps, PPO with 4 epochs x 4 minibatches, 64-64 tanh) with
different seeds and learning rates. Times are medians over `--repeats` runs of the whole program after a warm-up. An env
step advances one replica once; the env steps of all members are summed. A single member is measured first as a
baseline.
"""

from typing import Any

import jax
import numpy as np

from wdjax.experiments.benchmarks.timing import Parser, machine, rates, write_json
from wdjax.experiments.sweep import population
from wdjax.experiments.sweep.members import (
    Member,
    as_config,
    make_groups,
    make_members,
    make_points,
    make_seeds,
)
from wdjax.train.devices.memory import bytes_needed

PRESET = "cartpole_ppo"
RATES = 8  # learning rates; each has members / RATES seeds


def main() -> None:
    """Measures one member, then all, and prints a line for each."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--members", type=int, help="members in one program (default: 256; with --small 16)"
    )
    parser.add_argument(
        "--updates", type=int, help="updates in one program (default: 20; with --small 5)"
    )
    parser.add_argument(
        "--devices", type=int, help="number of devices that share the members (default: all)"
    )
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parsed = parser.parse()
    members = make_population(parsed.members or (16 if parsed.small else 256))
    updates = parsed.updates or (5 if parsed.small else 20)
    try:
        num_devices = population.choose_num_devices(parsed.devices or 0)
    except ValueError as error:
        parser.error(str(error))
    print(machine(), flush=True)
    rows = [
        measure(members[:1], updates, parsed.repeats, 1),
        measure(members, updates, parsed.repeats, num_devices),
    ]
    write_json(parsed.json, machine(), rows)


def make_population(number: int) -> tuple[Member, ...]:
    """Returns so many members of one program: learning rates, and seeds of each."""
    rates = [1e-4 * 10 ** (2 * k / RATES) for k in range(RATES)]
    points = make_points({"policies.agent.learning_rate": rates})
    (group,) = make_groups(
        make_members(as_config(PRESET), points, make_seeds(-(-number // RATES), 0))
    )
    return group.members[:number]


def measure(
    members: tuple[Member, ...], num_updates: int, repeats: int, num_devices: int
) -> dict[str, Any]:
    """Compiles and times a population. Returns its numbers, which are also printed."""
    size = population.even_size(len(members), len(members), num_devices)
    padded = members + members[-1:] * (size - len(members))
    setup = population.population_setup(members)
    states = jax.block_until_ready(population.init_population(setup, padded, num_devices))
    program, compile_seconds = population.compile_population(
        setup, states, num_updates, num_devices
    )

    def call() -> Any:
        nonlocal states  # the program donates them
        states, metrics = program(states, np.int32(num_updates))
        return metrics

    env_steps = len(members) * num_updates * setup.config.env_steps_per_update
    row = {
        "members": len(members), "devices": num_devices, **rates(call, repeats, env_steps, num_updates),
        "compile_seconds": compile_seconds, "memory_gb": bytes_needed(program) / 1e9,
    }  # fmt: skip
    print(
        f"{PRESET}, {len(members)} members on {num_devices} devices: {row['env_steps_per_second']:,.0f} env steps/s in "
        f"total, {row['ms_per_pass']:.2f} ms per update of all members (spread {row['spread']:.0%} of {repeats} runs), "
        f"compile {compile_seconds:.1f} s, memory {row['memory_gb']:.3f} GB per device",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
