"""Several devices: how training speeds up, and whether it learns the same, on 1, 2, 4 of them (as many as there are).

    python -m wdjax.experiments.benchmarks.devices                              # all rows
    python -m wdjax.experiments.benchmarks.devices tag_gridworld --devices 1 2 --json out.json
    JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4 \\
        python -m wdjax.experiments.benchmarks.devices --small                  # virtual devices: no speed to see

A row is a preset and changes to it. Timed, as in the suite, are whole updates of one program: with so many
replicas for each device ("a device"), and with so many in all ("in all"). Compared are the parameters after 3 updates
from one seed at `highest` matmul precision, with those of one device: the largest |a - b| / |a| of any array of them,
Euclidean norms. Ends with exit status 1 where that is above 1e-3.
"""

import argparse
import dataclasses
import functools
import json
from typing import Any

import jax
import numpy as np

from wdjax.experiments.benchmarks.timing import machine, median_seconds, workload
from wdjax.train import TrainConfig, load_config, make_learner
from wdjax.train.host.programs import compile_lowered, compiler_options

CROWD = {"env_params.num_taggers": 5, "env_params.num_runners": 100}

# Row -> (preset, changes, changes for --small, updates in one timed program).
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "tag_gridworld": ("tag_gridworld", {}, {"num_envs": 64, "rollout_length": 20}, 10),
    "tag_continuous": (
        "tag_continuous", {**CROWD, "num_envs": 2_000, "rollout_length": 50},
        {"env_params.num_runners": 10, "num_envs": 16, "rollout_length": 10}, 4,
    ),
}  # fmt: skip
# At 400 replicas and 50 steps the parameters come to lie 2e-2 apart on two GPUs: probably some draws lie so near the
# border of two choices that rounding decides. Of so few draws as these none does.
COMPARED = {"tag_continuous": {"num_envs": 16, "rollout_length": 10}}
NEAR = 1e-3  # relative


def main() -> None:
    """Measures and compares the rows named on the command line, or all, and prints a table of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; none: all")
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2, 4], help="how many; the first is the measure")
    parser.add_argument("--only", choices=("agreement", "speed"), help="one of both parts")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each line, at least 1")
    parser.add_argument("--json", help="also write the results to this file")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - set(ROWS)
    if unknown or arguments.repeats < 1 or min(arguments.devices) < 1:
        parser.error(f"rows must be of {', '.join(ROWS)}, repeats and devices at least 1")
    numbers = [number for number in arguments.devices if number <= jax.device_count()]
    print(f"{machine()}, {jax.device_count()} devices", flush=True)
    results = []
    names = arguments.rows or list(ROWS)
    for name in names if arguments.only != "speed" else ():  # first: it takes less time, and says whether speed counts
        results += compare(name, numbers, arguments.small)
    for name in names if arguments.only != "agreement" else ():
        results += measure(name, numbers, arguments.small, arguments.repeats)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf8") as file:
            json.dump({"machine": machine(), "rows": results}, file, indent=1)
    raise SystemExit(any(result.get("difference", 0.0) > NEAR for result in results))


def configure(name: str, small: bool) -> tuple[TrainConfig, int]:
    """Returns a row's configuration and the updates in one of its timed programs."""
    preset, changes, small_changes, num_updates = ROWS[name]
    return load_config(preset, **(changes | small_changes if small else changes)), num_updates


def measure(name: str, numbers: list[int], small: bool, repeats: int) -> list[dict[str, Any]]:
    """Times a row on each number of devices, with its replicas for each and with its replicas in all, and prints it."""
    config, num_updates = configure(name, small)
    agents = sum(policy.assignment.num_agents for policy in make_learner(config).setup.policies.values())
    print(f"\n{name}: {workload(config, agents)}")
    print("      load  devices     envs    env steps/s  x the first  ms/update  spread")
    results, timed = [], {}
    for load in ("a device", "in all"):
        first = None
        for number in numbers:
            num_envs = config.num_envs * (number if load == "a device" else 1)
            mine = dataclasses.replace(config, num_envs=num_envs, devices=number)
            if (num_envs, number) not in timed:  # one device has both loads in one
                timed[num_envs, number] = time_updates(mine, num_updates, repeats)
            seconds, spread = timed[num_envs, number]
            speed = num_updates * mine.env_steps_per_update / seconds
            first = first or speed
            result = {
                "row": name, "load": load, "devices": number, "num_envs": num_envs, "env_steps_per_second": speed,
                "times_the_first": speed / first, "ms_per_update": 1e3 * seconds / num_updates, "spread": spread,
            }  # fmt: skip
            print(
                f"{load:>10} {number:8d} {num_envs:8,d} {speed:14,.0f} {speed / first:12.2f} "
                f"{result['ms_per_update']:10.2f} {spread:7.0%}",
                flush=True,
            )
            results.append(result)
    return results


def time_updates(config: TrainConfig, num_updates: int, repeats: int) -> tuple[float, float]:
    """Returns (median seconds, spread) of one program of so many updates."""
    learner = make_learner(config)
    state = jax.block_until_ready(learner.init(jax.random.key(0)))
    run = functools.partial(learner.run, num_updates=num_updates)
    program = compile_lowered(jax.jit(run).lower(state), compiler_options(learner.setup))
    return median_seconds(lambda: program(state), repeats)


def compare(name: str, numbers: list[int], small: bool) -> list[dict[str, Any]]:
    """Compares what a row has learned after 3 updates with what it has on the first number of devices; prints it."""
    config, _ = configure(name, small)
    config = config if small else dataclasses.replace(config, **COMPARED.get(name, {}))
    learned, results = None, []
    for number in numbers:
        found = learn(dataclasses.replace(config, devices=number))
        if learned is None:
            learned = found
            continue
        worst = max(jax.tree.leaves(jax.tree.map(relative_difference, learned, found)))
        print(f"{name}: parameters on {number} devices differ from those on {numbers[0]} by {worst:.1e}", flush=True)
        results.append({"row": name, "devices": number, "difference": worst})
    return results


def learn(config: TrainConfig) -> dict[str, Any]:
    """Returns every policy's parameters after 3 updates at `highest` matmul precision, as NumPy arrays."""
    learner = make_learner(config)
    with jax.default_matmul_precision("highest"):
        state, _ = learner.run(learner.init(jax.random.key(config.seed)), num_updates=3)
    return jax.device_get({name: policy.params for name, policy in state.policies.items()})


def relative_difference(a: np.ndarray, b: np.ndarray) -> float:
    """Returns |a - b| / |a| of two arrays, 0 where both are 0."""
    scale = float(np.linalg.norm(a))
    return float(np.linalg.norm(a - b)) / scale if scale else float(np.any(b))


if __name__ == "__main__":
    main()
