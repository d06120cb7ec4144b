"""Run the script of another library: all seeds as one vmapped program, compiled ahead of time.

The scripts are read from checkouts and are not part of wdjax. Their loggers and command lines
(hydra, omegaconf, wandb) are replaced by objects that do nothing, and so are brax and navix, which
PureJaxRL imports but does not use here. Install `distrax`, or put a replacement into PEERS/stubs.

On a CPU with few cores, jaxlib 0.10.2 can deadlock in the QR decompositions of their initializers
(see train/networks/linear.py). `taskset -c 0` avoids it.
"""

import copy
import functools
import hashlib
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.experiments.reference.peers.programs import GREEDY, RETURN, TRAINING, WON, Theirs
from wdjax.yaml_reader import read_yaml

UNUSED = (
    "hydra", "omegaconf", "wandb", "safetensors", "safetensors.flax", "brax", "brax.envs",
    "brax.envs.wrappers", "brax.envs.wrappers.training", "navix",
)  # fmt: skip
KEYS = {RETURN: "returned_episode_returns", WON: "returned_won_episode"}
KINDS = {"": TRAINING, "test_": GREEDY, "test/": GREEDY}  # prefixes of metrics
NEW_INFO = ("terminated", "truncated", "final_observation")  # of gymnax 1.0
LAST = 50  # training scores are means over the last 1 / 50 of the updates


def run_theirs(
    program: Theirs, peers: Path, seeds: Sequence[int], env_steps: int, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Train all seeds and return scores, seconds and the script's hash.

    Args:
        program: script and configuration.
        peers: folder with the checkouts.
        seeds: seed s trains with jax.random.PRNGKey(s).
        env_steps: env steps per seed.
        changes: further changes of the configuration, for small runs.

    Returns:
        {"scores": {what: {when: [score of each seed]}}, "curve", "trained_env_steps",
        "compile_seconds", "run_seconds", "script_sha256"}.
    """
    folder = peers / program.library
    script = folder / program.script
    config = read_config(program, folder, env_steps) | dict(changes)
    train = make_train(load_script(script, program.edits), config)
    keys = jax.vmap(jax.random.PRNGKey)(jnp.array(seeds))
    start = time.perf_counter()
    compiled = jax.jit(jax.vmap(train)).lower(keys).compile()
    compile_seconds = time.perf_counter() - start
    start = time.perf_counter()
    metrics = jax.block_until_ready(compiled(keys))["metrics"]
    run_seconds = time.perf_counter() - start
    trained = jax.jit(jax.vmap(functools.partial(curves, program=program)))(metrics)
    return {
        **scores_of(jax.device_get(trained)),
        "trained_env_steps": int(config["NUM_UPDATES"]) * config["NUM_STEPS"] * config["NUM_ENVS"],
        "compile_seconds": compile_seconds,
        "run_seconds": run_seconds,
        "script_sha256": hashlib.sha256(script.read_bytes()).hexdigest()[:16],
    }


def read_config(program: Theirs, folder: Path, env_steps: int) -> dict[str, Any]:
    """Return the configuration of a script, with its changes and the number of env steps."""
    source = program.config
    config = dict(read_yaml(folder / source) if isinstance(source, str) else source)
    config |= {"WANDB_MODE": "disabled", "TOTAL_TIMESTEPS": env_steps}
    if "TOTAL_TIMESTEPS_DECAY" in config:
        config["TOTAL_TIMESTEPS_DECAY"] = env_steps
    return copy.deepcopy(config | dict(program.changes))


def load_script(path: Path, edits: Sequence[tuple[str, str]]) -> types.ModuleType:
    """Import a script with replacements in its text.

    Raises:
        ValueError: if a text to replace does not occur exactly once.
    """
    sys.path.insert(0, str(path.parent))
    text = path.read_text(encoding="utf8")
    for old, new in edits:
        if (count := text.count(old)) != 1:
            raise ValueError(f"{path}: contains {old!r} {count} times: must be once.")
        text = text.replace(old, new)
    module = types.ModuleType(path.stem)
    module.__dict__["with_one_done"] = with_one_done  # for edits
    sys.modules[path.stem] = module
    real = {name: sys.modules[name] for name in UNUSED if name in sys.modules}
    sys.modules.update({name: MagicMock() for name in UNUSED})
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    finally:
        for name in UNUSED:
            del sys.modules[name]
        sys.modules.update(real)
    return module


def with_one_done(step: Callable) -> Callable:
    """Return the step of an environment of gymnax 1.0 as older versions had it.

    `done` includes time limits, and `info` has no final observations.
    """

    def older(*args: Any) -> tuple:
        obs, state, reward, terminated, truncated, info = step(*args)
        kept = {name: value for name, value in info.items() if name not in NEW_INFO}
        return obs, state, reward, terminated | truncated, kept

    return older


def make_train(module: types.ModuleType, config: dict[str, Any]) -> Callable[[jax.Array], Any]:
    """Return the training function of a script; it adds NUM_UPDATES to `config`."""
    if hasattr(module, "env_from_config"):
        env, _ = module.env_from_config(copy.deepcopy(config))
        return module.make_train(config, env)
    return module.make_train(config)


def curves(metrics: Mapping[str, Any], program: Theirs) -> dict[str, dict[str, jax.Array]]:
    """Return {what: {when: scores [updates]}} of one seed, of the metrics that exist."""
    found: dict[str, dict[str, jax.Array]] = {}
    for what, key in KEYS.items():
        factor = program.factor if what == RETURN else 1.0
        for prefix, when in KINDS.items():
            if prefix + key in metrics:
                values, ended = metrics[prefix + key], metrics.get("returned_episode")
                score = factor * per_update(values, ended, program.agents)
                found.setdefault(what, {})[when] = score
    return found


def per_update(values: jax.Array, ended: jax.Array | None, agents: int | None) -> jax.Array:
    """Return the mean of each update, of the steps with which an episode ended if they are known.

    Args:
        values: [updates, ...], or [updates, ..., agents].
        ended: bool and shaped as `values`, an episode ended; otherwise ignored.
        agents: number of agents to include; None: all.
    """
    if ended is None or ended.shape != values.shape or ended.dtype != bool:
        ended = jnp.ones(values.shape, bool)
    if agents is not None:
        values, ended = values[..., :agents], ended[..., :agents]
    axes = tuple(range(1, values.ndim))
    return jnp.where(ended, values, 0.0).sum(axes) / ended.sum(axes)


def scores_of(trained: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Return the scores of every seed, and the curve of the training return.

    Args:
        trained: {what: {when: [seeds, updates]}}.
    """
    scores = {
        what: {
            when: (last_mean(values) if when == TRAINING else values[:, -1]).tolist()
            for when, values in kinds.items()
        }
        for what, kinds in trained.items()
    }
    return {"scores": scores, "curve": curve_of(trained[RETURN][TRAINING])}


def last_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the last 2 % of the updates, [seeds, updates] -> [seeds]."""
    return known_mean(values[:, -max(1, values.shape[1] // LAST) :], axis=1)


def curve_of(values: np.ndarray) -> list[float]:
    """Return eleven points of the mean over seeds, from the first update to the last."""
    points = np.linspace(0, values.shape[1] - 1, 11).astype(int)
    return known_mean(values[:, points], axis=0).tolist()


def known_mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the mean of the numbers along an axis, NaN where all are NaN."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):  # 0 / 0
        return np.where(known, values, 0.0).sum(axis) / known.sum(axis)
