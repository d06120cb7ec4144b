"""An environment with statistics that a test names and whose values are known."""

import dataclasses

import jax.numpy as jnp
from flax import struct

import wdjax
from wdjax import Box, Dict, Discrete

STEPS = 3  # length of an episode


@struct.dataclass
class LedgerState:
    time: jnp.ndarray  # () int32


@struct.dataclass
class LedgerParams:
    reward: float = 2.0  # per agent and step


def given(default):
    """Return a field that `wdjax.make` does not accept as an argument."""
    return dataclasses.field(default=default, metadata={"argument": False})


def _stay(env, state, params, key):
    """Return action 0."""
    return jnp.zeros(1, jnp.int32)


@dataclasses.dataclass(frozen=True)
class Ledger(wdjax.Env):
    """Groups of one agent each, with equal rewards in every step.

    The i-th of `names` adds i + 1 in every step.
    """

    names: tuple[str, ...] = given(())
    ratios: tuple[tuple[str, str, str], ...] = given(())  # (name, sum, divisor)
    members: tuple[str, ...] = given(("agent", "crowd"))
    plays: tuple[str, ...] = given(())  # names of scripts of the first group

    @property
    def default_params(self):
        return LedgerParams()

    @property
    def groups(self):
        return dict.fromkeys(self.members, 1)

    @property
    def info_ratios(self):
        return {name: (total, count) for name, total, count in self.ratios}

    @property
    def scripts(self):
        return dict.fromkeys(self.plays, (self.members[0], _stay))

    def reset(self, key, params):
        state = LedgerState(jnp.int32(0))
        return self.observe(state), state

    def step(self, key, state, action, params):
        state = LedgerState(state.time + 1)

        def every(value):
            return dict.fromkeys(self.members, value[None])

        paid = jnp.where(state.time <= STEPS, params.reward, 0.0)
        flags = every(paid), every(state.time >= STEPS), every(jnp.bool_(False))
        info = {name: jnp.float32(i + 1) for i, name in enumerate(self.names)}
        return self.observe(state), state, *flags, info

    def observe(self, state):
        return dict.fromkeys(
            self.members, jnp.minimum(state.time, STEPS).astype(jnp.float32)[None, None] / STEPS
        )

    def observation_space(self, params):
        return Dict({name: Box(0.0, 1.0, (1,)).batch(1) for name in self.members})

    def action_space(self, params):
        return Dict({name: Discrete(2).batch(1) for name in self.members})
