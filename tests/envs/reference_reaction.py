"""The reaction paths in plain Python and float64, one step at a time.

Written from the rules, without code of wdjax.envs.reaction.
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass
class Rules:
    """The parameters, with the names of `wdjax.make`.

    Energies are [nx, ny, layers], for two atoms [nx, ny, layers, nx, ny, layers].
    """

    energies: np.ndarray
    ienergy: float
    max_denergy: float
    initial_state: tuple
    final_state: tuple
    nz: int
    z_lower: int
    min_reward: float = -1.0
    terminate_reward: float = 10.0
    episode_length: int = 500
    rule: str = "auto"

    def in_slab(self, z):
        return self.z_lower <= z < self.z_lower + self.energies.shape[2]


def step(rules, position, time, action):
    """Return (position, obs, reward, terminated, truncated) after a move in an active episode."""
    atom, move = (0, action) if np.ndim(action) == 0 else action
    plane = len(position) == 3 and (
        rules.rule == "2d"
        or (rules.rule == "auto" and rules.initial_state[2] == rules.final_state[2])
    )
    sizes = [rules.energies.shape[0], rules.energies.shape[1], rules.nz]
    new = list(position)
    axis, direction = move // 2, 1 if move % 2 == 0 else -1
    new[3 * atom + axis] = (new[3 * atom + axis] + direction) % sizes[axis]
    if all(rules.in_slab(z) for z in new[2::3]):
        cells = [c - rules.z_lower if i % 3 == 2 else c for i, c in enumerate(new)]
        gap = rules.ienergy - float(rules.energies[tuple(cells)])
    else:
        gap = -rules.max_denergy
        new = new if plane else list(position)
    at_goal = tuple(new) == tuple(rules.final_state)
    reward = min(max(gap / rules.max_denergy, rules.min_reward), 0.0) + (
        rules.terminate_reward if at_goal else 0.0
    )
    return (
        tuple(new),
        observe(rules, new),
        reward,
        at_goal,
        time + 1 >= rules.episode_length and not at_goal,
    )


def observe(rules, position):
    sizes = [rules.energies.shape[0], rules.energies.shape[1], rules.nz] * (len(position) // 3)
    obs = [place / size for place, size in zip(position, sizes, strict=True)]
    for i in range(0, len(position), 3):
        whole = math.dist(rules.initial_state[i : i + 3], rules.final_state[i : i + 3])
        obs.append(math.dist(position[i : i + 3], rules.final_state[i : i + 3]) / (whole or 1.0))
    return obs
