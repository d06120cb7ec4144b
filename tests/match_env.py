"""A cooperative environment for two groups with different spaces: each agent repeats its signal."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

import wdjax


@struct.dataclass
class MatchParams:
    episode_length: int = 3


@struct.dataclass
class MatchState:
    signal: jax.Array  # (3,) int32, 0 or 1: the caller's, then both answerers'
    time: jax.Array  # () int32, steps since the start


@dataclasses.dataclass(frozen=True)
class Match(wdjax.Env):
    """All agents receive 1 if all actions equal the signals, else 0. Episodes are truncated."""

    groups = {"caller": 1, "answerer": 2}  # noqa: RUF012
    default_params = MatchParams()

    def reset(self, key, params):
        state = MatchState(jax.random.bernoulli(key, shape=(3,)).astype(jnp.int32), jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        actions = jnp.concatenate([action["caller"], action["answerer"] - 1])
        reward = jnp.all(actions == state.signal).astype(jnp.float32)
        signal = jax.random.bernoulli(key, shape=(3,)).astype(jnp.int32)
        state = MatchState(signal, state.time + 1)
        is_cut = state.time >= params.episode_length
        each = lambda value: {name: jnp.full(size, value) for name, size in self.groups.items()}  # noqa: E731
        obs = self.observe(state, params)
        return obs, state, each(reward), each(False), each(is_cut), {"matches": reward}

    def observe(self, state, params):
        signal = state.signal.astype(jnp.float32)
        pair = jnp.stack([signal[1:], 1.0 - signal[1:]], axis=-1)
        return {"caller": signal[:1, None], "answerer": pair}

    def observation_space(self, params):
        caller, answerer = wdjax.Box(0.0, 1.0, (1,)), wdjax.Box(0.0, 1.0, (2,))
        return wdjax.Dict({"caller": caller.batch(1), "answerer": answerer.batch(2)})

    def action_space(self, params):
        # an answerer has one more action, which is always wrong
        caller, answerer = wdjax.Discrete(2), wdjax.Discrete(3)
        return wdjax.Dict({"caller": caller.batch(1), "answerer": answerer.batch(2)})

    def global_state_space(self, params):
        return wdjax.Box(0.0, 1.0, (3,))

    def global_state(self, state, params):
        return state.signal.astype(jnp.float32)
