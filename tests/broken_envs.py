"""Environments that each break one rule of the contract, with the expected error.

Each is one of the two correct toys (tests/toy_contract.py) with one override.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from toy_contract import Line, LineParams, LineState, Team

from wdjax import Box, Dict, Discrete, MultiDiscrete
from wdjax.checks import require

BROKEN = []  # (class, sentence as a regular expression)
BROKEN_IN_PLAY = []  # likewise: errors that only random play finds
# likewise: further cases of the same rules, and leaks, which jax takes seconds to trace
BROKEN_LATE = []


def says(sentence, found_in=BROKEN):
    """Register the class with the error that `check_env` must raise."""

    def add(cls):
        found_in.append((cls, sentence))
        return cls

    return add


def says_in_play(sentence):
    return says(sentence, BROKEN_IN_PLAY)


def says_late(sentence):
    return says(sentence, BROKEN_LATE)


class Plain:
    """Compares by identity and is not a pytree."""


# --- values ---


@says(
    r"NoDataclass\.size is not a field\. Add @dataclasses\.dataclass\(frozen=True\) to its class, "
    r"with a line"
)
class NoDataclass(Line):
    size: int = 3


@says(
    r"OwnInit\.factor is not a field\. Add @dataclasses\.dataclass\(frozen=True\) to its class, "
    r".* and no __init__"
)
class OwnInit(Line):
    def __init__(self, factor=1.0):
        self.factor = factor


@says(
    r"reach is a field of both TwiceNamed and its params, so make\(\.\.\.\) can set only one\. "
    r"Rename one of them"
)
@dataclasses.dataclass(frozen=True)
class TwiceNamed(Line):
    reach: float = 2.0


@says(r"ListField\.sizes is a list, which is not hashable\. Use a number, a string or a tuple")
@dataclasses.dataclass(frozen=True)
class ListField(Line):
    sizes: list = dataclasses.field(default_factory=lambda: [1, 2])


@says(r"IdentityField does not equal a copy of itself\. Use field values that compare by value")
@dataclasses.dataclass(frozen=True)
class IdentityField(Line):
    layout: Plain = dataclasses.field(default_factory=Plain)


@says(
    r"default_params has type dict: must be a frozen pytree\. Decorate it with "
    r"flax\.struct\.dataclass"
)
class DictParams(Line):
    default_params = {"reach": 3.0}  # noqa: RUF012


@says(r"default_params has type PlainParams: must be a frozen pytree")
class DataclassParams(Line):
    @property
    def default_params(self):
        return dataclasses.make_dataclass("PlainParams", [("reach", float, 3.0)], frozen=True)()


@struct.dataclass
class WordParams(LineParams):
    mode: str = "fast"


@says(
    r"params\.mode = 'fast': must be a number or an array\. Make static choices fields of "
    r"WordInParams"
)
class WordInParams(Line):
    default_params = WordParams()


@says(r"check_params rejects the params of this check: reach: must be above 0")
class RefusedDefaults(Line):
    default_params = LineParams(reach=-1.0)


@says(r"groups has type list: must be a dict, group name -> number of agents")
class ListOfGroups(Team):
    groups = ["worker", "pilot"]  # noqa: RUF012


@says(r"groups has the key 0: must be a string")
class NumberedGroups(Team):
    groups = {0: 2, 1: 1}  # noqa: RUF012


@says(r"groups\['worker'\] = 2\.0: must be a whole number of at least 1")
class FloatGroup(Team):
    groups = {"worker": 2.0, "pilot": 1}  # noqa: RUF012


# --- spaces ---


@says(r"action_space returns int: must be a wdjax Box, Discrete, MultiDiscrete or Dict")
class NumberForSpace(Line):
    def action_space(self, params):
        return 3


@says(
    r"action_space returns a Dict of \['pilot', 'worker'\]: must be .* in their order: "
    r"\['worker', 'pilot'\]"
)
class GroupsInAnotherOrder(Team):
    def action_space(self, params):
        return Dict(dict(sorted(super().action_space(params).spaces.items())))


@says(r"observation_space returns a Box: must be a Dict of the groups")
class SpaceWithoutGroups(Team):
    def observation_space(self, params):
        return Box(-1.0, 1.0, (2,))


@says(r"action_space\['worker'\] is not a batch of 2 agents\. Return one agent's space\.batch\(2\)")
class SpaceOfOneAgent(Team):
    def action_space(self, params):
        return Dict({**super().action_space(params).spaces, "worker": MultiDiscrete((2, 3))})


@says(r"shape of Box.low = \(1, 2\): must be one that broadcasts to \(2,\)")
class BoundsPerAgent(Team):
    def observation_space(self, params):
        pilot = Box(np.full((1, 2), -1.0), 1.0, (1, 2), batch_ndim=1)
        return Dict({**super().observation_space(params).spaces, "pilot": pilot})


@says(r"action_space is a batch, but BatchOfOne has no groups\. Return the space of one agent")
class BatchOfOne(Line):
    def action_space(self, params):
        return Discrete(3).batch(1)


@says(r"action_mask of group 'worker' has shape \(5,\): must be \(6,\), one entry per choice")
class NarrowMask(Team):
    def action_space(self, params):
        return Dict(
            {**super().action_space(params).spaces, "worker": MultiDiscrete((2, 4)).batch(2)}
        )


@says(r"action_mask masks a Box: must be Discrete or MultiDiscrete")
class MaskedBox(Line):
    def action_space(self, params):
        return Box(-1.0, 1.0, (3,))


# --- tracing ---


@says(r"step branches on a traced value at broken_envs\.py:\d+\. Use jnp\.where or lax\.cond")
class Branch(Line):
    def step(self, key, state, action, params):
        if state.time > 3:
            action = action * 0
        return super().step(key, state, action, params)


@says(r"reset branches on a traced value at broken_envs\.py:\d+\. Use jnp\.where or lax\.cond")
class BranchInReset(Team):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return (obs, state) if params.cost > 0 else (obs, state.replace(time=jnp.int32(1)))


@says(r"step passes a traced value to NumPy at broken_envs\.py:\d+\. Use jax\.numpy")
class NumpyOfTraced(Line):
    def is_over(self, state, params):
        return np.abs(state.place) > params.reach


@says(
    r"step converts a traced value to a Python number at broken_envs\.py:\d+\. Keep it a jax array"
)
class MathOfTraced(Line):
    def is_over(self, state, params):
        return abs(math.sin(state.place)) > params.reach


@says(
    r"step uses a traced value as a Python index or count at broken_envs\.py:\d+\. Index a jax "
    r"array with it"
)
class ListIndex(Line):
    def step(self, key, state, action, params):
        return super().step(key, state, [0, 1, 2][action], params)


@says(r"step indexes with a traced mask at broken_envs\.py:\d+\. Use jnp\.where")
class MaskIndex(Team):
    def truncated(self, state):
        return {**super().truncated(state), "worker": state.energy[state.energy > 0] > 9}


@says(
    r"observation_space uses a traced value as a size at broken_envs\.py:\d+\. Make the size a "
    r"static field"
)
class TracedBox(Line):
    def observation_space(self, params):
        place = Box(-9.0, 9.0, (params.episode_length - 11,))
        return Dict({**super().observation_space(params).spaces, "place": place})


@says(
    r"action_space uses a traced value as a size at broken_envs\.py:\d+\. Make the size a static "
    r"field"
)
class TracedDiscrete(Line):
    def action_space(self, params):
        return Discrete(params.episode_length // 4)


@says(r"reset branches on a traced value at broken_envs\.py:\d+\. Use jnp\.where or lax\.cond")
class RequireOfTraced(Line):
    def reset(self, key, params):
        require(params.pace > 0, "pace", params.pace, "above 0")
        return super().reset(key, params)


@says(r"reset uses a traced value as a size at broken_envs\.py:\d+\. Make the size a static field")
class TracedSize(Line):
    def reset(self, key, params):
        return super().reset(key, params.replace(noise=jnp.zeros(params.episode_length)))


@says(r"action_space passes a traced value to NumPy at broken_envs\.py:\d+\. Use jax\.numpy")
class NumpyBounds(Line):
    def observation_space(self, params):
        return Box(-9.0, 9.0, (1,))

    def action_space(self, params):
        return Box(0.0, np.array([2.0, params.reach]), (2,))

    def observe(self, state):
        return state.place[None]

    def step(self, key, state, action, params):
        return super().step(key, state, action[0], params)


@says(r"reset returns 3 values: must be \(obs, state\)")
class ResetOfThree(Line):
    def reset(self, key, params):
        return (*super().reset(key, params), {})


@says(r"step returns 5 values: must be \(obs, state, reward, terminated, truncated, info\)")
class StepOfFive(Line):
    def step(self, key, state, action, params):
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


@says(r"step returns info\['mood'\] = 'good': must be an array, a number, or a pytree of them")
class WordInInfo(Line):
    def step(self, key, state, action, params):
        *played, info = super().step(key, state, action, params)
        return *played, {**info, "mood": "good"}


@says(r"step changes its arguments in place\. Build new dicts and lists")
class ChangesItsAction(Team):
    def step(self, key, state, action, params):
        action["pilot"] = action["pilot"] * 0.5
        return super().step(key, state, action, params)


@says(r"step calls back to the host \(pure_callback\)\. Use jax operations")
class Callback(Line):
    def step(self, key, state, action, params):
        def body(time):
            return jax.pure_callback(lambda time: time, jax.ShapeDtypeStruct((), jnp.int32), time)

        state = state.replace(time=jax.lax.cond(action > 0, body, lambda time: time, state.time))
        return super().step(key, state, action, params)


@says(r"reset calls back to the host \(debug_(print|callback)\)\. .* do not print")
class Print(Line):
    def reset(self, key, params):
        jax.debug.print("{}", params.reach)
        return super().reset(key, params)


@says_late(
    r"step leaks a traced value\. Store nothing outside its return values, neither in attributes "
    r"nor"
)
class Leak(Line):
    seen = []  # noqa: RUF012

    def step(self, key, state, action, params):
        self.seen[:] = [state.place]
        return super().step(key, state, action, params)


@says_late(
    r"reset leaks a traced value\. Store nothing outside its return values, neither in attributes "
    r"nor"
)
class LeakOfReset(Line):
    seen = []  # noqa: RUF012

    def reset(self, key, params):
        self.seen[:] = [params.reach + 1]
        return super().reset(key, params)


@says(r"reset uses one key twice\. Split it with jax\.random\.split, and use each part once")
class KeyTwice(Team):
    def reset(self, key, params):
        _, state = super().reset(key, params)
        state = state.replace(aim=jax.random.uniform(key, (1, 2)))
        return self.observe(state, params), state


@struct.dataclass
class KeyState(LineState):
    key: jax.Array  # () typed key


@says(r"step uses one key twice")
class KeptKey(Line):
    def reset(self, key, params):
        key, place_key = jax.random.split(key)
        obs, state = super().reset(place_key, params)
        return obs, KeyState(state.place, state.time, key)

    def step(self, key, state, action, params):
        obs, after, *rest = super().step(
            state.key, LineState(state.place, state.time), action, params
        )
        return obs, KeyState(after.place, after.time, state.key), *rest
