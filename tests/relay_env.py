"""A probe environment with slots that agents join, leave and use again, at known steps."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import wdjax

LENGTH = 6  # steps of an episode


@struct.dataclass
class RelayState:
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class RelayParams:
    by_action: float = 0.0  # reward for action 1
    cut: bool = False  # whether the first agent is truncated (else it terminates)
    # added to the observations and rewards of empty slots. The contract requires a reward of 0;
    # this probe checks that nothing reads it
    empty_obs: float = 0.0
    empty_reward: float = 0.0


@dataclasses.dataclass(frozen=True)
class Relay(wdjax.Env):
    """Three runners in two slots, with rewards of 1, 2 and 3 per step.

    The first one acts in slot 0 in steps 0 and 1, the second one in steps 3 and 4, and the third
    one in slot 1 from step 2 on.
    """

    groups: ClassVar = {"runner": 2}
    default_params: ClassVar = RelayParams()

    def reset(self, key, params):
        state = RelayState(jnp.int32(0))
        return self.observe(state, params), state

    def present(self, state, params):
        return {"runner": jnp.stack([state.time != 2, state.time >= 2])}

    def step(self, key, state, action, params):
        playing = self.playing(state, params)
        pay = jnp.stack([jnp.where(state.time < 2, 1.0, 2.0), jnp.float32(3.0)])
        pay += params.by_action * action["runner"]
        after = RelayState(jnp.minimum(state.time + 1, LENGTH))
        left, cut = left_at(after.time), jnp.stack([(after.time == 2) & params.cut, False])
        return (
            self.observe(after, params),
            after,
            {"runner": jnp.where(playing, pay, params.empty_reward).astype(jnp.float32)},
            {"runner": (left & ~cut) | (after.time >= LENGTH)},
            {"runner": cut},
            {},
        )

    def playing(self, state, params):
        present = self.present(state, params)["runner"]
        return present & ~left_at(state.time) & (state.time < LENGTH)

    def observe(self, state, params):
        """Return the time and the slot, [2, 9]."""
        time = jnp.broadcast_to(jax.nn.one_hot(state.time, LENGTH + 1), (2, LENGTH + 1))
        # the last observation of the first runner is not garbage: its return may bootstrap there
        empty = ~self.playing(state, params) & ((state.time != 2) | jnp.array([False, True]))
        rows = jnp.concatenate([time, jnp.eye(2)], axis=1)
        return {"runner": rows + params.empty_obs * empty[:, None]}

    def global_state(self, state, params):
        return jax.nn.one_hot(state.time, LENGTH + 1)

    def global_state_space(self, params):
        return wdjax.Box(shape=(LENGTH + 1,))

    def observation_space(self, params):
        return wdjax.Dict({"runner": wdjax.Box(-np.inf, np.inf, (LENGTH + 3,)).batch(2)})

    def action_space(self, params):
        return wdjax.Dict({"runner": wdjax.Discrete(2).batch(2)})


def left_at(time):
    """Return whether a runner has left a slot that no other one has joined since, [2] bool."""
    return jnp.stack([(time == 2) | (time == 5), False])
