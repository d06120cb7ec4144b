"""Programs of wdjax and of its baselines, each built and called in its own process by `peers`."""

import dataclasses
import functools
import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from wdjax.experiments.benchmarks import measure, purejaxrl
from wdjax.experiments.benchmarks.measure import Program
from wdjax.experiments.benchmarks.rows import STEPPING, TRAINING, WORKLOADS
from wdjax.experiments.benchmarks.warp_drive import UPDATES, make_trainer, train, words
from wdjax.train import make_learner

NUM_STEPS = 200  # of random play
GYMNAX = {
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "mountain_car": "MountainCar-v0",
    "continuous_mountain_car": "MountainCarContinuous-v0",
    "pendulum": "Pendulum-v1",
}
# Row -> (replicas, updates, seeds under vmap; 0: one seed without vmap), at full and at small size.
# Initialising 256 networks counts and takes as long as about 65 updates.
PPO = {
    "cartpole_ppo": ((10_000, 4, 0), (200, 4, 0)),
    "cartpole_ppo_256_seeds": ((4, 200, 256), (4, 20, 8)),
    "cartpole_ppo_one_seed": ((4, 200, 0), (4, 100, 0)),
}


@dataclasses.dataclass(frozen=True)
class Built:
    """A program that is ready to be called."""

    words: str
    """workload and versions"""
    env_steps: int
    """env steps of one call, of all seeds"""
    call: Callable[[], Any]
    """runs the program until its results are ready"""


Build = Callable[[Path | None, bool], Built]  # build(peers' path, small)


def ready(program: Program) -> Built:
    """Compile a program and compute its arguments."""
    arguments = jax.block_until_ready(jax.jit(program.start)())
    compiled = measure.compile_program(program)
    call = lambda: jax.block_until_ready(compiled(*arguments))  # noqa: E731
    return Built(program.words, program.env_steps, call)


def suite_row(workload: str, tier: str, path: Path | None, small: bool) -> Built:
    """Build a row of the suite, as the suite times it."""
    return ready(measure.make_program(WORKLOADS[workload], tier, small))


def gymnax(workload: str, path: Path | None, small: bool) -> Built:
    """Build random play in gymnax with the replicas of a stepping row; it returns sums."""
    purejaxrl.use_folder(path, "gymnax")
    import gymnax

    config = WORKLOADS[workload].config(small)
    env, params = gymnax.make(GYMNAX[config.env])
    num_envs, space = config.num_envs, env.action_space(params)

    def step(action_key: jax.Array, step_key: jax.Array, state: Any) -> tuple:
        action = jax.vmap(space.sample)(jax.random.split(action_key, num_envs))
        keys = jax.random.split(step_key, num_envs)
        return jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, params)

    def start() -> tuple:
        keys = jax.random.split(jax.random.key(0), num_envs)
        return jax.random.key(1), jax.vmap(lambda key: env.reset(key, params)[1])(keys)

    play = functools.partial(measure.sum_of_steps, step, num_envs, NUM_STEPS)
    words = f"gymnax {importlib.metadata.version('gymnax')}, {NUM_STEPS} steps, random actions"
    return ready(Program(play, start, words, 1, num_envs * NUM_STEPS, NUM_STEPS))


def whole_ppo(row: str, theirs: bool, path: Path | None, small: bool) -> Built:
    """Build PPO from a key to the trained state, by PureJaxRL or by wdjax with its settings."""
    num_envs, num_updates, seeds = PPO[row][small]
    options, key = {}, jax.random.key(0)
    if theirs:
        module, words = purejaxrl.load(path)
        train = module.make_train(purejaxrl.settings_of(num_envs, num_updates))
        words, key = f"{words}, metrics of every env step", jax.random.PRNGKey(0)
    else:
        learner = make_learner(purejaxrl.config_of(num_envs, num_updates))
        train = lambda key: learner.run(learner.init(key), num_updates=num_updates)  # noqa: E731
        sizes = f"{max(seeds, 1)} seeds, {num_envs} envs x 128, {num_updates} updates of 4 x 4"
        words = f"{sizes}, 64-64, values clipped"
        options = {} if seeds else measure.compiler_options(learner.setup)
    start = lambda: (jax.random.split(key, seeds) if seeds else key,)  # noqa: E731
    env_steps = num_updates * num_envs * purejaxrl.STEPS * max(seeds, 1)
    function = jax.vmap(train) if seeds else train
    return ready(Program(function, start, words, 1, env_steps, num_updates, options))


def warp_drive(name: str, backend: str, path: Path | None, small: bool) -> Built:
    """Build WarpDrive's own configuration; a call trains a few updates, at full size only."""
    purejaxrl.use_folder(path, "warp_drive")
    trainer, num_updates = make_trainer(name, backend), UPDATES[name]
    env_steps = num_updates * trainer.training_batch_size
    return Built(words(backend), env_steps, functools.partial(train, trainer, num_updates))


WARP_DRIVE = {"WarpDrive CUDA": "pycuda", "WarpDrive numba": "numba"}
ROWS: dict[str, dict[str, Build]] = {
    name: {
        "wdjax": functools.partial(suite_row, name, TRAINING),
        **{peer: functools.partial(warp_drive, name, by) for peer, by in WARP_DRIVE.items()},
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
    f"{env}_{size}": {
        "wdjax": functools.partial(suite_row, f"{env}_{size}", STEPPING),
        "wdjax.play": functools.partial(suite_row, f"{env}_{size}_play", STEPPING),
        "gymnax": functools.partial(gymnax, f"{env}_{size}"),
    }
    for size in ("10k", "1m")
    for env in GYMNAX
}


_BUILT: list[Built] = []  # the program of this process


def build(row: str, name: str, path: Path | None, small: bool) -> dict[str, Any]:
    """Build a program and call it once. Return its workload, or `error` if that fails."""
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        program = ROWS[row][name](path, small)
        program.call()
    except Exception as error:  # a baseline may raise anything; the other programs continue
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    _BUILT[:] = [program]
    return {"words": program.words, "env_steps": program.env_steps}


def call() -> dict[str, float]:
    """Call the program of this process. Return its seconds and the CPU seconds of all threads."""
    start, cpu_start = time.perf_counter(), time.process_time()
    _BUILT[0].call()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
    }
