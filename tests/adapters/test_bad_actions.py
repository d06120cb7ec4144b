"""Malformed actions and arguments of adapters raise one line (tests/test_bad_input.py)."""

import math

import numpy as np
import pytest
from refusals import refusal

import wdjax

pytest.importorskip("gymnasium")
pytest.importorskip("pettingzoo")

from wdjax import adapters

NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def played():
    """Return name -> environment after its reset."""
    tag = wdjax.make("tag_gridworld", num_taggers=2)
    environments = {
        "one": adapters.to_gymnasium(*wdjax.make("cartpole")),
        "box": adapters.to_gymnasium(*wdjax.make("pendulum")),
        "vector": adapters.to_gymnasium_vector(wdjax.make("cartpole")[0], 2),
        "several": adapters.to_pettingzoo(*tag),
    }
    for environment in environments.values():
        environment.reset(seed=0)
    return environments


TWO, BOX, VECTOR, FIVE = (
    "Discrete(2)",
    "Box(-2.0, 2.0, (1,), float32)",
    "MultiDiscrete([2 2])",
    "Discrete(5)",
)
ALL = {"tagger_0": 0, "tagger_1": 0, "runner_0": 0}
ACTIONS = [
    ("one", 2, f"action = 2: must be in {TWO}"),
    ("one", -1, f"action = -1: must be in {TWO}"),
    ("one", 0.0, f"action = 0.0: must be in {TWO}"),
    ("one", np.float32(1), f"action = 1.0: must be in {TWO}"),
    ("one", NAN, f"action = nan: must be in {TWO}"),
    ("one", 10**30, f"must be in {TWO}"),
    ("one", True, f"action = True: must be in {TWO}"),
    ("one", "left", f"action = 'left': must be in {TWO}"),
    ("one", None, f"action = None: must be in {TWO}"),
    ("one", [0], f"action = [0]: must be in {TWO}"),
    ("one", np.array([0, 1]), f"action = [0, 1]: must be in {TWO}"),
    ("one", [[0], [1, 2]], f"must be in {TWO}"),
    ("one", {}, f"action = {{}}: must be in {TWO}"),
    ("one", np.zeros(20, int), f"action = an array of shape (20,): must be in {TWO}"),
    ("box", 0.0, f"action = 0.0: must be in {BOX}"),
    ("box", [0.0, 1.0], f"action = [0.0, 1.0]: must be in {BOX}"),
    (
        "box",
        [5.0],
        f"action = [5.0]: must be in {BOX}. Clip actions with gymnasium.wrappers.ClipAction.",
    ),
    ("box", [NAN], f"action = [nan]: must be in {BOX}"),
    ("box", [INF], f"action = [inf]: must be in {BOX}"),
    ("box", [True], f"action = [True]: must be in {BOX}"),
    ("box", ["0"], f"action = ['0']: must be in {BOX}"),
    ("box", [[0.0]], f"action = [[0.0]]: must be in {BOX}"),
    ("vector", 0, f"action = 0: must be in {VECTOR}"),
    ("vector", [0], f"action = [0]: must be in {VECTOR}"),
    ("vector", [0, 1, 1], f"action = [0, 1, 1]: must be in {VECTOR}"),
    ("vector", [0, 2], f"action = [0, 2]: must be in {VECTOR}"),
    ("vector", [0.0, 1.0], f"action = [0.0, 1.0]: must be in {VECTOR}"),
    ("vector", [0, None], f"action = [0, None]: must be in {VECTOR}"),
    ("several", None, "actions = None: must be a dict of agent names and actions"),
    ("several", [0, 0, 0], "actions = [0, 0, 0]: must be a dict of agent names and actions"),
    (
        "several",
        {},
        "actions: missing tagger_0, tagger_1, runner_0. Every agent in `agents` needs an action.",
    ),
    ("several", {**ALL, "taggr_0": 0}, "unknown agent 'taggr_0': did you mean 'tagger_0'?"),
    ("several", {**ALL, 0: 1}, "agent 0: must be a string, not int"),
    (
        "several",
        {"tagger_0": 0, "runner_0": 0},
        "actions: missing tagger_1. Every agent in `agents` needs an action.",
    ),
    ("several", {**ALL, "tagger_0": 99}, f"actions['tagger_0'] = 99: must be in {FIVE}"),
    ("several", {**ALL, "tagger_0": "up"}, f"actions['tagger_0'] = 'up': must be in {FIVE}"),
    ("several", {**ALL, "tagger_1": 1.0}, f"actions['tagger_1'] = 1.0: must be in {FIVE}"),
    ("several", {**ALL, "runner_0": [1, 1]}, f"actions['runner_0'] = [1, 1]: must be in {FIVE}"),
]


@pytest.mark.parametrize(("name", "action", "message"), ACTIONS)
def test_malformed_actions_raise(played, name, action, message):
    assert message in refusal(played[name].step, action)


OPTIONS = [
    ({"param": {}}, "unknown option of reset 'param': did you mean 'params'?"),
    ({"params": 3}, "options['params'] = 3: must be a dict of parameter names and values"),
    ({"params": {"gravty": 1}}, "unknown parameter of CartPole 'gravty': did you mean 'gravity'?"),
    ({"params": {"gravity": "x"}}, "gravity = 'x': must be a number"),
    ({"params": {"length": 0}}, "length = 0.0: must be above 0"),
    ([1], "options = [1]: must be a dict or None"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_malformed_reset_options_raise(played, options, message):
    for name in ("one", "vector"):
        assert message in refusal(played[name].reset, options=options)


CARTPOLE, TAG = wdjax.make("cartpole")[0], wdjax.make("tag_gridworld")[0]
OTHER_PARAMS = wdjax.make("pendulum")[1]
ARGUMENTS = [
    (
        adapters.to_gymnasium,
        (TAG,),
        {},
        "TagGridworld has groups of agents (tagger, runner): gymnasium supports",
    ),
    (adapters.to_gymnasium, ("cartpole",), {}, "env = 'cartpole': must be a wdjax.Env"),
    (
        adapters.to_gymnasium,
        (CARTPOLE, 3),
        {},
        "params is a builtins.int: must be a Params of CartPole",
    ),
    (adapters.to_gymnasium, (CARTPOLE, OTHER_PARAMS), {}, "must be a Params of CartPole"),
    (
        adapters.to_gymnasium,
        (CARTPOLE,),
        {"render_mode": "human"},
        "unknown render_mode 'human': known names: rgb_arr",
    ),
    (
        adapters.to_gymnasium_vector,
        (TAG, 2),
        {},
        "TagGridworld has groups of agents (tagger, runner): gymnasium supports a single agent. "
        "Use to_p",
    ),
    (adapters.to_gymnasium_vector, (CARTPOLE, 0), {}, "num_envs = 0: must be at least 1"),
    (
        adapters.to_gymnasium_vector,
        (CARTPOLE, 2),
        {"reset": "frsh"},
        "unknown reset strategy 'frsh': did you mean",
    ),
    (
        adapters.to_gymnasium_vector,
        (CARTPOLE, 2),
        {"episode_statistics": "yes"},
        "episode_statistics = 'yes': must be",
    ),
    (adapters.to_pettingzoo, (CARTPOLE,), {}, "CartPole has no groups of agents: use to_gymnasium"),
    (adapters.to_pettingzoo, (TAG, None, "ansi"), {}, "unknown render_mode 'ansi'"),
    (
        adapters.to_pettingzoo,
        (TAG, 3),
        {},
        "params is a builtins.int: must be a Params of TagGridworld",
    ),
    (adapters.to_pettingzoo, (None,), {}, "env = None: must be a wdjax.Env"),
]


@pytest.mark.parametrize(("adapter", "arguments", "named", "message"), ARGUMENTS)
def test_malformed_adapter_arguments_raise(adapter, arguments, named, message):
    assert message in refusal(adapter, *arguments, **named)


def test_unknown_agents_raise(played):
    assert "unknown agent 'tagger': did you mean 'tagger_1'?" in refusal(
        played["several"].action_space, "tagger"
    )
    assert "agent 0: must be a string, not int" in refusal(played["several"].observation_space, 0)
