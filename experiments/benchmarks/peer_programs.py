"""What `peers` runs by turns: a process of one library builds programs when it is asked for them, and times calls.

    python -m wdjax.experiments.benchmarks.peer_programs [PATH]     # started by peers.py

It reads lines of JSON, [row, program, small], and answers each with one: a program that is new is built and called once
to warm up, one that is there is called and timed. Programs of another row are forgotten.
"""

import dataclasses
import functools
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from wdjax.experiments.benchmarks import measure, purejaxrl
from wdjax.experiments.benchmarks.rows import STEPPING, TRAINING, WORKLOADS
from wdjax.experiments.benchmarks.warp_drive import UPDATES, make_trainer, train, words

NUM_STEPS = 200  # of random play
# Row -> (replicas, updates, seeds side by side; 0: one without vmap), at full size and at that for a CPU. Networks are
# drawn in the time that counts, 256 of them in that of some 65 updates.
PPO = {
    "cartpole_ppo": ((10_000, 4, 0), (200, 4, 0)),
    "cartpole_ppo_256_seeds": ((4, 200, 256), (4, 20, 8)),
    "cartpole_ppo_one_seed": ((4, 200, 0), (4, 100, 0)),
}


@dataclasses.dataclass(frozen=True)
class Built:
    """A program that is ready."""

    words: str
    """what it is, and by which versions"""
    env_steps: int
    """replica steps of a call, of all seeds"""
    call: Callable[[], None]
    """runs it until its results are there"""


Build = Callable[[Path | None, bool], Built]  # of (peers' path, small)


def ours(workload: str, tier: str, path: Path | None, small: bool) -> Built:
    """A row of the suite, as the suite times it."""
    program = measure.make_program(WORKLOADS[workload], tier, small)
    call = measure.compiled(
        program.function, jax.block_until_ready(jax.jit(program.start)()), program.options
    )
    return Built(program.words, program.env_steps, waiting(call))


def gymnax(workload: str, path: Path | None, small: bool) -> Built:
    """Random play of so many replicas, as a row of stepping has it; the sum of all that came out is returned."""
    purejaxrl.use_folder(path, "gymnax")
    import gymnax

    config = WORKLOADS[workload].config(small)
    env, params = gymnax.make(purejaxrl.GAMES[config.env])
    num_envs, space = config.num_envs, env.action_space(params)

    def step(action_key: jax.Array, step_key: jax.Array, state: Any) -> tuple:
        action = jax.vmap(space.sample)(jax.random.split(action_key, num_envs))
        return jax.vmap(env.step, (0, 0, 0, None))(
            jax.random.split(step_key, num_envs), state, action, params
        )

    reset = jax.vmap(lambda key: env.reset(key, params)[1])
    state = jax.jit(lambda key: reset(jax.random.split(key, num_envs)))(jax.random.key(0))
    play = functools.partial(measure.sum_of_steps, step, num_envs, NUM_STEPS)
    words = f"gymnax {importlib.metadata.version('gymnax')}, {NUM_STEPS} steps, random actions"
    return Built(
        words, num_envs * NUM_STEPS, waiting(measure.compiled(play, (jax.random.key(1), state)))
    )


def whole_ppo(row: str, theirs: bool, path: Path | None, small: bool) -> Built:
    """PPO from a key to the trained state with PureJaxRL's numbers: by wdjax, or by its ppo.py."""
    num_envs, num_updates, seeds = PPO[row][small]
    config = purejaxrl.own_numbers(num_envs, num_updates)
    words = f"{max(seeds, 1)} seeds, {num_envs} envs x 128, {num_updates} updates of 4 x 4, 64-64, values clipped"
    if theirs:
        words = f"{purejaxrl.load(path)[1]}, metrics of every env step"
    run = purejaxrl.their_run(path, config, seeds) if theirs else purejaxrl.our_run(config, seeds)
    env_steps = num_updates * config.env_steps_per_update * max(seeds, 1)
    return Built(words, env_steps, waiting(run.call))


def warp_drive(name: str, backend: str, path: Path | None, small: bool) -> Built:
    """WarpDrive trains: a few updates of its own configuration, at full size only."""
    purejaxrl.use_folder(path, "warp_drive")
    trainer, num_updates = make_trainer(name, backend), UPDATES[name]
    env_steps = num_updates * trainer.training_batch_size
    return Built(words(backend), env_steps, functools.partial(train, trainer, num_updates))


def waiting(call: Callable[[], Any]) -> Callable[[], None]:
    """Returns a function that calls and waits for the results, and drops them."""

    def run() -> None:
        jax.block_until_ready(call())

    return run


def serve(path: Path | None) -> None:
    """Answers the requests on standard input; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    built: dict[tuple[str, str], Built] = {}
    for line in sys.stdin:
        row, name, small = json.loads(line)
        answer = (
            timed(built[row, name])
            if (row, name) in built
            else first(built, row, name, path, small)
        )
        print(json.dumps(answer), file=answers, flush=True)


def first(built: dict, row: str, name: str, path: Path | None, small: bool) -> dict[str, Any]:
    """Builds a program and calls it once. Returns what it is, or `error`: why there is none, in words."""
    for key in [key for key in built if key[0] != row]:
        del built[key]
    try:
        program = ROWS[row][name](path, small)
        program.call()
    except Exception as error:  # whatever a peer may raise: the row says so, and the others go on
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    built[row, name] = program
    return {"words": program.words, "env_steps": program.env_steps}


def timed(program: Built) -> dict[str, float]:
    """Returns the seconds of a call, and those of all its threads' work."""
    start, start_work = time.perf_counter(), time.process_time()
    program.call()
    return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - start_work}


WARP_DRIVE = {"WarpDrive CUDA": "pycuda", "WarpDrive numba": "numba"}
ROWS: dict[str, dict[str, Build]] = {
    name: {
        "wdjax": functools.partial(ours, name, TRAINING),
        **{
            who: functools.partial(warp_drive, name, backend) for who, backend in WARP_DRIVE.items()
        },
    }
    for name in ("tag_gridworld", "tag_continuous")
}
ROWS |= {
    name: {
        "wdjax": functools.partial(whole_ppo, name, False),
        "PureJaxRL": functools.partial(whole_ppo, name, True),
    }
    for name in PPO
}
ROWS |= {
    f"{game}_{size}": {
        "wdjax": functools.partial(ours, f"{game}_{size}", STEPPING),
        "wdjax.play": functools.partial(ours, f"{game}_{size}_play", STEPPING),
        "gymnax": functools.partial(gymnax, f"{game}_{size}"),
    }
    for size in ("10k", "1m")
    for game in purejaxrl.GAMES
}

if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)
    serve(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
