"""Environments that each break one rule about the outputs of `step` and `reset`.

As in tests/broken_envs.py, each is one of the correct toys with one override.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
from broken_envs import Plain, says, says_in_play, says_late
from flax import struct
from toy_contract import Line, LineParams, LineState, Team, TeamState

from wdjax import Box, Dict, Discrete

# --- structure ---


class Observing(Line):
    """Replace entries of the observation by those in `seen`."""

    def observe(self, state):
        return {**super().observe(state), **self.seen(state)}


@says(
    r"reset returns a state of type dict: must be a frozen pytree\. .*, and return \(obs, state\)"
)
class StateFirst(Line):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return state, obs


@says(r"reset returns obs\['place'\] as float32 of shape \(\): must be float32 of shape \(1,\)")
class FlatObservation(Observing):
    def seen(self, state):
        return {"place": state.place}


@says(r"reset returns obs\['action_mask'\] as bool of shape \(3,\): must be int32 of shape \(3,\)")
class BoolMask(Observing):
    def seen(self, state):
        return {"action_mask": jnp.array([True, True, True])}


@says(r"obs is \['action_mask', 'place', 'time'\]: must be a dict with the keys")
class OneMoreKey(Observing):
    def seen(self, state):
        return {"time": state.time}


@says(r"step returns obs\['pilot'\] as float32 of shape \(2,\): must be float32 of shape \(1, 2\)")
class AnotherObservationFromStep(Team):
    def step(self, key, state, action, params):
        obs, *rest = super().step(key, state, action, params)
        return {**obs, "pilot": obs["pilot"][0]}, *rest


class OtherState(Line):
    """Keep the state in another form."""

    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, self.pack(state)

    def step(self, key, state, action, params):
        obs, state, *rest = super().step(key, self.unpack(state), action, params)
        return obs, self.pack(state), *rest

    def unpack(self, state):
        return state

    pack = unpack


@says(
    r"reset returns a state of type dict: must be a frozen pytree\. Decorate it with "
    r"flax\.struct\.dataclass"
)
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


@says(
    r"step returns a state with another structure than reset\. .* the same values of static fields"
)
class StaticFieldThatChanges(Line):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, TaggedState(state.place, state.time)

    def step(self, key, state, action, params):
        obs, after, *rest = super().step(key, state, action, params)
        return obs, TaggedState(after.place, after.time, state.calls + 1), *rest


@says(
    r"step returns state\.place as float32 of shape \(1,\), reset as float32 of shape \(\)\. Cast "
    r"or reshape one"
)
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
    """Replace the values that follow the state by the result of `alter`."""

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


@says(
    r"step returns reward as a value that is not a dict: must be a dict of the groups, "
    r"\['worker', 'pilot'\]"
)
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


@says(r"step returns info as list: must be a dict, which may be empty")
class ListInfo(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, truncated, []


@says(
    r"step returns info\['episode_return'\], a name reserved by wdjax\.vectorize\. Choose another"
)
class ReservedInfo(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, truncated, {**info, "episode_return": reward}


@says(r"step returns info\['places'\] as float32 of shape \(2,\): must be a scalar per step")
class InfoOfAgents(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, truncated, {"places": state.energy}


# --- running ---


@says(r"step differs between two calls with the same inputs\. Draw with jax\.random from key")
class NumpyRandom(Line):
    def step(self, key, state, action, params):
        return super().step(key, state, action, params.replace(noise=np.random.uniform()))


@says(r"reset differs between two calls with the same inputs\. .* keep nothing between calls")
class Counter(Team):
    calls = []  # noqa: RUF012

    def reset(self, key, params):
        self.calls.append(random.random())
        obs, state = super().reset(key, params)
        return obs, state.replace(aim=state.aim + jnp.float32(len(self.calls) * 1e-6))


@says(
    r"step is compiled again for its own state: state\.time comes from a Python number\. Give it "
    r"a dtype"
)
class WeakState(Line):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, state.replace(time=0)

    def step(self, key, state, action, params):
        return super().step(key, state.replace(time=jnp.int32(state.time)), action, params)


@struct.dataclass
class NestedParams(LineParams):
    masses: dict = struct.field(default_factory=lambda: {"cart": 1.0})


@says(
    r"step is compiled again for params on a device\. Write params\.masses\['cart'\] as "
    r"np\.float32\(\.\.\.\)"
)
class BareParams(Line):
    default_params = NestedParams()


@says(r"check_params fails for params with a leading axis\. Compare with np\.all")
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


@says(
    r"step returns state\.place = .* under vmap, and .* without it\. Correct its custom_vmap rule"
)
class WrongBatchingRule(Line):
    def step(self, key, state, action, params):
        return super().step(key, state, action, params.replace(noise=halve(params.noise)))


# --- play: numbers ---


@says_in_play(
    r"step returns state\.place = nan in step \d+ of an episode\. Look for a division by 0, a root"
)
class RootOfNegative(OtherState):
    def pack(self, state):
        return state.replace(place=jnp.sqrt(state.place + 2.5) ** 2 - 2.5)


@says_late(r"reset returns obs\['place'\]\[0\] = -inf at a reset\. Look for a division by 0")
class InfiniteStart(Line):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return {**obs, "place": obs["place"] / (state.place > -0.8)}, state


@says_late(r"step returns reward\['pilot'\]\[0\] = inf in step 5 of an episode")
class InfiniteReward(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return (
            {**reward, "pilot": reward["pilot"] + 1 / jnp.abs(4.0 - state.time)},
            terminated,
            truncated,
            info,
        )


@says_late(r"step returns info\['moved'\] = nan in step 11 of an episode")
class NanInInfo(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return (
            reward,
            terminated,
            truncated,
            {"moved": jnp.where(state.time == 10, jnp.nan, info["moved"])},
        )


@says_in_play(
    r"step returns obs\['place'\]\[0\] = [12]\.\d+ in step \d+ of an episode, above the bound "
    r"1\.0 of obs"
)
class NarrowSpace(Line):
    def observation_space(self, params):
        return Dict({**super().observation_space(params).spaces, "place": Box(-9.0, 1.0, (1,))})


@says_late(
    r"reset returns obs\['place'\]\[0\] = -\d\.\d+ at a reset, below the bound 0\.0 of "
    r"observation_space"
)
class StartOutside(Line):
    def observation_space(self, params):
        return Dict({**super().observation_space(params).spaces, "place": Box(0.0, 9.0, (1,))})


@says_late(
    r"step returns obs\['pilot'\]\[0, 1\] = 1\.\d+ in step 1 of an episode, above the bound 1\.0"
)
class SecondComponentOutside(Team):
    def observe(self, state, params):
        return {
            **super().observe(state, params),
            "pilot": state.aim + jnp.array([[0.0, 1.0]]) * (state.time == 1),
        }

    def observation_space(self, params):
        pilot = Box(np.array([-1.0, -2.0]), 1.0, (2,)).batch(1)
        return Dict({**super().observation_space(params).spaces, "pilot": pilot})


@says_late(
    r"step returns obs\['time'\] = 8 in step 8 of an episode, above the bound 7 of "
    r"observation_space"
)
class LateClock(Line):
    def observe(self, state):
        return {"place": state.place[None], "time": state.time}

    def observation_space(self, params):
        return Dict({"place": Box(-9.0, 9.0, (1,)), "time": Discrete(8)})


# --- play: masks ---


@says_in_play(
    r"reset returns obs\['action_mask'\]\[0\] = 2\.0: must be 1 \(allowed\) or 0 \(not allowed\)"
)
class MaskOfTwo(Observing):
    def seen(self, state):
        return {"action_mask": jnp.array([2.0, 1.0, 1.0])}

    def observation_space(self, params):
        return Dict(
            {**super().observation_space(params).spaces, "action_mask": Box(0.0, 2.0, (3,))}
        )


@says_in_play(
    r"step returns obs\['worker'\]\['action_mask'\]\[\d\] without a choice for component 1 in step"
)
class NoChoice(Team):
    def observe(self, state, params):
        obs = super().observe(state, params)
        worker = obs["worker"]
        tired = (state.energy < 0.3)[:, None] & (np.arange(5) >= 2)[None]
        mask = jnp.where(tired, 0, worker["action_mask"])
        return {**obs, "worker": {**worker, "action_mask": mask}}


# --- play: ends ---


@says_in_play(
    r"terminated becomes false again in step \d+ of an episode\. It must stay true until the reset"
)
class EndForAMoment(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated & (jnp.abs(state.place) < 3), truncated, info


@says_late(r"terminated\['worker'\]\[\d\] becomes false again")
class WorkerComesBack(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        back = terminated["worker"] & ((state.energy > 0) | (state.time == 7))
        return reward, {**terminated, "worker": back}, truncated, info


@says_in_play(
    r"truncated is true together with terminated in step \d+ of an episode\. Write truncated"
)
class BothEnds(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, terminated | truncated, info


@says_in_play(
    r"truncated\['pilot'\]\[0\] is true in step 3 of an episode\. The class declares can_truncate "
    r"= False"
)
class UnannouncedTimeLimit(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return reward, terminated, {**truncated, "pilot": (state.time == 2)[None]}, info


@says_in_play(
    r"reward\['worker'\]\[\d\] is not 0 after termination in step \d+ of an episode\. Set the "
    r"rewards"
)
class PaidAfterTheEnd(AlteredTeam):
    def alter(self, state, reward, terminated, truncated, info):
        return {**reward, "worker": reward["worker"] + 0.5}, terminated, truncated, info


@says_late(r"reward is not 0 after termination in step \d+ of an episode")
class AlwaysPaid(Altered):
    def alter(self, state, reward, terminated, truncated, info):
        return jnp.ones(()), terminated, truncated, info


@says_in_play(
    r"step lets the action of a terminated or truncated agent change state\.place\. Ignore its "
    r"action"
)
class WalksOnAfterTheEnd(Line):
    def step(self, key, state, action, params):
        over = self.is_over(state, params)
        _, after, *rest = super().step(key, state, action, params)
        after = after.replace(
            place=jnp.where(over, state.place + 0.1 * jnp.sign(state.place) * action, after.place)
        )
        return self.observe(after), after, *rest


@says_late(r"step lets the action of a terminated or truncated agent change state\.aim")
class DeadWorkerPullsThePilot(Team):
    def step(self, key, state, action, params):
        obs, after, *rest = super().step(key, state, action, params)
        pull = (
            jnp.where(state.time < 7, 0.1 * action["worker"][:, 0].sum(), 0.0)
            * (state.energy <= 0).any()
        )
        after = TeamState(after.energy, jnp.clip(after.aim - pull, -1.0, 1.0), after.time)
        return obs, after, *rest
