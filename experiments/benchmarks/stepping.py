"""Stepping speed: env steps a second of random play with fresh resets, no learning, by environment.

    python -m wdjax.experiments.benchmarks.stepping                 # classic control, 10,000 and 1,000,000 replicas
    python -m wdjax.experiments.benchmarks.stepping pendulum --num-envs 10000
    python -m wdjax.experiments.benchmarks.stepping --small                  # sizes for a CPU

Timed is one program, a scan of NUM_STEPS steps of all replicas, after a warm-up, until its result is ready; the median
of the repeats counts. It returns a sum over every observation, reward and end flag: what nobody reads, XLA deletes.

The floor is what the memory must carry: every step reads and writes the state of every replica, with the running
statistics of its episode, once. Arithmetic, random numbers, resets and launches come on top.
"""

import argparse
import functools
import json
from typing import Any

import jax
import jax.numpy as jnp

import wdjax
from wdjax.experiments.benchmarks.training import machine, median_seconds
from wdjax.vector import VectorEnv, VectorState

GAMES = ("cartpole", "acrobot", "mountain_car", "continuous_mountain_car", "pendulum")
NUM_STEPS = 200
H200_BYTES_PER_SECOND = 4.28e12  # copying, as measured for shared/spec/targets.md


def main() -> None:
    """Measures the games named on the command line, or all five, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", default=GAMES, help=f"of {', '.join(wdjax.list_envs())}")
    parser.add_argument("--num-envs", type=int, nargs="+", default=None, help="replicas, one row for each number")
    parser.add_argument("--small", action="store_true", help="1,000 replicas, for a CPU")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each row, at least 1")
    parser.add_argument("--json", help="also write the results to this file")
    arguments = parser.parse_args()
    sizes = arguments.num_envs or ([1_000] if arguments.small else [10_000, 1_000_000])
    if set(arguments.games) - set(wdjax.list_envs()) or arguments.repeats < 1 or min(sizes) < 1:
        parser.error(f"games must be of {', '.join(wdjax.list_envs())}, repeats and num-envs at least 1")
    print(machine(), flush=True)
    results = [measure(game, size, arguments.repeats) for size in sizes for game in arguments.games]
    if arguments.json:
        with open(arguments.json, "w", encoding="utf8") as file:
            json.dump({"machine": machine(), "rows": results}, file, indent=1)


def measure(game: str, num_envs: int, repeats: int) -> dict[str, Any]:
    """Compiles and times one row. Returns its numbers, which are also printed."""
    env, params = wdjax.make(game)
    replicas = wdjax.vectorize(env, num_envs)
    _, state = jax.jit(replicas.reset)(jax.random.key(0), params)
    program = jax.jit(functools.partial(play, replicas)).lower(jax.random.key(1), state, params).compile()
    median, spread = median_seconds(lambda: program(jax.random.key(1), state, params), repeats)
    floor = 2 * num_bytes(state) / H200_BYTES_PER_SECOND
    row = {
        "game": game, "num_envs": num_envs, "num_steps": NUM_STEPS,
        "env_steps_per_second": num_envs * NUM_STEPS / median, "us_per_step": 1e6 * median / NUM_STEPS,
        "floor_us_per_step_h200": 1e6 * floor, "spread": spread,
    }  # fmt: skip
    print(
        f"{game}, {num_envs:,} envs: {row['env_steps_per_second'] / 1e6:,.0f} M env steps/s, "
        f"{row['us_per_step']:.1f} us a step (spread {spread:.0%} of {repeats} runs); "
        f"memory floor on an H200 {row['floor_us_per_step_h200']:.2f} us",
        flush=True,
    )
    return row


def play(replicas: VectorEnv, key: jax.Array, state: VectorState, params: Any) -> jax.Array:
    """Steps all replicas NUM_STEPS times with actions drawn uniformly. Returns the sum of all that came out, ()."""
    space = replicas.env.action_space(params)

    def step(carry: tuple[VectorState, jax.Array], key: jax.Array) -> tuple[tuple[VectorState, jax.Array], None]:
        state, total = carry
        action_key, step_key = jax.random.split(key)
        action = space.batch(replicas.num_envs).sample(action_key)
        obs, state, reward, terminated, truncated, _ = replicas.step(step_key, state, action, params)
        for leaf in jax.tree.leaves((obs, reward, terminated, truncated)):
            total += jnp.sum(leaf, dtype=jnp.float32)
        return (state, total), None

    return jax.lax.scan(step, (state, jnp.float32(0)), jax.random.split(key, NUM_STEPS))[0][1]


def num_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays of a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


if __name__ == "__main__":
    main()
