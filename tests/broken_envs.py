"""Environments that each break one rule of the contract, with the sentence that `wdjax.check_env` must say.

Each is one of the two correct toys (tests/toy_contract.py) with one thing overridden.
"""

import dataclasses
import math
import random

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from toy_contract import Line, LineParams, LineState, Team, TeamState

from wdjax import Box, Dict, Discrete, MultiDiscrete

BROKEN = []  # (class, sentence as a regular expression)
BROKEN_IN_PLAY = []  # likewise: what only random play shows
BROKEN_LATE = []  # likewise: further ones of the same rules, and a leak for whose holder jax looks for seconds


def says(sentence, found_in=BROKEN):
    """Lists the class with what the check must say about it."""

    def add(cls):
        found_in.append((cls, sentence))
        return cls

    return add


def says_in_play(sentence):
    return says(sentence, BROKEN_IN_PLAY)


def says_late(sentence):
    return says(sentence, BROKEN_LATE)


class Plain:
    """Compares by identity and is no pytree."""


# --- values ---


@says(r"NoDataclass\.size is no field: write @dataclasses\.dataclass\(frozen=True\) above class NoDataclass")
class NoDataclass(Line):
    size: int = 3


@says(r"ListField\.sizes is a list, which has no hash: make it a number, a string or a tuple")
@dataclasses.dataclass(frozen=True)
class ListField(Line):
    sizes: list = dataclasses.field(default_factory=lambda: [1, 2])


@says(r"IdentityField does not equal a copy of itself: give its fields values that compare by what they hold")
@dataclasses.dataclass(frozen=True)
class IdentityField(Line):
    layout: Plain = dataclasses.field(default_factory=Plain)


@says(r"default_params is of type dict, no frozen pytree: decorate it with flax\.struct\.dataclass")
class DictParams(Line):
    default_params = {"reach": 3.0}  # noqa: RUF012


@says(r"default_params is of type PlainParams, no frozen pytree")
class DataclassParams(Line):
    @property
    def default_params(self):
        return dataclasses.make_dataclass("PlainParams", [("reach", float, 3.0)], frozen=True)()


@struct.dataclass
class WordParams(LineParams):
    mode: str = "fast"


@says(r"params\.mode = 'fast': must be a number or an array \(a static choice is a field of WordInParams\)")
class WordInParams(Line):
    default_params = WordParams()


@says(r"check_params refuses the params of this check: reach: must be above 0")
class RefusedDefaults(Line):
    default_params = LineParams(reach=-1.0)


@says(r"groups is of type list: return a dict of names and numbers of agents")
class ListOfGroups(Team):
    groups = ["worker", "pilot"]  # noqa: RUF012


@says(r"the group 0 has no name: make its key in groups a string")
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


@says(r"action_space returns a Dict of \['pilot', 'worker'\]: must be .* in their order: \['worker', 'pilot'\]")
class GroupsInAnotherOrder(Team):
    def action_space(self, params):
        return Dict(dict(sorted(super().action_space(params).spaces.items())))


@says(r"observation_space returns a Box: must be a Dict of the groups")
class SpaceWithoutGroups(Team):
    def observation_space(self, params):
        return Box(-1.0, 1.0, (2,))


@says(r"action_space\['worker'\] is no batch of 2 agents: return one agent's space\.batch\(2\)")
class SpaceOfOneAgent(Team):
    def action_space(self, params):
        return Dict({**super().action_space(params).spaces, "worker": MultiDiscrete((2, 3))})


@says(r"action_space is a batch: BatchOfOne has no groups, so return the space of one agent")
class BatchOfOne(Line):
    def action_space(self, params):
        return Discrete(3).batch(1)


@says(r"action_mask of group 'worker' has the shape \(5,\): must be \(6,\), an entry for each choice")
class NarrowMask(Team):
    def action_space(self, params):
        return Dict({**super().action_space(params).spaces, "worker": MultiDiscrete((2, 4)).batch(2)})


@says(r"action_mask masks a Box: only \(Multi\)Discrete actions have a mask")
class MaskedBox(Line):
    def action_space(self, params):
        return Box(-1.0, 1.0, (3,))


# --- tracing ---


@says(r"step branches on a traced value at broken_envs\.py:\d+: use jnp\.where or lax\.cond")
class Branch(Line):
    def step(self, key, state, action, params):
        if state.time > 3:
            action = action * 0
        return super().step(key, state, action, params)


@says(r"reset branches on a traced value at broken_envs\.py:\d+: use jnp\.where or lax\.cond")
class BranchInReset(Team):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return (obs, state) if params.cost > 0 else (obs, state.replace(time=jnp.int32(1)))


@says(r"step hands a traced value to NumPy at broken_envs\.py:\d+: use jax\.numpy")
class NumpyOfTraced(Line):
    def is_over(self, state, params):
        return np.abs(state.place) > params.reach


@says(r"step makes a Python number of a traced value at broken_envs\.py:\d+: keep it a jax array")
class MathOfTraced(Line):
    def is_over(self, state, params):
        return abs(math.sin(state.place)) > params.reach


@says(r"step uses a traced value as a Python index or count at broken_envs\.py:\d+: index a jax array with it")
class ListIndex(Line):
    def step(self, key, state, action, params):
        return super().step(key, state, [0, 1, 2][action], params)


@says(r"step picks elements by a traced mask at broken_envs\.py:\d+: use jnp\.where")
class MaskIndex(Team):
    def truncated(self, state):
        return {**super().truncated(state), "worker": state.energy[state.energy > 0] > 9}


@says(r"reset makes a shape of a traced value at broken_envs\.py:\d+: a size must be a static field")
class TracedSize(Line):
    def reset(self, key, params):
        return super().reset(key, params.replace(noise=jnp.zeros(params.episode_length)))


@says(r"action_space hands a traced value to NumPy at broken_envs\.py:\d+: use jax\.numpy")
class NumpyBounds(Line):
    def observation_space(self, params):
        return Box(-9.0, 9.0, (1,))

    def action_space(self, params):
        return Box(0.0, np.array([2.0, params.reach]), (2,))

    def observe(self, state):
        return state.place[None]

    def step(self, key, state, action, params):
        return super().step(key, state, action[0], params)


@says(r"reset returns 3 values: return \(obs, state\)")
class ResetOfThree(Line):
    def reset(self, key, params):
        return (*super().reset(key, params), {})


@says(r"step returns 5 values: return \(obs, state, reward, terminated, truncated, info\)")
class StepOfFive(Line):
    def step(self, key, state, action, params):
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


@says(r"step returns info\['mood'\] = 'good': must be an array, a number, or a pytree of them")
class WordInInfo(Line):
    def step(self, key, state, action, params):
        *played, info = super().step(key, state, action, params)
        return *played, {**info, "mood": "good"}


@says(r"step changes its arguments in place: build new dicts and lists")
class ChangesItsAction(Team):
    def step(self, key, state, action, params):
        action["pilot"] = action["pilot"] * 0.5
        return super().step(key, state, action, params)


@says(r"step calls back to the host \(pure_callback\): write it with jax operations")
class Callback(Line):
    def step(self, key, state, action, params):
        def body(time):
            return jax.pure_callback(lambda time: time, jax.ShapeDtypeStruct((), jnp.int32), time)

        state = state.replace(time=jax.lax.cond(action > 0, body, lambda time: time, state.time))
        return super().step(key, state, action, params)


@says(r"reset calls back to the host \(debug_(print|callback)\): .* print nothing")
class Print(Line):
    def reset(self, key, params):
        jax.debug.print("{}", params.reach)
        return super().reset(key, params)


@says_late(r"step leaves a traced value behind: keep nothing but what it returns: no attribute, no global")
class Leak(Line):
    seen = []  # noqa: RUF012

    def step(self, key, state, action, params):
        self.seen[:] = [state.place]
        return super().step(key, state, action, params)


@says(r"reset leaves a traced value behind: keep nothing but what it returns: no attribute, no global")
class LeakOfReset(Line):
    seen = []  # noqa: RUF012

    def reset(self, key, params):
        self.seen[:] = [params.reach + 1]
        return super().reset(key, params)


@says(r"reset uses one key twice: split it with jax\.random\.split, and use each part once")
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
        obs, after, *rest = super().step(state.key, LineState(state.place, state.time), action, params)
        return obs, KeyState(after.place, after.time, state.key), *rest


# --- structure ---


class Observing(Line):
    """Sees `seen`, in the space of `Line`."""

    def observe(self, state):
        return {**super().observe(state), **self.seen(state)}


@says(r"reset returns obs\['place'\] as float32 of shape \(\): observation_space says float32 of shape \(1,\)")
class FlatObservation(Observing):
    def seen(self, state):
        return {"place": state.place}


@says(r"reset returns obs\['action_mask'\] as bool of shape \(3,\): observation_space says int32 of shape \(3,\)")
class BoolMask(Observing):
    def seen(self, state):
        return {"action_mask": jnp.array([True, True, True])}


@says(r"obs is \['action_mask', 'place', 'time'\]: observation_space says a dict with the keys")
class OneMoreKey(Observing):
    def seen(self, state):
        return {"time": state.time}


@says(r"step returns obs\['pilot'\] as float32 of shape \(2,\): observation_space says float32 of shape \(1, 2\)")
class AnotherObservationFromStep(Team):
    def step(self, key, state, action, params):
        obs, *rest = super().step(key, state, action, params)
        return {**obs, "pilot": obs["pilot"][0]}, *rest


class OtherState(Line):
    """Keeps its state in another form."""

    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, self.pack(state)

    def step(self, key, state, action, params):
        obs, state, *rest = super().step(key, self.unpack(state), action, params)
        return obs, self.pack(state), *rest

    def unpack(self, state):
        return state

    pack = unpack


@says(r"state is of type dict, no frozen pytree: decorate it with flax\.struct\.dataclass")
class DictState(OtherState):
    def pack(self, state):
        return {"place": state.place, "time": state.time}

    def unpack(self, state):
        return LineState(**state)


@says(r"reset returns state = <.*Plain object.*>: must be an array, a number, or a pytree of them")
class PlainState(OtherState):
    def pack(self, state):
        return Plain()


@struct.dataclass
class TaggedState(LineState):
    calls: int = struct.field(pytree_node=False, default=0)


@says(r"step returns a state of another structure than reset: .* \(pytree_node=False\) the same values")
class StaticFieldThatChanges(Line):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, TaggedState(state.place, state.time)

    def step(self, key, state, action, params):
        obs, after, *rest = super().step(key, state, action, params)
        return obs, TaggedState(after.place, after.time, state.calls + 1), *rest


@says(r"step returns state\.place as float32 of shape \(1,\), reset as float32 of shape \(\): cast or reshape one")
class StateGrows(Line):
    def step(self, key, state, action, params):
        obs, state, *rest = super().step(key, state, action, params)
        return obs, state.replace(place=state.place[None]), *rest


@says(r"step returns state\.time as float32 of shape \(\), reset as int32 of shape \(\)")
class ClockTurnsFloat(Line):
    def step(self, key, state, action, params):
        obs, state, *rest = super().step(key, state, action, params)
        return obs, state.replace(time=state.time * 1.0), *rest


class Altered(Line):
    """A step whose values after the state are what `alter` makes of them."""

    def step(self, key, state, action, params):
        obs, after, *rest = super().step(key, state, action, params)
        return obs, after, *self.alter(state, *rest)


class AlteredTeam(Team):
    def step(self, key, state, action, params):
        obs, after, *rest = super().step(key, state, action, params)
        return obs, after, *self.alter(state, *rest)


@says(r"step returns reward as int32 of shape \(\): must be float32 of shape \(\)")
class WholeReward(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward.astype(jnp.int32), terminated, truncated, info


@says(r"step returns reward\['worker'\] as float32 of shape \(\): must be float32 of shape \(2,\)")
class TeamReward(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return {**reward, "worker": reward["worker"].sum()}, terminated, truncated, info


@says(r"step returns reward as no dict: must be a dict of the groups: \['worker', 'pilot'\]")
class OneRewardForAll(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return reward["worker"].sum(), terminated, truncated, info


@says(r"step returns terminated as float32 of shape \(\): must be bool of shape \(\)")
class FloatEnd(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated.astype(jnp.float32), truncated, info


@says(r"step returns truncated\['pilot'\] as bool of shape \(\): must be bool of shape \(1,\)")
class ScalarEnd(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, {**truncated, "pilot": jnp.bool_(False)}, info


@says(r"step returns info as list: must be a dict, empty where there is nothing to tell")
class ListInfo(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, truncated, []


@says(r"step returns info\['episode_return'\], a name of wdjax\.vectorize: choose another one")
class ReservedInfo(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, truncated, {**info, "episode_return": reward}


@says(r"step returns info\['places'\] as float32 of shape \(2,\): must be a scalar of the step")
class InfoOfAgents(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, truncated, {"places": state.energy}


# --- running ---


@says(r"step gives something else for the same inputs when called again: draw with jax\.random from key")
class NumpyRandom(Line):
    def step(self, key, state, action, params):
        return super().step(key, state, action, params.replace(noise=np.random.uniform()))


@says(r"reset gives something else for the same inputs when called again: .* keep nothing from one call to the next")
class Counter(Team):
    calls = []  # noqa: RUF012

    def reset(self, key, params):
        self.calls.append(random.random())
        obs, state = super().reset(key, params)
        return obs, state.replace(aim=state.aim + jnp.float32(len(self.calls) * 1e-6))


@says(r"step is compiled again for its own state: state\.time comes from a bare Python number: give it a dtype")
class WeakState(Line):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, state.replace(time=0)

    def step(self, key, state, action, params):
        return super().step(key, state.replace(time=jnp.int32(state.time)), action, params)


@struct.dataclass
class NestedParams(LineParams):
    masses: dict = struct.field(default_factory=lambda: {"cart": 1.0})


@says(r"step is compiled again for params on a device: write params\.masses\['cart'\] as np\.float32\(\.\.\.\)")
class BareParams(Line):
    default_params = NestedParams()


@says(r"check_params fails for params with a leading axis: compare with np\.all")
class CheckOfOne(Line):
    def check_params(self, params):
        if params.reach <= 0:
            raise ValueError("reach: must be above 0")


@jax.custom_batching.custom_vmap
def halve(number):
    return number / 2


@halve.def_vmap
def _(axis_size, in_batched, number):
    return number / 3, in_batched[0]


@says(r"step gives another state\.place under vmap than alone, .* instead of .*: correct its custom_vmap rule")
class WrongBatchingRule(Line):
    def step(self, key, state, action, params):
        return super().step(key, state, action, params.replace(noise=halve(params.noise)))


# --- play: numbers ---


@says_in_play(r"step gives state\.place = nan in step \d+ of an episode: look for a division by 0, a root")
class RootOfNegative(OtherState):
    def pack(self, state):
        return state.replace(place=jnp.sqrt(state.place + 2.5) ** 2 - 2.5)


@says_late(r"reset gives obs\['place'\]\[0\] = -inf at a reset: look for a division by 0")
class InfiniteStart(Line):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return {**obs, "place": obs["place"] / (state.place > -0.8)}, state


@says_in_play(r"step gives reward\['pilot'\]\[0\] = inf in step 5 of an episode")
class InfiniteReward(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return {**reward, "pilot": reward["pilot"] + 1 / jnp.abs(4.0 - state.time)}, terminated, truncated, info


@says_late(r"step gives info\['moved'\] = nan in step 11 of an episode")
class NanInInfo(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, truncated, {"moved": jnp.where(state.time == 10, jnp.nan, info["moved"])}


@says_in_play(r"step gives obs\['place'\]\[0\] = [12]\.\d+ in step \d+ of an episode, above the bound 1\.0 of obs")
class NarrowSpace(Line):
    def observation_space(self, params):
        return Dict({**super().observation_space(params).spaces, "place": Box(-9.0, 1.0, (1,))})


@says_late(r"reset gives obs\['place'\]\[0\] = -\d\.\d+ at a reset, below the bound 0\.0 of observation_space")
class StartOutside(Line):
    def observation_space(self, params):
        return Dict({**super().observation_space(params).spaces, "place": Box(0.0, 9.0, (1,))})


@says_late(r"step gives obs\['pilot'\]\[0, 1\] = 1\.\d+ in step 1 of an episode, above the bound 1\.0")
class SecondComponentOutside(Team):
    def observe(self, state, params):
        return {**super().observe(state, params), "pilot": state.aim + jnp.array([[0.0, 1.0]]) * (state.time == 1)}

    def observation_space(self, params):
        pilot = Box(np.array([-1.0, -2.0]), 1.0, (2,)).batch(1)
        return Dict({**super().observation_space(params).spaces, "pilot": pilot})


@says_late(r"step gives obs\['time'\] = 8 in step 8 of an episode, above the bound 7 of observation_space")
class LateClock(Line):
    def observe(self, state):
        return {"place": state.place[None], "time": state.time}

    def observation_space(self, params):
        return Dict({"place": Box(-9.0, 9.0, (1,)), "time": Discrete(8)})


# --- play: masks ---


@says_in_play(r"reset gives obs\['action_mask'\]\[0\] = 2\.0: must be 1 where allowed and 0 where not")
class MaskOfTwo(Observing):
    def seen(self, state):
        return {"action_mask": jnp.array([2.0, 1.0, 1.0])}

    def observation_space(self, params):
        return Dict({**super().observation_space(params).spaces, "action_mask": Box(0.0, 2.0, (3,))})


@says_in_play(r"step gives a obs\['worker'\]\['action_mask'\]\[\d\] that allows no choice of component 1 in step")
class NoChoice(Team):
    def observe(self, state, params):
        obs = super().observe(state, params)
        worker = obs["worker"]
        tired = (state.energy < 0.3)[:, None] & (np.arange(5) >= 2)[None]
        mask = jnp.where(tired, 0, worker["action_mask"])
        return {**obs, "worker": {**worker, "action_mask": mask}}


# --- play: ends ---


@says_in_play(r"terminated turns false again in step \d+ of an episode: it must stay true until the reset")
class EndForAMoment(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated & (jnp.abs(state.place) < 3), truncated, info


@says_late(r"terminated\['worker'\]\[\d\] turns false again")
class WorkerComesBack(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        back = terminated["worker"] & ((state.energy > 0) | (state.time == 7))
        return reward, {**terminated, "worker": back}, truncated, info


@says_in_play(r"truncated is true with terminated in step \d+ of an episode: write truncated = time_is_up & ~termin")
class BothEnds(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, terminated | truncated, info


@says_in_play(r"truncated\['pilot'\]\[0\] is true in step 3 of an episode: can_truncate = False says that it never is")
class UnannouncedTimeLimit(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, {**truncated, "pilot": (state.time == 2)[None]}, info


@says_in_play(r"reward\['worker'\]\[\d\] is not 0 after the end in step \d+ of an episode: pay only who had not termin")
class PaidAfterTheEnd(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return {**reward, "worker": reward["worker"] + 0.5}, terminated, truncated, info


@says_late(r"reward is not 0 after the end in step \d+ of an episode")
class AlwaysPaid(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return jnp.ones(()), terminated, truncated, info


@says_in_play(r"step lets the action of an agent that has terminated change state\.place: hold still")
class WalksOnAfterTheEnd(Line):
    def step(self, key, state, action, params):
        over = self.is_over(state, params)
        _, after, *rest = super().step(key, state, action, params)
        after = after.replace(place=jnp.where(over, state.place + 0.1 * jnp.sign(state.place) * action, after.place))
        return self.observe(after), after, *rest


@says_late(r"step lets the action of an agent that has terminated change state\.aim")
class DeadWorkerPullsThePilot(Team):
    def step(self, key, state, action, params):
        obs, after, *rest = super().step(key, state, action, params)
        pull = jnp.where(state.time < 7, 0.1 * action["worker"][:, 0].sum(), 0.0) * (state.energy <= 0).any()
        after = TeamState(after.energy, jnp.clip(after.aim - pull, -1.0, 1.0), after.time)
        return obs, after, *rest
