"""CartPole against gymnasium's CartPole-v1, one step at a time, and numbers by hand."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.envs.classic_control.cartpole import State

FIELDS = ("x", "x_dot", "theta", "theta_dot")
X_EDGE, THETA_EDGE = 2.4, 12 * 2 * np.pi / 360


@pytest.fixture(scope="module")
def game():
    env, params = wdjax.make("cartpole")
    return env, params, jax.jit(env.step)


def state_at(numbers, time=0):
    return State(*(jnp.float32(number) for number in numbers), jnp.int32(time))


def random_starts(rng, num):
    """Numbers within the game, a third of them next to each threshold, on both sides of it."""
    starts = rng.uniform(-1, 1, (num, 4)) * [X_EDGE, 3.0, THETA_EDGE, 3.0]
    third = num // 3
    near = rng.choice([-1, 1], num) * (1 + rng.choice([-1, 1], num) * rng.uniform(1e-5, 0.02, num))
    starts[:third, 0] = near[:third] * X_EDGE
    starts[third : 2 * third, 2] = near[third : 2 * third] * THETA_EDGE
    inside = (np.abs(starts[:, 0]) < X_EDGE) & (np.abs(starts[:, 2]) < THETA_EDGE)
    return starts[inside].astype(np.float32)


def test_steps_agree_with_gymnasium(game):
    env, params, _ = game
    theirs = gymnasium.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    rng = np.random.default_rng(0)
    starts = random_starts(rng, 1500)
    actions = rng.integers(0, 2, len(starts))
    states = State(*jnp.asarray(starts.T), jnp.zeros(len(starts), jnp.int32))
    step = jax.jit(jax.vmap(env.step, (None, 0, 0, None)))
    obs, after, reward, terminated, truncated, _ = step(jax.random.key(0), states, jnp.asarray(actions), params)
    falls = 0
    for i, (start, action) in enumerate(zip(starts, actions, strict=True)):
        theirs.state, theirs.steps_beyond_terminated = tuple(start.astype(np.float64)), None
        _, their_reward, their_terminated, _, _ = theirs.step(int(action))
        numbers = np.array(theirs.state)
        np.testing.assert_allclose(obs[i], numbers, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(obs[i], [getattr(after, name)[i] for name in FIELDS])
        assert reward[i] == their_reward == 1.0
        edges = np.abs(np.abs(numbers[[0, 2]]) - [X_EDGE, THETA_EDGE])
        if edges.min() > 1e-6:
            assert terminated[i] == their_terminated
            falls += their_terminated
    assert 0.2 * len(starts) < falls < 0.8 * len(starts)
    assert not truncated.any()


@pytest.mark.parametrize(
    ("start", "steps"),
    [
        (
            (0.01, -0.02, 0.03, 0.04),
            [
                (1, (0.0096, 0.1746792, 0.0308, -0.24306872)),
                (1, (0.01309358, 0.36934798, 0.02593863, -0.52587963)),
                (0, (0.02048054, 0.17387081, 0.01542103, -0.22513742)),
            ],
        ),
        ((2.39, 1.0, 0.2, 0.5), [(1, (2.41, 1.191824, 0.21, 0.27640834))]),
    ],
)
def test_numbers_by_hand(game, start, steps):
    _, params, step = game
    state = state_at(start)
    for action, numbers in steps:
        obs, state, reward, terminated, truncated, _ = step(jax.random.key(0), state, jnp.int32(action), params)
        np.testing.assert_allclose(obs, numbers, rtol=1e-6, atol=5e-8)
        assert reward == 1.0
        assert terminated == (numbers[0] == 2.41)
        assert not truncated


def test_starts_are_uniform_near_rest(game):
    env, params, _ = game
    obs, state = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(0), 2000), params)
    obs = np.asarray(obs)
    assert (np.abs(obs) <= 0.05).all()
    np.testing.assert_allclose(obs.mean(axis=0), 0, atol=0.003)  # 4 standard errors
    np.testing.assert_allclose(obs.std(axis=0), 0.1 / np.sqrt(12), rtol=0.06)
    np.testing.assert_allclose(np.corrcoef(obs.T), np.eye(4), atol=0.1)
    np.testing.assert_array_equal(obs.T, [getattr(state, name) for name in FIELDS])
    assert not state.time.any()


def test_time_limit_is_that_of_gymnasium(game):
    """Both are held upright: every step starts from rest at the same place."""
    _, params, step = game
    theirs = gymnasium.make("CartPole-v1")
    theirs.reset(seed=0)
    rest = state_at((0, 0, 0, 0))
    for t in range(1, 501):
        theirs.unwrapped.state = (0.0, 0.0, 0.0, 0.0)
        _, _, their_terminated, their_truncated, _ = theirs.step(0)
        if t in (1, 250, 499, 500):
            _, after, _, terminated, truncated, _ = step(
                jax.random.key(0), rest.replace(time=jnp.int32(t - 1)), jnp.int32(0), params
            )
            assert (bool(terminated), bool(truncated)) == (their_terminated, their_truncated) == (False, t == 500)
            assert after.time == t


@pytest.mark.parametrize(
    ("start", "time", "ends"),
    [
        ((0, 0, 0, 0), 498, (False, False)),
        ((0, 0, 0, 0), 499, (False, True)),
        ((2.39, 1, 0, 0), 100, (True, False)),
        ((2.39, 1, 0, 0), 499, (True, False)),  # both in one step: the fall wins
        ((0, 0, -0.2, -1), 499, (True, False)),
    ],
)
def test_a_fall_wins_over_the_time_limit(game, start, time, ends):
    _, params, step = game
    _, _, reward, terminated, truncated, _ = step(jax.random.key(0), state_at(start, time), jnp.int32(1), params)
    assert (bool(terminated), bool(truncated)) == ends
    assert reward == 1.0


@pytest.mark.parametrize("time", [7, 499, 600])
@pytest.mark.parametrize("fallen", [(2.5, 0.3, 0.1, 0.2), (-2.41, 1, 0, 0), (0, 0, 0.22, -5), (0, 0, -0.3, 9)])
def test_a_fall_lasts(game, fallen, time):
    _, params, step = game
    for action in (0, 1):
        obs, _, reward, terminated, truncated, _ = step(
            jax.random.key(0), state_at(fallen, time), jnp.int32(action), params
        )
        np.testing.assert_array_equal(obs, np.array(fallen, np.float32))
        assert reward == 0
        assert (bool(terminated), bool(truncated)) == (True, False)


def test_derived_constants_follow_their_sources(game):
    """Mass of cart and pole change together with what is computed from them: as gymnasium with these masses."""
    _, _, step = game
    _, params = wdjax.make("cartpole", masscart=2.5, masspole=0.7, length=0.9, gravity=3.0, force_mag=6.0, tau=0.05)
    theirs = gymnasium.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    theirs.masspole, theirs.total_mass, theirs.length, theirs.polemass_length = 0.7, 3.2, 0.9, 0.63
    theirs.gravity, theirs.force_mag, theirs.tau = 3.0, 6.0, 0.05
    start = (0.3, -0.2, 0.1, 0.7)
    theirs.state = start
    theirs.step(1)
    obs, *_ = step(jax.random.key(0), state_at(start), jnp.int32(1), params)
    np.testing.assert_allclose(obs, theirs.state, rtol=1e-6, atol=1e-7)
