"""An environment in the form of gymnax 0.0.9: a single `done`, Python numbers in the state."""

import jax.numpy as jnp
from flax import struct


@struct.dataclass
class State:
    place: float
    time: int


@struct.dataclass
class Params:
    step_reward: float = 1.0
    max_steps_in_episode: int = 3


class Box:
    """A space of another library, recognized by its attributes."""

    def __init__(self, low, high, shape, dtype):
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype


class Discrete:
    def __init__(self, n):
        self.n, self.shape, self.dtype = n, (), jnp.int32


class BareDone:
    """Moves right by action 1. Done at the time limit."""

    default_params = Params()

    def reset_env(self, key, params):
        state = State(0.0, 0)
        return self.get_obs(state), state

    def step_env(self, key, state, action, params):
        state = State(state.place + action, state.time + 1)
        done = state.time >= params.max_steps_in_episode
        info = {"discount": 1.0 - done, "jumps": action == 1, "picture": jnp.zeros((2, 2))}
        return self.get_obs(state), state, params.step_reward, done, info

    def get_obs(self, state):
        return jnp.array([state.place, state.time], jnp.float32)

    def observation_space(self, params):
        return Box(-1.0, 1.0, (2,), jnp.float32)  # the bounds do not hold

    def action_space(self, params):
        return Discrete(2)
