"""Reaction paths against the reference on random tables, and published numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_reaction as reference
from hypothesis import given
from hypothesis import strategies as st
from shared_data import shared

import wdjax
from wdjax.envs.reaction.game import State

NAMES = {1: "reaction_one_atom", 2: "reaction_two_atoms"}
SHAPES = {1: (4, 3, 3), 2: (3, 2, 2, 3, 2, 2)}
KEY = jax.random.key(0)


def make(rules):
    atoms = len(rules.initial_state) // 3
    arguments = {name: value for name, value in vars(rules).items() if atoms == 1 or name != "rule"}
    return wdjax.make(NAMES[atoms], surface="table", **arguments)


@st.composite
def games(draw, atoms):
    """Draw a table and settings: slabs with free layers above and below or without, all rules."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape, below, above = SHAPES[atoms], draw(st.integers(0, 2)), draw(st.integers(0, 2))
    cells = [tuple(int(c) for c in rng.integers(0, shape)) for _ in range(2)]
    if cells[0] == cells[1]:
        cells[1] = ((cells[0][0] + 1) % shape[0], *cells[0][1:])
    start, goal = (tuple(c + below * (i % 3 == 2) for i, c in enumerate(cell)) for cell in cells)
    return reference.Rules(
        energies=np.where(rng.random(shape) < 0.1, 1e6, 5 * rng.normal(size=shape)),
        ienergy=rng.normal(),
        max_denergy=2.0,
        initial_state=start,
        final_state=goal,
        nz=shape[2] + below + above,
        z_lower=below,
        min_reward=draw(st.sampled_from([-1.0, -1000.0, 0.0])),
        terminate_reward=7.0,
        episode_length=60,
        rule=draw(st.sampled_from(["auto", "2d", "3d"])) if atoms == 1 else "3d",
    ), rng


@functools.partial(jax.jit, static_argnums=0)
def steps(env, params, states, actions):
    return jax.vmap(env.step, (None, 0, 0, None))(KEY, states, actions, params)


@pytest.mark.slow
@pytest.mark.parametrize("atoms", [1, 2])
@given(data=st.data())
def test_steps_agree_with_the_reference(atoms, data):
    """From 40 positions, including corners, edges of the slab and neighbors of the goal.

    With the 2D rule some are outside of the slab.
    """
    rules, rng = data.draw(games(atoms))
    env, params = make(rules)
    plane = atoms == 1 and bool(env.in_plane(params))
    low, size = (0, rules.nz) if plane else (rules.z_lower, rules.energies.shape[2])
    sizes = np.array([*rules.energies.shape[:2], size] * atoms)
    position = rng.integers(0, sizes, (40, 3 * atoms)) + np.array([0, 0, low] * atoms)
    beside = np.array(rules.final_state)
    position[:12] = np.where(rng.random((12, 3 * atoms)) < 0.8, beside, position[:12])
    position = position[np.any(position != beside, axis=1)]
    time = rng.choice([0, 3, 58, 59], len(position)).astype(np.int32)
    actions = rng.integers(0, 6, len(position))
    actions = (
        np.stack([rng.integers(0, 2, len(position)), actions], axis=1) if atoms == 2 else actions
    )
    states = State(np.resize(position, (40, 3 * atoms)).astype(np.int32), np.resize(time, 40))
    result = steps(env, params, states, np.resize(actions, (40, *actions.shape[1:])))
    obs, after, reward, terminated, truncated, info = jax.tree.map(np.asarray, result)
    for i in range(len(position)):
        expected = reference.step(rules, tuple(position[i]), time[i], actions[i])
        assert tuple(after.position[i]) == expected[0]
        assert after.time[i] == time[i] + 1
        np.testing.assert_allclose(obs[i], expected[1], rtol=3e-7)
        np.testing.assert_allclose(reward[i], expected[2], rtol=1e-5, atol=1e-5)
        assert (terminated[i], truncated[i], info["reached"][i]) == (
            expected[3],
            expected[4],
            expected[3],
        )


def test_finished_states_do_not_change():
    env, params = wdjax.make("reaction_one_atom")
    for cell, time, ends in (((21, 3, 1), 9, (True, False)), ((9, 17, 2), 500, (False, True))):
        state = State(jnp.array(cell), jnp.int32(time))
        _, after, reward, terminated, truncated, info = jax.jit(env.step)(KEY, state, 0, params)
        np.testing.assert_array_equal(after.position, cell)
        assert (float(reward), bool(terminated), bool(truncated)) == (0.0, *ends)
        assert not info["reached"]


def test_rules_differ_where_a_move_leaves_the_slab():
    """From the highest layer up, along x, and down again."""
    energies = np.array([[[1.0, 2.0]], [[3.0, 4.0]]])
    arguments = {
        "surface": "table",
        "energies": energies,
        "ienergy": 0.0,
        "max_denergy": 8.0,
        "nz": 9,
        "z_lower": 5,
    }
    arguments |= {"initial_state": [0, 0, 6], "final_state": [1, 0, 6], "terminate_reward": 3.0}
    for rule, places, rewards in (
        ("2d", [(0, 0, 7), (1, 0, 7), (1, 0, 6)], [-1, -1, 3 - 0.5]),
        ("auto", [(0, 0, 7)], [-1]),
        ("3d", [(0, 0, 6), (1, 0, 6)], [-1, 3 - 0.5]),
    ):
        env, params = wdjax.make("reaction_one_atom", rule=rule, **arguments)
        state, step = State(jnp.array([0, 0, 6]), jnp.int32(0)), jax.jit(env.step)
        for place, reward, action in zip(places, rewards, (4, 0, 5), strict=False):
            _, state, gained, terminated, *_ = step(KEY, state, action, params)
            assert (tuple(np.asarray(state.position)), float(gained)) == (place, reward)
        assert terminated == (rule != "auto")
    params = params.replace(initial_state=np.array([0, 0, 5], np.int32))
    assert not wdjax.make("reaction_one_atom")[0].in_plane(params)


def test_random_starts_cover_all_cells_except_the_goal():
    energies = np.zeros((2, 3, 2))
    arguments = {
        "surface": "table",
        "energies": energies,
        "ienergy": 0.0,
        "max_denergy": 1.0,
        "nz": 9,
        "z_lower": 5,
    }
    env, params = wdjax.make(
        "reaction_one_atom",
        random_start=True,
        initial_state=[0, 0, 5],
        final_state=[1, 1, 6],
        **arguments,
    )
    obs, state = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(KEY, 1_100), params)
    cells, counts = np.unique(state.position, axis=0, return_counts=True)
    assert {tuple(cell) for cell in cells} == {
        (x, y, z) for x in range(2) for y in range(3) for z in (5, 6) if (x, y, z) != (1, 1, 6)
    }
    assert counts.min() > 60  # expected: 100
    np.testing.assert_allclose(obs[:, 2], np.asarray(state.position[:, 2]) / 9, rtol=1e-6)


GAS = {
    "ienergy": -227.689938,
    "nz": 50,
    "z_lower": 28,
    "final_state": (5, 16, 38),
    "terminate_reward": 30.0,
}
ON_TOP = {"ienergy": -193.6023, "nz": 100, "z_lower": 58, "final_state": (10, 0, 60)}
PUBLISHED = {  # file and settings of published configurations
    "diffusion2d": (
        "en_array_diffusion",
        ON_TOP | {"initial_state": (5, 9, 60), "terminate_reward": 10.0},
    ),
    "diffusion2d_relaxed": (
        "en_array_diffusion_relax",
        ON_TOP
        | {
            "ienergy": -193.69,
            "z_lower": 60,
            "initial_state": (5, 9, 60),
            "terminate_reward": 10.0,
        },
    ),
    "diffusion3d": (
        "en_array_diffusion",
        ON_TOP | {"initial_state": (5, 9, 61), "terminate_reward": 30.0},
    ),
    "gas1": ("en_array", GAS | {"initial_state": (3, 15, 43)}),
    "gas2": ("en_array", GAS | {"initial_state": (3, 12, 45)}),
    "surface": ("en_array", GAS | {"initial_state": (3, 6, 30)}),
    "two_atom": (
        "en_array_2atom_diffusion",
        {
            "ienergy": -200.78,
            "nz": 15,
            "z_lower": 9,
            "initial_state": (4, 4, 10, 4, 4, 11),
            "final_state": (0, 4, 10, 0, 4, 11),
            "terminate_reward": 30.0,
        },
    ),
}
ROLLOUTS = {  # rewards, and the last observation if published
    "diffusion2d": (
        [-0.0969295, -0.0679435, -0.0861725, -0.1553425, -1, -0.1553425],
        [0.3, 0.4444444, 0.58, 0.8901982],
    ),
    "diffusion3d": ([-0.0556865, -0.062324, -0.0679435, -0.0861725, -0.1553425, -0.0861725], None),
    "gas1": ([-0.1993739, -0.2009509, -0.1980024, -0.1925414, -0.1840969, -0.1925414], None),
    "two_atom": (
        [-0.1473504, -0.2314011, -0.1047898, -0.3206544, -1, -1],
        [0.625, 0.5, 0.7333333, 0.5, 0.375, 0.6, 1.2747549, 1.1456439],
    ),
}


def published(name):
    file, settings = PUBLISHED[name]
    atoms = len(settings["initial_state"]) // 3
    path = str(shared("reaction", f"{file}.npy"))
    return wdjax.make(NAMES[atoms], surface=path, max_denergy=20.0, **settings)


@pytest.mark.parametrize("name", ROLLOUTS)
def test_rewards_agree_with_published_rollouts(name):
    env, params = published(name)
    rewards, last = ROLLOUTS[name]
    actions = (
        [0, 3, 5, 5, 5, 4]
        if env.num_atoms == 1
        else [(0, 0), (1, 3), (0, 4), (1, 5), (1, 5), (1, 5)]
    )
    obs, state = env.reset(KEY, params)
    step, gained = jax.jit(env.step), []
    for action in actions:
        obs, state, reward, *_ = step(KEY, state, jnp.array(action), params)
        gained.append(float(reward))
    np.testing.assert_allclose(gained, rewards, atol=1e-6)
    if last is not None:
        np.testing.assert_allclose(obs, last, atol=1e-7)
