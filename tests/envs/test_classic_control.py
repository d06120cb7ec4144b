"""Classic control against gymnasium, step by step, and properties of all its environments."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium_parity import (
    EPSILON,
    GAMES,
    as_action,
    as_numbers,
    as_state,
    compiled,
    put,
    random_steps,
    their_env,
)

import wdjax

each_game = pytest.mark.parametrize("name", GAMES)
NUM = 1000


def difference(name, ours, theirs):
    """Return ours - theirs, [N, D]. Angles of acrobot are compared on the circle."""
    apart = ours - theirs
    if name == "acrobot":
        apart[:, :2] = (apart[:, :2] + np.pi) % (2 * np.pi) - np.pi
    return apart


@pytest.mark.parametrize("changed", [False, True], ids=["defaults", "changed"])
@each_game
def test_steps_agree_with_gymnasium(name, changed):
    game = GAMES[name]
    params, starts, _, ours, theirs = random_steps(name, NUM, changed=changed)
    tolerance = np.broadcast_to(game.tolerance(starts), starts.shape)
    excess = np.abs(difference(name, ours.numbers, theirs.numbers)) - tolerance
    assert excess.max() <= 0, (excess.max(), starts[excess.max(axis=1).argmax()])
    # observations of gymnasium are rounded from float64
    obs_tolerance = 2 * tolerance.max(axis=1, keepdims=True) + 2 * EPSILON
    assert (np.abs(ours.obs - theirs.obs) <= obs_tolerance).all()

    decided = np.abs(game.beyond(theirs.numbers, params)) > 1e-5
    assert decided.mean() > 0.98
    np.testing.assert_array_equal(ours.terminated[decided], theirs.terminated[decided])
    gap = np.abs(ours.reward - theirs.reward)[decided]
    assert gap.max() <= game.reward_tolerance
    assert np.unique(theirs.terminated).tolist() == ([False, True] if game.ended else [False])


@each_game
def test_spaces_agree_with_gymnasium(name):
    env, params = wdjax.make(name)
    theirs, ours = their_env(name), env.observation_space(params)
    assert (ours.shape, ours.dtype) == (
        theirs.observation_space.shape,
        theirs.observation_space.dtype,
    )
    if name != "cartpole":  # its last states may exceed the bounds
        np.testing.assert_array_equal(ours.low, theirs.observation_space.low)
        np.testing.assert_array_equal(ours.high, theirs.observation_space.high)
    ours = env.action_space(params)
    if isinstance(ours, wdjax.Discrete):
        assert ours.n == theirs.action_space.n
    else:
        assert (
            (ours.shape, ours.dtype)
            == (theirs.action_space.shape, theirs.action_space.dtype)
            == ((1,), np.float32)
        )
        assert (ours.low, ours.high) == (theirs.action_space.low, theirs.action_space.high)


@pytest.mark.parametrize("changed", [False, True], ids=["defaults", "changed"])
@each_game
def test_observations_fill_their_space(name, changed):
    """They are in it exactly, and at its bounds where clipped, also with traced params."""
    env, params = wdjax.make(name, **(GAMES[name].changes if changed else {}))
    _, _, _, ours, _ = random_steps(name, NUM, changed=changed)

    @jax.jit
    def inside(params, obs):
        return jax.vmap(env.observation_space(params).contains)(obs)

    space = env.observation_space(params)
    assert jax.vmap(space.contains)(jnp.asarray(ours.obs)).all()
    assert inside(params, jnp.asarray(ours.obs)).all()
    if name != "cartpole":  # no bounds
        np.testing.assert_allclose(ours.obs.min(axis=0), space.low, rtol=0.01)
        np.testing.assert_allclose(ours.obs.max(axis=0), space.high, rtol=0.01)


def assert_uniform(sample, low, high):
    """Compare the moments of a sample [N] with a uniform one, within 4.5 standard errors."""
    width, root = high - low, np.sqrt(len(sample))
    assert np.float32(low) <= sample.min() <= low + 0.02 * width + EPSILON
    assert np.float32(high) >= sample.max() >= high - 0.02 * width - EPSILON
    assert abs(sample.mean() - (low + high) / 2) <= 4.5 * width / np.sqrt(12) / root
    # sqrt((1/80 - 1/144) * 3) = 0.13
    assert abs(sample.std() - width / np.sqrt(12)) <= 4.5 * 0.13 * width / root


@each_game
def test_starts_have_the_distribution_of_gymnasium(name):
    game = GAMES[name]
    env, params = wdjax.make(name)
    obs, state = jax.jit(jax.vmap(env.reset, (0, None)))(
        jax.random.split(jax.random.key(0), 2000), params
    )
    numbers = as_numbers(name, state)
    theirs, rows = their_env(name), []
    for _ in range(500):
        theirs.reset()
        rows.append(np.array(theirs.state))
    for i, (low, high) in enumerate(game.starts):
        assert_uniform(numbers[:, i], low, high)
        assert_uniform(np.array(rows)[:, i], low, high)
    varied = [i for i, (low, high) in enumerate(game.starts) if low < high]
    correlation = np.corrcoef(numbers[:, varied].T).reshape(len(varied), -1)
    np.testing.assert_allclose(correlation, np.eye(len(varied)), atol=0.1)
    assert (state.time == 0).all()
    theta = numbers[:, :2].T if name == "acrobot" else numbers[:, :1].T
    angles = [function(angle) for angle in theta for function in (np.cos, np.sin)]
    expected = {"acrobot": [*angles, *numbers[:, 2:].T], "pendulum": [*angles, numbers[:, 1]]}.get(
        name, numbers.T
    )
    np.testing.assert_allclose(obs.T, expected, rtol=0, atol=2 * EPSILON)


@each_game
def test_time_limit_agrees_with_gymnasium(name):
    """Both are put to rest before every step, so that only time can end the episode."""
    game = GAMES[name]
    env, params = wdjax.make(name)
    theirs = gymnasium.make(game.gym_id)
    theirs.reset(seed=0)
    limit = theirs.spec.max_episode_steps
    assert params.episode_length == limit
    assert env.can_truncate
    for t in range(1, limit + 1):
        put(theirs.unwrapped, game.rest)
        _, _, *their_ends, _ = theirs.step(game.rest_action)
        if t in (1, limit // 2, limit - 1, limit):
            state = as_state(name, game.rest, t - 1)
            _, after, _, *ends, _ = compiled(name)[0](
                jax.random.key(0), state, as_action(game.rest_action), params
            )
            assert [bool(end) for end in ends] == their_ends == [False, t == limit]
            assert after.time == t


@pytest.mark.parametrize("name", [name for name in GAMES if GAMES[name].ended])
def test_termination_is_absorbing(name):
    """A finished state stays, with reward 0 and terminated, also beyond the time limit."""
    game = GAMES[name]
    _, params = wdjax.make(name)
    actions = game.draw_actions(np.random.default_rng(0), 3)
    for numbers in game.ended:
        for action, time in zip(actions, (7, int(params.episode_length) - 1, 2000), strict=True):
            state = as_state(name, numbers, time)
            _, after, reward, terminated, truncated, _ = compiled(name)[0](
                jax.random.key(0), state, as_action(action), params
            )
            np.testing.assert_array_equal(as_numbers(name, after), np.array(numbers, np.float32))
            assert after.time == time + 1
            assert (float(reward), bool(terminated), bool(truncated)) == (0.0, True, False)


# (name, start, steps: action, next state, reward, terminated), from the reference, in which the
# gravity of pendulum is 9.81.
GOLDEN = [
    (
        "cartpole",
        (0.01, -0.02, 0.03, 0.04),
        [
            (1, (0.0096, 0.1746792, 0.0308, -0.24306872), 1, False),
            (1, (0.01309358, 0.36934798, 0.02593863, -0.52587963), 1, False),
            (0, (0.02048054, 0.17387081, 0.01542103, -0.22513742), 1, False),
        ],
    ),
    ("cartpole", (2.39, 1.0, 0.2, 0.5), [(1, (2.41, 1.191824, 0.21, 0.27640834), 1, True)]),
    (
        "acrobot",
        (0.05, -0.05, 0.02, -0.03),
        [
            (2, (0.03355064, -0.01164332, -0.17970731, 0.40394423), -1, False),
            (0, (0.00858839, 0.03516557, -0.06360636, 0.05263745), -1, False),
            (1, (-0.0039352, 0.04208593, -0.05889001, 0.01348059), -1, False),
        ],
    ),
    (
        "mountain_car",
        (-0.5, 0.0),
        [
            (2, (-0.49917684, 0.00082316), -1, False),
            (2, (-0.49753669, 0.00164016), -1, False),
            (0, (-0.4970918, 0.00044489), -1, False),
        ],
    ),
    ("mountain_car", (-1.19, -0.06), [(0, (-1.2, 0.0), -1, False)]),
    ("mountain_car", (0.49, 0.03), [(2, (0.52074844, 0.03074844), -1, True)]),
    (
        "continuous_mountain_car",
        (-0.5, 0.0),
        [
            ([1.5], (-0.49867684, 0.00132316), -0.225, False),
            ([-0.4], (-0.49814042, 0.00053642), -0.016, False),
        ],
    ),
    ("continuous_mountain_car", (0.44, 0.03), [([1.0], (0.47087955, 0.03087956), 99.9, True)]),
    (
        "pendulum",
        (1.0, 0.5),
        [
            ([3.0], (1.07095561, 1.41911228), -1.029, False),
            ([-1.0], (1.16669811, 1.91484983), -1.34933389, False),
        ],
    ),
    ("pendulum", (3.1, 7.9), [([2.0], (3.5, 8.0), -15.855, False)]),
]


@pytest.mark.parametrize(("name", "start", "steps"), GOLDEN)
def test_golden_steps(name, start, steps):
    """The reference is float32: its rounding errors add up over at most three steps."""
    _, params = wdjax.make(name, **({"gravity": 9.81} if name == "pendulum" else {}))
    state = as_state(name, start)
    for action, numbers, reward, ends in steps:
        _, state, gain, terminated, _, _ = compiled(name)[0](
            jax.random.key(0), state, as_action(action), params
        )
        np.testing.assert_allclose(as_numbers(name, state), numbers, rtol=1e-6, atol=6e-8)
        np.testing.assert_allclose(gain, reward, rtol=3e-7)
        assert terminated == ends


def test_golden_dynamics_of_an_acrobot_that_wraps_around():
    """Dynamics only, since the episode has ended in this state."""
    env, params = wdjax.make("acrobot")
    after = jax.jit(env.dynamics)(as_state("acrobot", (3.1, 0.1, 2.0, -3.0)), jnp.int32(2), params)
    numbers = (-2.78509337, -0.47881618, 2.07077382, -2.90315593)
    np.testing.assert_allclose(as_numbers("acrobot", after), numbers, rtol=5e-7)
    assert env.is_over(after, params)
