"""A probe environment for agents that decide only in some steps."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import wdjax
from wdjax import Box, Dict, Discrete, MultiDiscrete


@struct.dataclass
class ShiftState:
    choice: jax.Array  # (2,) int32, the last decision of each worker
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class ShiftParams:
    # steps between two decisions of each worker; 0: it never decides
    intervals: tuple = (2.0, 3.0)
    constant: float = 0.0  # reward in every step
    # reward for choice 2 in the last step before the next decision, or of the episode
    late: float = 0.0
    episode_length: int = 6  # steps, at most LENGTH
    time_limit: bool = False  # whether the end truncates (else it terminates)
    # whether the final observation shows time 0 (else a time that occurs nowhere else)
    wraps: bool = True
    forced_obs: float = 0.0  # added to the observation of a worker that cannot decide


@dataclasses.dataclass(frozen=True)
class Shift(wdjax.Env):
    """Two workers choose among three actions, in steps that are multiples of their interval.

    In other steps a mask allows only action 0, which has no effect. Workers observe the time,
    one-hot.
    """

    LENGTH: ClassVar[int] = 6

    @property
    def groups(self):
        return {"worker": 2}

    @property
    def default_params(self):
        return ShiftParams()

    def reset(self, key, params):
        state = ShiftState(jnp.zeros(2, jnp.int32), jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        choice = jnp.where(self.decides(state.time, params), action["worker"], state.choice)
        state = ShiftState(choice, state.time + 1)
        over = state.time >= params.episode_length
        pays = self.decides(state.time, params) | over
        reward = params.constant + params.late * jnp.where(pays & (choice == 2), 1.0, 0.0)
        flags = (
            {"worker": jnp.full(2, over & ~params.time_limit)},
            {"worker": jnp.full(2, over & params.time_limit)},
        )
        return self.observe(state, params), state, {"worker": reward}, *flags, {}

    def decides(self, time, params):
        """Return which workers decide at a time, (2,) bool."""
        intervals = jnp.asarray(params.intervals)
        return (time % jnp.maximum(intervals, 1.0) == 0) & (intervals > 0)

    def observe(self, state, params):
        time = jnp.where(params.wraps, state.time % params.episode_length, state.time)
        decides = self.decides(time, params)[:, None]
        shown_time = jnp.tile(jax.nn.one_hot(time, self.LENGTH + 1), (2, 1)) + jnp.where(
            decides, 0.0, params.forced_obs
        )
        mask = jnp.concatenate([jnp.ones((2, 1), bool), jnp.tile(decides, (1, 2))], axis=1)
        return {"worker": {"seen": shown_time, "action_mask": mask.astype(jnp.int32)}}

    def observation_space(self, params):
        shown_time = Box(-np.inf, np.inf, (self.LENGTH + 1,))
        return Dict(
            {"worker": Dict({"seen": shown_time, "action_mask": MultiDiscrete((2, 2, 2))}).batch(2)}
        )

    def action_space(self, params):
        return Dict({"worker": Discrete(3).batch(2)})


DECISION_PROBES = {"probe_shift": Shift}
