"""Training on several devices: speed-up and agreement on 1, 2 and 4 devices (as many as are available).

    python -m wdjax.experiments.benchmarks.devices                              # two rows of the suite
    python -m wdjax.experiments.benchmarks.devices tag_gridworld --devices 1 2 --json out.json
    JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4 \\
        python -m wdjax.experiments.benchmarks.devices --small                  # virtual devices: no speed-up

Whole updates of one program are timed as in the suite, with a fixed number of replicas per device (load "a device") and
with a fixed total (load "in all"). The parameters after 3 updates from the same seed, at `highest` matmul precision,
are compared with those on one device, by the largest |a - b| / |a| of any array (Euclidean norms). The exit status is 1
if it exceeds 1e-3.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from wdjax.experiments.benchmarks.measure import compiled, learner_program
from wdjax.experiments.benchmarks.rows import TRAINING, WORKLOADS, Workload
from wdjax.experiments.benchmarks.timing import Parser, machine, rates, write_json
from wdjax.train import TrainConfig, make_learner

ROWS = {name: row for name, row in WORKLOADS.items() if TRAINING in row.tiers and not row.members}
USUAL = ("tag_gridworld", "tag_continuous_105")
# At 400 replicas and 50 steps the parameters come to lie 2e-2 apart on two GPUs: probably some draws lie so near the
# border of two choices that rounding decides. Of so few draws as these none does.
COMPARED = {"tag_continuous_105": {"num_envs": 16, "rollout_length": 10}}
NEAR = 1e-3  # relative


def main() -> None:
    """Measures and compares the rows named on the command line, or the usual, and prints a table of each."""
    parser = Parser(__doc__, ROWS, USUAL)
    parser.add_argument(
        "--devices", nargs="+", type=int, default=[1, 2, 4], help="device counts; baseline first"
    )
    parser.add_argument(
        "--only", choices=("agreement", "speed"), help="run only one of the two parts"
    )
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parsed = parser.parse()
    numbers = [number for number in parsed.devices if number <= jax.device_count()]
    print(f"{machine()}, {jax.device_count()} devices", flush=True)
    results = []
    for name in (
        parsed.rows if parsed.only != "speed" else ()
    ):  # first: it is short, and says whether speed counts
        results += compare(name, numbers, parsed.small)
    for name in parsed.rows if parsed.only != "agreement" else ():
        results += measure(name, ROWS[name], numbers, parsed.small, parsed.repeats)
    write_json(parsed.json, machine(), results)
    raise SystemExit(any(result.get("difference", 0.0) > NEAR for result in results))


def measure(
    name: str, row: Workload, numbers: list[int], small: bool, repeats: int
) -> list[dict[str, Any]]:
    """Times a row on each number of devices, with its replicas for each and with its replicas in all, and prints it."""
    config = row.config(small)
    print(f"\n{name}: {learner_program(TRAINING, config, row.num_updates).words}")
    print("      load  devices     envs    env steps/s  x baseline   ms/update  spread")
    results, timed = [], {}
    for load in ("a device", "in all"):
        first = None
        for number in numbers:
            num_envs = config.num_envs * (number if load == "a device" else 1)
            if (num_envs, number) not in timed:  # one device has both loads in one
                mine = dataclasses.replace(config, num_envs=num_envs, devices=number)
                program = learner_program(TRAINING, mine, row.num_updates)
                call = compiled(program.function, program.start(), program.options)
                timed[num_envs, number] = rates(call, repeats, program.env_steps, program.passes)
            result = {
                "row": name,
                "load": load,
                "devices": number,
                "num_envs": num_envs,
                **timed[num_envs, number],
            }
            speed = result["env_steps_per_second"]
            first = first or speed
            print(
                f"{load:>10} {number:8d} {num_envs:8,d} {speed:14,.0f} {speed / first:12.2f} "
                f"{result['ms_per_pass']:10.2f} {result['spread']:7.0%}",
                flush=True,
            )
            results.append({**result, "times_the_first": speed / first})
    return results


def compare(name: str, numbers: list[int], small: bool) -> list[dict[str, Any]]:
    """Compares what a row has learned after 3 updates with what it has on the first number of devices; prints it."""
    config = dataclasses.replace(
        ROWS[name].config(small), **({} if small else COMPARED.get(name, {}))
    )
    first, *others = numbers
    learned, results = learn(dataclasses.replace(config, devices=first)), []
    for number in others:
        found = learn(dataclasses.replace(config, devices=number))
        pairs = zip(jax.tree.leaves(learned), jax.tree.leaves(found), strict=True)
        worst = max(float(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-30)) for a, b in pairs)
        print(
            f"{name}: parameters on {number} devices differ from those on {first} by {worst:.1e}",
            flush=True,
        )
        results.append({"row": name, "devices": number, "difference": worst})
    return results


def learn(config: TrainConfig) -> dict[str, Any]:
    """Returns every policy's parameters after 3 updates at `highest` matmul precision, as NumPy arrays."""
    learner = make_learner(config)
    with jax.default_matmul_precision("highest"):
        state, _ = learner.run(learner.init(jax.random.key(config.seed)), num_updates=3)
    return jax.device_get({name: policy.params for name, policy in state.policies.items()})


if __name__ == "__main__":
    main()
