"""Agents of policies: selectors, and arrays by group and by policy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import Pair, Signal

import wdjax
from wdjax import Discrete
from wdjax.train import PolicyConfig
from wdjax.train.learning import Assignment
from wdjax.train.state import agents as policies
from wdjax.train.state.agents import Segment, gather, scatter

pytestmark = pytest.mark.usefixtures("quick_compile")

SIZES = {"tagger": 3, "runner": 8}
SMALL = {"a": 2, "b": 4}  # every shape is compiled


@pytest.mark.parametrize(
    ("selector", "segment"),
    [
        ("runner", ("runner", 0, 8)),
        ("runner[0:3]", ("runner", 0, 3)),
        ("runner[3:8]", ("runner", 3, 8)),
        ("runner[:3]", ("runner", 0, 3)),
        ("runner[3:]", ("runner", 3, 8)),
        ("runner[:]", ("runner", 0, 8)),
        ("runner[7]", ("runner", 7, 8)),
        ("runner[0]", ("runner", 0, 1)),
        ("tagger[2:3]", ("tagger", 2, 3)),
    ],
)
def test_selectors(selector, segment):
    assert policies.parse_selectors("p", (selector,), SIZES) == [Segment(*segment)]


@pytest.mark.parametrize("group", ["a[0]", "a[*]", "a[0:1]", "two words", "a-1", "[", "*", "é\n"])
def test_names_of_groups_are_not_patterns(group):
    sizes = {"a": 2, group: 3}
    for end, segment in {"": (0, 3), "[*]": (0, 3), "[1]": (1, 2), "[1:]": (1, 3)}.items():
        assert policies.parse_selectors("p", (group + end,), sizes) == [Segment(group, *segment)]
    assert policies.types_of((group,), [Segment(group, 0, 3)]) == [Segment(group, 0, 3)]


@st.composite
def slicings(draw):
    """Split both groups into segments and assign these to policies, at least one to each."""
    segments = []
    for group, size in SMALL.items():
        cuts = [0, *sorted(draw(st.sets(st.integers(1, size - 1), max_size=3))), size]
        segments += [Segment(group, start, stop) for start, stop in itertools.pairwise(cuts)]
    dealt = {}
    for segment in draw(st.permutations(segments)):
        dealt.setdefault(draw(st.sampled_from("abc")), []).append(segment)
    return {
        owner: Assignment(tuple(parts), Discrete(2), Discrete(2)) for owner, parts in dealt.items()
    }


@given(slicings())
def test_scatter_undoes_gather(assignments):
    values = {
        group: np.arange(2 * size).reshape(2, size) + 100 * size for group, size in SMALL.items()
    }
    by_policy = {name: gather(assignment, values) for name, assignment in assignments.items()}
    for name, assignment in assignments.items():
        assert by_policy[name].shape == (2, assignment.num_agents)
    back = scatter(assignments, by_policy)
    for group, expected in values.items():
        np.testing.assert_array_equal(back[group], expected)


def test_gather_keeps_the_order_of_the_selectors():
    assignment = Assignment((Segment("b", 1, 3), Segment("a", 0, 1)), Discrete(2), Discrete(2))
    values = {"a": {"x": jnp.array([[0, 1]])}, "b": {"x": jnp.array([[10, 11, 12]])}}
    np.testing.assert_array_equal(gather(assignment, values)["x"], [[11, 12, 0]])


def test_spaces_of_a_policy_are_those_of_one_agent():
    env = Pair()
    spaces = policies.assign_agents(
        env, env.default_params, {"pilot": PolicyConfig(), "clerk": PolicyConfig()}
    )
    assert spaces["clerk"].action_space == wdjax.MultiDiscrete((2, 3))
    assert spaces["pilot"].observation_space.shape == (1,)
    assert spaces["clerk"].num_agents == 3


def test_single_agent_environment_has_one_group_of_one():
    env = Signal()
    assignment = policies.assign_agents(env, env.default_params, {"agent": PolicyConfig()})["agent"]
    assert assignment.segments == (Segment("agent", 0, 1),)
    values = {"a": jnp.arange(3), "b": jnp.ones((3, 2))}
    grouped = policies.to_groups(env, values)
    assert jax.tree.map(jnp.shape, grouped) == {"agent": {"a": (3, 1), "b": (3, 1, 2)}}
    jax.tree.map(np.testing.assert_array_equal, policies.from_groups(env, grouped), values)


def test_environment_with_groups_is_unchanged():
    values = {"pilot": jnp.ones((3, 2)), "clerk": jnp.ones((3, 3))}
    assert policies.to_groups(Pair(), values) is policies.from_groups(Pair(), values) is values
