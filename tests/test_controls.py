"""Keys and pointer with which a person controls an agent."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.controls import Controls, default_controls
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete


@pytest.mark.parametrize(("space", "pressed", "row"), [
    (Discrete(2), ["ArrowRight"], [1]),
    (Discrete(3), [], [1]),
    (Discrete(3), ["ArrowRight"], [2]),
    (Discrete(3), ["ArrowRight", "ArrowLeft"], [0]),
    (Discrete(21), ["9"], [20]),
    (Discrete(5), ["2"], [2]),
    (MultiDiscrete((3, 7)), ["ArrowRight", "ArrowUp"], [2, 6]),
    (Box(-2.0, 3.0, (1,)), ["ArrowLeft"], [-2]),
    (Box(1.0, 3.0, (2,)), [], [1, 1]),
    (Box(-np.inf, np.inf, (2, 2)), ["ArrowUp"], [0, 1, 0, 0]),
])  # fmt: skip
def test_default_controls_select_the_action_of_the_pressed_keys(space, pressed, row):
    controls = default_controls(space)
    assert controls.row(pressed, controls.idle) == pytest.approx(row)


def test_held_controls_keep_the_last_value():
    assert default_controls(Discrete(2)).row([], [1]) == [1]
    assert default_controls(Discrete(3)).row([], [2]) == [1]


def test_invalid_controls_and_unknown_keys_raise():
    with pytest.raises(ValueError, match="component of key 'a' = 1: must be at least 0 and below"):
        Controls({"a": {1: 0}}, (0,))
    with pytest.raises(ValueError, match="unknown key 'b'"):
        Controls({"a": {0: 0}}, (0,)).row(["b"], (0,))
    with pytest.raises(TypeError, match="space = Dict"):
        default_controls(Dict({"a": Discrete(2)}))


@pytest.mark.parametrize("name", wdjax.list_envs())
def test_keys_of_every_environment_are_legal_actions(name):
    env, params = wdjax.make(name)
    space = env.action_space(params)
    for group in env.groups or ["agent"]:
        own = space[group].single if env.groups else space
        controls = env.controls(group, params)
        assert controls.explanation  # in terms of the environment
        low, high = (own.low, own.high) if isinstance(own, Box) else (0, np.array(own.nvec) - 1)
        for key in (None, *controls.keys):
            row = np.array(controls.row([key] * (key is not None), controls.idle))
            assert row.size == max(1, int(np.prod(own.shape)))
            assert np.all((row >= np.ravel(low)) & (row <= np.ravel(high))), key


@pytest.mark.parametrize(("name", "group", "pressed", "parts"), [
    ("rice", "region", [], {0: 2, 1: 0}),  # 20 % of the output is saved at the start
    ("rice", "region", ["5", "p", "a"], {0: 5, 1: 9, -27: 1, -1: 1, -28: 0}),
    ("covid_economy", "state", ["0"], {0: 10}),
    ("covid_economy", "state", ["7"], {0: 7}),
    ("covid_economy", "state", ["7", "k"], {0: 0}),
    ("covid_economy", "planner", ["9"], {0: 20}),
    ("taxed_commons", "harvester", ["3"], {0: 3}),
])  # fmt: skip
def test_keys_of_decisions_are_held(name, group, pressed, parts):
    env, params = wdjax.make(name, **({"negotiation": True} if name == "rice" else {}))
    controls = env.controls(group, params)
    row = controls.row([], controls.row(pressed, controls.idle))
    assert {component: row[component] for component in parts} == parts


@functools.cache
def steered_game(name):
    """Return (env, params, state after a reset, compiled steer, compiled step)."""
    changes = {"max_speed": 0.3} if name == "tag_continuous" else {}
    env, params = wdjax.make(name, num_taggers=2, **changes)
    _, state = jax.jit(env.reset)(jax.random.key(2), params)
    return env, params, state, jax.jit(env.steer, static_argnums=1), jax.jit(env.step)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["tagger", "runner"])
@pytest.mark.parametrize("point", [(1.0, 9.0), (9.0, 2.0)])
@pytest.mark.parametrize("name", ["tag_continuous", "tag_gridworld"])
def test_steering_moves_towards_the_pointer(name, group, point, quick_compile):
    env, params, state, steer, step = steered_game(name)
    index = {"tagger": 1, "runner": 2}[group]
    agent, zeros = jnp.int32(index if group == "tagger" else 0), {}
    for other, space in env.action_space(params).spaces.items():
        zeros[other] = jnp.zeros(space.shape, jnp.int32)

    def far(state):
        return float(jnp.hypot(state.x[index] - point[0], state.y[index] - point[1]))

    distances = [far(state)]
    for _ in range(12):
        action = steer(state, group, agent, jnp.array(point), params)
        actions = {**zeros, group: zeros[group].at[agent].set(action)}
        state = step(jax.random.key(0), state, actions, params)[1]
        distances.append(far(state))
    assert distances[-1] < 0.6 * distances[0]


def test_grid_keys_move_in_the_direction_of_the_arrow():
    env, params = wdjax.make("tag_gridworld")
    controls = env.controls("runner", params)
    state = types.SimpleNamespace(x=jnp.array([5]), y=jnp.array([5]))
    ways = {"ArrowRight": (9, 5), "ArrowLeft": (1, 5), "ArrowUp": (5, 9), "ArrowDown": (5, 1)}
    for key, point in ways.items():
        (move,) = controls.row([key], controls.idle)
        steered = env.steer(state, "tagger", jnp.int32(0), jnp.array(point, float), params)
        assert move == int(steered), key
