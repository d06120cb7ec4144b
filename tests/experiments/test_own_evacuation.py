"""The example of agents that join: a reference in NumPy, steps by hand, drawing and training."""

import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.experiments.examples import own_evacuation
from wdjax.experiments.examples.own_evacuation import Evacuation, Params, State
from wdjax.train import make_learner

pytestmark = pytest.mark.usefixtures("quick_compile")

WAYS = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]


def twin(key, state, action, params):
    """Step one person after the other, in NumPy with Python's numbers."""
    arrival_key, door_key = jax.random.split(key)
    arrival, door = (float(jax.random.uniform(one)) for one in (arrival_key, door_key))
    place, inside, left = state.place.copy(), state.inside.copy(), state.left.copy()
    reward, leavers = np.zeros(8, np.float32), 0
    acting = [i for i in range(8) if state.inside[i] and state.time < params.episode_length]
    for i in acting:
        dx, dy = WAYS[action["person"][i]]
        x, y = state.place[i] + np.float32(params.stride) * np.float32([dx, dy])
        x, y = min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0)
        others = [state.place[j] for j in range(8) if state.inside[j] and j != i]
        near = [
            math.dist((x, y), other) < params.body
            and math.dist((x, y), other) < math.dist(state.place[i], other)
            for other in others
        ]
        if not any(near):
            place[i] = x, y
        reward[i] = -params.step_cost
        if place[i][0] >= 1 and 0.4 < place[i][1] < 0.6:
            inside[i], left[i], leavers = False, True, leavers + 1
            reward[i] += 1
    time = state.time + 1
    closed = time >= params.episode_length
    free = [i for i in range(8) if not state.inside[i]]
    arrives = arrival < params.arrival_rate and not closed and bool(free)
    if arrives:
        place[free[0]] = 0, np.float32(0.4) + np.float32(0.2) * door
        inside[free[0]], left[free[0]] = True, False
    truncated = inside & closed
    terminated = left | (~inside & closed)
    info = {
        "leave": np.int32(leavers),
        "arrive": np.bool_(arrives),
        "people": np.int32(len(acting)),
    }
    obs = np.zeros((8, 4), np.float32)
    for i in range(8):
        others = [place[j] - place[i] for j in range(8) if inside[j] and j != i]
        nearest = min(others, key=lambda way: np.hypot(*way)) if others else (1, 1)
        obs[i] = *(2 * place[i] - 1), *nearest
    after = State(place, inside, left, np.int32(time))
    flags = {"person": terminated}, {"person": truncated}
    return {"person": obs}, after, {"person": reward}, *flags, info


@pytest.mark.slow
def test_steps_equal_the_reference():
    params = Params(arrival_rate=0.4, stride=0.15, episode_length=40)
    wdjax.check_env(Evacuation(), params, twin=twin, num_steps=600)


def state_of(people, left=(), time=3):
    place = jnp.zeros((8, 2)).at[jnp.array(list(people))].set(jnp.array(list(people.values())))
    inside = jnp.isin(jnp.arange(8), jnp.array(list(people)))
    return State(place, inside, jnp.isin(jnp.arange(8), jnp.array(left)), jnp.int32(time))


def step(state, actions, **params):
    action = {"person": jnp.array([actions.get(i, 0) for i in range(8)])}
    params = Params(**{"arrival_rate": 0.0, **params})
    _, *outcome, info = jax.jit(Evacuation().step)(jax.random.key(0), state, action, params)
    return *jax.tree.map(np.asarray, outcome), info


def test_a_person_leaves_and_another_one_uses_the_slot():
    """Person 1 leaves in the first step. In the second one, another person arrives in its slot."""
    first = state_of({0: (0.2, 0.2), 1: (0.95, 0.5)})
    state, reward, terminated, truncated, info = step(first, {0: 4, 1: 2})
    np.testing.assert_allclose(state.place[0], [0.2, 0.28], atol=1e-6)
    np.testing.assert_allclose(reward["person"], [-0.02, 0.98] + [0] * 6, atol=1e-6)
    assert np.flatnonzero(terminated["person"]).tolist() == [1]
    assert not truncated["person"].any()
    assert (info["leave"], info["people"]) == (1, 2)
    state, reward, terminated, _, info = step(state, {}, arrival_rate=1.0)
    assert np.flatnonzero(state.inside).tolist() == [0, 1]
    assert state.place[1, 0] == 0
    assert 0.4 < state.place[1, 1] < 0.6
    assert not terminated["person"].any()
    assert reward["person"][1] == 0
    assert info["arrive"]


def test_a_slot_is_not_used_in_the_step_in_which_a_person_leaves():
    full = {i: (0.1 * i, 0.1) for i in range(7)} | {7: (0.95, 0.5)}
    state, _, terminated, _, info = step(state_of(full), {7: 2}, arrival_rate=1.0)
    assert np.flatnonzero(terminated["person"]).tolist() == [7]
    assert not state.inside[7]
    assert not info["arrive"]


def test_people_block_each_other_and_may_step_apart():
    state, *_ = step(state_of({0: (0.5, 0.5), 1: (0.52, 0.5)}), {0: 2, 1: 2}, stride=0.02)
    np.testing.assert_allclose(state.place[:2], [[0.5, 0.5], [0.54, 0.5]], atol=1e-6)


def test_the_room_closes():
    first = state_of({0: (0.2, 0.2), 1: (0.95, 0.5)}, left=[2], time=99)
    _, _, terminated, truncated, _ = step(first, {1: 2}, arrival_rate=1.0)
    assert np.flatnonzero(truncated["person"]).tolist() == [0]
    assert np.flatnonzero(~terminated["person"]).tolist() == [0]


def test_empty_slots_are_not_drawn():
    states = jax.tree.map(lambda leaf: np.asarray(leaf)[None], state_of({0: (0.2, 0.7)}))
    people = Evacuation().scene(states, Params()).marks[1]
    np.testing.assert_allclose(people.x, [[0.2] + [np.nan] * 7], rtol=1e-6)
    path = Path(own_evacuation.__file__)
    assert set(re.findall(r"^(?:from|import) (wdjax\S*)", path.read_text(), re.MULTILINE)) == {
        "wdjax",
        "wdjax.train",
    }


@pytest.mark.slow
def test_people_learn_to_leave(registry):
    learner = make_learner(own_evacuation.evacuation())
    first = learner.init(jax.random.key(0))
    last, _ = learner.run(first, num_updates=25)
    assert own_evacuation.leaving(learner, first) < 0.1
    assert own_evacuation.leaving(learner, last) > 0.5
