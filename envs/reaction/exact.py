"""Exact solutions on an energy table: the lowest pass between two cells and the optimal return.

All computations run on the host in float64.
"""

import dataclasses

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from wdjax.envs.reaction.game import MOVES, Params, ReactionPath

TIE = 1e-12  # returns that differ by less are ties, resolved in favor of the shorter path


@dataclasses.dataclass(frozen=True)
class Answer:
    """A path from the start, and its value.

    The path ends at the goal, except if `best_return` does not reach it.
    """

    value: float  # highest energy (lowest_pass) or discounted return (best_return)
    path: np.ndarray  # [K + 1, 3 or 6] int, cells from the start on, for K steps
    top: float  # highest energy on the path


@dataclasses.dataclass(frozen=True)
class Moves:
    """Transitions and rewards as arrays over all S positions of the atoms."""

    after: np.ndarray  # [S, A] int, index of the position after each move
    reward: np.ndarray  # [S, A] float64
    energy: np.ndarray  # [S] float64, infinite outside the slab
    start: int  # index of the start position
    goal: int  # index of the goal position
    shape: tuple[int, ...]  # number of cells of each axis, with product S
    offset: np.ndarray  # [3 or 6] int, cells of position 0

    def answer(self, value: float, places: list[int]) -> Answer:
        cells = np.stack(np.unravel_index(places, self.shape), axis=1) + self.offset
        return Answer(value, cells, float(self.energy[places].max()))


def exact_params(env: ReactionPath) -> Params:
    """Return the default params of `env` with the energy table in float64, for full precision."""
    return env.default_params.replace(energies=env.table.energies)


def all_moves(params: Params, rule: str = "auto") -> Moves:
    """Return all transitions and rewards of reaction_one_atom or reaction_two_atoms as arrays.

    `rule` applies to one atom only. The goal is not absorbing: moves can leave it.
    """
    energies = np.asarray(params.energies, np.float64)
    start, goal = (
        np.asarray(cell).astype(int) for cell in (params.initial_state, params.final_state)
    )
    atoms, layers, nz = energies.ndim // 3, energies.shape[2], int(params.nz)
    in_plane = atoms == 1 and (start[2] == goal[2] if rule == "auto" else rule == "2d")
    slab = np.array([0, 0, int(params.z_lower)] * atoms)
    sizes = np.array([*energies.shape[:2], nz] * atoms)
    # the 2D rule makes the whole z axis reachable
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
    """Return the minimax path from start to goal within the slab.

    This path has the lowest possible maximum energy, which is the `value` of the answer. Among the
    paths with this maximum, it has the fewest steps.
    """
    moves = all_moves(params, "3d")
    count = len(moves.energy)

    def graph(top: float) -> sparse.csr_matrix:
        low = (moves.energy <= top)[:, None] & (moves.energy[moves.after] <= top)
        rows = np.broadcast_to(np.arange(count)[:, None], low.shape)[low]
        return sparse.csr_matrix((np.ones(len(rows)), (rows, moves.after[low])), (count, count))

    levels = np.unique(moves.energy[moves.energy >= moves.energy[[moves.start, moves.goal]].max()])
    low, high = 0, len(levels) - 1
    while low < high:  # start and goal are connected at levels[high]
        middle = (low + high) // 2
        _, label = csgraph.connected_components(graph(levels[middle]), directed=False)
        connected = label[moves.start] == label[moves.goal]
        low, high = (low, middle) if connected else (middle + 1, high)
    _, predecessor = csgraph.breadth_first_order(graph(levels[high]), moves.start)
    places = [moves.goal]
    while places[-1] != moves.start:
        places.append(int(predecessor[places[-1]]))
    return moves.answer(float(levels[high]), places[::-1])


def best_return(params: Params, gamma: float = 1.0, rule: str = "auto") -> Answer:
    """Return the optimal path from initial_state and its discounted return, by value iteration.

    The iteration over the steps of an episode is:

        V_0 = 0,  V_{k+1}(s) = max_a r(s, a) + gamma V_k(s'),  V(goal) = 0.

    Among optimal paths, the result has the fewest steps. It does not reach the goal if reaching it
    does not increase the return.

    Args:
        params: params of reaction_one_atom or reaction_two_atoms.
        gamma: discount factor.
        rule: `rule` of reaction_one_atom ("auto", "2d" or "3d").

    Returns:
        The path, its discounted return and its highest energy.
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
        previous, value, steps = (value, steps), gain.max(axis=1), length.min(axis=1)
        value[moves.goal], steps[moves.goal] = 0.0, 0.0
        if np.array_equal(previous[1], steps) and np.abs(previous[0] - value).max() < TIE:
            break
    places = [moves.start]
    while places[-1] != moves.goal and len(places) <= limit:
        places.append(int(moves.after[places[-1], choice[places[-1]]]))
    return moves.answer(float(value[moves.start]), places)
