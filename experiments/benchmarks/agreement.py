"""Agreement of fused kernels with plain XLA on this device.

    python -m wdjax.experiments.benchmarks.agreement          # one line per comparison

`wdjax.play` is compared with a scan of the same step, in the classic control environments. The
nearest-neighbor kernels, of all agents and of cells, are compared with `lax.top_k` in scenes of 1
to 10,000 agents: indices and observation rows. On a CPU, where kernels are interpreted, scenes are
few and small.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np

from wdjax.envs import make
from wdjax.experiments.benchmarks.measure import random_policy
from wdjax.experiments.benchmarks.rows import GAMES
from wdjax.kernels.backend import on_gpu
from wdjax.kernels.cells import nearest_neighbors_cells_kernel, neighbor_rows_cells_kernel
from wdjax.kernels.neighbors import nearest_neighbors_kernel, neighbor_rows_kernel
from wdjax.neighbors import nearest_neighbors_simple, neighbor_rows_simple
from wdjax.playing import PlayState, Transition, play, play_step, start_play

# (agents, neighbors), also with all agents as neighbors; from 14 on, the search is another one
SIZES = (
    (1, 1),
    (2, 2),
    (31, 3),
    (33, 14),
    (97, 20),
    (105, 10),
    (110, 10),
    (1_000, 10),
    (5_000, 10),
    (10_000, 10),
)
KERNELS = {
    "all": (nearest_neighbors_kernel, neighbor_rows_kernel),
    "cells": (nearest_neighbors_cells_kernel, neighbor_rows_cells_kernel),
}

ACTIONS = 1e-6  # maximum difference of actions
OBSERVATIONS = 1e-3  # the same; physics amplifies rounding (measured: at most 3e-6)
REPLICAS = 0.99  # fraction of replicas in which episodes must end in the same steps


def main() -> None:
    """Compare all; raise RuntimeError at the first disagreement."""
    for num_agents, k in SIZES if on_gpu() else SIZES[:3]:
        for search in KERNELS:
            print(compare_neighbors(num_agents, k, search), flush=True)
    for game in GAMES:
        print(compare_play(game), flush=True)


def scenes(num_agents: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, y and active of several scenes, [scenes, num_agents] each.

    Scenes: random places with all and with some agents active, ties, all agents in one point, no
    active agent, a crowd with distances below the resolution of the kernel's keys, clusters, a
    line, one agent far away, inactive agents without a position, and a line with squared distances
    that the place bits of a key replace.
    """
    rng = np.random.default_rng(num_agents)
    every, some = np.ones(num_agents, bool), rng.random(num_agents) < 0.7
    shape = (2, num_agents)
    plane, grid, point = rng.uniform(0, 20, shape), rng.integers(0, 5, shape), np.ones(shape)
    crowd = np.stack(
        [np.full(num_agents, 1.25), np.sqrt(rng.integers(0, 8, num_agents) * 2.0**-23)]
    )
    clusters = rng.uniform(0, 20, (2, 20))[:, rng.integers(0, 20, num_agents)] + 0.1 * plane
    line, outlier, missing = plane * [[1], [0]], plane.copy(), np.where(some, plane, np.nan)
    outlier[:, 0] = 1e5
    tiny = np.sort(grid) * [[3e-21], [0]]  # the places of a key follow the distances
    all_scenes = (
        (plane, every),
        (plane, some),
        (grid, some),
        (point, every),
        (plane, ~every),
        (crowd, some),
        (clusters, every),
        (line, every),
        (outlier, every),
        (missing, some),
        (tiny, some),
    )
    x, y, active = zip(*((*places, mask) for places, mask in all_scenes), strict=True)
    return np.stack(x).astype(np.float32), np.stack(y).astype(np.float32), np.stack(active)


def compare_neighbors(num_agents: int, k: int, search: str) -> str:
    """Compare the neighbors in `scenes` by a kernel of KERNELS and by plain XLA. Return a sentence.

    Raises:
        RuntimeError: if an index, the number of neighbors, or a bit of a row differs.
    """
    interpret = not on_gpu()
    x, y, active = scenes(num_agents)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(*x.shape, 7)).astype(np.float32)
    own = rng.normal(size=(*x.shape, 1)).astype(np.float32)
    sizes = (num_agents // 10, num_agents - num_agents // 10) if num_agents >= 10 else (num_agents,)

    def find(nearest: Callable, rows: Callable) -> dict[str, np.ndarray]:
        index, found = jax.jit(jax.vmap(functools.partial(nearest, k=k)))(x, y, active)
        written = functools.partial(rows, k=k, num_relative=5, sizes=sizes)
        groups = jax.jit(jax.vmap(written))(x, y, active, features, own)
        index = np.where(found, index, -1)  # indices of missing neighbors are undefined
        return {"indices": index, "rows": np.concatenate(groups, axis=1).view(np.int32)}

    kernels = (functools.partial(kernel, interpret=interpret) for kernel in KERNELS[search])
    by_kernel = find(*kernels)
    simple = find(nearest_neighbors_simple, neighbor_rows_simple)
    placed = np.isfinite(x)  # agents without a position have no defined neighbors
    differing = {
        name: int((placed & (by_kernel[name] != simple[name]).any(axis=2)).sum()) for name in simple
    }
    text = (
        f"neighbors, {num_agents:,} agents, k = {k}, {len(x)} scenes, kernel ({search}) and top_k: "
        f"of {active.size:,} agents, "
        + ", ".join(f"{name} differ in {number}" for name, number in differing.items())
    )
    if any(differing.values()):
        raise RuntimeError(text)
    return text


def compare_play(game: str, num_envs: int = 10_000, num_steps: int = 50) -> str:
    """Compare play by the kernel and by a scan from the same state. Return a sentence.

    Raises:
        RuntimeError: if actions differ, episode ends in more than a hundredth of the replicas, or
            observations in the others.
    """
    env, params = make(game)
    policy = random_policy(env, params)
    start = jax.jit(functools.partial(start_play, env, params, num_envs=num_envs))(
        jax.random.key(0)
    )

    def record(memory: None, step: Transition) -> tuple[None, tuple]:
        return None, (step.action, step.next_obs, step.over, step.episode_length)

    def scan(state: PlayState, _: None) -> tuple[PlayState, tuple]:
        state, step = jax.vmap(lambda state: play_step(env, params, policy, state))(state)
        return state, record(None, step)[1]

    of_kernel = jax.jit(lambda state: play(env, params, policy, state, num_steps, record)[2])(start)
    of_scan = jax.jit(lambda state: jax.lax.scan(scan, state, length=num_steps)[1])(start)
    (action, obs, *ends), (same_action, same_obs, *same_ends) = jax.device_get((of_kernel, of_scan))
    agree = np.all(np.stack(ends) == np.stack(same_ends), axis=(0, 1))
    actions, difference = np.abs(action - same_action).max(), np.abs(obs - same_obs)[:, agree].max()
    text = (
        f"{game}, {num_envs:,} envs, {num_steps} steps, kernel and scan: actions differ by at most "
        f"{actions:.1e}, episode ends agree in {agree.mean():.2%} of the replicas "
        f"({ends[0].sum():,} ends), in which observations differ by at most {difference:.1e}"
    )
    if not (actions <= ACTIONS and difference <= OBSERVATIONS and agree.mean() >= REPLICAS):
        raise RuntimeError(text)
    return text


if __name__ == "__main__":
    main()
