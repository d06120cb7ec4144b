"""Tag: short episodes of the original with numbers computed by hand.

The original scatters taggers over ids. Here they are first, so its ids are reordered.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.envs.tag.continuous import level

GAME = {
    "num_taggers": 1,
    "num_runners": 3,
    "grid_length": 4.0,
    "episode_length": 3,
    "max_speed": 0.5,
    "skill_level_tagger": 1.2,
    "max_acceleration": 0.3,
    "min_acceleration": -0.3,
    "max_turn": 1.0,
    "min_turn": -1.0,
    "num_acceleration_levels": 3,
    "num_turn_levels": 3,
    "edge_hit_penalty": -0.25,
    "tagging_distance": 0.146,
    "tag_reward_for_tagger": 10.0,
    "tag_penalty_for_runner": -10.0,
    "step_penalty_for_tagger": -0.01,
    "step_reward_for_runner": 0.02,
    "end_of_game_reward_for_runner": 1.0,
    "num_other_agents_observed": 2,
    "starting_location_x": [1.0, 1.0, 2.2, 3.9],
    "starting_location_y": [1.9, 1.0, 1.0, 3.9],
    "starting_directions": [3 * np.pi / 2, 0.0, np.pi, 0.0],
}
# (acceleration, turn) of the tagger and runners 0, 1, 2 in three steps
ACTIONS = [
    [(3, 0), (0, 0), (3, 2), (3, 3)],
    [(3, 1), (0, 3), (0, 0), (3, 0)],
    [(0, 0), (3, 3), (1, 1), (0, 0)],
]
PI = 3.1415927
EXPECTED = {
    "x": [[1, 1, 1.9, 4], [0.4951174, 1, 1.4, 4], [0, 1, 1.2919396, 4]],
    "y": [[1.6, 1, 1, 4], [1.2758186, 1, 1, 4], [0.9516372, 1, 1.1682941, 4]],
    "speed": [[0.3, 0, 0.3, 0.3], [0.6, 0, 0.5, 0.5], [0.6, 0, 0.2, 0.5]],
    "direction": [[4.712389, 0, PI, 1], [3.712389, 1, PI, 1], [3.712389, 0, 2.1415927, 1]],
    "acceleration": [[0.3, 0, 0.3, 0.3], [0, 0, 0, 0], [0, 0, -0.3, 0]],
    "active": [[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 1, 1]],
    "reward": [[-0.01, 0.02, 0.02, -0.23], [9.99, -9.98, 0.02, -0.23], [-0.26, 0, 1.02, 0.77]],
    "terminated": [[0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]],
}


@functools.cache
def play(use_full_observation):
    """Return [(obs [4, size], state, reward [4], terminated [4])] of the three steps of GAME."""
    env, params = wdjax.make("tag_continuous", **GAME, use_full_observation=use_full_observation)
    _, state = env.reset(jax.random.key(0), params)
    step, history = jax.jit(env.step), []
    for actions in ACTIONS:
        rows = jnp.array(actions)
        obs, state, reward, terminated, _, _ = step(
            jax.random.key(0), state, {"tagger": rows[:1], "runner": rows[1:]}, params
        )
        history.append((joined(obs), state, joined(reward), joined(terminated)))
    return history


def joined(groups):
    return np.concatenate([groups["tagger"], groups["runner"]])


@pytest.mark.parametrize("name", EXPECTED)
def test_golden_steps_of_tag_continuous(name):
    history = play(use_full_observation=True)
    if name in ("reward", "terminated"):
        values = [step[2 if name == "reward" else 3] for step in history]
    else:
        values = [getattr(state, name) for _, state, _, _ in history]
    np.testing.assert_allclose(np.array(values), EXPECTED[name], rtol=1e-6, atol=2e-7)


def test_golden_full_observations():
    second, third = (play(use_full_observation=True)[t][0] for t in (1, 2))
    tagger_second = [
        0.0892515, 0.1599622, 0.6195816, -0.0487583, -0.0487583, 0.4815718, -1.2, -0.2, -0.2, 0,
        0, 0,
        -0.4316901, -0.090845, -0.4316901, 0, 0, 0, 1, 1, 1, 0.6666667,
    ]  # fmt: skip
    tagger_third = [
        0.1767767, 0.2283848, 0.7071068, 0.0085494, 0.0382999, 0.5388795, -1.2, -0.8, -0.2, 0,
        -0.6, 0,
        -0.590845, -0.25, -0.4316901, 0, 0, 0, 0, 1, 1, 1,
    ]  # fmt: skip
    np.testing.assert_allclose(second[0], tagger_second, atol=1e-7)
    np.testing.assert_allclose(third[0], tagger_third, atol=1e-7)
    # inactive: only types and activity, the tagger first
    tagged_third = [0] * 15 + [1, 0, 0] + [1, 1, 1] + [0]
    np.testing.assert_array_equal(third[1], tagged_third)


def test_golden_nearest_observations():
    second, third = (play(use_full_observation=False)[t][0] for t in (1, 2))
    runner_second = [
        0.0707107, -0.0892515, 0, 0.0487583, 1, 1.2, 0, 0, 0.340845, 0.4316901, 0, 1, 1, 1,
        0.6666667,
    ]  # fmt: skip
    np.testing.assert_allclose(second[1], runner_second, atol=1e-7)
    np.testing.assert_array_equal(third[1], np.zeros(15))


def test_action_levels_have_the_original_values():
    accelerations = level(jnp.arange(21), -0.1, 0.1, 20)
    turns = level(jnp.arange(21), -2.356, 2.356, 20)
    np.testing.assert_allclose(accelerations[:3], [0, -0.1, -0.0894737], atol=1e-7)
    np.testing.assert_allclose(turns[:4], [0, -2.356, -2.108, -1.86], rtol=1e-6)
    np.testing.assert_allclose([accelerations[20], turns[20]], [0.1, 2.356], rtol=1e-6)
    np.testing.assert_array_equal(level(jnp.arange(4), -1.0, 1.0, 3), [0, -1, 0, 1])
    np.testing.assert_array_equal(level(jnp.arange(2), -1.0, 1.0, 1), [0, -1])


@pytest.mark.parametrize("num_levels", [2, 7, 10, 20, 21])
def test_opposite_levels_cancel_exactly(num_levels):
    levels = jax.jit(functools.partial(level, num_levels=num_levels))(
        np.arange(1, num_levels + 1), -2.356, 2.356
    )
    np.testing.assert_array_equal(levels, -levels[::-1])


@pytest.mark.parametrize(
    ("num_taggers", "first_y", "first_taggers", "checksum"),
    [
        (10, [10.0510621, 4.6659158], [1, 5, 13, 20], 1196.567119),
        (5, [17.2109518, 16.8480415], [1, 13, 20, 72], None),
    ],
)
def test_first_observation_agrees_with_the_original(num_taggers, first_y, first_taggers, checksum):
    """Seed 274880 of the original, reordered: the sum of all observations does not change."""
    num_agents = num_taggers + 100
    rng = np.random.RandomState(274880)
    taggers = np.sort(rng.choice(np.arange(num_agents), num_taggers, replace=False))
    x, y = 20 * rng.rand(num_agents), 20 * rng.rand(num_agents)
    direction = rng.choice([0, np.pi / 2, np.pi, 3 * np.pi / 2], num_agents, replace=True)
    np.testing.assert_array_equal(taggers[:4], first_taggers)
    np.testing.assert_allclose(x[0], 12.9718356)
    np.testing.assert_allclose(y[:2], first_y)
    order = np.concatenate([taggers, np.delete(np.arange(num_agents), taggers)])
    env, params = wdjax.make(
        "tag_continuous",
        num_taggers=num_taggers,
        num_runners=100,
        grid_length=20.0,
        episode_length=500,
        use_full_observation=False,
        num_other_agents_observed=10,
        starting_location_x=x[order],
        starting_location_y=y[order],
        starting_directions=direction[order],
    )
    obs, _ = jax.jit(env.reset)(jax.random.key(0), params)
    assert joined(obs).shape == (num_agents, 71)
    if checksum is not None:
        np.testing.assert_allclose(joined(obs).astype(np.float64).sum(), checksum, atol=2e-4)


def test_golden_steps_of_tag_gridworld():
    env, params = wdjax.make("tag_gridworld", num_taggers=2, grid_length=4, episode_length=10)
    nearest, _ = wdjax.make("tag_gridworld", num_taggers=2, use_full_observation=False)
    _, state = env.reset(jax.random.key(0), params)
    np.testing.assert_array_equal([state.x, state.y], [[2, 2, 0], [2, 2, 0]])
    game = [  # actions, x, y, rewards, terminated
        # the runner moves into the wall
        ([2, 4, 2], [1, 2, 0], [2, 1, 0], [-0.01, -0.01, -0.09], False),
        ([2, 4, 0], [0, 2, 0], [2, 0, 0], [-0.01, -0.01, 0.01], False),
        ([4, 2, 0], [0, 1, 0], [1, 0, 0], [-0.01, -0.01, 0.01], False),
        ([4, 0, 1], [0, 1, 1], [0, 0, 0], [10, 10, -2], True),  # a tag
    ]
    step, observations = jax.jit(env.step), []
    for actions, x, y, rewards, over in game:
        rows = jnp.array(actions)
        action = {"tagger": rows[:2], "runner": rows[2:]}
        obs, state, reward, terminated, _, _ = step(jax.random.key(0), state, action, params)
        np.testing.assert_array_equal([state.x, state.y], [x, y])
        np.testing.assert_allclose(joined(reward), rewards, rtol=1e-6)
        assert (joined(terminated) == over).all()
        observations.append((joined(obs), joined(nearest.observe(state, params))))
    np.testing.assert_allclose(
        observations[0][0][0], [0.25, 0.5, 0, 0.5, 0.25, 0, 0, 0, 1, 1, 0, 0, 0.1], rtol=1e-6
    )
    # both taggers at distance 1: the first one
    np.testing.assert_allclose(observations[2][1][2], [0, 0, 0, 0.25, 1, 0.3], rtol=1e-6)
