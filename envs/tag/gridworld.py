"""Tag on a grid: several taggers chase one runner from cell to cell.

Source: Lan, Srinivasa, Wang, Zheng, "WarpDrive: Extremely Fast End-to-End Deep Multi-Agent
Reinforcement Learning on a GPU" (2021), section 4. The rules follow TagGridWorld of WarpDrive
2.7.1. Arrays list the taggers first, then the runner.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import (
    require,
    require_bool,
    require_finite,
    require_integer,
    require_not_negative,
    require_positive,
)
from wdjax.env import drawn_by, require_action
from wdjax.envs.tag.controls import grid_controls, steer_on_grid
from wdjax.envs.tag.game import X_STEPS, Y_STEPS, Arrays, Tag
from wdjax.envs.tag.scripted import chase_on_grid, flee_on_grid
from wdjax.spaces import Box, Dict, Discrete

MAX_GRID_LENGTH = 32_767  # 2 MAX_GRID_LENGTH^2 < 2^31


class State(struct.PyTreeNode):
    """Positions of all agents on the cells 0 to grid_length of each axis."""

    x: jax.Array  # (num_agents,) int32, cell in [0, grid_length]
    y: jax.Array  # (num_agents,) int32, cell in [0, grid_length]
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Grid size, start cells and rewards."""

    grid_length: int = 10  # highest cell index of each axis (grid_length + 1 cells)
    episode_length: int = 100  # steps, after which all agents terminate
    starting_location_x: Any = None
    """(num_agents,) int32, cells; None: taggers in the middle, runner at 0"""
    starting_location_y: Any = None
    """(num_agents,) int32, cells; set both coordinates or neither"""
    wall_hit_penalty: float = 0.1  # subtracted from the reward of an agent that moves into a wall
    tag_reward_for_tagger: float = 10.0  # reward of every tagger at a tag
    tag_penalty_for_runner: float = 2.0  # subtracted from the runner's reward at a tag
    step_cost_for_tagger: float = 0.01
    """per step without a tag: subtracted from each tagger's reward, added to the runner's"""


@dataclasses.dataclass(frozen=True)
class TagGridworld(Tag):
    """Taggers chase one runner on a grid.

    Actions are Discrete(5): stay, x + 1, x - 1, y + 1, y - 1. The game ends at a tag or after
    episode_length steps.
    """

    num_taggers: int = 10  # number of taggers (the first agents); the last agent is the runner
    use_full_observation: bool = True
    """whether to observe the cells of all agents; false: own cell and the nearest adversary's"""
    random_start: bool = False
    """whether taggers start on random inner cells; false: all in the middle"""

    default_params: ClassVar[Params] = Params()
    num_runners: ClassVar[int] = 1
    observes_late: ClassVar[bool] = True
    shown_by: ClassVar[frozenset[str]] = frozenset({"use_full_observation"})
    scripts: ClassVar[dict[str, tuple[str, Callable]]] = {
        "chase_nearest": ("tagger", chase_on_grid),
        "flee_nearest": ("runner", flee_on_grid),
    }

    def __post_init__(self):
        require_integer("num_taggers", self.num_taggers, 1)
        require_bool("use_full_observation", self.use_full_observation)
        require_bool("random_start", self.random_start)
        self.check_num_agents()

    def check_params(self, params: Params) -> None:
        require_finite(params)
        lowest = 2 if self.random_start else 1  # random starts use cells 1 to grid_length - 1
        sides = params.grid_length
        require(np.all(sides >= lowest), "grid_length", sides, f"at least {lowest}")
        allowed = f"at most {MAX_GRID_LENGTH}, because squared distances are int32"
        require(np.all(sides <= MAX_GRID_LENGTH), "grid_length", sides, allowed)
        require_positive(params, "episode_length")
        require_not_negative(
            params,
            "wall_hit_penalty",
            "tag_reward_for_tagger",
            "tag_penalty_for_runner",
            "step_cost_for_tagger",
        )
        allowed = "whole cells from 0 to grid_length"
        self.check_starts(params, allowed)
        for name in ("starting_location_x", "starting_location_y"):
            cells = getattr(params, name)
            require(cells is None or np.all(cells == np.floor(cells)), name, cells, allowed)
        if self.random_start:
            x = params.starting_location_x
            require(x is None, "starting_location_x", x, "None if random_start is true")

    def reset(self, key: jax.Array, params: Params) -> tuple[Arrays, State]:
        """Place the taggers in the middle and the runner in the corner (0, 0).

        With `random_start`, taggers start on random inner cells. `starting_location_x` and
        `starting_location_y` override the start.
        """
        if params.starting_location_x is not None:
            x, y = jnp.asarray(params.starting_location_x), jnp.asarray(params.starting_location_y)
        else:
            x, y = self._start_cells(key, params)
        state = State(x.astype(jnp.int32), y.astype(jnp.int32), jnp.int32(0))
        return self.observe(state, params), state

    def _start_cells(self, key: jax.Array, params: Params) -> tuple[jax.Array, jax.Array]:
        if self.random_start:
            cells = jax.random.randint(key, (2, self.num_taggers), 1, params.grid_length, jnp.int32)
        else:
            cells = jnp.full((2, self.num_taggers), params.grid_length // 2)
        x, y = jnp.pad(cells, ((0, 0), (0, 1)))  # the runner, last, at (0, 0)
        return x, y

    def step(
        self, key: jax.Array, state: State, action: Arrays, params: Params
    ) -> tuple[Arrays, State, Arrays, Arrays, Arrays, Arrays]:
        """Move all agents simultaneously, then check for a tag.

        A tag requires a tagger on the runner's cell; swapping cells is not a tag.

        Reward: at a tag, +tag_reward_for_tagger for every tagger and -tag_penalty_for_runner for
        the runner. Otherwise -step_cost_for_tagger for every tagger and +step_cost_for_tagger for
        the runner. Agents that moved into a wall also lose wall_hit_penalty.
        """
        scene, state, reward, terminated, truncated, info = self.advance(key, state, action, params)
        return self.observe(scene, params), state, reward, terminated, truncated, info

    def advance(
        self, key: jax.Array, state: State, action: Arrays, params: Params
    ) -> tuple[State, State, Arrays, Arrays, Arrays, Arrays]:
        """Run `step` without computing the observation.

        Returns:
            (scene, state, reward, terminated, truncated, info): `scene`, the input of
            `observe`, is the new `state` itself.
        """
        require_action(self, action, params, owner=TagGridworld)
        over_before = self.is_over(state, params)
        state, hit_wall = self.dynamics(state, action, params, ~over_before)
        tagged = is_tagged(state)
        tagger_reward = jnp.where(
            tagged, params.tag_reward_for_tagger, -params.step_cost_for_tagger
        )
        runner_reward = jnp.where(
            tagged, -params.tag_penalty_for_runner, params.step_cost_for_tagger
        )
        reward = jnp.append(jnp.full(self.num_taggers, tagger_reward), runner_reward)
        reward = jnp.where(over_before, 0.0, reward - params.wall_hit_penalty * hit_wall)
        terminated = jnp.full(self.num_agents, self.is_over(state, params))
        tags = (tagged & ~over_before).astype(jnp.int32)
        info = {"tags": tags, "tag_steps": tags * jnp.float32(state.time)}
        truncated = jnp.zeros(self.num_agents, bool)
        split = self.by_group
        return state, state, split(reward), split(terminated), split(truncated), info

    def dynamics(
        self, state: State, action: Arrays, params: Params, moving: jax.Array
    ) -> tuple[State, jax.Array]:
        """Move all agents, if `moving`.

        Returns:
            (state, hit_wall): the state after the moves, and whether each agent moved into a wall,
            (num_agents,) bool.
        """
        moves = jnp.where(moving, jnp.concatenate([action["tagger"], action["runner"]]), 0)
        x, y = state.x + jnp.asarray(X_STEPS)[moves], state.y + jnp.asarray(Y_STEPS)[moves]
        inside_x, inside_y = jnp.clip(x, 0, params.grid_length), jnp.clip(y, 0, params.grid_length)
        hit_wall = (x != inside_x) | (y != inside_y)
        return State(inside_x, inside_y, state.time + moving), hit_wall

    def is_over(self, state: State, params: Params) -> jax.Array:
        """Return whether the game has ended (by a tag or the time limit): a bool scalar."""
        return (state.time >= params.episode_length) | ((state.time > 0) & is_tagged(state))

    def observe(self, state: State, params: Params) -> Arrays:
        """Return observations by group, with grid length G and episode length T.

        With `use_full_observation`, each row contains x / G of all agents, their y / G, their types
        (runner 1, tagger 0), a one-hot of the agent itself, and t / T. Otherwise it contains the
        agent's x / G and y / G, the x / G and y / G of its adversary (the runner, or the runner's
        nearest tagger), its type, and t / T.
        """
        x, y = state.x / params.grid_length, state.y / params.grid_length
        time = state.time / params.episode_length
        rows = (
            self._full_rows(x, y, time)
            if self.use_full_observation
            else self._partial_rows(state, x, y, time)
        )
        return self.by_group(rows.astype(jnp.float32))

    def _full_rows(self, x: jax.Array, y: jax.Array, time: jax.Array) -> jax.Array:
        """Return full observations [N, 4 N + 1]: x / G, y / G, types, own one-hot, t / T."""
        shared = jnp.concatenate([x, y, self._types()])
        shared = jnp.broadcast_to(shared, (self.num_agents, 3 * self.num_agents))
        time_column = jnp.full((self.num_agents, 1), time)
        return jnp.concatenate([shared, jnp.eye(self.num_agents), time_column], axis=1)

    def _partial_rows(self, state: State, x: jax.Array, y: jax.Array, time: jax.Array) -> jax.Array:
        """Return partial observations [N, 6]: own x / G, y / G, the adversary's, own type, t / T.

        The adversary of a tagger is the runner. The adversary of the runner is the nearest tagger;
        ties go to the lowest index.
        """
        square_distance = (state.x[:-1] - state.x[-1]) ** 2 + (state.y[:-1] - state.y[-1]) ** 2
        nearest = jnp.argmin(square_distance)
        is_runner = np.arange(self.num_agents) == self.num_taggers
        adversary_x = jnp.where(is_runner, x[nearest], x[-1])
        adversary_y = jnp.where(is_runner, y[nearest], y[-1])
        time_column = jnp.full(self.num_agents, time)
        # Stacking along agents and transposing lets each GPU warp work on a single column.
        return jnp.stack([x, y, adversary_x, adversary_y, self._types(), time_column]).T

    def _types(self) -> jax.Array:
        return jnp.zeros(self.num_agents).at[-1].set(1.0)

    def observation_space(self, params: Params) -> Dict:
        size = 4 * self.num_agents + 1 if self.use_full_observation else 6
        return Dict(
            {group: Box(0.0, 1.0, (size,)).batch(num) for group, num in self.groups.items()}
        )

    def action_space(self, params: Params) -> Dict:
        return Dict({group: Discrete(5).batch(num) for group, num in self.groups.items()})

    scene = drawn_by("wdjax.envs.tag.drawing:gridworld_scene")
    controls, steer = grid_controls, steer_on_grid


def is_tagged(state: State) -> jax.Array:
    """Return whether a tagger is on the runner's cell: a bool scalar."""
    return jnp.any((state.x[:-1] == state.x[-1]) & (state.y[:-1] == state.y[-1]))
