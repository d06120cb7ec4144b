"""`check_env` and the learner refuse environments that break the rules of agents that join."""

import jax.numpy as jnp
import pytest
from probes import tiny_config, tiny_policy
from relay_env import Relay, RelayParams

import wdjax
from wdjax.env_checker import EnvCheckError
from wdjax.train import make_learner

pytestmark = pytest.mark.usefixtures("quick_compile")

SECOND = jnp.array([False, True])  # slot 1, in which the first agent joins with step 1


class Flags(Relay):
    """`Relay` with another result of `present`."""

    def playing(self, state, params):
        return Relay().playing(state, params)


class Numbers(Flags):
    def present(self, state, params):
        return {"runner": Relay().present(state, params)["runner"].astype(jnp.float32)}


class Bare(Flags):
    def present(self, state, params):
        return Relay().present(state, params)["runner"]


class Branches(Flags):
    def present(self, state, params):
        return Relay().present(state, params) if state.time > 2 else {"runner": ~SECOND}


class Changed(Relay):
    """`Relay` with other results of a step."""

    def step(self, key, state, action, params):
        obs, after, reward, ended, cut, info = super().step(key, state, action, params)
        reward, ended, after = self.change(
            state, after, reward["runner"], ended["runner"], action["runner"]
        )
        return obs, after, {"runner": reward}, {"runner": ended}, cut, info


class Pays(Changed):
    def change(self, state, after, reward, ended, action):
        return reward + SECOND * (state.time == 1), ended, after


class EndsEarly(Changed):
    def change(self, state, after, reward, ended, action):
        return reward, ended | (SECOND & (after.time == 1)), after


class Stays(Changed):
    """The first runner does not terminate, although its slot is empty."""

    def change(self, state, after, reward, ended, action):
        return reward, ended & (after.time != 2), after


class Flickers(Changed):
    """`terminated` becomes false although no agent joins."""

    def change(self, state, after, reward, ended, action):
        return reward, ended | (~SECOND & (after.time == 1)), after

    def present(self, state, params):
        return {"runner": jnp.stack([state.time == 0, state.time >= 2])}


class Meddles(Changed):
    def change(self, state, after, reward, ended, action):
        return reward, ended, after.replace(time=after.time + (state.time == 2) * action[0])


MOMENT = r"in step {} of an episode\. {}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            Numbers,
            r"present returns flags\['runner'\] as float32 of shape \(2,\): must be bool of shape",
        ),
        (
            Bare,
            r"present returns flags as a value that is not a dict: must be a dict of the groups",
        ),
        (Branches, r"present branches on a traced value at test_check_joining\.py"),
        (
            Pays,
            r"reward\['runner'\]\[1\] is not 0 in an empty slot " + MOMENT.format(2, "Set it to 0"),
        ),
        (
            EndsEarly,
            r"terminated\['runner'\]\[1\] is true before an agent joins "
            + MOMENT.format(1, "Set it to false"),
        ),
        (
            Stays,
            r"present\['runner'\]\[0\] becomes false although the agent has not left "
            + MOMENT.format(2, "Terminate or truncate"),
        ),
        (
            Flickers,
            r"terminated\['runner'\]\[0\] becomes false again " + MOMENT.format(3, "It must stay"),
        ),
        (Meddles, r"step lets the action of an agent that is not active change state\.time"),
    ],
)
def test_check_env_names_the_broken_rule(env, words, monkeypatch):
    if issubclass(env, Changed):  # skip the slower checks before random play
        monkeypatch.setattr(wdjax.env_checker, "CONTRACT", ())
    with pytest.raises(EnvCheckError, match=words):
        wdjax.check_env(env(), num_steps=200)


@pytest.mark.slow
def test_check_env_refuses_rewards_after_an_agent_has_left():
    words = r"reward\['runner'\]\[0\] is not 0 after termination in step 6"
    with pytest.raises(EnvCheckError, match=words):
        wdjax.check_env(Relay(), RelayParams(empty_reward=1.0), num_steps=100)


def test_learner_refuses_flags_of_another_type():
    config = tiny_config(f"{__name__}:Numbers", {"runner": tiny_policy("A2C")})
    with pytest.raises(EnvCheckError, match=r"Numbers: present returns flags\['runner'\]"):
        make_learner(config)
