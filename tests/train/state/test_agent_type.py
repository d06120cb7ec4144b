"""Policies of several selectors that observe which selector an agent belongs to."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from probes import Pair, tiny_config, tiny_policy

from wdjax import Box, Dict, Discrete, Env, MultiDiscrete, envs
from wdjax.train import Player, PolicyConfig, evaluate, make_learner
from wdjax.train.evaluation.players import Role, seat_policy
from wdjax.train.learning import Assignment
from wdjax.train.state.agents import Segment, assign_agents, gather_observation
from wdjax.train.state.policy import Policy

pytestmark = pytest.mark.usefixtures("quick_compile")


@struct.dataclass
class OppositesParams:
    pay: float = 1.0  # for the right action


@dataclasses.dataclass(frozen=True)
class Opposites(Env):
    """One step: 1 for action 0 of lefts, or action 1 of rights. All observations are equal."""

    can_truncate: ClassVar[bool] = False

    @property
    def groups(self):
        return {"left": 1, "right": 2}

    @property
    def default_params(self):
        return OppositesParams()

    def reset(self, key, params):
        return self.all_of(1.0), jnp.int32(0)

    def step(self, key, state, action, params):
        reward = {
            "left": params.pay * (action["left"] == 0),
            "right": params.pay * (action["right"] == 1),
        }
        return self.all_of(1.0), state, reward, self.flags(True), self.flags(False), {}

    def all_of(self, value):
        return {group: jnp.full((size, 1), value) for group, size in self.groups.items()}

    def flags(self, value):
        return {group: jnp.full(size, value) for group, size in self.groups.items()}

    def observation_space(self, params):
        return Dict({group: Box(0.0, 1.0, (1,)).batch(size) for group, size in self.groups.items()})

    def action_space(self, params):
        return Dict({group: Discrete(2).batch(size) for group, size in self.groups.items()})


@pytest.fixture(scope="module", autouse=True)
def opposites():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(envs._REGISTRY, "opposites", Opposites)
        yield


def assign(env, **changes):
    return assign_agents(
        env, env.default_params, {"all": PolicyConfig(agent_type_feature=True, **changes)}
    )["all"]


@pytest.mark.slow
def test_type_is_the_index_of_the_selector():
    assignment = assign(Opposites(), agents=("right", "left"))
    assert assignment.observation_space == Dict(
        {"obs": Box(0.0, 1.0, (1,)), "agent_type": Discrete(2)}
    )
    assert assignment.bare_space == Box(0.0, 1.0, (1,))
    obs = {
        "left": jnp.array([[[1.0]], [[2.0]]]),
        "right": jnp.array([[[3.0], [4.0]], [[5.0], [6.0]]]),
    }
    seen = gather_observation(assignment, obs)
    np.testing.assert_array_equal(seen["obs"][..., 0], [[3, 4, 1], [5, 6, 2]])
    np.testing.assert_array_equal(seen["agent_type"], [[0, 0, 1], [0, 0, 1]])
    assert seen["agent_type"].dtype == jnp.int32
    assert set(seen) == {"obs", "agent_type"}


@pytest.mark.slow
def test_slices_of_a_group_are_types_and_masks_stay_top_level():
    env = Pair()
    clerks = PolicyConfig(agents=("clerk[2]", "clerk[0:2]"), agent_type_feature=True)
    assignments = assign_agents(
        env, env.default_params, {"clerks": clerks, "pilot": PolicyConfig()}
    )
    clerks = assignments["clerks"]
    mask = MultiDiscrete((2,) * 5)
    assert set(clerks.observation_space.spaces) == {"obs", "agent_type", "action_mask"}
    assert clerks.observation_space["action_mask"] == mask
    assert set(clerks.observation_space["obs"].spaces) == {"signal", "day"}
    assert clerks.bare_space == env.observation_space(env.default_params)["clerk"].single
    obs, _ = jax.vmap(env.reset, (0, None))(
        jax.random.split(jax.random.key(0), 2), env.default_params
    )
    seen = gather_observation(clerks, obs)
    np.testing.assert_array_equal(seen["agent_type"], [[0, 1, 1]] * 2)
    np.testing.assert_array_equal(seen["action_mask"], obs["clerk"]["action_mask"][:, [2, 0, 1]])
    np.testing.assert_array_equal(seen["obs"]["day"], obs["clerk"]["day"][:, [2, 0, 1]])
    assert assignments["pilot"].types == ()
    np.testing.assert_array_equal(gather_observation(assignments["pilot"], obs), obs["pilot"])


def test_type_of_each_agent_is_its_id():
    env, pilot = Pair(), PolicyConfig()
    clerks = PolicyConfig(agents=("clerk[*]",), agent_type_feature=True)
    clerks = assign_agents(env, env.default_params, {"clerks": clerks, "pilot": pilot})["clerks"]
    assert clerks.segments == (Segment("clerk", 0, 3),)
    assert clerks.observation_space["agent_type"] == Discrete(3)
    assert clerks.agent_types.tolist() == [0, 1, 2]
    both = assign(Opposites(), agents=("right[*]", "left"))
    assert both.agent_types.tolist() == [0, 1, 2]


def test_part_of_the_agents_keeps_its_types():
    """Evaluations run each group separately."""
    assignment = assign(Opposites(), agents=("right", "left"))
    left = dataclasses.replace(assignment, segments=(Segment("left", 0, 1),))
    assert left.agent_types.tolist() == [1]
    both = Assignment(
        (Segment("right", 1, 2), Segment("left", 0, 1)), *[None] * 2, assignment.types
    )
    assert both.agent_types.tolist() == [0, 1]


def test_agents_without_a_type_are_refused():
    env, kinds = Pair(), PolicyConfig(agents=("clerk[0]", "clerk[1]"), agent_type_feature=True)
    policies = {"kinds": kinds, "rest": PolicyConfig(agents=("clerk[2]",)), "pilot": PolicyConfig()}
    own = assign_agents(env, env.default_params, policies)
    policy, player = (
        Policy("kinds", kinds, own["kinds"], None, None, None, None, None),
        Player("old"),
    )
    assert (
        seat_policy(player, policy, None, Role("kinds", "kinds", own["kinds"])).actor.kind
        == "learned"
    )
    words = r"'old': kinds uses agent_type_feature and has no type for clerk\[2\]"
    with pytest.raises(ValueError, match=words):
        seat_policy(player, policy, None, Role("rest", "rest", own["rest"]))


def test_one_selector_has_no_types():
    env, pilot = Pair(), PolicyConfig(agent_type_feature=True)
    with pytest.raises(
        ValueError, match=r"policies.pilot.agent_type_feature = True: must be false .* 'pilot'"
    ):
        assign_agents(env, env.default_params, {"pilot": pilot, "clerk": PolicyConfig()})


@pytest.mark.slow
def test_shared_policy_learns_by_type():
    """Without the type the best return is 2, by the action of the rights."""
    policy = tiny_policy(
        "PPO",
        agents=("right", "left"),
        learning_rate=0.05,
        agent_type_feature=True,
        normalize_observation=True,
    )
    learner = make_learner(tiny_config("opposites", {"all": policy}))
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=30)
    assert metrics["all/episode_return"][0] < 2.2
    np.testing.assert_array_equal(
        evaluate(learner, state, jax.random.key(1), 8).episode_return["all"], 3
    )
