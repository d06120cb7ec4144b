"""Two small environments that follow the contract. Tests break one rule of it at a time."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import wdjax
from wdjax import Box, Dict, Discrete, MultiDiscrete


@struct.dataclass
class LineState:
    place: jax.Array  # () float32
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class LineParams:
    pace: float = 1.0  # length of a step
    noise: float = 0.2  # uniform noise of a step, on both sides
    reach: float = 3.0  # the walk terminates beyond this distance
    episode_length: int = 12  # steps, then truncated


@dataclasses.dataclass(frozen=True)
class Line(wdjax.Env):
    """One agent walks left, stays, or walks right. It may not walk left of -2.

    Terminates beyond `reach`.
    """

    @property
    def default_params(self):
        return LineParams()

    def check_params(self, params):
        if np.any(params.reach <= 0):
            raise ValueError("reach: must be above 0")

    def reset(self, key, params):
        state = LineState(jax.random.uniform(key, (), jnp.float32, -1.0, 1.0), jnp.int32(0))
        return self.observe(state), state

    def step(self, key, state, action, params):
        over = self.is_over(state, params)
        move = (action - 1) * params.pace + params.noise * jax.random.uniform(
            key, (), jnp.float32, -1.0, 1.0
        )
        state = LineState(jnp.where(over, state.place, state.place + move), state.time + 1)
        terminated = self.is_over(state, params)
        truncated = (state.time >= params.episode_length) & ~terminated
        info = {"moved": jnp.where(over, 0.0, jnp.abs(move))}
        return self.observe(state), state, jnp.where(over, 0.0, 1.0), terminated, truncated, info

    def is_over(self, state, params):
        return jnp.abs(state.place) > params.reach

    def observe(self, state):
        mask = jnp.stack([state.place > -2, True, True]).astype(jnp.int32)
        return {"place": state.place[None], "action_mask": mask}

    def observation_space(self, params):
        return Dict({"place": Box(-9.0, 9.0, (1,)), "action_mask": MultiDiscrete((2, 2, 2))})

    def action_space(self, params):
        return Discrete(3)


@struct.dataclass
class TeamState:
    energy: jax.Array  # (2,) float32, of the workers; a worker without energy terminates
    aim: jax.Array  # (1, 2) float32, of the pilot
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class TeamParams:
    cost: float = 0.3  # energy of one unit of effort
    episode_length: int = 8  # steps, then terminated


@dataclasses.dataclass(frozen=True)
class Team(wdjax.Env):
    """Two workers with masked MultiDiscrete actions, which may terminate early, and a Box pilot."""

    can_truncate: ClassVar[bool] = False

    @property
    def groups(self):
        return {"worker": 2, "pilot": 1}

    @property
    def default_params(self):
        return TeamParams()

    def reset(self, key, params):
        state = TeamState(jax.random.uniform(key, (2,)) + 0.5, jnp.zeros((1, 2)), jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        before = self.ended(state, params)
        effort = action["worker"].sum(axis=1)
        energy = jnp.where(before["worker"], state.energy, state.energy - params.cost * effort)
        aim = jnp.where(before["pilot"][:, None], state.aim, action["pilot"])
        state = TeamState(energy, aim, state.time + 1)
        reward = {"worker": effort.astype(jnp.float32), "pilot": aim.sum(axis=1)}
        reward = {group: jnp.where(before[group], 0.0, reward[group]) for group in reward}
        terminated = self.ended(state, params)
        info = {"tired": jnp.sum(terminated["worker"] & ~before["worker"])}
        return self.observe(state, params), state, reward, terminated, self.truncated(state), info

    def ended(self, state, params):
        over = state.time >= params.episode_length
        return {"worker": over | (state.energy <= 0), "pilot": over[None]}

    def truncated(self, state):
        return {"worker": jnp.zeros(2, bool), "pilot": jnp.zeros(1, bool)}

    def observe(self, state, params):
        strong = (state.energy > params.cost).astype(jnp.int32)
        one = jnp.ones(2, jnp.int32)
        mask = jnp.stack([one, strong, one, one, strong], axis=1)
        return {"worker": {"energy": state.energy, "action_mask": mask}, "pilot": state.aim}

    def observation_space(self, params):
        worker = Dict({"energy": Box(-2.0, 2.0), "action_mask": MultiDiscrete((2,) * 5)})
        return Dict({"worker": worker.batch(2), "pilot": Box(-1.0, 1.0, (2,)).batch(1)})

    def action_space(self, params):
        return Dict(
            {"worker": MultiDiscrete((2, 3)).batch(2), "pilot": Box(-1.0, 1.0, (2,)).batch(1)}
        )
