"""What is best on an energy table, exactly: the lowest pass between two cells, and the return of the best policy.

Computed on the host in float64, from params of any precision; `exact_params` has those of a surface in float64.
"""

import dataclasses

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from wdjax.envs.reaction.game import MOVES, Params, ReactionPath

TIE = 1e-12  # returns nearer than that are equal: the shorter way is taken


@dataclasses.dataclass(frozen=True)
class Answer:
    """A path from start to goal, and what it attains."""

    value: float  # of lowest_pass its highest energy, of best_return its discounted return
    path: np.ndarray  # [K + 1, 3 or 6] int, cells, the start first; K steps
    top: float  # highest energy on it


@dataclasses.dataclass(frozen=True)
class Moves:
    """The rules as arrays over all places of the atoms, S of them."""

    after: np.ndarray  # [S, A] int, the place after each of the moves
    reward: np.ndarray  # [S, A] float64
    energy: np.ndarray  # [S] float64, infinite outside of the slab
    start: int
    goal: int
    shape: tuple[int, ...]  # cells of each axis, S in all
    offset: np.ndarray  # [3 or 6] int, the cell of place 0

    def answer(self, value: float, places: list[int]) -> Answer:
        cells = np.stack(np.unravel_index(places, self.shape), axis=1) + self.offset
        return Answer(value, cells, float(self.energy[places].max()))


def exact_params(env: ReactionPath) -> Params:
    """Returns the params of an environment with its surface's table in float64, for answers to all digits."""
    return env.default_params.replace(energies=env.table.energies)


def all_moves(params: Params, rule: str = "auto") -> Moves:
    """Returns the rules of reaction_one_atom (with its `rule`) or of reaction_two_atoms; the goal is not special."""
    energies = np.asarray(params.energies, np.float64)
    start, goal = (
        np.asarray(cell).astype(int) for cell in (params.initial_state, params.final_state)
    )
    atoms, layers, nz = energies.ndim // 3, energies.shape[2], int(params.nz)
    in_plane = atoms == 1 and (start[2] == goal[2] if rule == "auto" else rule == "2d")
    slab = np.array([0, 0, int(params.z_lower)] * atoms)
    sizes = np.array([*energies.shape[:2], nz] * atoms)
    # by the 2D rule all of the z axis can be reached
    offset = np.zeros_like(slab) if in_plane else slab
    shape = tuple(sizes) if in_plane else energies.shape

    cells = np.stack(np.unravel_index(np.arange(np.prod(shape)), shape), axis=1) + offset
    moved = (cells[:, None] + np.kron(np.eye(atoms, dtype=int), MOVES)) % sizes  # [S, A, 3 or 6]
    layer = moved[..., 2::3] - slab[2]
    outside = np.any((layer < 0) | (layer >= layers), axis=-1)
    moved = np.where(outside[..., None] & ~np.array(in_plane), cells[:, None], moved)
    after = np.ravel_multi_index(tuple(np.moveaxis(moved - offset, -1, 0)), shape)
    energy = np.full(shape, np.inf)
    energy[tuple(slice(a, a + n) for a, n in zip(slab - offset, energies.shape, strict=True))] = (
        energies
    )
    energy = energy.reshape(-1)
    first, last = (int(np.ravel_multi_index(tuple(cell - offset), shape)) for cell in (start, goal))

    unit = float(params.max_denergy)
    denergy = np.where(outside, -unit, float(params.ienergy) - energy[after])
    reward = np.clip(denergy / unit, float(params.min_reward), 0.0)
    reward += np.where(after == last, float(params.terminate_reward), 0.0)
    return Moves(after, reward, energy, first, last, shape, offset)


def lowest_pass(params: Params) -> Answer:
    """Returns the lowest energy E such that cells of the slab with at most E join start and goal (minimax), and of the
    paths over these cells one of the fewest steps."""
    moves = all_moves(params, "3d")
    count = len(moves.energy)

    def graph(top: float) -> sparse.csr_matrix:
        low = (moves.energy <= top)[:, None] & (moves.energy[moves.after] <= top)
        rows = np.broadcast_to(np.arange(count)[:, None], low.shape)[low]
        return sparse.csr_matrix((np.ones(len(rows)), (rows, moves.after[low])), (count, count))

    levels = np.unique(moves.energy[moves.energy >= moves.energy[[moves.start, moves.goal]].max()])
    low, high = 0, len(levels) - 1
    while low < high:  # at levels[high] they are joined
        middle = (low + high) // 2
        _, label = csgraph.connected_components(graph(levels[middle]), directed=False)
        joined = label[moves.start] == label[moves.goal]
        low, high = (low, middle) if joined else (middle + 1, high)
    _, before = csgraph.breadth_first_order(graph(levels[high]), moves.start)
    places = [moves.goal]
    while places[-1] != moves.start:
        places.append(int(before[places[-1]]))
    return moves.answer(float(levels[high]), places[::-1])


def best_return(params: Params, gamma: float = 1.0, rule: str = "auto") -> Answer:
    """Returns the highest discounted return of an episode from initial_state, by value iteration over its steps,

        V_0 = 0,  V_{k+1}(s) = max_a r(s, a) + gamma V_k(s'),  V(goal) = 0,

    and of the best paths one of the fewest steps (one that never ends where nothing is won by going to the goal).

    Args:
        params: of either game.
        gamma: the discount.
        rule: of reaction_one_atom, as there.
    """
    moves, limit = all_moves(params, rule), int(params.episode_length)
    value, steps = np.zeros(len(moves.energy)), np.full(len(moves.energy), np.inf)
    for _ in range(limit):
        gain = moves.reward + gamma * value[moves.after]
        steps[moves.goal] = 0.0
        length = np.where(
            gain >= gain.max(axis=1, keepdims=True) - TIE, steps[moves.after] + 1.0, np.inf
        )
        choice = np.where(np.isinf(length).all(axis=1), gain.argmax(axis=1), length.argmin(axis=1))
        old, value, steps = (value, steps), gain.max(axis=1), length.min(axis=1)
        value[moves.goal], steps[moves.goal] = 0.0, 0.0
        if np.array_equal(old[1], steps) and np.abs(old[0] - value).max() < TIE:
            break
    places = [moves.start]
    while places[-1] != moves.goal and len(places) <= limit:
        places.append(int(moves.after[places[-1], choice[places[-1]]]))
    return moves.answer(float(value[moves.start]), places)
