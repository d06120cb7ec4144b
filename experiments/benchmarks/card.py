"""Self-test of a device: small checks of all parts, one line each, in under six minutes.

    python -m wdjax.experiments.benchmarks.card                    # exit status 1 if a check fails
    python -m wdjax.experiments.benchmarks.card --only sweep tag_  # checks with one of these words

Environments are stepped. Learners make one update and must agree with the CPU, for every preset and
for the options in LEARNERS, which no preset has. Runs are saved, resumed, evaluated, swept and
evolved. Fused kernels use different code paths on a GPU than on a CPU, where tests interpret them
or skip them. Most of the time is compilation, which several processes share.
"""

import dataclasses
import functools
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np

from wdjax.envs import list_envs, make
from wdjax.experiments.benchmarks.timing import Parser, machine
from wdjax.experiments.sweep import evolve, sweep
from wdjax.playing import uniform_action
from wdjax.rendering import render
from wdjax.train import (
    Learner,
    Player,
    TrainConfig,
    Trainer,
    cross_play,
    evaluate,
    list_presets,
    load_config,
    load_run,
    make_learner,
    save_episode,
)

Check = Callable[[Path], str]

# Tolerances, relative above 1 and absolute below.
METRICS = 0.05  # products are rounded, so that single actions differ
PHYSICS = 2e-3  # sines and roots are approximated differently

# Metrics of few transitions, or that amplify differences: a single other action changes them.
UNSTABLE = (
    "episode", "explained", "kl", "clip_fraction", "norm", "max", "min", "loss", "_std",
    "return_mean",
)  # fmt: skip
SIZE = {"num_envs": 16, "num_blocks": 4, "rollout_length": 16, "devices": 1}
OPTIONS = {
    "minibatches": 4,
    "batch_size": 32,
    "warmup": 32,
    "buffer_size": 1024,
    "updates_per_rollout": 2,
}
# name -> preset, changes of the run or of all its policies
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "memory": ("tag_small", {"network.recurrent_size": 16, "minibatches": 1}),
    "memory, separate trunks": ("cartpole_ppo",
        {"network.recurrent_size": 16, "network.shared_trunk": False}),
    "lstm": ("tag_small", {
        "network.recurrent_size": 16, "network.memory": "lstm", "minibatches": 1}),
    "deep sets": ("tag_small", {"network.encoder": "deep_sets"}),
    "deep sets, separate trunks": ("tag_small", {
        "network.encoder": "deep_sets", "network.encoder_options": {"pool": "mean"},
        "network.hidden_sizes": [32], "network.shared_trunk": False}),
    "deep sets, past selves": ("tag_small", {
        "network.encoder": "deep_sets", "past_selves": 2, "past_selves_every": 1,
        "past_selves_fraction": 0.5}),
    "attention": ("tag_small", {"network.encoder": "attention"}),
    "encoder and memory": ("tag_small", {
        "network.encoder": "deep_sets", "network.recurrent_size": 8, "minibatches": 1}),
    "bfloat16": ("tag_small", {"network.compute_dtype": "bfloat16"}),
    "separate trunks, streamed inputs": ("tag_small", {
        "network.hidden_sizes": [64, 64], "network.shared_trunk": False}),
    "deep": ("cartpole_ppo", {
        "network.hidden_sizes": [64, 32, 64], "network.activation": "gelu", "reset": "fixed"}),
    "all options": ("cartpole_ppo", {
        "normalize_observation": True, "normalize_reward": True, "normalize_advantage": True,
        "value_clip": 0.2,
        "target_kl": 0.01, "neg_pos_env_ratio": 1.0, "learning_rate": [[0, 1e-3], [10_000, 1e-4]],
        "reset": 5}),
    "squashed Gaussian": ("pendulum_ppo", {
        "action_distribution": "squashed_gaussian", "normalize_observation": True, "minibatches": 4,
        "network.recurrent_size": 8}),
    "twin critics": ("pendulum_ddpg", {
        "twin_critics": True, "policy_delay": 2, "n_step": 3, "target_noise": 0.2,
        "normalize_observation": True}),
    "past selves": ("tag_small",
        {"past_selves": 2, "past_selves_every": 1, "past_selves_fraction": 0.5}),
    "custom algorithm": ("tag_small", {
        "algorithm": "wdjax.experiments.examples.own_algorithm:AWR"}),
    "custom environment": ("cartpole_ppo", {
        "env": "wdjax.experiments.examples.own_environment:Lander"}),
    "all devices": ("tag_small", {"devices": 0}),
    "plain XLA": ("tag_small", {"kernels": False}),
    "unrolled steps": ("tag_continuous", {"rollout_unroll": 3}),
}  # fmt: skip


def main() -> None:
    """Run the checks, print each when it ends, and list the failed ones at the end."""
    parser = Parser(__doc__, timed=False)
    words = "only checks with one of these words in their names"
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[""], help=words)
    default = max(1, min(8, (os.cpu_count() or 2) // 2))
    parser.add_argument("--processes", type=int, default=default)
    parsed = parser.parse()
    chosen = [name for name in checks() if any(word in name for word in parsed.only)]
    if not chosen:
        parser.error(
            f"--only {' '.join(parsed.only)}: no check matches. Checks: {', '.join(checks())}"
        )
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the processes share the card
    start, failed = time.perf_counter(), []
    with ProcessPoolExecutor(parsed.processes, multiprocessing.get_context("spawn")) as processes:
        print(processes.submit(machine).result(), flush=True)
        for made in as_completed([processes.submit(make_check, name) for name in chosen]):
            name, passed, words = made.result()
            print(f"{'passed' if passed else 'FAILED'}  {name}, {words}", flush=True)
            failed += [] if passed else [name]
    seconds = time.perf_counter() - start
    print(f"{len(chosen) - len(failed)} of {len(chosen)} checks passed in {seconds:.0f} s")
    if failed:
        raise SystemExit("failed: " + ", ".join(sorted(failed)))


def make_check(name: str) -> tuple[str, bool, str]:
    """Run a check in a temporary folder. Return (name, whether it passed, result or traceback)."""
    start, passed = time.perf_counter(), True
    with tempfile.TemporaryDirectory() as folder:
        try:
            words = checks()[name](Path(folder))
        except Exception:  # the other checks continue
            passed, words = False, f"\n{traceback.format_exc()}"
    return name, passed, f"{time.perf_counter() - start:.1f} s: {words}"


def checks() -> dict[str, Check]:
    """Return every check by name, the longest first."""
    games = {f"game {name}": functools.partial(step, name) for name in list_envs()}
    presets = {f"learner {name}": functools.partial(learn, name, {}) for name in list_presets()}
    options = {
        f"learner {name}": functools.partial(learn, *case) for name, case in LEARNERS.items()
    }
    return RUNS | options | presets | games


# --- environments and learners, compared with the CPU ---


def step(name: str, folder: Path) -> str:
    """Step an environment with random actions, 8 replicas and 40 steps, here and on the CPU."""
    env, params = make(name)

    def play(key: jax.Array) -> Any:
        def one(state: Any, key: jax.Array) -> tuple:
            action = uniform_action(env.action_space(params), key)
            obs, state, *outcome = env.step(key, state, action, params)
            return state, (obs, outcome[:3])

        start_key, steps_key = jax.random.split(key)
        _, start = env.reset(start_key, params)
        return jax.lax.scan(one, start, jax.random.split(steps_key, 40))

    keys = jax.random.split(jax.random.key(0), 8)
    found, expected = here_and_on_cpu(*[lambda: jax.jit(jax.vmap(play))(keys)] * 2)
    render(env, jax.tree.map(lambda leaf: leaf[0], found[0]), params)
    return compare(found[1], expected[1], PHYSICS)


def learn(preset: str, changes: Mapping[str, Any], folder: Path) -> str:
    """Make two updates of a small copy, which must change all trained policies.

    Metrics of the first update must agree with plain XLA on the CPU.
    """
    config = small_copy(preset, changes)
    plain = make_learner(dataclasses.replace(config, kernels=False, devices=1))
    learner = make_learner(config)
    updates = (functools.partial(first_update, each) for each in (learner, plain))
    (state, metrics), (_, expected) = here_and_on_cpu(*updates)
    names = [name for name in expected if not any(word in name for word in UNSTABLE)]
    here, there = ({name: row[name] for name in names} for row in (metrics, expected))
    words = compare(here, there, METRICS)
    start, (last, metrics) = learner.init(jax.random.key(0)), learner.update(state)
    if int(metrics["bad_numbers"]):
        raise RuntimeError(f"bad numbers: {metrics}")
    for name, policy in config.policies.items():
        before, after = (
            jax.tree.leaves(jax.device_get(each.policies[name].params)) for each in (start, last)
        )
        learns = any(np.any(a != b) for a, b in zip(before, after, strict=True))
        # snapshots may have acted in all four blocks
        if policy.trainable and not policy.past_selves and not learns:
            raise RuntimeError(f"policy {name!r} did not change")
    return words


def first_update(learner: Learner) -> tuple[Any, Any]:
    """Return (state, metrics) after the first update of a run."""
    return learner.update(learner.init(jax.random.key(0)))


def small_copy(preset: str, changes: Mapping[str, Any]) -> TrainConfig:
    """Return a preset with few replicas, steps and transitions per gradient step.

    Args:
        preset: name of the preset.
        changes: fields of the run (dotted), or of all its policies.
    """
    small: dict[str, Any] = dict(SIZE)
    policies = load_config(preset).policies
    for name, policy in policies.items():
        options = {field: n for field, n in OPTIONS.items() if hasattr(policy.options, field)}
        small |= {f"policies.{name}.{field}": n for field, n in options.items()}
    for field, value in changes.items():
        of_run = field.split(".")[0] in TrainConfig.__dataclass_fields__
        owners = [""] if of_run else [f"policies.{name}." for name in policies]
        small |= {f"{owner}{field}": value for owner in owners}
    return load_config(preset, **small)


def here_and_on_cpu(here: Callable[[], Any], there: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the result of one function on this device and of another on the host's CPU."""
    found = jax.block_until_ready(here())
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)  # compile quickly for a single call
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return found, jax.device_get(there())
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def compare(found: Any, expected: Any, tolerance: float) -> str:
    """Compare two trees of numbers.

    Raises:
        AssertionError: if they differ by more than the tolerance.
    """
    numbers = (jax.tree.map(np.float64, jax.device_get(tree)) for tree in (found, expected))
    chex.assert_trees_all_close(*numbers, rtol=tolerance, atol=tolerance)
    return f"within {tolerance:g} of the CPU"


# --- runs, by the Trainer and several in one program ---


def train(
    folder: Path,
    name: str,
    updates: int,
    preset: str = "tag_small",
    resume: bool = False,
    **changes: Any,
) -> Path:
    """Train a small copy for some updates in a subfolder. Return the subfolder."""
    host = {
        "updates_per_chunk": 1,
        "checkpoint_every": 2,
        "eval_episodes": 8,
        "total_env_steps": updates * SIZE["num_envs"] * SIZE["rollout_length"],
    }
    config = small_copy(preset, {**host, **changes})
    Trainer(config, folder / name, resume=resume, quiet=True).train()
    return folder / name


def resume(preset: str, folder: Path) -> str:
    """Train a run without and with a break, which must end with the same bits."""
    # a schedule in fractions of the run would differ in its parts
    rate: dict[str, Any] = {"learning_rate": 1e-3}
    whole = train(folder, "whole", 4, preset, **rate)
    parts = train(folder, "parts", 2, preset, **rate)
    train(folder, parts.name, 4, preset, resume=True, **rate)
    require_equal(*(load_run(run)[1] for run in (whole, parts)))
    return "the same bits with and without a break"


def require_equal(*states: Any) -> None:
    """Raise AssertionError if a leaf of two states differs."""

    def bits(leaf: jax.Array) -> jax.Array:
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    chex.assert_trees_all_equal(*(jax.tree.map(bits, state) for state in states))


def play_runs(folder: Path) -> str:
    """Evaluate a run, play it against scripts and another run, save an episode in two formats."""
    run, other = (
        load_run(train(folder, name, 1, seed=seed)) for seed, name in enumerate(("one", "other"))
    )
    key = jax.random.key(0)
    alone = evaluate(*run, key, 8)
    opponents: list[Player | str] = [
        "random",
        "chase_nearest",
        "flee_nearest",
        Player("other", *other),
    ]
    cells = cross_play(*run, key, 8, opponents=opponents)
    for suffix in ("gif", "npz"):
        save_episode(*run, folder / f"episode.{suffix}")
    return f"{float(np.mean(alone.episode_return['tagger'])):.2f} alone, {len(cells)} cells"


RATE, RANGE = "policies.agent.learning_rate", "log:1e-4:1e-2"
POPULATIONS: dict[str, Callable[[TrainConfig, Path], list]] = {
    "sweep": lambda config, folder: sweep(config, {RATE: [1e-3, 1e-2]}, seeds=2, workdir=folder),
    "evolve": lambda config, folder: evolve(config, {RATE: RANGE}, 4, workdir=folder),
}


def train_population(kind: str, folder: Path) -> str:
    """Train several runs in one program."""
    host = {"total_env_steps": 4 * 256, "updates_per_chunk": 1, "checkpoint_every": 2}
    return f"{len(POPULATIONS[kind](small_copy('cartpole_ppo', host), folder / kind))} rows"


RUNS: dict[str, Check] = {
    "run tag_small": functools.partial(resume, "tag_small"),
    "run cartpole_ppo": functools.partial(resume, "cartpole_ppo"),
    "run pendulum_ddpg": functools.partial(resume, "pendulum_ddpg"),
    "run that plays": play_runs,
    **{f"runs by {kind}": functools.partial(train_population, kind) for kind in POPULATIONS},
}


if __name__ == "__main__":
    main()
