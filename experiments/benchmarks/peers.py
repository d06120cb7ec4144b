"""wdjax beside its peers on this machine, taking turns in one run: gymnax's stepping, and a PPO as PureJaxRL does it.

    python -m wdjax.experiments.benchmarks.peers                       # all rows (pip install gymnax six)
    python -m wdjax.experiments.benchmarks.peers cartpole ppo --repeats 15 --json peers.json

Stepping: a scan of 200 steps of 1,000 and of 10,000 replicas, actions drawn at random, resets as each library makes
them, the sum of every observation, reward and end flag returned. Training: cartpole, 4 replicas x 128 steps, PPO of 4
epochs x 4 minibatches, actor and critic 64-64 tanh; the peer is our own writing (purejaxrl_style.py) on gymnax's
cartpole. Both programs are compiled first; then they run in turn, A B A B. Rates are of the median times. "ratio" is
the median over the turns of the peer's time divided by that of wdjax: above 1, wdjax is faster. "of CPU time" is the
same of the seconds of work of all threads, which other work on the machine disturbs less.
"""

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from wdjax.checks import require, require_known
from wdjax.experiments.benchmarks.programs import row_sums, stepping_program, sum_of, training_program
from wdjax.experiments.benchmarks.timing import machine, short
from wdjax.train.load import load_config
from wdjax.train.state.registry import read_config

GAMES = {
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "mountain_car": "MountainCar-v0",
    "continuous_mountain_car": "MountainCarContinuous-v0",
    "pendulum": "Pendulum-v1",
}
PPO = "ppo"
NAMES = (*GAMES, PPO)
NUM_STEPS = 200


def main(arguments: list[str] | None = None) -> None:
    """Measures the rows named on the command line, or all, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(NAMES)}; none: all")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1_000, 10_000], help="replicas of stepping")
    parser.add_argument("--updates", type=int, default=25, help="updates in one timed program of training")
    parser.add_argument("--repeats", type=int, default=15, help="turns, at least 1")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parsed = parser.parse_args(arguments)
    try:
        for name in parsed.rows:
            require_known("row", name, NAMES)
        for field in ("repeats", "updates"):
            require(getattr(parsed, field) >= 1, f"--{field}", getattr(parsed, field), "at least 1")
        require(importlib.util.find_spec("gymnax"), "gymnax", None, "installed: pip install gymnax six")
    except ValueError as error:
        parser.error(str(error))
    jax.config.update("jax_enable_compilation_cache", False)
    words = f"{machine()}, gymnax {importlib.metadata.version('gymnax')}, {os.cpu_count()} CPU cores"
    print(words, flush=True)
    results = []
    for name in parsed.rows or NAMES:
        pairs = [ppo_pair(parsed.updates)] if name == PPO else [stepping_pair(name, n) for n in parsed.num_envs]
        results += [measure(name, *pair, parsed.repeats) for pair in pairs]
    Console(width=160).print(table(results))
    if parsed.json is not None:
        parsed.json.write_text(json.dumps({"machine": words, "rows": results}, indent=1), encoding="utf8")


def measure(name: str, words: str, env_steps: int, ours: Callable, theirs: Callable, repeats: int) -> dict[str, Any]:
    """Times two programs in turn. Returns the numbers of the row, which are also printed."""
    wall: dict[str, list[float]] = {"wdjax": [], "peer": []}
    work: dict[str, list[float]] = {"wdjax": [], "peer": []}
    for turn in range(repeats + 1):
        for who, program in (("wdjax", ours), ("peer", theirs)):
            start, start_work = time.perf_counter(), time.process_time()
            jax.block_until_ready(program())
            if turn:  # the first is the warm-up
                wall[who].append(time.perf_counter() - start)
                work[who].append(time.process_time() - start_work)
    row = {
        "row": name, "workload": words, "ratio": median_ratio(wall), "ratio_of_cpu_time": median_ratio(work),
        **{f"{who}_env_steps_per_second": env_steps / statistics.median(times) for who, times in wall.items()},
        "seconds": wall, "cpu_seconds": work,
    }  # fmt: skip
    print(f"{words}: {row['ratio']:.2f} times the peer ({row['ratio_of_cpu_time']:.2f} of CPU time)", flush=True)
    return row


def median_ratio(seconds: dict[str, list[float]]) -> float:
    """Returns the median over turns of the peer's time divided by that of wdjax."""
    return statistics.median(peer / own for own, peer in zip(seconds["wdjax"], seconds["peer"], strict=True))


def stepping_pair(game: str, num_envs: int) -> tuple[str, int, Callable, Callable]:
    """Returns (words, env steps of a call, wdjax's program, gymnax's program), both compiled."""
    config = read_config({"policies": {"agent": {}}, "env": game, "num_envs": num_envs})
    program = stepping_program(config, NUM_STEPS)
    ours = compiled(program.function, *jax.jit(program.start)())
    import gymnax

    env, params = gymnax.make(GAMES[game])
    reset = jax.vmap(env.reset, (0, None))
    state = jax.jit(lambda key: reset(jax.random.split(key, num_envs), params)[1])(jax.random.key(0))
    theirs = compiled(functools.partial(gymnax_play, env, params, num_envs), jax.random.key(1), state)
    return f"stepping {game}, {num_envs:,} envs", num_envs * NUM_STEPS, ours, theirs


def gymnax_play(env: Any, params: Any, num_envs: int, key: jax.Array, state: Any) -> jax.Array:
    """`programs.play` with gymnax's functions. Returns the sum of all that came out, () float32."""
    space, vector_step = env.action_space(params), jax.vmap(env.step, (0, 0, 0, None))

    def step(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
        state, seen, earned = carry
        action_key, step_key = jax.random.split(key)
        action = jax.vmap(space.sample)(jax.random.split(action_key, num_envs))
        keys = jax.random.split(step_key, num_envs)
        obs, state, reward, terminated, truncated, _ = vector_step(keys, state, action, params)
        return (state, seen + row_sums(obs), earned + row_sums((reward, terminated, truncated))), None

    nothing = jnp.zeros(num_envs)
    return sum_of(jax.lax.scan(step, (state, nothing, nothing), jax.random.split(key, NUM_STEPS))[0][1:])


def ppo_pair(num_updates: int) -> tuple[str, int, Callable, Callable]:
    """Returns (words, env steps of a call, wdjax's program, the peer's program), both compiled."""
    from wdjax.experiments.benchmarks import purejaxrl_style

    program = training_program(load_config("cartpole_ppo", num_envs=4, rollout_length=128), num_updates, members=0)
    ours = compiled(program.function, *jax.jit(program.start)())
    runner = jax.jit(purejaxrl_style.init)(jax.random.key(0))
    theirs = compiled(functools.partial(purejaxrl_style.run, num_updates), runner)
    return f"training {program.words}", program.env_steps, ours, theirs


def compiled(function: Callable, *arguments: Any) -> Callable:
    """Returns a function of nothing that runs the compiled program on these arguments."""
    return functools.partial(jax.jit(function).lower(*arguments).compile(), *arguments)


def table(results: list[dict[str, Any]]) -> Table:
    """Returns the measured rows as a table."""
    shown = Table()
    for column in ("row", "wdjax, env steps/s", "peer, env steps/s", "ratio", "of CPU time"):
        shown.add_column(column, justify="left" if column == "row" else "right")
    for row in results:
        rates = (short(row[f"{who}_env_steps_per_second"]) for who in ("wdjax", "peer"))
        shown.add_row(row["workload"], *rates, *(f"{row[part]:.2f}" for part in ("ratio", "ratio_of_cpu_time")))
    return shown


if __name__ == "__main__":
    main()
