"""Stepping speed: env steps a second of random play with fresh resets, no learning, by environment.

    python -m wdjax.experiments.benchmarks.stepping                 # classic control, 10,000 and 1,000,000 replicas
    python -m wdjax.experiments.benchmarks.stepping pendulum --num-envs 10000 --paths play
    python -m wdjax.experiments.benchmarks.stepping --small                  # sizes for a CPU

Two paths: "step" is a scan of `VectorEnv.step`, "play" is `wdjax.playing.play` (a kernel on an NVIDIA GPU).
Timed is one program of NUM_STEPS steps of all replicas, after a warm-up, until its result is ready; the median of the
repeats counts. It returns a sum over every observation, reward and end flag: what nobody reads, XLA deletes. In the end
the kernel, where there is one, is compared with the scan of the same function on this device.

The floor of "step" is what the memory must carry: every step reads and writes the state of every replica, with the
running statistics of its episode, once. Arithmetic, random numbers, resets and launches come on top. "play" reads and
writes them once in NUM_STEPS steps; its floor is arithmetic.
"""

import argparse
import functools
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import wdjax
from wdjax.experiments.benchmarks.training import machine, median_seconds
from wdjax.playing import PlayState, Transition, play, play_step, start_play, uniform_action
from wdjax.vector import VectorEnv, VectorState

GAMES = ("cartpole", "acrobot", "mountain_car", "continuous_mountain_car", "pendulum")
PATHS = ("step", "play")
NUM_STEPS = 200
H200_BYTES_PER_SECOND = 4.28e12  # copying, as measured for shared/spec/targets.md


def main() -> None:
    """Measures the games named on the command line, or all five, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", default=GAMES, help=f"of {', '.join(wdjax.list_envs())}")
    parser.add_argument("--num-envs", type=int, nargs="+", default=None, help="replicas, one row for each number")
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=PATHS, help="ways to step")
    parser.add_argument("--small", action="store_true", help="1,000 replicas, for a CPU")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each row, at least 1")
    parser.add_argument("--json", help="also write the results to this file")
    arguments = parser.parse_args()
    sizes = arguments.num_envs or ([1_000] if arguments.small else [10_000, 1_000_000])
    if set(arguments.games) - set(wdjax.list_envs()) or arguments.repeats < 1 or min(sizes) < 1:
        parser.error(f"games must be of {', '.join(wdjax.list_envs())}, repeats and num-envs at least 1")
    print(machine(), flush=True)
    results = [
        measure(game, size, path, arguments.repeats)
        for size in sizes for game in arguments.games for path in arguments.paths
    ]  # fmt: skip
    if "play" in arguments.paths and jax.default_backend() == "gpu":
        for game in arguments.games:
            print(compare(game), flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf8") as file:
            json.dump({"machine": machine(), "rows": results}, file, indent=1)


def measure(game: str, num_envs: int, path: str, repeats: int) -> dict[str, Any]:
    """Compiles and times one row. Returns its numbers, which are also printed."""
    env, params = wdjax.make(game)
    if path == "step":
        replicas = wdjax.vectorize(env, num_envs)
        _, state = jax.jit(replicas.reset)(jax.random.key(0), params)
        traced = jax.jit(functools.partial(step_all, replicas)).lower(jax.random.key(1), state, params)
        operands: tuple = (jax.random.key(1), state, params)
        floor = 2e6 * num_bytes(state) / H200_BYTES_PER_SECOND
    else:
        state = jax.jit(functools.partial(start_play, env, params, num_envs=num_envs))(jax.random.key(0))
        traced = jax.jit(lambda state: play_all(env, params, state)).lower(state)  # params are known to the compiler
        operands, floor = (state,), 2e6 * num_bytes(state) / H200_BYTES_PER_SECOND / NUM_STEPS
    start = time.perf_counter()
    program = traced.compile()
    compile_seconds = time.perf_counter() - start
    median, spread = median_seconds(lambda: program(*operands), repeats)
    row = {
        "game": game, "path": path, "num_envs": num_envs, "num_steps": NUM_STEPS,
        "env_steps_per_second": num_envs * NUM_STEPS / median, "us_per_step": 1e6 * median / NUM_STEPS,
        "floor_us_per_step_h200": floor, "spread": spread, "compile_seconds": compile_seconds,
    }  # fmt: skip
    print(
        f"{game}, {num_envs:,} envs, {path}: {row['env_steps_per_second'] / 1e6:,.0f} M env steps/s, "
        f"{row['us_per_step']:.2f} us a step (spread {spread:.0%} of {repeats} runs), compile {compile_seconds:.1f} s; "
        f"memory floor on an H200 {floor:.3f} us",
        flush=True,
    )
    return row


def step_all(replicas: VectorEnv, key: jax.Array, state: VectorState, params: Any) -> jax.Array:
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


def play_all(env: wdjax.Env, params: Any, state: PlayState) -> jax.Array:
    """The same by `wdjax.playing.play`: sums of each replica, then of all."""

    def add(total: jax.Array, step: Transition) -> tuple[jax.Array, None]:
        for leaf in jax.tree.leaves((step.next_obs, step.reward, step.terminated, step.truncated)):
            total += jnp.sum(leaf, dtype=jnp.float32)
        return total, None

    zeros = jnp.zeros(state.time.shape)
    return play(env, params, random_policy(env, params), state, NUM_STEPS, add, zeros)[1].sum()


def random_policy(env: wdjax.Env, params: Any) -> Any:
    """Returns a policy that draws uniformly, whatever it sees."""
    return lambda key, obs: uniform_action(env.action_space(params), key)


def compare(game: str, num_envs: int = 10_000, num_steps: int = 50) -> str:
    """Plays by the kernel and by a scan from the same state. Returns how far they agree, in words.

    Raises:
        RuntimeError: where an action differs, or more than a hundredth of the replicas, in what is counted.
    """
    env, params = wdjax.make(game)
    policy = random_policy(env, params)
    start = jax.jit(functools.partial(start_play, env, params, num_envs=num_envs))(jax.random.key(0))

    def record(memory: None, step: Transition) -> tuple[None, tuple]:
        return None, (step.action, step.next_obs, step.over, step.episode_length)

    def scan(state: PlayState, _: None) -> tuple[PlayState, tuple]:
        state, step = jax.vmap(lambda state: play_step(env, params, policy, state))(state)
        return state, record(None, step)[1]

    of_kernel = jax.jit(lambda state: play(env, params, policy, state, num_steps, record)[2])(start)
    of_scan = jax.jit(lambda state: jax.lax.scan(scan, state, length=num_steps)[1])(start)
    (action, obs, over, length), (same_action, same_obs, same_over, same_length) = jax.device_get((of_kernel, of_scan))
    agree = ((over == same_over) & (length == same_length)).all(axis=0)
    difference = np.abs(obs - same_obs)[:, agree].max()
    text = (
        f"{game}, {num_envs:,} envs, {num_steps} steps, kernel against scan: actions differ by "
        f"{np.abs(action - same_action).max():.1e} at most, ends agree in {agree.mean():.2%} of the replicas "
        f"({over.sum():,} ends), there observations differ by {difference:.1e} at most"
    )
    if np.abs(action - same_action).max() > 1e-6 or agree.mean() < 0.99:
        raise RuntimeError(text)
    return text


def num_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays of a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


if __name__ == "__main__":
    main()
