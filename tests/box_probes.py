"""Probe environments with continuous actions, for algorithms that require a Box."""

import dataclasses

import jax.numpy as jnp
from flax import struct
from probes import NETWORK, Leaver, Signal, SignalParams, SignalState, draw_signal, new_policy

from wdjax import Box, Dict

LOW, HIGH = -1.0, 3.0


@struct.dataclass
class BoxSignalParams(SignalParams):
    """`SignalParams` with a target for the action."""

    # by_match pays -(action - target)^2 at signal 1, -(action + target)^2 at signal -1
    target: float = 0.0


@dataclasses.dataclass(frozen=True)
class BoxSignal(Signal):
    """One agent chooses a number from -1 to 3 and observes (signal, steps since the reset).

    The reward contains `by_action` times the action, and `by_match` times minus the squared
    distance to a target.
    """

    @property
    def default_params(self):
        return BoxSignalParams()

    def step(self, key, state, action, params):
        time = state.time + 1
        over = time >= params.episode_length
        reward = params.constant + params.by_signal * state.signal + params.by_action * action[0]
        reward -= params.by_match * (action[0] - params.target * state.signal) ** 2
        reward += params.at_end * over
        info = {"outside": (action[0] < LOW) | (action[0] > HIGH)}
        state = SignalState(jnp.where(params.same_signal, state.signal, draw_signal(key)), time)
        return (
            self.observe(state, params),
            state,
            reward,
            over & ~params.time_limit,
            over & params.time_limit,
            info,
        )

    def action_space(self, params):
        return Box(LOW, HIGH, (1,))


@dataclasses.dataclass(frozen=True)
class BoxLeaver(Leaver):
    """Two players with actions that have no effect. The first one leaves early."""

    def action_space(self, params):
        return Dict({"player": Box(-1.0, 1.0, (2,)).batch(2)})


BOX_PROBES = {"probe_box_signal": BoxSignal, "probe_box_leaver": BoxLeaver}


def tiny_ddpg(algorithm="DDPG", **changes):
    """Return a DDPG policy with one hidden layer of 8 units and a critic that learns fast."""
    settings = {
        "network": NETWORK,
        "gamma": 0.7,
        "learning_rate": 0.01,
        "max_grad_norm": 10.0,
        "critic_learning_rate": 0.02,
        "tau": 0.2,
        "buffer_size": 512,
        "batch_size": 64,
        "warmup": 64,
        "updates_per_rollout": 8,
    }
    return new_policy(algorithm, **{**settings, **changes})


def tiny_sac(**changes):
    """Return a SAC policy like `tiny_ddpg`, with a low temperature.

    Its critics need more units, because it does not explore where they are wrong.
    """
    network = dataclasses.replace(NETWORK, hidden_sizes=(32,), activation="relu")
    settings = {"network": network, "temperature": 0.03, "learn_temperature": False}
    return tiny_ddpg("SAC", **{**settings, **changes})
