"""Reaction path search: one or two atoms move cell by cell over an energy table.

Source: Lan, Wang, An, "Enabling high throughput deep reinforcement learning with first principles
to investigate catalytic reaction mechanisms", Nature Communications 15 (2024). The rules follow
SingleAgentOneAtomChemSearch and SingleAgentTwoAtomChemSearch of WarpDrive 2.7.1.
"""

import abc
import dataclasses
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require, require_bool, require_finite, require_known, require_positive
from wdjax.controls import Controls
from wdjax.env import Env, drawn_by, require_action
from wdjax.envs.reaction.surfaces import OWN_TABLE, SHARE_OF_BARRIER, SURFACES, Table, load_table
from wdjax.spaces import Box, Discrete, MultiDiscrete

# Displacement of each move: x + 1, x - 1, y + 1, y - 1, z + 1, z - 1.
MOVES = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], np.int32)
# number of atoms -> shape of an energy table
TABLE_WORDS = {1: "[nx, ny, layers]", 2: "[nx, ny, layers, nx, ny, layers]"}


class State(struct.PyTreeNode):
    """Positions of the atoms."""

    position: jax.Array  # (3,) int32, or (6,) for two atoms: cells x, y, z of each atom
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Energies and rewards; energies are in the unit of the table."""

    energies: Any = None
    """[nx, ny, layers] float32, energy; for two atoms [nx, ny, layers, nx, ny, layers]"""
    ienergy: float = 0.0  # energy up to which a step costs nothing
    max_denergy: float = 0.0  # energy above ienergy at which a step costs 1
    min_reward: float = -1.0  # lower limit of the energy reward per step, at most 0
    terminate_reward: float = 10.0  # reward for reaching the goal
    initial_state: Any = None  # (3,) or (6,) int32, start cells x, y, z of each atom
    final_state: Any = None  # (3,) or (6,) int32, goal cells x, y, z of each atom
    nz: int = 0  # number of cells of the z axis; all three axes are periodic
    z_lower: int = 0  # z cell of layer 0 of the table
    episode_length: int = 500  # steps, after which the episode is truncated


@dataclasses.dataclass(frozen=True)
class ReactionPath(Env):
    """One agent moves one or two atoms to a goal, cell by cell, and high energies cost reward.

    A table contains the energy at each position of the atoms. It spans the whole x and y axes, but
    only a slab of the z axis: z_lower <= z < z_lower + layers.
    """

    surface: str = ""
    """built-in surface, path of a .npy file, or "table" for custom `energies` in the params"""
    settings: str = "threshold"
    """reward settings of a built-in surface: "plain" penalizes all energies above the start
    energy, "threshold" only energies above the pass or just below it"""
    random_start: bool = False
    """whether to start on a uniformly random slab cell except the goal; false: at initial_state"""

    cheap_reset: ClassVar[bool] = True
    num_atoms: ClassVar[int]

    def __post_init__(self):
        require(
            isinstance(self.surface, str),
            "surface",
            self.surface,
            f"a name or a path, not {type(self.surface).__name__}. Pass a table as energies",
            TypeError,
        )
        require_known("settings", self.settings, SHARE_OF_BARRIER)
        require_bool("random_start", self.random_start)

    @abc.abstractmethod
    def in_plane(self, params: Params) -> Any:
        """Return whether the 2D rule applies, instead of the 3D rule.

        The 2D rule executes moves out of the slab of the table. The 3D rule cancels them.
        """

    @property
    def table(self) -> Table:
        """Energy table of the surface in float64, empty for the surface "table"."""
        if self.surface == OWN_TABLE:
            return Table(np.zeros((0,) * 3 * self.num_atoms))
        table = load_table(self.surface)
        shape, allowed = table.energies.shape, TABLE_WORDS[self.num_atoms]
        require(
            len(shape) == 3 * self.num_atoms,
            f"shape of the table of surface = {self.surface!r}",
            shape,
            allowed,
        )
        return table

    @property
    def default_params(self) -> Params:
        table = self.table

        def cells(cell) -> np.ndarray:
            return np.array(cell or [-1] * 3 * self.num_atoms, np.int32)

        unset = cast(float, None)  # refused by `check_params`
        energies = table.energies.astype(np.float32)
        params = Params(energies, ienergy=unset, nz=table.nz or 0, z_lower=table.z_lower)
        params = params.replace(initial_state=cells(table.start), final_state=cells(table.goal))
        if self.surface not in SURFACES:
            return params
        return params.replace(
            min_reward=-1000.0, terminate_reward=30.0, **table.settings(self.settings)
        )

    def check_params(self, params: Params) -> None:
        shape, axes = np.shape(params.energies), 3 * self.num_atoms
        require(
            len(shape) >= axes and min(shape) > 0 and (axes == 3 or shape[-6:-3] == shape[-3:]),
            "shape of energies",
            shape,
            TABLE_WORDS[self.num_atoms],
        )
        expected = self.table.energies.shape
        require(
            self.surface == OWN_TABLE or shape[-axes:] == expected,
            "shape of energies",
            shape,
            f"{expected}, the shape of {self.surface!r}. For a custom table, set surface='table'",
        )
        require(
            params.ienergy is not None,
            "ienergy",
            params.ienergy,
            "set to the energy up to which a step costs nothing",
        )
        require_finite(params)
        require_positive(params, "max_denergy", "episode_length")
        require(np.all(params.min_reward <= 0), "min_reward", params.min_reward, "at most 0")
        self._check_cells(params)

    def _check_cells(self, params: Params) -> None:
        nx, ny, layers = np.shape(params.energies)[-3:]
        lower = np.asarray(params.z_lower, np.int64)
        upper = lower + layers
        require(np.all(lower >= 0), "z_lower", params.z_lower, "at least 0")
        require(
            np.all(params.nz >= upper),
            "nz",
            params.nz,
            f"at least z_lower + {layers}, the number of layers of the table",
        )
        slab = f"0 <= x < {nx}, 0 <= y < {ny}, {lower} <= z < {upper} (the slab)"
        allowed = f"{3 * self.num_atoms} cells x, y, z, {slab}"
        for name in ("initial_state", "final_state"):
            cells = getattr(params, name)
            require(np.shape(cells)[-1:] == (3 * self.num_atoms,), name, cells, allowed)
            x, y, z = np.moveaxis(
                np.reshape(cells, (*np.shape(cells)[:-1], self.num_atoms, 3)), -1, 0
            )
            in_plane = (x >= 0) & (x < nx) & (y >= 0) & (y < ny)
            inside = in_plane & (z >= lower[..., None]) & (z < upper[..., None])
            require(np.all(inside), name, cells, allowed)
        start, goal = np.asarray(params.initial_state), np.asarray(params.final_state)
        differs = np.all(np.any(start != goal, axis=-1))
        require(differs, "final_state", params.final_state, "different from initial_state")

    def reset(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        """Place the atoms at initial_state.

        With `random_start`, they start on uniformly random slab cells except the goal.
        """
        position = (
            self._random_cells(key, params)
            if self.random_start
            else jnp.asarray(params.initial_state)
        )
        state = State(position.astype(jnp.int32), jnp.int32(0))
        return self.observe(state, params), state

    def _random_cells(self, key: jax.Array, params: Params) -> jax.Array:
        shape, offset = jnp.shape(params.energies), self._offset(params)
        goal = flat_index(params.final_state - offset, shape)
        index = jax.random.randint(key, (), 0, np.prod(shape) - 1, jnp.int32)
        return jnp.stack(jnp.unravel_index(index + (index >= goal), shape)) + offset

    def step(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Move an atom by one cell.

        With the energy E of the new position, the reward is:

            r = clip((ienergy - E) / max_denergy, min_reward, 0) + terminate_reward [goal].

        A move out of the slab counts as E = ienergy + max_denergy. The 3D rule cancels the move.
        The 2D rule executes it and applies this energy until the atom is back in the slab.
        """
        require_action(self, action, params, owner=ReactionPath)
        over_before = self._is_goal(state, params) | (state.time >= params.episode_length)
        moved = self.dynamics(state.position, action, params)
        leaves = ~self._in_slab(moved, params)
        held = over_before | (leaves & ~jnp.asarray(self.in_plane(params)))
        state = State(jnp.where(held, state.position, moved), state.time + 1)
        terminated = self._is_goal(state, params)
        truncated = (state.time >= params.episode_length) & ~terminated
        reward = jnp.where(over_before, 0.0, self.reward(state, leaves, params))
        reached = terminated & ~over_before
        return (
            self.observe(state, params),
            state,
            reward,
            terminated,
            truncated,
            {"reached": reached},
        )

    def dynamics(self, position: jax.Array, action: jax.Array, params: Params) -> jax.Array:
        """Return the position after a move, with periodic axes, [3] or [6] int32."""
        moves = np.kron(np.eye(self.num_atoms, dtype=np.int32), MOVES)  # [6 atoms, 3 atoms]
        choice = action if self.num_atoms == 1 else 6 * action[0] + action[1]
        return (position + jnp.asarray(moves)[choice]) % self._sizes(params)

    def reward(self, state: State, outside: jax.Array, params: Params) -> jax.Array:
        """Return the reward for entering `state`: a float32 scalar."""
        denergy = jnp.where(
            outside, -params.max_denergy, params.ienergy - self.energy(state.position, params)
        )
        cost = jnp.clip(denergy / params.max_denergy, params.min_reward, 0.0)
        return cost + jnp.where(self._is_goal(state, params), params.terminate_reward, 0.0)

    def energy(self, position: jax.Array, params: Params) -> jax.Array:
        """Return the energy at a position: a float32 scalar.

        Outside the slab, this is the energy of the nearest layer.
        """
        energies = jnp.asarray(params.energies)
        cells = jnp.clip(position - self._offset(params), 0, jnp.array(energies.shape) - 1)
        return energies.reshape(-1)[flat_index(cells, energies.shape)]

    def observe(self, state: State, params: Params) -> jax.Array:
        """Return the observation, [4] float32 for one atom or [8] float32 for two.

        The features are (x / nx, y / ny, z / nz) of each atom, then each atom's Euclidean distance
        to its goal divided by the distance at initial_state. Distances ignore the periodicity of
        the axes. The distance of an atom that starts on its goal is in cells.
        """

        def distance_between(a, b) -> jax.Array:
            return jnp.linalg.norm((a - b).reshape(-1, 3).astype(jnp.float32), axis=-1)

        initial = distance_between(jnp.asarray(params.initial_state), params.final_state)
        distance = distance_between(state.position, params.final_state) / jnp.where(
            initial > 0, initial, 1.0
        )
        return jnp.concatenate([state.position / self._sizes(params), distance]).astype(jnp.float32)

    def _is_goal(self, state: State, params: Params) -> jax.Array:
        return jnp.all(state.position == jnp.asarray(params.final_state))

    def _in_slab(self, position: jax.Array, params: Params) -> jax.Array:
        z = position[2::3]
        return jnp.all(
            (z >= params.z_lower) & (z < params.z_lower + jnp.shape(params.energies)[-1])
        )

    def _sizes(self, params: Params) -> jax.Array:
        nx, ny, _ = jnp.shape(params.energies)[-3:]
        return jnp.stack([jnp.int32(size) for size in (nx, ny, params.nz)] * self.num_atoms)

    def _offset(self, params: Params) -> jax.Array:
        zero = jnp.int32(0)
        return jnp.stack([zero, zero, jnp.int32(params.z_lower)] * self.num_atoms)

    def observation_space(self, params: Params) -> Box:
        n = self.num_atoms
        return Box(0.0, np.array([1.0] * 3 * n + [np.inf] * n, np.float32), (4 * n,))

    def controls(self, group: str, params: Params) -> Controls:
        """Return controls: one key per move, and for a second atom letters; each key is a step."""
        moves = [("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "PageUp", "PageDown")]
        if self.num_atoms == 1:
            keys = {key: {0: i} for i, key in enumerate(moves[0])}
            explanation = "← →: move in x. ↑ ↓: in y. Page up, page down: in z"
            return Controls(keys, (0,), turn_based=True, explanation=explanation)
        moves += [("d", "a", "w", "s", "e", "q")]
        keys = {
            key: {0: atom, 1: i} for atom, names in enumerate(moves) for i, key in enumerate(names)
        }
        explanation = (
            "First atom: arrows, page up, page down. Second atom: a d (x), s w (y), q e (z)"
        )
        return Controls(keys, (0, 0), turn_based=True, explanation=explanation)

    scene = drawn_by("wdjax.envs.reaction.drawing:path_scene")


@dataclasses.dataclass(frozen=True)
class ReactionOneAtom(ReactionPath):
    """One agent moves one atom over a potential energy surface.

    Actions are Discrete(6): x + 1, x - 1, y + 1, y - 1, z + 1, z - 1.
    """

    surface: str = "mueller_brown"
    """built-in surface, path of a .npy file, or "table" for custom `energies` in the params"""
    rule: str = "auto"
    """handling of moves out of the slab: "2d" executes them, "3d" cancels them, "auto" selects "2d"
    if start and goal have the same z and "3d" otherwise"""

    num_atoms: ClassVar[int] = 1

    def __post_init__(self):
        super().__post_init__()
        require_known("rule", self.rule, ("auto", "2d", "3d"))

    def in_plane(self, params: Params) -> Any:
        return (
            params.initial_state[2] == params.final_state[2]
            if self.rule == "auto"
            else self.rule == "2d"
        )

    def action_space(self, params: Params) -> Discrete:
        return Discrete(6)


@dataclasses.dataclass(frozen=True)
class ReactionTwoAtoms(ReactionPath):
    """One agent moves two atoms over a potential energy surface.

    Actions are MultiDiscrete(2, 6): the atom, and its move (x + 1, x - 1, y + 1, y - 1, z + 1,
    z - 1). Moves out of the slab are cancelled.
    """

    surface: str = "two_atom_exchange"
    """built-in surface, path of a .npy file, or "table" for custom `energies` in the params"""

    num_atoms: ClassVar[int] = 2

    def in_plane(self, params: Params) -> bool:
        return False

    def action_space(self, params: Params) -> MultiDiscrete:
        return MultiDiscrete((2, 6))


def flat_index(cells: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the row-major flat index of `cells` [n] in an array of `shape`: an int32 scalar."""
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    index = sum(cells[i] * stride for i, stride in enumerate(strides))
    return cast(jax.Array, index)
