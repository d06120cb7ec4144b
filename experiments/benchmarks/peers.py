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

import functools
import importlib.metadata
import importlib.util
import operator
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
from rich.console import Console

from wdjax.experiments.benchmarks.measure import compiled, learner_program, stepping_program, sum_of_steps
from wdjax.experiments.benchmarks.rows import TRAINING
from wdjax.experiments.benchmarks.timing import Parser, machine, make_table, short, write_json
from wdjax.train.load import load_config
from wdjax.train.state.registry import read_config

GAMES = {
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "mountain_car": "MountainCar-v0",
    "continuous_mountain_car": "MountainCarContinuous-v0",
    "pendulum": "Pendulum-v1",
}
NAMES = (*GAMES, "ppo")
NUM_STEPS = 200


def main(arguments: list[str] | None = None) -> None:
    """Measures the rows named on the command line, or all, and prints a table."""
    parser = Parser(__doc__, NAMES, repeats=15)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1_000, 10_000], help="replicas of stepping")
    parser.add_argument("--updates", type=int, default=25, help="updates in one timed program of training")
    parsed = parser.parse(arguments)
    if not importlib.util.find_spec("gymnax"):
        parser.error("gymnax = None: must be installed: pip install gymnax six")
    jax.config.update("jax_enable_compilation_cache", False)
    words = f"{machine()}, gymnax {importlib.metadata.version('gymnax')}, {os.cpu_count()} CPU cores"
    print(words, flush=True)
    results = []
    for name in parsed.rows:
        pairs = [ppo_pair(parsed.updates)] if name == "ppo" else [stepping_pair(name, n) for n in parsed.num_envs]
        results += [measure(name, *pair, parsed.repeats) for pair in pairs]
    columns = ("row", "wdjax, env steps/s", "peer, env steps/s", "ratio", "of CPU time")
    rows = (
        (row["workload"], *(short(row[f"{who}_env_steps_per_second"]) for who in ("wdjax", "peer")),
         f"{row['ratio']:.2f}", f"{row['ratio_of_cpu_time']:.2f}")
        for row in results
    )  # fmt: skip
    Console(width=180).print(make_table(columns, rows))
    write_json(parsed.json, words, results)


def measure(name: str, words: str, env_steps: int, ours: Callable, theirs: Callable, repeats: int) -> dict[str, Any]:
    """Times two programs in turn. Returns the numbers of the row, which are also printed."""
    programs = {"wdjax": ours, "peer": theirs}
    wall, work = ({who: [] for who in programs} for _ in range(2))
    for turn in range(repeats + 1):
        for who, program in programs.items():
            start, start_work = time.perf_counter(), time.process_time()
            jax.block_until_ready(program())
            if turn:  # the first is the warm-up
                wall[who].append(time.perf_counter() - start)
                work[who].append(time.process_time() - start_work)
    ratio, of_work = (statistics.median(map(operator.truediv, times["peer"], times["wdjax"])) for times in (wall, work))
    print(f"{words}: {ratio:.2f} times the peer ({of_work:.2f} of CPU time)", flush=True)
    speeds = {f"{who}_env_steps_per_second": env_steps / statistics.median(times) for who, times in wall.items()}
    return {
        "row": name, "workload": words, "ratio": ratio, "ratio_of_cpu_time": of_work, **speeds,
        "seconds": wall, "cpu_seconds": work,
    }  # fmt: skip


def stepping_pair(game: str, num_envs: int) -> tuple[str, int, Callable, Callable]:
    """Returns (words, env steps of a call, wdjax's program, gymnax's program), both compiled."""
    config = read_config({"policies": {"agent": {}}, "env": game, "num_envs": num_envs})
    program = stepping_program(config, NUM_STEPS)
    ours = compiled(program.function, jax.jit(program.start)())
    import gymnax

    env, params = gymnax.make(GAMES[game])
    reset = jax.vmap(env.reset, (0, None))
    state = jax.jit(lambda key: reset(jax.random.split(key, num_envs), params)[1])(jax.random.key(0))
    theirs = compiled(functools.partial(gymnax_play, env, params, num_envs), (jax.random.key(1), state))
    return f"stepping {game}, {num_envs:,} envs", num_envs * NUM_STEPS, ours, theirs


def gymnax_play(env: Any, params: Any, num_envs: int, key: jax.Array, state: Any) -> jax.Array:
    """`step_at_random` with gymnax's functions. Returns the sum of all that came out, () float32."""
    space, vector_step = env.action_space(params), jax.vmap(env.step, (0, 0, 0, None))

    def step(action_key: jax.Array, step_key: jax.Array, state: Any) -> tuple:
        action = jax.vmap(space.sample)(jax.random.split(action_key, num_envs))
        return vector_step(jax.random.split(step_key, num_envs), state, action, params)

    return sum_of_steps(step, num_envs, NUM_STEPS, key, state)


def ppo_pair(num_updates: int) -> tuple[str, int, Callable, Callable]:
    """Returns (words, env steps of a call, wdjax's program, the peer's program), both compiled."""
    from wdjax.experiments.benchmarks import purejaxrl_style

    program = learner_program(TRAINING, load_config("cartpole_ppo", num_envs=4, rollout_length=128), num_updates)
    ours = compiled(program.function, program.start(), program.options)
    runner = jax.jit(purejaxrl_style.init)(jax.random.key(0))
    theirs = compiled(functools.partial(purejaxrl_style.run, num_updates), (runner,))
    return f"training {program.words}", program.env_steps, ours, theirs


if __name__ == "__main__":
    main()
