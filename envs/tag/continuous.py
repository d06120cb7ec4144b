"""Tag in the plane: taggers and runners accelerate and turn on a square.

Source: Lan, Srinivasa, Wang, Zheng, "WarpDrive: Extremely Fast End-to-End Deep Multi-Agent
Reinforcement Learning on a GPU" (2021), section 4. The rules follow TagContinuous of WarpDrive
2.7.1. Arrays list the taggers first, then the runners.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import (
    MANY,
    require,
    require_all,
    require_bool,
    require_each,
    require_finite,
    require_integer,
    require_not_negative,
    require_positive,
)
from wdjax.env import drawn_by, require_action
from wdjax.envs.tag.controls import plane_controls, steer_in_plane
from wdjax.envs.tag.game import CHUNK, Arrays, Tag, count_by, distance_between, level, wrap
from wdjax.envs.tag.observation import observe, split_observation
from wdjax.envs.tag.scripted import chase_in_plane, flee_in_plane
from wdjax.spaces import Box, Dict, MultiDiscrete


class State(struct.PyTreeNode):
    """Positions and motion of all agents. Tagged runners that left the game stay in place."""

    x: jax.Array  # (num_agents,) float32, length, in [0, grid_length]
    y: jax.Array  # (num_agents,) float32, length, in [0, grid_length]
    speed: jax.Array  # (num_agents,) float32, length / step
    direction: jax.Array  # (num_agents,) float32, rad, in [0, 2 pi] (2 pi only by rounding)
    acceleration: jax.Array  # (num_agents,) float32, length / step^2, accumulated over steps
    active: jax.Array  # (num_agents,) bool, whether the agent is still in the game
    time: jax.Array  # () int32, steps since the reset


class Params(struct.PyTreeNode):
    """Geometry, motion limits and rewards."""

    grid_length: float = 10.0  # length, side of the square
    episode_length: int = 100  # steps, after which all agents terminate
    starting_location_x: Any = None
    """(num_agents,) float32, length; None: uniform on the square"""
    starting_location_y: Any = None
    """(num_agents,) float32, length; set both coordinates or neither"""
    starting_directions: Any = None
    """(num_agents,) float32, rad; None: drawn from 0, pi/2, pi, 3 pi/2"""
    max_speed: float = 1.0  # length / step, limit of the speed at skill level 1
    skill_level_runner: float = 1.0  # factor on the runners' max_speed
    skill_level_tagger: float = 1.0  # factor on the taggers' max_speed
    max_acceleration: float = 1.0  # length / step^2, highest acceleration level
    min_acceleration: float = -1.0  # length / step^2, lowest acceleration level
    max_turn: float = math.pi / 2  # rad, highest turn level
    min_turn: float = -math.pi / 2  # rad, lowest turn level
    edge_hit_penalty: float = -0.0  # reward of an agent that moves against the edge, at most 0
    tagging_distance: float = 0.01  # tagging radius as a fraction of grid_length
    tag_reward_for_tagger: float = 1.0  # reward of a tagger for each runner it tags
    step_penalty_for_tagger: float = -0.0  # reward of a tagger per step, at most 0
    tag_penalty_for_runner: float = -1.0  # reward of a tagged runner, at most 0
    step_reward_for_runner: float = 0.0  # reward of a runner per step
    end_of_game_reward_for_runner: float = 1.0  # reward of each runner left at the last step

    @property
    def tagging_margin(self) -> float:
        """Distance below which a tagger tags a runner."""
        return self.tagging_distance * self.grid_length


@dataclasses.dataclass(frozen=True)
class TagContinuous(Tag):
    """Taggers chase runners on a square and tag runners within the tagging distance.

    An action is a MultiDiscrete pair (acceleration level, turn level). Index 0 of each is a no-op.
    The game ends after episode_length steps or when no runner is left.
    """

    num_taggers: int = 1  # number of taggers (the first agents)
    num_runners: int = 10  # number of runners (after the taggers)
    num_acceleration_levels: int = 10
    """number of levels from min_acceleration to max_acceleration, in addition to the no-op"""
    num_turn_levels: int = 10
    """number of levels from min_turn to max_turn, in addition to the no-op"""
    use_full_observation: bool = True
    """whether to observe all other agents; false: the nearest num_other_agents_observed"""
    num_other_agents_observed: int = 2
    """number of nearest agents observed if `use_full_observation` is false"""
    observe_own_motion: bool = False
    """whether to add the agent's own heading and speed to its observation"""
    egocentric: bool = False
    """whether to rotate observations into the agent's heading and add the center of the square"""
    runner_exits_game_after_tagged: bool = True
    """whether a tagged runner leaves the game; false: it can be tagged repeatedly"""

    default_params: ClassVar[Params] = Params()
    observes_late: ClassVar[bool] = True
    shown_by: ClassVar[frozenset[str]] = frozenset(
        {"use_full_observation", "num_other_agents_observed", "observe_own_motion", "egocentric"}
    )
    scripts: ClassVar[dict[str, tuple[str, Callable]]] = {
        "chase_nearest": ("tagger", chase_in_plane),
        "flee_nearest": ("runner", flee_in_plane),
    }

    def __post_init__(self):
        require_integer("num_taggers", self.num_taggers, 1)
        require_integer("num_runners", self.num_runners, 1)
        require_integer("num_acceleration_levels", self.num_acceleration_levels, 0, MANY)
        require_integer("num_turn_levels", self.num_turn_levels, 0, MANY)
        require_integer("num_other_agents_observed", self.num_other_agents_observed, 1)
        for name in (
            "use_full_observation",
            "observe_own_motion",
            "egocentric",
            "runner_exits_game_after_tagged",
        ):
            require_bool(name, getattr(self, name))
        self.check_num_agents()
        require(
            self.use_full_observation or self.num_other_agents_observed <= self.num_agents,
            "num_other_agents_observed",
            self.num_other_agents_observed,
            f"at most {self.num_agents}, the number of agents",
        )

    @property
    def is_tagger(self) -> np.ndarray:
        """Whether each agent is a tagger, (num_agents,) bool, constant."""
        return np.arange(self.num_agents) < self.num_taggers

    def check_params(self, params: Params) -> None:
        require_finite(params)
        require_positive(params, "grid_length", "episode_length")
        require_positive(params, "max_speed", "skill_level_runner", "skill_level_tagger")
        require_each(
            params,
            ("edge_hit_penalty", "step_penalty_for_tagger", "tag_penalty_for_runner"),
            lambda value: value <= 0,
            "at most 0",
        )
        require_not_negative(
            params,
            "tag_reward_for_tagger",
            "step_reward_for_runner",
            "end_of_game_reward_for_runner",
        )
        radius, slowest = params.tagging_distance, params.min_acceleration
        rules = {
            "tagging_distance": ((radius >= 0) & (radius <= 1), "between 0 and 1"),
            "min_acceleration": (slowest <= params.max_acceleration, "at most max_acceleration"),
            "min_turn": (params.min_turn <= params.max_turn, "at most max_turn"),
        }
        require_all(params, rules)
        self.check_starts(params)

    # --- reset ---

    def reset(self, key: jax.Array, params: Params) -> tuple[Arrays, State]:
        """Place all agents at rest.

        Positions and directions are random, unless `starting_location_x`, `starting_location_y` and
        `starting_directions` specify them. Random directions are multiples of 90 degrees.
        """
        place_key, direction_key = jax.random.split(key)
        if params.starting_location_x is None:
            x, y = (
                jax.random.uniform(place_key, (2, self.num_agents), jnp.float32)
                * params.grid_length
            )
        else:
            x, y = jnp.asarray(params.starting_location_x), jnp.asarray(params.starting_location_y)
        if params.starting_directions is None:
            quarters = jax.random.randint(direction_key, (self.num_agents,), 0, 4, jnp.int32)
            direction = quarters * jnp.float32(math.pi / 2)
        else:
            direction = wrap(jnp.asarray(params.starting_directions))
        rest = jnp.zeros(self.num_agents, jnp.float32)
        state = State(x, y, rest, direction, rest, jnp.ones(self.num_agents, bool), jnp.int32(0))
        return self.observe(state, params), state

    # --- dynamics ---

    def step(
        self, key: jax.Array, state: State, action: Arrays, params: Params
    ) -> tuple[Arrays, State, Arrays, Arrays, Arrays, Arrays]:
        """Move all agents, observe, then tag.

        The observation shows the agents after the move and before this step's tags.

        A runner is tagged if its nearest tagger is strictly closer than `tagging_distance` times
        `grid_length`. Only that tagger is credited; ties go to the lowest index.

        Reward of a tagger: step_penalty_for_tagger per step and tag_reward_for_tagger per tag.
        Reward of a runner: step_reward_for_runner per step, tag_penalty_for_runner when tagged, and
        end_of_game_reward_for_runner if it is left after the tags of the last step. Agents that
        move against the edge also receive edge_hit_penalty.

        `info["tags"]` is the number of runners tagged in this step. `info["tag_steps"]` is that
        number times the step index, in float32 because its sum over an episode may exceed int32.
        """
        scene, state, reward, terminated, truncated, info = self.advance(key, state, action, params)
        return self.observe(scene, params), state, reward, terminated, truncated, info

    def advance(
        self, key: jax.Array, state: State, action: Arrays, params: Params
    ) -> tuple[State, State, Arrays, Arrays, Arrays, Arrays]:
        """Run `step` without computing the observation.

        Returns:
            (scene, state, reward, terminated, truncated, info): `scene`, the input of
            `observe`, is the State after the move and before the tags.
        """
        require_action(self, action, params, owner=TagContinuous)
        over_before = self.is_over(state, params)  # time stops when the game ends
        playing = state.active & ~over_before
        state, crossed_edge = self.move(
            state.replace(time=state.time + ~over_before), action, playing, params
        )
        scene = state  # after the move, before this step's tags
        reward, tagged = self.reward(state, crossed_edge, playing, params)
        if self.runner_exits_game_after_tagged:
            state = state.replace(active=state.active & ~tagged)
        # taggers stay to the end, so XLA reduces the runners' flags once, for `is_over` and `over`
        terminated = {
            "tagger": jnp.full(self.num_taggers, self.is_over(state, params)),
            "runner": self.runners_ended(state, params),
        }
        truncated = jnp.zeros(self.num_agents, bool)
        tags = jnp.sum(tagged, dtype=jnp.int32)
        info = {"tags": tags, "tag_steps": tags * jnp.float32(state.time)}
        split = self.by_group
        return scene, state, split(reward), terminated, split(truncated), info

    def move(
        self, state: State, action: Arrays, playing: jax.Array, params: Params
    ) -> tuple[State, jax.Array]:
        """Move all agents by one step.

        With direction d, acceleration a, speed v and side length L:

            d <- (d + turn) mod 2 pi;  a <- a + acceleration;
            v <- clip(v + a, 0, v_max);  a <- a if 0 < v < v_max, else 0;
            (x, y) <- clip((x, y) + v (cos d, sin d), 0, L).

        v_max is max_speed times the agent's skill level. Agents that are not playing have
        v = d = a = 0 and stay in place.

        Returns:
            (state, crossed_edge): the state after the move, and whether the move of each agent was
            clipped at an edge of the square, (num_agents,) bool.
        """
        indices = jnp.concatenate([action["tagger"], action["runner"]])
        accelerate = level(
            indices[:, 0],
            params.min_acceleration,
            params.max_acceleration,
            self.num_acceleration_levels,
        )
        turn = level(indices[:, 1], params.min_turn, params.max_turn, self.num_turn_levels)
        skill = jnp.where(self.is_tagger, params.skill_level_tagger, params.skill_level_runner)
        speed_limit = params.max_speed * skill
        direction = jnp.where(playing, wrap(state.direction + turn), 0.0)
        acceleration = state.acceleration + accelerate
        speed = jnp.where(playing, jnp.clip(state.speed + acceleration, 0.0, speed_limit), 0.0)
        acceleration = jnp.where((speed > 0) & (speed < speed_limit), acceleration, 0.0)
        x, y = state.x + speed * jnp.cos(direction), state.y + speed * jnp.sin(direction)
        inside_x, inside_y = (
            jnp.clip(x, 0.0, params.grid_length),
            jnp.clip(y, 0.0, params.grid_length),
        )
        crossed_edge = (x != inside_x) | (y != inside_y)
        moved = State(inside_x, inside_y, speed, direction, acceleration, state.active, state.time)
        return moved, crossed_edge

    def is_over(self, state: State, params: Params) -> jax.Array:
        """Return whether no runner is left or the time limit is reached: a bool scalar."""
        return jnp.all(self.runners_ended(state, params))

    def runners_ended(self, state: State, params: Params) -> jax.Array:
        """Return whether each runner was tagged or the time limit is reached, (num_runners,)."""
        return ~state.active[self.num_taggers :] | (state.time >= params.episode_length)

    # --- reward ---

    def reward(
        self, state: State, crossed_edge: jax.Array, playing: jax.Array, params: Params
    ) -> tuple[jax.Array, jax.Array]:
        """Compute the rewards and the tags of this step, as documented in `step`.

        Returns:
            (reward, tagged): the rewards, (num_agents,) float32, and whether each agent was tagged,
            (num_agents,) bool.
        """
        n = self.num_taggers
        nearest, distance = self.nearest_tagger(state)
        tagged = playing[n:] & (distance < params.tagging_margin)
        tags = count_by(nearest, tagged, n)  # (num_taggers,)
        left = playing[n:] & ~(tagged & self.runner_exits_game_after_tagged)
        tagger_reward = params.step_penalty_for_tagger + params.tag_reward_for_tagger * tags
        runner_reward = (
            params.step_reward_for_runner
            + params.tag_penalty_for_runner * tagged
            + params.end_of_game_reward_for_runner * (left & (state.time == params.episode_length))
        )
        reward = (
            jnp.concatenate([tagger_reward, runner_reward]) + params.edge_hit_penalty * crossed_edge
        )
        return jnp.where(playing, reward, 0.0), jnp.concatenate([jnp.zeros(n, bool), tagged])

    def nearest_tagger(self, state: State) -> tuple[jax.Array, jax.Array]:
        """Return each runner's nearest tagger and its distance, (num_runners,) each.

        Ties go to the lowest index. The minimum is taken over chunks of CHUNK taggers and then over
        the chunks, because a GPU reduces short axes in one thread.
        """
        n = self.num_taggers
        if n <= CHUNK:
            distance = distance_between(
                state.x[n:, None], state.y[n:, None], state.x[None, :n], state.y[None, :n]
            )
            return jnp.argmin(distance, axis=1), jnp.min(distance, axis=1)
        padded = [
            jnp.pad(position[:n], (0, -n % CHUNK), constant_values=jnp.inf)
            for position in (state.x, state.y)
        ]
        x, y = (position.reshape(1, -1, CHUNK) for position in padded)
        # [runner, chunk, tagger]
        distance = distance_between(state.x[n:, None, None], state.y[n:, None, None], x, y)
        index, nearest = jnp.argmin(distance, axis=2), jnp.min(distance, axis=2)
        chunk = jnp.argmin(nearest, axis=1, keepdims=True)
        chosen = [jnp.take_along_axis(value, chunk, axis=1)[:, 0] for value in (index, nearest)]
        return chunk[:, 0] * CHUNK + chosen[0], chosen[1]

    # --- observation ---

    def observe(self, state: State, params: Params) -> Arrays:
        """Return observations by group, each [num_in_group, 7 k + m] for k other agents.

        With `use_full_observation`, the k other agents are all others in index order. Otherwise
        they are the k nearest active ones, nearest first; columns of missing ones are zero.

        The first k columns are the differences in x from the agent to each of them. The next k
        columns are the differences in y, and so on for speed, acceleration and direction. Then
        follow their types (tagger 1, runner 0) and whether they are active, k columns each. x and y
        are divided by the diagonal of the square, speed and acceleration by max_speed, and
        direction by 2 pi. If `egocentric`, the x axis points along the agent's heading, and
        differences in direction are at most half a turn.

        The last m columns describe the agent itself, in this order:

            if egocentric: offset of the square's center along and across the heading, divided
                by the diagonal,
            if observe_own_motion: cosine and sine of the direction, and speed / max_speed,
            always: time / episode_length.

        For an inactive agent, all differences and the last m columns are zero.
        """
        return observe(self, state, params)

    @property
    def num_own(self) -> int:
        """Number of observation columns that describe the agent itself."""
        return 1 + 3 * self.observe_own_motion + 2 * self.egocentric

    def split_observation(self, obs: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return split_observation(obs, self.num_own)

    # --- spaces ---

    def observation_space(self, params: Params) -> Dict:
        others = (
            self.num_agents - 1 if self.use_full_observation else self.num_other_agents_observed
        )
        space = Box(shape=(7 * others + self.num_own,))
        return Dict({group: space.batch(num) for group, num in self.groups.items()})

    def action_space(self, params: Params) -> Dict:
        space = MultiDiscrete((self.num_acceleration_levels + 1, self.num_turn_levels + 1))
        return Dict({group: space.batch(num) for group, num in self.groups.items()})

    scene = drawn_by("wdjax.envs.tag.drawing:continuous_scene")
    controls, steer = plane_controls, steer_in_plane
