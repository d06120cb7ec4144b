"""Self-test of a device: small checks of all parts, one line each, in under six minutes.

    python -m wdjax.experiments.benchmarks.card                    # exit status 1 if a check fails
    python -m wdjax.experiments.benchmarks.card --only sweep tag_  # checks with one of these words in their names
    python -m wdjax.experiments.benchmarks.card --only override    # custom functions, with and without kernels

Environments are stepped. Learners make one update and must agree with the CPU, for every preset and for the options in
LEARNERS, which no preset has. Runs are saved, resumed, evaluated, used as initial policies, swept and evolved. Fused
kernels use different code paths on a GPU than on a CPU, where tests interpret them or skip them. Most of the time is
compilation, which several processes share.
"""

import argparse
import dataclasses
import functools
import importlib.util
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wdjax.envs import list_envs, make
from wdjax.experiments.benchmarks.overrides import OVERRIDES, compare_override
from wdjax.experiments.sweep import evolve, load_member, search, sweep
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
    read_metrics,
    save_episode,
)

Check = Callable[[Path], str]

TOLERANCE = 0.05  # of a metric, or in numbers about 1: products are rounded, and a draw or two falls on the other side
EXACT = 2e-3  # of what a game returns: sines and roots are a little different

SIZE = {"num_envs": 16, "num_blocks": 4, "rollout_length": 16, "devices": 1}
OPTIONS = {
    "minibatches": 4,
    "batch_size": 32,
    "warmup": 32,
    "buffer_size": 1024,
    "updates_per_rollout": 2,
}
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> preset, changes of the run or else of all its policies
    "memory": ("tag_small", {"network.recurrent_size": 16, "minibatches": 1}),
    "memory of two towers": ("cartpole_ppo", {"network.recurrent_size": 16, "network.shared_trunk": False}),
    "deep sets": ("tag_small", {"network.encoder": "deep_sets"}),
    "attention": ("tag_small", {"network.encoder": "attention"}),
    "an encoder with a memory": ("tag_small", {
        "network.encoder": "deep_sets", "network.recurrent_size": 8, "minibatches": 1}),
    "bfloat16": ("tag_small", {"network.compute_dtype": "bfloat16"}),
    "deep": ("cartpole_ppo", {
        "network.hidden_sizes": [64, 32, 64], "network.activation": "gelu", "reset": "fixed"}),
    "all options": ("cartpole_ppo", {
        "normalize_observation": True, "normalize_reward": True, "normalize_advantage": True, "value_clip": 0.2,
        "target_kl": 0.01, "neg_pos_env_ratio": 1.0, "learning_rate": [[0, 1e-3], [10_000, 1e-4]], "reset": 5}),
    "squashed Gaussian": ("pendulum_ppo", {
        "action_distribution": "squashed_gaussian", "normalize_observation": True, "minibatches": 4,
        "network.recurrent_size": 8}),
    "twin critics": ("pendulum_ddpg", {
        "twin_critics": True, "policy_delay": 2, "n_step": 3, "target_noise": 0.2,
        "normalize_observation": True}),
    "past selves": ("tag_small", {"past_selves": 2, "past_selves_every": 1, "past_selves_fraction": 0.5}),
    "own algorithm": ("tag_small", {"algorithm": "wdjax.experiments.examples.own_algorithm:AWR"}),
    "plain XLA": ("tag_small", {"kernels": False}),
}  # fmt: skip


def main() -> None:
    """Makes all checks, each told as it ends, and says at last which have failed."""
    parser = argparse.ArgumentParser(
        prog="card", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="WORD",
        help="only checks with one of these words in their names",
    )
    parser.add_argument("--processes", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)))
    parsed = parser.parse_args()
    chosen = [
        name for name in checks() if not parsed.only or any(word in name for word in parsed.only)
    ]
    if not chosen:
        parser.error(
            f"--only {' '.join(parsed.only)}: no check matches. Checks: {', '.join(checks())}"
        )
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the processes share the card
    start, failed = time.perf_counter(), []
    with ProcessPoolExecutor(parsed.processes, multiprocessing.get_context("spawn")) as processes:
        print(processes.submit(device).result(), flush=True)
        for made in as_completed([processes.submit(make_check, name) for name in chosen]):
            name, passed, words = made.result()
            print(f"{'passed' if passed else 'FAILED'}  {name}, {words}", flush=True)
            failed += [] if passed else [name]
    print(
        f"{len(chosen) - len(failed)} of {len(chosen)} checks passed in {time.perf_counter() - start:.0f} s"
    )
    if failed:
        raise SystemExit("failed: " + ", ".join(sorted(failed)))


def device() -> str:
    """Returns what the checks run on."""
    return f"{jax.devices()[0].device_kind}, jax {jax.__version__}"


def make_check(name: str) -> tuple[str, bool, str]:
    """Makes a check in a folder of its own. Returns (name, whether it passed, words, or its traceback)."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            words = checks()[name](Path(folder))
        except Exception:  # whatever it is: the others are made
            return name, False, f"{time.perf_counter() - start:.1f} s\n{traceback.format_exc()}"
    return name, True, f"{time.perf_counter() - start:.1f} s: {words}"


def checks() -> dict[str, Check]:
    """Returns every check by its name, the longest first."""
    games = {f"game {name}": functools.partial(play_game, name) for name in list_envs()}
    presets = {f"learner {name}": functools.partial(learn, name, {}) for name in list_presets()}
    options = {f"learner {name}": functools.partial(learn, *case_of(name)) for name in LEARNERS}
    overrides = {
        f"override {name}": lambda folder, name=name: compare_override(name) for name in OVERRIDES
    }
    return RUNS | overrides | options | presets | games


def case_of(name: str) -> tuple[str, dict[str, Any]]:
    """Returns (preset, dotted changes) of one of LEARNERS."""
    preset, changes = LEARNERS[name]
    of_run, dotted = TrainConfig.__dataclass_fields__, {}
    for field, value in changes.items():
        owners = (
            [""]
            if field in of_run
            else [f"policies.{policy}." for policy in load_config(preset).policies]
        )
        dotted |= {f"{owner}{field}": value for owner in owners}
    return preset, dotted


# --- games and learners, against the CPU ---


def play_game(name: str, folder: Path) -> str:
    """Plays a game at random, 8 replicas and 40 steps under jit, vmap and scan, here and on the CPU; draws it."""
    env, params = make(name)

    def play(key: jax.Array) -> Any:
        def step(carry: tuple, key: jax.Array) -> tuple:
            obs, state, *outcome = env.step(
                key, carry[1], uniform_action(env.action_space(params), key), params
            )
            return (obs, state), (obs, outcome[:3])

        start_key, steps_key = jax.random.split(key)
        return jax.lax.scan(step, env.reset(start_key, params), jax.random.split(steps_key, 40))

    keys = jax.random.split(jax.random.key(0), 8)
    found, expected = here_and_on_cpu(*[lambda: jax.jit(jax.vmap(play))(keys)] * 2)
    worst = compare(found[1], expected[1], EXACT)
    render(env, jax.tree.map(lambda leaf: leaf[0], found[0][1]), params)
    return f"at most {worst:.1g} from the CPU"


def learn(preset: str, changes: Mapping[str, Any], folder: Path) -> str:
    """Makes two updates of a small copy; the first must agree with plain XLA on the CPU, and all must be finite."""
    config = small_copy(preset, changes)
    learner, simple = make_learner(config), make_learner(dataclasses.replace(config, kernels=False))
    (state, metrics), (_, expected) = here_and_on_cpu(
        *(functools.partial(update, each) for each in (learner, simple))
    )
    compared = [name for name in expected if not is_rare(name)]
    worst = compare(
        *({name: row[name] for name in compared} for row in (metrics, expected)), TOLERANCE
    )
    start, (last, metrics) = learner.init(jax.random.key(0)), learner.update(state)
    if int(metrics["bad_numbers"]):
        raise RuntimeError(f"bad numbers: {metrics}")
    for name, policy in config.policies.items():
        before, after = (
            jax.tree.leaves(jax.device_get(each.policies[name].params)) for each in (start, last)
        )
        learns = any(np.any(a != b) for a, b in zip(before, after, strict=True))
        # an earlier self may have played all four blocks; in one update an agent may have had no choice
        if policy.trainable and not policy.past_selves and not learns:
            raise RuntimeError(f"policy {name!r} did not change")
    return f"at most {worst:.1g} from the CPU"


def update(learner: Learner) -> tuple[Any, Any]:
    """Returns (state, metrics) of a run's first update."""
    return learner.update(learner.init(jax.random.key(0)))


def is_rare(name: str) -> bool:
    """Whether a metric hangs on few rows, or on how little numbers differ: one draw changes it."""
    words = (
        "episode",
        "explained",
        "kl",
        "clip_fraction",
        "norm",
        "max",
        "min",
        "loss",
        "_std",
        "return_mean",
    )
    return any(word in name for word in words)


def small_copy(preset: str, changes: Mapping[str, Any]) -> TrainConfig:
    """Return a preset with few replicas, steps and transitions per gradient step."""
    small = dict(SIZE)
    for name, policy in load_config(preset).policies.items():
        sizes = {
            f"policies.{name}.{field}": n
            for field, n in OPTIONS.items()
            if hasattr(policy.options, field)
        }
        small |= sizes
    return load_config(preset, **{**small, **changes})


def here_and_on_cpu(here: Callable[[], Any], there: Callable[[], Any]) -> tuple[Any, Any]:
    """Returns what a function returns on this device, and what another returns on the host's CPU."""
    found = jax.block_until_ready(here())
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)  # there it is compiled for one look
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return found, jax.device_get(there())
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def compare(found: Any, expected: Any, tolerance: float) -> float:
    """Returns by how much two trees of numbers differ at most, as a part of the larger of 1 and the number.

    Raises:
        RuntimeError: where that is more than the tolerance, with the name and the numbers.
    """
    worst = 0.0
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(found))
    for (path, value), other in zip(leaves, jax.tree.leaves(expected), strict=True):
        value, other = np.asarray(value, np.float64), np.asarray(other, np.float64)
        far = np.abs(value - other) / np.maximum(np.abs(other), 1.0)
        far = np.where(np.isnan(value) & np.isnan(other), 0.0, far)
        if not np.max(far, initial=0.0) <= tolerance:
            where = np.unravel_index(np.argmax(far), far.shape)
            raise RuntimeError(
                f"{jax.tree_util.keystr(path)}: {value[where]} here, {other[where]} on the CPU"
            )
        worst = max(worst, float(np.max(far, initial=0.0)))
    return worst


# --- runs, by the Trainer and side by side ---


def train(
    folder: Path,
    name: str,
    updates: int,
    preset: str = "tag_small",
    resume: bool = False,
    **changes: Any,
) -> Path:
    """Trains so many updates of a small copy in a folder of that name. Returns the folder."""
    steps = SIZE["num_envs"] * SIZE["rollout_length"]
    host = {
        "updates_per_chunk": 1,
        "checkpoint_every": 2,
        "eval_episodes": 8,
        "total_env_steps": updates * steps,
    }
    Trainer(
        small_copy(preset, {**host, **changes}), folder / name, resume=resume, quiet=True
    ).train()
    return folder / name


def resume(preset: str, folder: Path) -> str:
    """Trains a run in one go and in two, which must end in the same bits; with curves, pictures and a best state."""
    whole, parts = train(folder, "whole", 4, preset), train(folder, "parts", 2, preset)
    train(folder, parts.name, 4, preset, resume=True)
    same_bits(*(load_run(run)[1] for run in (whole, parts)))
    rows = [
        [row["updates"] for row in read_metrics(run / "metrics.jsonl")] for run in (whole, parts)
    ]
    if rows != [[1, 2, 3, 4]] * 2:
        raise RuntimeError(f"metrics of updates {rows}")
    return ", ".join(sorted(path.name for path in whole.iterdir()))


def same_bits(one: Any, other: Any) -> None:
    """Raises RuntimeError where a leaf of two states differs."""
    words = lambda leaf: (  # noqa: E731
        jax.random.key_data(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else leaf
    )
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True
    ):
        if not np.array_equal(words(a), words(b), equal_nan=True):
            raise RuntimeError(f"{jax.tree_util.keystr(path)} differs")


def play_runs(folder: Path) -> str:
    """Evaluates a run, plays it against scripts and another run, and writes an episode as a GIF and as arrays."""
    run, other = (
        load_run(train(folder, name, 1, seed=seed)) for seed, name in enumerate(("one", "other"))
    )
    key = jax.random.key(0)
    alone = evaluate(*run, key, 8)
    cells = cross_play(
        *run, key, 8, opponents=["random", "chase_nearest", "flee_nearest", Player("other", *other)]
    )
    for suffix in ("gif", "npz"):
        save_episode(*run, folder / f"episode.{suffix}")
    return f"{float(np.mean(alone.episode_return['tagger'])):.2f} alone, {len(cells)} cells"


def begin_from(folder: Path) -> str:
    """Begins a run with the taggers of another, frozen, and with its runners, who learn; twice, the same."""
    source = train(folder, "source", 2)
    changes = {"policies.tagger.checkpoint": str(source), "policies.tagger.trainable": False,
               "policies.runner.checkpoint": f"{source}@2"}  # fmt: skip
    begun = [load_run(train(folder, f"begun {i}", 2, **changes))[1] for i in range(2)]
    same_bits(*begun)
    same_bits(*(state.policies["tagger"].params for state in (begun[0], load_run(source)[1])))
    return "two runs are bitwise identical"


def side_by_side(way: str, folder: Path) -> str:
    """Trains several runs in one program: a sweep over rates and seeds, a population, a search (if Optuna is there)."""
    config = small_copy(
        "cartpole_ppo", {"total_env_steps": 4 * 256, "updates_per_chunk": 1, "checkpoint_every": 2}
    )
    rate = "policies.agent.learning_rate"
    if way == "sweep":
        rows = sweep(config, {rate: [1e-3, 1e-2]}, seeds=2, workdir=folder / way)
        load_member(folder / way, 1)
    elif way == "evolve":
        rows = evolve(config, {rate: "log:1e-4:1e-2"}, 4, workdir=folder / way)
    elif importlib.util.find_spec("optuna") is None:
        return "skipped: Optuna is not installed"
    else:
        rows = search(config, {rate: "log:1e-4:1e-2"}, 4, batch=2, workdir=folder / way)
    return f"{len(rows)} rows"


RUNS: dict[str, Check] = {
    "run tag_small": functools.partial(resume, "tag_small"),
    "run cartpole_ppo": functools.partial(resume, "cartpole_ppo"),
    "run pendulum_ddpg": functools.partial(resume, "pendulum_ddpg"),
    "run that plays": play_runs,
    "run begun from another": begin_from,
    **{
        f"runs by {way}": functools.partial(side_by_side, way)
        for way in ("sweep", "evolve", "search")
    },
}


if __name__ == "__main__":
    main()
