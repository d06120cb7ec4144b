"""Train wdjax on a task: all seeds as one vmapped program, then evaluate each seed."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.experiments.reference.peers.programs import GREEDY, RETURN, SAMPLED, TRAINING, WON, Ours
from wdjax.experiments.reference.peers.theirs import curve_of, last_mean
from wdjax.experiments.reference.seeds import train_together
from wdjax.train import Learner, TrainConfig, TrainState, evaluate, load_config, make_learner

EPISODES = 512  # per evaluation and seed
EVALUATION = 1  # folded into the key of a seed


def make_config(program: Ours, env_steps: int, changes: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a program on one device, with one block of replicas."""
    fixed = {"total_env_steps": env_steps, "num_blocks": 1, "devices": 1}
    return load_config({**program.preset, **fixed}, **changes)


def run_ours(
    program: Ours, seeds: Sequence[int], env_steps: int, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Train and evaluate all seeds. Return the fields of `run_theirs` without the script's hash.

    Args:
        program: the configuration.
        seeds: seed s trains with jax.random.key(s).
        env_steps: env steps per seed, rounded up to whole updates.
        changes: changed fields of the configuration, for small runs.
    """
    learner = make_learner(make_config(program, env_steps, changes))
    keys = jax.vmap(jax.random.key)(jnp.array(seeds))
    states, metrics, compile_seconds, run_seconds = train_together(learner, keys)
    returns = [metrics[f"{name}/episode_return"] for name in program.policies]
    trained = np.sum(returns, axis=0)  # [seeds, updates]
    scores: dict[str, dict[str, list[float]]] = {RETURN: {TRAINING: last_mean(trained).tolist()}}
    for seed in range(len(seeds)):
        state = jax.tree.map(lambda leaf, seed=seed: leaf[seed], states)
        key = jax.random.fold_in(keys[seed], EVALUATION)
        for what, kinds in evaluate_seed(program, learner, state, key).items():
            for when, score in kinds.items():
                scores.setdefault(what, {}).setdefault(when, []).append(score)
    return {
        "scores": scores,
        "curve": curve_of(trained),
        "trained_env_steps": learner.config.num_updates * learner.config.env_steps_per_update,
        "compile_seconds": compile_seconds,
        "run_seconds": run_seconds,
    }


def evaluate_seed(
    program: Ours, learner: Learner, state: TrainState, key: jax.Array
) -> dict[str, dict[str, float]]:
    """Return {what: {when: score}} of fresh episodes with sampled and with greedy actions."""
    scores: dict[str, dict[str, float]] = {RETURN: {}}
    for when in (SAMPLED, GREEDY):
        episodes = evaluate(learner, state, key, EPISODES, greedy=when == GREEDY)
        returns = [episodes.episode_return[name].mean() for name in program.policies]
        scores[RETURN][when] = float(np.sum(returns))
        if program.won_above is not None:
            agents = [episodes.agent_return[name] for name in program.policies]
            best = np.concatenate(agents, axis=1).max(axis=1)
            scores.setdefault(WON, {})[when] = float((best > program.won_above).mean())
    return scores
