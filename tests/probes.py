"""Probe environments whose optimal policy and values are known exactly.

Each isolates one part of learning, as in rejax's tests/environments.py, so that an error changes
one number. `PROBES` names them for `wdjax.register`.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import wdjax
from wdjax import Box, Dict, Discrete, MultiDiscrete
from wdjax.train import A2C, PPO, NetworkConfig, PolicyConfig, TrainConfig
from wdjax.train.algorithms.ddpg import DDPG
from wdjax.train.algorithms.sac import SAC


@struct.dataclass
class SignalState:
    signal: jax.Array  # () float32, -1 or 1
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class SignalParams:
    """Terms of the reward, which is their sum. All defaults are 0."""

    constant: float = 0.0  # in every step
    by_signal: float = 0.0  # times the signal
    by_action: float = 0.0  # for action 1; its opposite for action 0
    by_match: float = 0.0  # for action 1 at signal 1 and action 0 at signal -1; else its opposite
    at_end: float = 0.0  # in the last step of an episode
    episode_length: int = 1  # steps
    time_limit: bool = False  # whether the end truncates (else it terminates)
    # whether the signal stays for the whole episode (else each step draws another)
    same_signal: bool = False


@dataclasses.dataclass(frozen=True)
class Signal(wdjax.Env):
    """One agent with two actions observes (signal, steps since the reset).

    Its params select which part of learning it tests. The final observation of an episode shows
    time 0, so that the value after a time limit can be learned.
    """

    @property
    def default_params(self):
        return SignalParams()

    def reset(self, key, params):
        state = SignalState(draw_signal(key), jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        choice = jnp.where(action == 1, 1.0, -1.0)
        time = state.time + 1
        over = time >= params.episode_length
        reward = params.constant + (params.by_signal + params.by_match * choice) * state.signal
        reward += params.by_action * choice + params.at_end * over
        state = SignalState(jnp.where(params.same_signal, state.signal, draw_signal(key)), time)
        terminated, truncated = over & ~params.time_limit, over & params.time_limit
        return self.observe(state, params), state, reward, terminated, truncated, {}

    def observe(self, state, params):
        return jnp.stack([state.signal, (state.time % params.episode_length).astype(jnp.float32)])

    def observation_space(self, params):
        return Box(-np.inf, np.inf, (2,))

    def action_space(self, params):
        return Discrete(2)


def draw_signal(key):
    return jax.random.rademacher(key, (), jnp.float32)


@struct.dataclass
class LeaverState:
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class LeaverParams:
    leave: int = 2  # steps until the first player terminates
    episode_length: int = 4  # steps until the other player terminates
    dead_obs: float = 0.0  # added to the observation of the first player after it terminates
    # its reward after it terminates. Environments must return 0; this probe checks that it is
    # ignored
    dead_reward: float = 0.0


@dataclasses.dataclass(frozen=True)
class Leaver(wdjax.Env):
    """Two players receive 1 per step whatever they do. The first one leaves early.

    Afterwards it keeps observing its last step.
    """

    can_truncate: ClassVar[bool] = False
    LENGTH: ClassVar[int] = 4  # the longest episode that the observation can encode

    @property
    def groups(self):
        return {"player": 2}

    @property
    def default_params(self):
        return LeaverParams()

    def reset(self, key, params):
        state = LeaverState(jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        out = self.ends(params) <= state.time
        reward = jnp.where(out, params.dead_reward, 1.0)
        state = LeaverState(state.time + 1)
        terminated = self.ends(params) <= state.time
        still = {"player": jnp.zeros(2, bool)}
        return (
            self.observe(state, params),
            state,
            {"player": reward},
            {"player": terminated},
            still,
            {},
        )

    def ends(self, params):
        """Return the last step of each player, (2,) int32."""
        return jnp.stack([jnp.int32(params.leave), jnp.int32(params.episode_length)])

    def observe(self, state, params):
        shown = jnp.minimum(state.time, self.ends(params) - 1)
        rows = jax.nn.one_hot(shown + jnp.array([0, self.LENGTH]), 2 * self.LENGTH)
        garbage = jnp.where(self.ends(params) <= state.time, params.dead_obs, 0.0)
        return {"player": rows + garbage[:, None]}

    def observation_space(self, params):
        return Dict({"player": Box(-np.inf, np.inf, (2 * self.LENGTH,)).batch(2)})

    def action_space(self, params):
        return Dict({"player": Discrete(2).batch(2)})


@struct.dataclass
class PairState:
    signal: jax.Array  # () float32, -1 or 1
    # (num_clerks, 5) int32, 1 where allowed: 2 entries for the first choice, 3 for the second
    mask: jax.Array
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class PairParams:
    pilot_scale: float = 1.0  # factor of the pilots' rewards
    pilot_noise: float = 0.0  # added to the observations of the pilots
    clerk_scale: float = 1.0  # factor of the clerks' rewards
    clerk_noise: float = 0.0  # added to the observations of the clerks
    episode_length: int = 3  # steps, then truncated


@dataclasses.dataclass(frozen=True)
class Pair(wdjax.Env):
    """Two groups that share only the clock and a signal, which is drawn anew in every step.

    Pilots act in a box and receive -|action - target|^2. The target is inside the box and depends
    on the signal. Clerks make two discrete choices under a mask, which is drawn in every step. They
    receive 1 for a first choice that matches the signal, 1 for the highest legal second choice, and
    10 for each illegal choice, which they must never make.
    """

    num_pilots: int = 2
    num_clerks: int = 3

    TARGETS: ClassVar[dict[int, tuple[float, float]]] = {1: (0.5, -0.25), -1: (-0.5, -0.25)}

    @property
    def groups(self):
        return {"pilot": self.num_pilots, "clerk": self.num_clerks}

    @property
    def default_params(self):
        return PairParams()

    def reset(self, key, params):
        state = self.draw_state(key, jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        pilot = jax.vmap(pilot_reward, (None, 0))(state.signal, action["pilot"])
        clerk, forbidden = jax.vmap(clerk_reward, (None, 0, 0))(
            state.signal, state.mask, action["clerk"]
        )
        reward = {"pilot": pilot * params.pilot_scale, "clerk": clerk * params.clerk_scale}
        info = {"forbidden": jnp.sum(forbidden), "outside": jnp.sum(jnp.abs(action["pilot"]) > 1)}
        state = self.draw_state(key, state.time + 1)
        cut = {
            name: jnp.full(size, state.time >= params.episode_length)
            for name, size in self.groups.items()
        }
        return (
            self.observe(state, params),
            state,
            reward,
            jax.tree.map(jnp.zeros_like, cut),
            cut,
            info,
        )

    def draw_state(self, key, time):
        signal_key, mask_key = jax.random.split(key)
        mask = jax.vmap(draw_mask)(jax.random.split(mask_key, self.num_clerks))
        return PairState(draw_signal(signal_key), mask, time)

    def observe(self, state, params):
        clerk = {
            "action_mask": state.mask,
            "signal": jnp.full((self.num_clerks, 1), state.signal + params.clerk_noise),
            "day": jnp.full(self.num_clerks, state.time % 3),
        }
        return {
            "pilot": jnp.full((self.num_pilots, 1), state.signal + params.pilot_noise),
            "clerk": clerk,
        }

    def observation_space(self, params):
        line = Box(-np.inf, np.inf, (1,))
        clerk = Dict({"action_mask": MultiDiscrete((2,) * 5), "signal": line, "day": Discrete(3)})
        return Dict({"pilot": line.batch(self.num_pilots), "clerk": clerk.batch(self.num_clerks)})

    def action_space(self, params):
        pilot, clerk = Box(-1.0, 1.0, (2,)), MultiDiscrete((2, 3))
        return Dict({"pilot": pilot.batch(self.num_pilots), "clerk": clerk.batch(self.num_clerks)})


def pilot_reward(signal, action):
    """Return -|action - target|^2 of one pilot."""
    target = jnp.where(signal > 0, jnp.array(Pair.TARGETS[1]), jnp.array(Pair.TARGETS[-1]))
    return -jnp.sum((action - target) ** 2)


def clerk_reward(signal, mask, action):
    """Return (reward, number of illegal choices) of one clerk."""
    highest = 2 - jnp.argmax(mask[:1:-1])
    forbidden = 2 - mask[action[0]] - mask[2 + action[1]]
    hits = jnp.array([(action[0] == 1) == (signal > 0), action[1] == highest])
    return jnp.sum(hits, dtype=jnp.float32) + 10.0 * forbidden, forbidden


def draw_mask(key):
    """Allow one option of each choice, and the others with probability 0.4: (5,) int32."""
    other_key, first_key, second_key = jax.random.split(key, 3)
    mask = jax.random.bernoulli(other_key, 0.4, (5,))
    mask = mask.at[jax.random.randint(first_key, (), 0, 2)].set(True)
    return mask.at[jax.random.randint(second_key, (), 2, 5)].set(True).astype(jnp.int32)


@struct.dataclass
class RecallState:
    signal: jax.Array  # () float32, -1 or 1
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class RecallParams:
    episode_length: int = 4  # steps
    time_limit: bool = False  # whether the end truncates (else it terminates)
    # reward for action 1 after signal 1, or 0 after -1, in the last step; else its opposite
    by_recall: float = 1.0


@dataclasses.dataclass(frozen=True)
class Recall(wdjax.Env):
    """One agent observes a signal in its first step only and must match it in its last."""

    @property
    def default_params(self):
        return RecallParams()

    def reset(self, key, params):
        state = RecallState(draw_signal(key), jnp.int32(0))
        return self.observe(state), state

    def step(self, key, state, action, params):
        state = state.replace(time=state.time + 1)
        over = state.time >= params.episode_length
        fits = jnp.where((action == 1) == (state.signal > 0), 1.0, -1.0)
        terminated, truncated = over & ~params.time_limit, over & params.time_limit
        return self.observe(state), state, params.by_recall * fits * over, terminated, truncated, {}

    def observe(self, state):
        return jnp.stack(
            [jnp.where(state.time == 0, state.signal, 0.0), state.time.astype(jnp.float32)]
        )

    def observation_space(self, params):
        return Box(-np.inf, np.inf, (2,))

    def action_space(self, params):
        return Discrete(2)


@struct.dataclass
class ShopState:
    light: jax.Array  # (5,) int32, 0 or 1. All fields are per agent, pilots first
    place: jax.Array  # (5, 2) float32
    mask: jax.Array  # (3, 5) int32, of the clerks
    out: jax.Array  # (5,) bool
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class ShopParams:
    leave: float = 0.2  # probability that an agent terminates in a step
    episode_length: int = 4  # steps after which the remaining agents are truncated
    dead_obs: float = 0.0  # added to the observations of terminated agents
    # their reward. Environments must return 0; this probe checks that it is ignored
    dead_reward: float = 0.0


@dataclasses.dataclass(frozen=True)
class Shop(wdjax.Env):
    """All features at once: nested observations, masks, random terminations, time limits.

    Pilots act in a box, clerks make two choices. The reward is the agent's first action plus its
    first place.
    """

    @property
    def groups(self):
        return {"pilot": 2, "clerk": 3}

    @property
    def default_params(self):
        return ShopParams()

    def reset(self, key, params):
        state = self.draw_state(key, jnp.zeros(5, bool), jnp.int32(0), leave=0.0)
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        first = jnp.concatenate([action["pilot"][:, 0], action["clerk"][:, 0].astype(jnp.float32)])
        reward = jnp.where(state.out, params.dead_reward, state.place[:, 0] + first)
        state = self.draw_state(key, state.out, state.time + 1, params.leave)
        out = state.out
        cut = (state.time >= params.episode_length) & ~out
        return (
            self.observe(state, params),
            state,
            self.split(reward),
            self.split(out),
            self.split(cut),
            {},
        )

    def split(self, values):
        return {"pilot": values[:2], "clerk": values[2:]}

    def draw_state(self, key, out, time, leave):
        drawn = jax.random.uniform(key, (5, 9))  # in one call, since each call is slow to compile
        light = (drawn[:, 0] < 0.5).astype(jnp.int32)
        place = jnp.array([[30.0, -2.0]]) + jnp.array([[4.0, 0.1]]) * drawn[:, 1:3]
        choices = jnp.split(drawn[2:, 3:8], [2], axis=1)
        mask = [(part < 0.4) | (part == part.max(axis=1, keepdims=True)) for part in choices]
        mask = jnp.concatenate(mask, axis=1).astype(jnp.int32)
        return ShopState(light, place, mask, out | (drawn[:, 8] < leave), time)

    def observe(self, state, params):
        time = jnp.full((5, 1), 10 * state.time)
        choices = jnp.stack([state.light, jnp.full(5, state.time % 3)], axis=1)
        garbage = jnp.where(state.out, params.dead_obs, 0.0)[:, None]
        parts = {
            "inner": {"place": state.place + garbage, "choices": choices},
            "clock": time,
            "light": state.light,
        }
        seen = {
            name: jax.tree.map(lambda leaf, name=name: self.split(leaf)[name], parts)
            for name in self.groups
        }
        return {**seen, "clerk": {**seen["clerk"], "action_mask": state.mask}}

    def observation_space(self, params):
        inner = Dict({"place": Box(-np.inf, np.inf, (2,)), "choices": MultiDiscrete((2, 3))})
        pilot = {"inner": inner, "clock": Box(0, 1000, (1,), jnp.int32), "light": Discrete(2)}
        clerk = {**pilot, "action_mask": MultiDiscrete((2,) * 5)}
        return Dict({"pilot": Dict(pilot).batch(2), "clerk": Dict(clerk).batch(3)})

    def action_space(self, params):
        pilot, clerk = Box(-1.0, 3.0, (2,)), MultiDiscrete((2, 3))
        return Dict({"pilot": pilot.batch(2), "clerk": clerk.batch(3)})


PROBES = {
    "probe_signal": Signal,
    "probe_leaver": Leaver,
    "probe_pair": Pair,
    "probe_recall": Recall,
    "probe_shop": Shop,
}

# Small, to compile fast: runs of probes are shorter than their compilation.
NETWORK = NetworkConfig(hidden_sizes=(8,), activation="tanh", initializer="lecun")
FALLING = ((0, 0.02), (300 * 8 * 6, 0.0))  # to 0 in 300 updates, so that values converge
ALGORITHMS = {"A2C": {}, "PPO": {"epochs": 2, "minibatches": 2, "normalize_advantage": True}}
OPTIONS = {"A2C": A2C.Options, "PPO": PPO.Options, "DDPG": DDPG.Options, "SAC": SAC.Options}


def tiny_policy(algorithm, **changes):
    """Return a policy with a hidden layer of 8 units that learns fast and stops exploring early."""
    settings = {
        "network": NETWORK,
        "gamma": 0.7,
        "entropy_coefficient": 0.0,
        "learning_rate": FALLING,
    }
    return new_policy(algorithm, **{**settings, **ALGORITHMS[algorithm], **changes})


def new_policy(algorithm, **fields):
    """Return a PolicyConfig; `fields` holds its own fields and options of its algorithm."""
    bare = PolicyConfig(algorithm=algorithm, options=OPTIONS[algorithm]())
    return change_policy(bare, **fields)


def change_policy(policy, **changes):
    """Return a PolicyConfig with changes of its own fields and of its algorithm's options."""
    fields = {name: changes.pop(name) for name in [*changes] if hasattr(policy, name)}
    return dataclasses.replace(
        policy, **fields, options=dataclasses.replace(policy.options, **changes)
    )


def tiny_config(env, policies, **changes):
    """Return a run with 8 replicas and rollouts of 6 steps."""
    return TrainConfig(
        **{"env": env, "policies": policies, "num_envs": 8, "rollout_length": 6, **changes}
    )
