"""A random walk, the smallest environment whose steps use their keys."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

import wdjax
from wdjax import Box


@struct.dataclass
class State:
    place: jax.Array  # () float32
    time: jax.Array  # () int32


@struct.dataclass
class Params:
    reach: float = 2.0  # the largest action, and the distance at which a walk terminates
    episode_length: int = 6


@dataclasses.dataclass(frozen=True)
class Walk(wdjax.Env):
    """Move by the action and noise, terminate beyond `reach`, truncate at a time limit.

    The bounds of an action depend on params.
    """

    @property
    def default_params(self):
        return Params()

    def reset(self, key, params):
        state = State(jax.random.uniform(key) * params.reach, jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        state = State(state.place + action[0] + jax.random.normal(key), state.time + 1)
        terminated = jnp.abs(state.place) > params.reach
        truncated = (state.time >= params.episode_length) & ~terminated
        info = {"distance": jnp.abs(state.place)}
        return self.observe(state, params), state, state.place, terminated, truncated, info

    def observe(self, state, params):
        return jnp.stack([state.place, state.time.astype(jnp.float32)])

    def observation_space(self, params):
        return Box(shape=(2,))

    def action_space(self, params):
        return Box(-params.reach, params.reach, (1,))
