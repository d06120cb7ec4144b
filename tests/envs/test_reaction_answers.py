"""Reaction surfaces and their optimal paths: literature, stored values, flood fill, brute force."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_reaction as reference
from test_reaction_parity import PUBLISHED, make, published

import wdjax
from wdjax.envs.reaction import exact, surfaces

# energies of start and lowest pass, ienergy, max_denergy; best return, its steps and top; at gamma
# 0.99, steps
THRESHOLD = {
    "mueller_brown": (
        -145.998035252, -40.269451041, -45.55588, 5.286429, 27.851364993, 33, -40.269451041,
        20.221711301, 31,
    ),
    "mueller_brown_fine": (
        -146.671478407, -40.393746452, -45.707633, 5.313887, 25.770710585, 64, -40.393746452,
        12.580041713, 64,
    ),
    "leps": (-2.609950887, -2.414817803, -2.424574, 0.009757, 28.108254475, 55, -2.414817803,
        15.895899031, 55),
    "leps_oscillator": (
        -4.476388136, -0.876401246, -1.056401, 0.179999, 27.042260657, 50, -0.876332272,
        16.107127551, 50,
    ),
    "wolfe_quapp": (-6.7539, -1.2499, -1.5251, 0.2752, 26.419331395, 54, -1.2499, 14.626352176, 54),
    "entropic_switch": (
        -3.97015049, -1.644198855, -1.760496, 0.116298, 21.978445016, 47, -1.644198855,
        12.799833921, 27,
    ),
    "quartic": (0.0, 1.0, 0.95, 0.05, 27.796, 21, 1.0, 22.543895041, 21),
    "cerjan_miller": (0.0, 0.367879441, 0.349485, 0.018394, 27.793944606, 24, 0.367879441,
        21.813495478, 24),
    "corrugated_morse": (-1.648324838, -1.0, -1.032416, 0.032416, 29.0, 19, -1.0, 24.293630331, 17),
    "two_atom_exchange": (
        -3.31463125, -2.659735497, -2.69248, 0.032745, 26.000060751, 28, -2.659735497,
        19.384914205, 28,
    ),
}  # fmt: skip
PLAIN = {  # best return, steps, top; at gamma 0.99, steps
    "mueller_brown": (29.118957246, 27, -26.18196792, 22.322511318, 27),
    "mueller_brown_fine": (28.268598752, 56, -29.842124824, 16.595021063, 52),
    "leps": (29.516501838, 55, -2.414817803, 17.027956124, 55),
    "leps_oscillator": (28.884452768, 50, -0.784751732, 17.529572372, 50),
    "wolfe_quapp": (28.684979106, 54, -1.1938, 16.584769394, 54),
    "entropic_switch": (29.394485786, 23, -1.281065501, 23.966311999, 21),
    "quartic": (29.46667, 21, 1.0, 24.05452598, 21),
    "cerjan_miller": (29.404615278, 24, 0.367879441, 23.275441887, 24),
    "corrugated_morse": (29.683422505, 13, -0.877598815, 26.801658731, 11),
}
SHIPPED = {  # lowest pass, steps; best return, steps; at gamma 0.99, steps
    "diffusion2d": (-191.9024, 20, 8.9483645, 20, 7.339018022, 18),
    "diffusion2d_relaxed": (-192.39742, 18, 9.398331, 14, 8.212092513, 14),
    "diffusion3d": (-191.9024, 19, 28.951778, 19, 24.754027009, 15),
    "gas1": (-223.66148, 8, 28.9847818, 8, 26.970540017, 8),
    "gas2": (-223.62057, 13, 27.9762283, 13, 24.660001984, 13),
    "surface": (-225.24453, 20, 28.2118595, 20, 23.565719453, 18),
}
STATIONARY = [  # formula, x, y, energy: stationary points of the surfaces in the literature
    (surfaces.mueller_brown, -0.558224, 1.441726, -146.699517),
    (surfaces.mueller_brown, 0.623499, 0.028038, -108.166724),
    (surfaces.mueller_brown, -0.050011, 0.466694, -80.767818),
    (surfaces.mueller_brown, -0.822002, 0.624313, -40.664844),
    (surfaces.mueller_brown, 0.212487, 0.292988, -72.24894),
    (surfaces.leps, 1.441742, 0.800242, -2.413285),
    (surfaces.leps_oscillator, 0.741521, 1.303419, -4.509176),
    (surfaces.leps_oscillator, 3.001276, -1.304338, -2.620287),
    (surfaces.leps_oscillator, 2.020828, -0.172901, -0.875225),
    (surfaces.wolfe_quapp, -1.174056, 1.477087, -6.762453),
    (surfaces.wolfe_quapp, 1.124102, -1.485274, -6.368957),
    (surfaces.wolfe_quapp, -1.022244, -0.116062, -1.251312),
    (surfaces.wolfe_quapp, 0.940969, 0.131252, -0.636564),
    (surfaces.entropic_switch, 1.048055, -0.042094, -3.994861),
    (surfaces.entropic_switch, 0.0, 1.537082, -2.172154),
    (surfaces.entropic_switch, -0.617272, 1.102735, -1.646687),
    (surfaces.entropic_switch, 0.0, -0.315827, -1.384587),
    (surfaces.cerjan_miller, 1.0, 0.0, np.exp(-1)), (surfaces.quartic, 0.0, 0.0, 1.0),
]  # fmt: skip
FIRST, *OTHERS = THRESHOLD
pytestmark = pytest.mark.usefixtures("quick_compile")
QUICK_FIRST = [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


def make_on(surface, **arguments):
    name = "reaction_two_atoms" if surface == "two_atom_exchange" else "reaction_one_atom"
    return wdjax.make(name, surface=surface, **arguments)


@pytest.mark.parametrize(("formula", "x", "y", "energy"), STATIONARY)
def test_surfaces_have_the_published_stationary_points(formula, x, y, energy):
    assert formula(x, y) == pytest.approx(energy, abs=2e-6)
    step = 1e-4
    slopes = [
        formula(x + step, y) - formula(x - step, y),
        formula(x, y + step) - formula(x, y - step),
    ]
    assert np.abs(slopes).max() / (2 * step) < 2e-3


def test_morse_and_leps_by_hand():
    z = np.log(0.6)
    assert surfaces.corrugated_morse(5, 5, z, 10) == pytest.approx(-1 / 0.6)  # hollow
    assert surfaces.corrugated_morse(0, 5, 0.0, 10) == pytest.approx(-1.0)  # bridge
    assert surfaces.corrugated_morse(0, 0, np.log(1.4), 10) == pytest.approx(-1 / 1.4)  # top
    assert surfaces.leps(0.742, 1e3) == pytest.approx(-4.746 / 1.05)
    assert surfaces.leps(1e3, 0.742) == pytest.approx(-4.746 / 1.8)


@pytest.mark.parametrize("surface", THRESHOLD)
def test_tables_have_the_stored_settings(surface):
    table = surfaces.load_table(surface)
    bottom, top, ienergy, max_denergy, *_ = THRESHOLD[surface]
    assert (table.bottom, table.top) == (
        pytest.approx(bottom, abs=1e-9),
        pytest.approx(top, abs=1e-9),
    )
    assert table.settings("threshold") == pytest.approx(
        {"ienergy": ienergy, "max_denergy": max_denergy}, abs=1e-12
    )
    assert table.settings("plain") == pytest.approx(
        {"ienergy": bottom, "max_denergy": 20 * (top - bottom)}, abs=1e-6
    )
    assert np.isfinite(table.energies).all()
    if table.spacing:
        ring = np.ones(table.energies.shape[:2], bool)
        ring[1:-1, 1:-1] = False
        assert (table.energies[ring] == 1e6).all()
        low = table.energies[..., 0] < 1e6 - 1e3
        raised = 0.01 * (top - bottom)
        np.testing.assert_allclose(
            (table.energies[..., 1] - table.energies[..., 0])[low], raised, atol=1e-6
        )


def check_best(answer, value, steps, top=None):
    assert (answer.value, len(answer.path) - 1) == (pytest.approx(value, abs=2e-9), steps)
    assert top is None or answer.top == pytest.approx(top, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("surface", QUICK_FIRST)
def test_best_paths_with_threshold_settings(surface):
    env, rounded = make_on(surface)
    params = exact.exact_params(env)
    _, pass_energy, _, _, value, steps, top, discounted, fewer = THRESHOLD[surface]
    assert exact.lowest_pass(params).value == pytest.approx(pass_energy, abs=1e-9)
    if env.num_atoms == 2:  # a step of all 102,400 positions takes 40 ms, the best path 28 steps
        params = params.replace(episode_length=40)
    best = exact.best_return(params)
    check_best(best, value, steps, top)
    assert replay(env, rounded, best.path) == (pytest.approx(value, rel=1e-5), True)
    if env.num_atoms == 1:
        check_best(exact.best_return(params, 0.99), discounted, fewer)


@pytest.mark.slow
@pytest.mark.parametrize("surface", PLAIN)
def test_best_paths_with_plain_settings(surface):
    params = exact.exact_params(make_on(surface, settings="plain")[0])
    value, steps, top, discounted, fewer = PLAIN[surface]
    check_best(exact.best_return(params), value, steps, top)
    check_best(exact.best_return(params, 0.99), discounted, fewer)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_best_paths_on_published_tables(name):
    env, rounded = published(name)
    params = rounded.replace(energies=env.table.energies, ienergy=PUBLISHED[name][1]["ienergy"])
    pass_energy, fewest, value, steps, discounted, fewer = SHIPPED[name]
    lowest = exact.lowest_pass(params)
    assert (lowest.value, len(lowest.path) - 1) == (pytest.approx(pass_energy, abs=1e-9), fewest)
    best = exact.best_return(params)
    check_best(best, value, steps)
    check_best(exact.best_return(params, 0.99), discounted, fewer)
    assert replay(env, rounded, best.path) == (pytest.approx(value, rel=1e-5), True)


def replay(env, params, path):
    """Return (rewards of the environment along a path, whether it ends at the goal)."""
    sizes = np.array([*np.shape(params.energies)[:2], int(params.nz)] * env.num_atoms)
    change = (np.diff(path, axis=0) + 1) % sizes - 1  # also across the periodic boundaries
    axis, direction = np.abs(change).argmax(axis=1), change.sum(axis=1)
    actions = 2 * (axis % 3) + (direction < 0)
    actions = np.stack([axis // 3, actions], axis=1) if env.num_atoms == 2 else actions

    def body(state, action):
        _, state, reward, terminated, *_ = env.step(jax.random.key(0), state, action, params)
        return state, (reward, terminated, state.position)

    _, state = env.reset(jax.random.key(0), params)
    _, (rewards, terminated, position) = jax.jit(lambda s, a: jax.lax.scan(body, s, a))(
        state, jnp.asarray(actions)
    )
    np.testing.assert_array_equal(position, path[1:])
    return float(rewards.sum()), bool(terminated[-1] and not terminated[:-1].any())


def flood(rules, top):
    """Return whether cells of at most `top` connect start and goal, by visiting neighbors."""

    def energy(cell):
        return rules.energies[tuple(c - rules.z_lower * (i % 3 == 2) for i, c in enumerate(cell))]

    rules = dataclasses.replace(rules, rule="3d")  # stays in the slab
    reached = {rules.initial_state} if energy(rules.initial_state) <= top else set()
    pending = list(reached)
    while pending:
        cell = pending.pop()
        for action in range(6 * len(cell) // 3):
            choice = action if len(cell) == 3 else (action // 6, action % 6)
            after = reference.step(rules, cell, 0, choice)[0]
            if after not in reached and energy(after) <= top:
                reached.add(after)
                pending.append(after)
    return rules.final_state in reached


@pytest.mark.parametrize("seed", range(12))
def test_best_paths_on_small_tables_agree_with_brute_force(seed):
    """Search all paths of 7 steps in 3D, and in 2D with moves out of the slab."""
    rng = np.random.default_rng(seed)
    atoms, rule = (2, "3d") if seed % 4 == 3 else (1, "2d" if seed % 2 else "3d")
    shape = (2, 2, 1) * 2 if atoms == 2 else (4, 3, 2)
    start, goal = ((0, 0, 1), (3, 1, 2)) if atoms == 1 else ((0, 0, 1, 1, 1, 1), (1, 1, 1, 0, 1, 1))
    rules = reference.Rules(
        3 * rng.normal(size=shape), -2.0, 1.0, start, goal, nz=5, z_lower=1, min_reward=-4.0,
        terminate_reward=rng.choice([2.0, 9.0]), episode_length=7, rule=rule,
    )  # fmt: skip
    params = make(rules)[1].replace(energies=rules.energies)

    @functools.cache
    def best(cell, time, gamma):
        values = []
        for action in range(6 * atoms):
            after, _, reward, terminated, truncated = reference.step(
                rules, cell, time, action if atoms == 1 else (action // 6, action % 6)
            )
            values.append(
                reward + (0.0 if terminated or truncated else gamma * best(after, time + 1, gamma))
            )
        return max(values)

    for gamma in (1.0, 0.8):
        answer = exact.best_return(params, gamma, rule)
        assert answer.value == pytest.approx(best(start, 0, gamma), abs=1e-12)
    lowest = exact.lowest_pass(params)
    assert flood(rules, lowest.value)
    assert not flood(rules, lowest.value - 1e-9)
    assert tuple(lowest.path[0]) == start
    assert tuple(lowest.path[-1]) == goal
    inside = lowest.path - np.array([0, 0, 1] * atoms)
    assert max(rules.energies[tuple(cell)] for cell in inside) == lowest.value == lowest.top
