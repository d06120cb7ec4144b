"""tag_continuous against the NumPy reference, one step at a time from its states."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_tag_continuous as reference

import wdjax
from wdjax.envs.tag.continuous import State

CONSISTENCY = {"num_acceleration_levels": 3, "num_turn_levels": 3}
CONFIGS = {
    "test1": {"num_taggers": 2, "num_runners": 3, **CONSISTENCY},
    "test2": {
        "num_taggers": 4,
        "num_runners": 1,
        "use_full_observation": False,
        "runner_exits_game_after_tagged": False,
        "tagging_distance": 0.25,
        **CONSISTENCY,
    },
    "test3": {"num_taggers": 1, "num_runners": 4, "use_full_observation": False, **CONSISTENCY},
    "test4": {
        "num_taggers": 3,
        "num_runners": 2,
        "runner_exits_game_after_tagged": False,
        **CONSISTENCY,
    },
    "many": {
        "num_taggers": 5,
        "num_runners": 100,
        "grid_length": 20.0,
        "episode_length": 500,
        "max_acceleration": 0.1,
        "min_acceleration": -0.1,
        "max_turn": 2.35,
        "min_turn": -2.35,
        "num_acceleration_levels": 20,
        "num_turn_levels": 20,
        "use_full_observation": False,
        "num_other_agents_observed": 10,
        "tagging_distance": 0.02,
        "tag_reward_for_tagger": 10.0,
        "tag_penalty_for_runner": -10.0,
    },
    "many taggers": {
        "num_taggers": 60,
        "num_runners": 20,
        "use_full_observation": False,
        "tagging_distance": 0.1,
        **CONSISTENCY,
    },
    "skill and edge, k above the others": {
        "num_taggers": 2,
        "num_runners": 4,
        "skill_level_tagger": 1.3,
        "skill_level_runner": 0.7,
        "max_speed": 0.5,
        "edge_hit_penalty": -0.3,
        "num_acceleration_levels": 5,
        "num_turn_levels": 4,
        "use_full_observation": False,
        "num_other_agents_observed": 6,
        "tagging_distance": 0.1,
        "observe_own_motion": True,
        "egocentric": True,
    },
    "every reward, full": {
        "num_taggers": 3,
        "num_runners": 5,
        "grid_length": 3.0,
        "episode_length": 7,
        "edge_hit_penalty": -0.25,
        "step_penalty_for_tagger": -0.01,
        "step_reward_for_runner": 0.02,
        "end_of_game_reward_for_runner": 3.0,
        "tag_reward_for_tagger": 5.0,
        "tag_penalty_for_runner": -4.0,
        "tagging_distance": 0.15,
        "egocentric": True,
    },
    "every reward, nearest, no exit": {
        "num_taggers": 2,
        "num_runners": 6,
        "grid_length": 3.0,
        "episode_length": 7,
        "edge_hit_penalty": -0.25,
        "step_penalty_for_tagger": -0.01,
        "step_reward_for_runner": 0.02,
        "end_of_game_reward_for_runner": 3.0,
        "tagging_distance": 0.3,
        "use_full_observation": False,
        "num_other_agents_observed": 3,
        "runner_exits_game_after_tagged": False,
    },
    "one and two levels, lopsided": {
        "num_taggers": 2,
        "num_runners": 3,
        "num_acceleration_levels": 1,
        "num_turn_levels": 2,
        "min_acceleration": 0.25,
        "min_turn": -0.4,
        "max_turn": 1.1,
        "tagging_distance": 0.2,
        "observe_own_motion": True,
    },
    "no levels": {
        "num_taggers": 1,
        "num_runners": 2,
        "num_acceleration_levels": 0,
        "num_turn_levels": 7,
    },
    "a pair": {
        "num_taggers": 1,
        "num_runners": 1,
        "grid_length": 1.5,
        "episode_length": 3,
        "tagging_distance": 1.0,
    },
}
NUM_STATES, NUM_STEPS = 32, 20
# decisions nearer than this, relative to the square, depend on the order of float operations
NEAR = 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_agree_with_the_reference(name):
    rules = reference.Rules(**CONFIGS[name])
    env, params = wdjax.make("tag_continuous", **CONFIGS[name])
    step = jax.jit(jax.vmap(env.step, (None, 0, 0, None)))
    rng = np.random.default_rng(0)
    num_states, num_steps = (8, 8) if rules.num_agents > 50 else (NUM_STATES, NUM_STEPS)
    states = [random_state(rng, rules) for _ in range(num_states)]
    compared = 0
    for _ in range(num_steps):
        actions = random_actions(rng, rules, num_states)
        result = jax.tree.map(
            np.asarray, step(jax.random.key(0), to_wdjax(states), by_group(rules, actions), params)
        )
        expected = [
            reference.step(rules, state, action)
            for state, action in zip(states, actions, strict=True)
        ]
        for i, one in enumerate(expected):
            if not has_near_turn_or_tag(rules, one):
                compared += 1
                compare(rules, states[i], jax.tree.map(lambda leaf, i=i: leaf[i], result), one)
        states = [random_state(rng, rules) if one.done else one.state for one in expected]
    assert compared > 0.8 * num_states * num_steps


@pytest.mark.parametrize("name", ["test1", "test3", "many"])
def test_resets_agree_with_the_reference(name):
    rules = reference.Rules(**CONFIGS[name])
    env, params = wdjax.make("tag_continuous", **CONFIGS[name])
    obs, state = jax.tree.map(
        np.asarray, batched_reset(env)(jax.random.split(jax.random.key(1), 4), params)
    )
    for i in range(4):
        start = reference.State(
            **{field.name: getattr(state, field.name)[i] for field in dataclasses.fields(State)}
        )
        rows = np.concatenate([obs["tagger"][i], obs["runner"][i]])
        np.testing.assert_allclose(rows, reference.observe(rules, start), rtol=1e-6, atol=1e-6)
    assert (state.time == 0).all()
    assert state.active.all()
    assert (state.speed == 0).all()
    assert (state.acceleration == 0).all()
    assert (
        (state.x >= 0)
        & (state.x < rules.grid_length)
        & (state.y >= 0)
        & (state.y < rules.grid_length)
    ).all()
    quarters = state.direction / (np.pi / 2)
    np.testing.assert_allclose(quarters, np.round(quarters), atol=1e-6)
    assert set(np.unique(np.round(quarters))) <= {0, 1, 2, 3}


def test_starts_are_uniform_or_as_given():
    env, params = wdjax.make("tag_continuous", num_taggers=2, num_runners=2)
    _, state = batched_reset(env)(jax.random.split(jax.random.key(0), 500), params)
    for places in (state.x, state.y):
        np.testing.assert_allclose(np.mean(places, axis=0), 5.0, atol=0.6)  # 4 standard errors
        np.testing.assert_allclose(np.std(places, axis=0), 10 / np.sqrt(12), atol=0.4)
    assert abs(np.corrcoef(np.ravel(state.x), np.ravel(state.y))[0, 1]) < 0.1
    share = (
        np.bincount(np.round(np.ravel(state.direction) / (np.pi / 2)).astype(int), minlength=4)
        / state.x.size
    )
    np.testing.assert_allclose(share, 0.25, atol=0.05)

    arguments = {"starting_location_x": [1, 2, 3, 4], "starting_location_y": [4, 3, 2, 0]}
    arguments["starting_directions"] = [0, 1, 2, 3]
    env, params = wdjax.make("tag_continuous", num_taggers=2, num_runners=2, **arguments)
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    for name, field in zip(arguments, ("x", "y", "direction"), strict=True):
        np.testing.assert_array_equal(getattr(state, field), np.array(arguments[name], np.float32))


def batched_reset(env):
    return jax.jit(jax.vmap(env.reset, (0, None)))


# --- states and actions ---


def random_state(rng, rules):
    """Draw a state with special cases: corners, edges, crowds, near tags, few runners, the end."""
    n, length = rules.num_agents, rules.grid_length
    places = rng.uniform(0, length, (n, 2))
    on_edge = rng.random((n, 2)) < 0.15
    places = np.where(on_edge, rng.choice([0, length], (n, 2)), places)
    chased = rng.random(n) < 0.3  # close to a tagger
    angle, away = rng.uniform(0, 2 * np.pi, n), rng.uniform(0, 2, n) * rules.margin
    offset = np.stack([np.cos(angle), np.sin(angle)], axis=1) * away[:, None]
    chased_places = places[rng.integers(0, rules.num_taggers, n)] + offset
    places = np.where(chased[:, None], chased_places, places)
    together = rng.random(n) < 0.2  # at the position of another agent
    places = np.where(together[:, None], places[rng.integers(0, n, n)], places)
    x, y = np.clip(places, 0, length).astype(np.float32).T
    active = random_active(rng, rules)
    limit = np.array([rules.speed_limit(i) for i in range(n)])
    speed = np.where(rng.random(n) < 0.3, rng.choice([0, 1], n), rng.random(n)) * limit * active
    direction = (
        np.where(
            rng.random(n) < 0.4, rng.integers(0, 4, n) * np.pi / 2, rng.uniform(0, 2 * np.pi, n)
        )
        * active
    )
    acceleration = (
        rng.uniform(-0.2, 0.2, n) * ((speed > 0) & (speed < limit)) * (rng.random(n) < 0.5)
    )
    time = rng.choice([0, rules.episode_length - 1, rng.integers(0, rules.episode_length)])
    return reference.State(
        x,
        y,
        speed.astype(np.float32),
        direction.astype(np.float32),
        acceleration.astype(np.float32),
        active,
        int(time),
    )


def random_active(rng, rules):
    """Return all agents active, or some runners inactive, or all runners but one."""
    active = np.ones(rules.num_agents, bool)
    if rules.runner_exits_game_after_tagged:
        gone = rng.choice([0.0, 0.4, 1.0])
        active[rules.num_taggers :] = rng.random(rules.num_runners) >= gone
        active[rng.integers(rules.num_taggers, rules.num_agents)] = True
    return active


def random_actions(rng, rules, num_states):
    sizes = [rules.num_acceleration_levels + 1, rules.num_turn_levels + 1]
    return rng.integers(0, sizes, (num_states, rules.num_agents, 2))


def by_group(rules, rows):
    return {
        "tagger": jnp.asarray(rows[:, : rules.num_taggers]),
        "runner": jnp.asarray(rows[:, rules.num_taggers :]),
    }


def to_wdjax(states):
    names = [field.name for field in dataclasses.fields(State)]
    return State(
        **{
            name: jnp.asarray(np.stack([getattr(state, name) for state in states]))
            for name in names
        }
    )


# --- comparison ---


def compare(rules, before, result, expected):
    obs, state, reward, terminated, truncated, info = result
    length = rules.grid_length
    tolerances = {
        "x": length,
        "y": length,
        "speed": 1.0,
        "direction": 2 * np.pi,
        "acceleration": 1.0,
    }
    for name, scale in tolerances.items():
        np.testing.assert_allclose(
            getattr(state, name),
            getattr(expected.state, name),
            rtol=1e-6,
            atol=1e-6 * scale,
            err_msg=name,
        )
    np.testing.assert_array_equal(state.active, expected.state.active)
    assert state.time == expected.state.time
    over = ~expected.state.active | expected.done
    np.testing.assert_array_equal(joined(terminated), over)
    np.testing.assert_array_equal(joined(truncated), np.zeros_like(over))
    assert info["tags"] == expected.tagged.sum()
    assert info["tag_steps"] == expected.tagged.sum() * expected.state.time
    clear = ~near_edge(rules, before, expected)
    np.testing.assert_allclose(joined(reward)[clear], expected.reward[clear], rtol=1e-6, atol=1e-6)
    clear = ~near_neighbors(rules, expected) & ~near_half_turns(rules, expected)
    np.testing.assert_allclose(joined(obs)[clear], expected.obs[clear], rtol=1e-6, atol=1e-6)


def joined(groups):
    return np.concatenate([groups["tagger"], groups["runner"]])


def has_near_turn_or_tag(rules, step):
    """Return whether a direction is close to 0 or 2 pi, or a runner close to the margin."""
    turned = step.turned / reference.TWO_PI
    exact = np.isin(step.turn, np.array([0, rules.min_turn, rules.max_turn], np.float32)) & (
        turned == np.round(turned)
    )
    if np.any((np.abs(turned - np.round(turned)) < NEAR) & ~exact):
        return True
    runners = range(rules.num_taggers, rules.num_agents)
    nearest = [reference.distances(step.state, r)[: rules.num_taggers].min() for r in runners]
    return bool(np.any(np.abs(np.array(nearest) - rules.margin) < NEAR * rules.grid_length))


def near_edge(rules, before, step):
    """Return which agents came close to an edge or exactly onto it, [N].

    Agents that stayed on an edge are excluded.
    """
    near = np.zeros(rules.num_agents, bool)
    for old, place in ((before.x, step.free_x), (before.y, step.free_y)):
        for edge in (0.0, rules.grid_length):
            stayed = (old == edge) & (place == edge)
            near |= (np.abs(place - edge) < NEAR * rules.grid_length) & ~stayed
    return near


def near_neighbors(rules, step):
    """Return which agents have neighbors at almost, but not exactly, equal distances, [N]."""
    near = np.zeros(rules.num_agents, bool)
    if rules.use_full_observation:
        return near
    for i in range(rules.num_agents):
        order = reference.neighbors(rules, step.state, i)[: rules.num_other_agents_observed + 1]
        gaps = np.diff(reference.distances(step.state, i)[order])
        same_place = (np.diff(step.state.x[order]) == 0) & (np.diff(step.state.y[order]) == 0)
        near[i] = np.any((gaps < NEAR * rules.grid_length) & ~same_place)
    return near


def near_half_turns(rules, step):
    """Return which agents observe another in almost the opposite direction, [N]."""
    turns = np.abs(step.state.direction[:, None] - step.state.direction[None, :]) / (2 * np.pi)
    return rules.egocentric & np.any(np.abs(turns - 0.5) < NEAR, axis=1)
