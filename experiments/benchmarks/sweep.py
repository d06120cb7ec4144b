"""How fast a population trains: whole updates of many members in one program, members and compilation told apart.

    python -m wdjax.experiments.benchmarks.sweep --json sweep.json
    python -m wdjax.experiments.benchmarks.sweep --small         # sizes for a CPU

Members are the preset cartpole_ppo (4 replicas, 128 steps, PPO of 4 epochs x 4 minibatches, 64-64 tanh) with seeds and
learning rates of their own. The time is the median of `--repeats` runs of the whole program after a warm-up; an env
step is one replica advanced once, those of all members are summed. One member alone is measured first, to compare.
"""

import argparse
import json
from typing import Any

import jax

from wdjax.experiments.benchmarks.timing import machine, median_seconds
from wdjax.experiments.sweep.members import Member, as_config, make_groups, make_members, make_points, make_seeds
from wdjax.experiments.sweep.population import (
    choose_num_devices,
    compile_population,
    even_size,
    init_population,
    population_setup,
)
from wdjax.train.devices.memory import bytes_needed

PRESET = "cartpole_ppo"
RATES = 8  # learning rates; each has members / RATES seeds


def main() -> None:
    """Measures one member, then all, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=0, help="in one program (default: 256; with --small 16)")
    parser.add_argument("--updates", type=int, default=0, help="in one program (default: 20; with --small 5)")
    parser.add_argument("--devices", type=int, default=0, help="over which members are spread; 0: all there are")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each row, at least 1")
    parser.add_argument("--json", help="also write the results to this file")
    arguments = parser.parse_args()
    number = arguments.members or (16 if arguments.small else 256)
    updates = arguments.updates or (5 if arguments.small else 20)
    if number < 1 or updates < 1 or arguments.repeats < 1 or not 0 <= arguments.devices <= jax.device_count():
        parser.error("members, updates and repeats must be at least 1, devices at most those there are")
    print(machine(), flush=True)
    members = make_population(number)
    num_devices = choose_num_devices(arguments.devices)
    rows = [
        measure(members[:1], updates, arguments.repeats, 1),
        measure(members, updates, arguments.repeats, num_devices),
    ]
    if arguments.json:
        with open(arguments.json, "w", encoding="utf8") as file:
            json.dump({"machine": machine(), "rows": rows}, file, indent=1)


def make_population(number: int) -> tuple[Member, ...]:
    """Returns so many members of one program: learning rates, and seeds of each."""
    rates = [1e-4 * 10 ** (2 * k / RATES) for k in range(RATES)]
    points = make_points({"policies.agent.learning_rate": rates})
    (group,) = make_groups(make_members(as_config(PRESET), points, make_seeds(-(-number // RATES), 0)))
    return group.members[:number]


def measure(members: tuple[Member, ...], num_updates: int, repeats: int, num_devices: int) -> dict[str, Any]:
    """Compiles and times a population. Returns its numbers, which are also printed."""
    size = even_size(len(members), len(members), num_devices)
    padded = members + members[-1:] * (size - len(members))
    setup = population_setup(members)
    states = jax.block_until_ready(init_population(setup, padded, num_devices))
    program, compile_seconds = compile_population(setup, states, num_updates, num_devices)
    needed = bytes_needed(program)

    def run() -> Any:
        nonlocal states  # the program donates them
        states, metrics = program(states)
        return metrics

    median, spread = median_seconds(run, repeats)
    env_steps = len(members) * num_updates * setup.config.env_steps_per_update / median
    row = {
        "members": len(members), "devices": num_devices, "env_steps_per_second": env_steps,
        "ms_per_update": 1e3 * median / num_updates, "spread": spread, "compile_seconds": compile_seconds,
        "memory_gb": needed / 1e9,
    }  # fmt: skip
    print(
        f"{PRESET}, {len(members)} members on {num_devices} devices: {env_steps:,.0f} env steps/s in all, "
        f"{row['ms_per_update']:.2f} ms an update of all members (spread {spread:.0%} of {repeats} runs), "
        f"compile {compile_seconds:.1f} s, memory {row['memory_gb']:.3f} GB a device",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
