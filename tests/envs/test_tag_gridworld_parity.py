"""tag_gridworld against the NumPy reference, one step at a time from its states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_tag_gridworld as reference

import wdjax
from wdjax.envs.tag.gridworld import State

CONFIGS = {
    "defaults": {},
    "training": {"num_taggers": 4, "grid_length": 100, "tag_penalty_for_runner": 5.0},
    "one tagger": {"num_taggers": 1, "grid_length": 4, "episode_length": 10},
    "nearest adversary": {"num_taggers": 3, "grid_length": 5, "use_full_observation": False},
    "nearest adversary, crowd": {
        "num_taggers": 12,
        "grid_length": 6,
        "use_full_observation": False,
    },
    "random start": {"num_taggers": 4, "grid_length": 7, "random_start": True},
    "random start, smallest": {
        "num_taggers": 2,
        "grid_length": 2,
        "random_start": True,
        "use_full_observation": False,
        "episode_length": 5,
    },
    "one cell wide": {
        "num_taggers": 2,
        "grid_length": 1,
        "episode_length": 3,
        "wall_hit_penalty": 0.75,
    },
    "no wall penalty": {"num_taggers": 3, "grid_length": 3, "wall_hit_penalty": 0.0},
    "every reward": {
        "num_taggers": 3,
        "grid_length": 3,
        "episode_length": 8,
        "wall_hit_penalty": 0.3,
        "tag_reward_for_tagger": 7.0,
        "tag_penalty_for_runner": 0.5,
        "step_cost_for_tagger": 0.25,
    },
    "given starts": {
        "num_taggers": 2,
        "grid_length": 9,
        "starting_location_x": (1, 9, 4),
        "starting_location_y": (0, 9, 4),
    },
}
NUM_STATES, NUM_STEPS = 64, 20
ONE_ULP = 1.2e-7  # of float32, since XLA may multiply with the reciprocal


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_agree_with_the_reference(name):
    rules = reference.Rules(**CONFIGS[name])
    env, params = wdjax.make("tag_gridworld", **CONFIGS[name])
    step = jax.jit(jax.vmap(env.step, (None, 0, 0, None)))
    rng = np.random.default_rng(0)
    states = [random_state(rng, rules) for _ in range(NUM_STATES)]
    num_tags = 0
    for _ in range(NUM_STEPS):
        actions = rng.integers(0, 5, (NUM_STATES, rules.num_agents))
        action = {"tagger": jnp.asarray(actions[:, :-1]), "runner": jnp.asarray(actions[:, -1:])}
        result = jax.tree.map(np.asarray, step(jax.random.key(0), to_wdjax(states), action, params))
        expected = [
            reference.step(rules, state, action)
            for state, action in zip(states, actions, strict=True)
        ]
        for i, one in enumerate(expected):
            compare(jax.tree.map(lambda leaf, i=i: leaf[i], result), one)
            num_tags += one[-1]
        states = [random_state(rng, rules) if done else state for state, _, _, done, _ in expected]
    assert num_tags > 0


@pytest.mark.parametrize("name", ["training", "nearest adversary", "random start", "given starts"])
def test_resets_agree_with_the_reference(name):
    rules = reference.Rules(**CONFIGS[name])
    env, params = wdjax.make("tag_gridworld", **CONFIGS[name])
    reset = jax.jit(jax.vmap(env.reset, (0, None)))
    obs, state = jax.tree.map(np.asarray, reset(jax.random.split(jax.random.key(1), 50), params))
    if rules.random_start:
        inner = list(range(1, rules.grid_length))
        assert not np.any([state.x[:, -1], state.y[:, -1]])
        assert (
            sorted(set(np.ravel(state.x[:, :-1])))
            == inner
            == sorted(set(np.ravel(state.y[:, :-1])))
        )
        assert (state.x != state.y).any()
    elif rules.starting_location_x is not None:
        assert (state.x == np.array(rules.starting_location_x)).all()
        assert (state.y == np.array(rules.starting_location_y)).all()
    else:
        assert (state.x == np.array([rules.grid_length // 2] * rules.num_taggers + [0])).all()
        assert (state.y == state.x).all()
    rows = joined(jax.tree.map(lambda leaf: np.asarray(leaf[7]), obs))
    start = reference.State(state.x[7].tolist(), state.y[7].tolist(), int(state.time[7]))
    np.testing.assert_allclose(rows, reference.observe(rules, start), rtol=ONE_ULP)
    assert rows.dtype == np.float32
    assert start.time == 0


def random_state(rng, rules):
    """Draw an active state with special cases: corners, walls, shared cells, near tags, the end."""
    n, size = rules.num_agents, rules.grid_length
    while True:
        x, y = rng.integers(0, size + 1, (2, n))
        snapped = rng.random((2, n)) < 0.3
        x, y = np.where(snapped, rng.choice([0, size], (2, n)), (x, y))
        beside = rng.random(n) < 0.3
        dx, dy = rng.choice([-1, 0, 1], (2, n))
        x = np.where(beside, np.clip(x[-1] + dx, 0, size), x)
        y = np.where(beside, np.clip(y[-1] + dy, 0, size), y)
        together = rng.random(n) < 0.2
        x[:-1], y[:-1] = (
            np.where(together[:-1], x[0], x[:-1]),
            np.where(together[:-1], y[0], y[:-1]),
        )
        time = int(rng.choice([0, rules.episode_length - 1, rng.integers(0, rules.episode_length)]))
        state = reference.State(x.tolist(), y.tolist(), time)
        # a tag ends the episode, except at the start
        if time == 0 or not reference.is_tagged(state):
            return state


def to_wdjax(states):
    arrays = [
        np.array([getattr(state, name) for state in states], np.int32)
        for name in ("x", "y", "time")
    ]
    return State(*map(jnp.asarray, arrays))


def compare(result, expected):
    obs, state, reward, terminated, truncated, info = result
    state_after, obs_after, reward_after, done, tagged = expected
    np.testing.assert_array_equal(state.x, state_after.x)
    np.testing.assert_array_equal(state.y, state_after.y)
    assert state.time == state_after.time
    np.testing.assert_allclose(joined(obs), obs_after, rtol=ONE_ULP)
    np.testing.assert_array_equal(joined(reward), reward_after)
    np.testing.assert_array_equal(joined(terminated), np.full(len(reward_after), done))
    assert not joined(truncated).any()
    assert info["tags"] == tagged


def joined(groups):
    return np.concatenate([groups["tagger"], groups["runner"]])
