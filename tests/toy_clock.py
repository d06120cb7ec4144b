"""An environment that returns NaN after the steps that `check_env` plays, and a run of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental import checkify
from probes import tiny_config, tiny_policy

import wdjax
from wdjax import Box, Discrete


@struct.dataclass
class ClockState:
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class ClockParams:
    at_step: int = 1_500  # the step of an episode with reward 0 / 0; `check_env` plays fewer steps
    last_step: int = 10_000  # the last step that the environment's assert allows
    episode_length: int = 5_000


@dataclasses.dataclass(frozen=True)
class Clock(wdjax.Env):
    """One agent receives 1 per step, and 0 / 0 in one step of an episode."""

    @property
    def default_params(self):
        return ClockParams()

    def reset(self, key, params):
        return jnp.zeros(1), ClockState(jnp.int32(0))

    def step(self, key, state, action, params):
        time = state.time + 1
        checkify.debug_check(time <= params.last_step, "time is {}", time)
        distance = jnp.where(time == params.at_step, 0.0, 1.0)
        over = state.time >= params.episode_length
        reward = jnp.where(over, 0.0, distance / distance)
        return (
            time[None] / 5_000,
            ClockState(time),
            reward,
            jnp.bool_(False),
            time >= params.episode_length,
            {},
        )

    def observation_space(self, params):
        return Box(0, np.inf, (1,))

    def action_space(self, params):
        return Discrete(2)


STEPS_OF_UPDATE = 8 * 400
RUN = {
    "rollout_length": 400,
    "updates_per_chunk": 2,
    "checkpoint_every": 5,
    "best_metric": "none",
    "total_env_steps": 6 * STEPS_OF_UPDATE,
}


def run_config(algorithm="A2C", **changes):
    """Return a run of 6 updates. The fourth contains the NaN."""
    return tiny_config(
        "probe_clock", {"agent": tiny_policy(algorithm, learning_rate=0.01)}, **{**RUN, **changes}
    )
