"""Walkers cross a square to their goals without touching each other.

Replace them by your environment: the arrays that change (`State`), the numbers to vary (`Params`),
the start (`reset`) and the rules (`step`).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import wdjax

MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])  # stay, right, left, up, down


@struct.dataclass
class State:
    """Arrays that change in an episode."""

    place: jax.Array  # (n, 2) float32, in [0, 1]
    goal: jax.Array  # (n, 2) float32, in [0, 1]
    time: jax.Array  # () int32, steps since reset


@struct.dataclass
class Params:
    """Numbers of the rules. They can be swept and vmapped without recompilation."""

    speed: float = 0.06  # length / step
    width: float = 0.1  # length, below which two walkers touch
    touch_cost: float = 0.4  # per step and other walker
    episode_length: int = 32  # steps


@dataclasses.dataclass(frozen=True)
class Walkers(wdjax.Env):
    """Agents with five moves. The reward is the distance gained to the goal, minus touches."""

    num_walkers: int = 4  # static: determines shapes

    can_truncate = False

    @property
    def groups(self):
        return {"walker": self.num_walkers}

    @property
    def default_params(self):
        return Params()

    def reset(self, key, params):
        """Draw places and goals."""
        place, goal = jax.random.uniform(key, (2, self.num_walkers, 2))
        state = State(place, goal, jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        """Move all walkers. After the last step, rewards are 0 and actions have no effect."""
        playing = state.time < params.episode_length
        move = jnp.where(playing, params.speed, 0.0) * jnp.asarray(MOVES)[action["walker"]]
        place = jnp.clip(state.place + move, 0.0, 1.0)
        gained = distance(state.place, state.goal) - distance(place, state.goal)
        near = distance(place[:, None], place[None]) < params.width  # [n, n]
        touches = jnp.sum(near, axis=1) - 1  # without the walker itself
        reward = jnp.where(playing, gained - params.touch_cost * touches, 0.0)
        state = state.replace(place=place, time=state.time + playing)
        over = state.time >= params.episode_length
        arrived = jnp.mean(distance(place, state.goal) < params.width)
        info = {
            "touches": jnp.where(playing, jnp.mean(touches, dtype=jnp.float32), 0.0),
            "arrived": jnp.where(playing & over, arrived, 0.0),  # share of the walkers
        }
        terminated = {"walker": jnp.full(self.num_walkers, over)}
        truncated = {"walker": jnp.zeros(self.num_walkers, bool)}
        return self.observe(state, params), state, {"walker": reward}, terminated, truncated, info

    def observe(self, state, params):
        """Return [n, 7]: place, offsets of goal and nearest walker, time."""
        ways = state.place[None] - state.place[:, None]  # [n, n, 2]
        others = distance(ways, 0.0) + 10.0 * jnp.eye(self.num_walkers)  # far from itself
        to_nearest = ways[jnp.arange(self.num_walkers), jnp.argmin(others, axis=1)]
        time = jnp.full((self.num_walkers, 1), state.time / params.episode_length)
        parts = [state.place, state.goal - state.place, to_nearest, time]
        return {"walker": jnp.concatenate(parts, axis=1)}

    def observation_space(self, params):
        return wdjax.Dict({"walker": wdjax.Box(shape=(7,)).batch(self.num_walkers)})

    def action_space(self, params):
        return wdjax.Dict({"walker": wdjax.Discrete(len(MOVES)).batch(self.num_walkers)})

    def scene(self, states, params):
        """Draw an episode from its states, whose arrays have a leading [T]."""
        draw, size = wdjax.drawing, float(params.width) / 2
        goal, place = (np.moveaxis(points, -1, 0) for points in (states.goal, states.place))
        marks = [
            draw.Shapes(goal[0], goal[1], size=size / 2, color="faint", label="goal"),
            draw.Shapes(place[0], place[1], size=size, label="walker", group="walker", trail=True),
        ]
        captions = [f"step {time}" for time in states.time]
        return draw.Scene(marks, captions, extent=(0, 0, 1, 1))


def distance(a, b):
    """Return the distance between points, whose last axis is (x, y)."""
    return jnp.sqrt(jnp.sum((a - b) ** 2, axis=-1))
