"""Invariants of Tag for generated params and seeds, with fixed shapes."""

import dataclasses
import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax

T = 25  # steps, some of them after the end
SIZES = {"num_taggers": 2, "num_runners": 4}
ENVS = {
    "exit": wdjax.make(
        "tag_continuous", **SIZES, use_full_observation=False, num_other_agents_observed=3
    )[0],
    "no exit": wdjax.make("tag_continuous", **SIZES, runner_exits_game_after_tagged=False)[0],
}
GRID, _ = wdjax.make("tag_gridworld", num_taggers=3, random_start=True)
seeds = st.integers(0, 2**32 - 2)


def some(low, high):
    return st.floats(low, high, width=32, allow_subnormal=False)


continuous_params = st.fixed_dictionaries(
    {
        "grid_length": some(0.5, 50),
        "episode_length": st.integers(1, 2 * T),
        "max_speed": some(0.0625, 4),
        "skill_level_runner": some(0.25, 2),
        "skill_level_tagger": some(0.25, 2),
        "max_acceleration": some(0, 2),
        "min_acceleration": some(-2, 0),
        "max_turn": some(0, 7),
        "min_turn": some(-7, 0),
        "edge_hit_penalty": some(-1, 0),
        "tagging_distance": some(0, 1),
        "step_penalty_for_tagger": some(-1, 0),
        "tag_reward_for_tagger": some(0, 10),
        "tag_penalty_for_runner": some(-10, 0),
        "step_reward_for_runner": some(0, 1),
        "end_of_game_reward_for_runner": some(0, 5),
    }
)
grid_params = st.fixed_dictionaries(
    {
        "grid_length": st.integers(2, 8),
        "episode_length": st.integers(1, 2 * T),
        "wall_hit_penalty": some(0, 1),
        "tag_reward_for_tagger": some(0, 10),
        "tag_penalty_for_runner": some(0, 10),
        "step_cost_for_tagger": some(0, 1),
    }
)
each_mode = pytest.mark.parametrize("mode", ENVS)


@functools.partial(jax.jit, static_argnums=0)
def run(env, seed, params):
    """Return the record of T random steps as a dict with leaves [T, ...].

    Keys: before and after (states), reward, terminated and truncated ([T, agents]), tags, and
    differs: whether other actions of terminated agents changed anything.
    """
    reset_key, scan_key = jax.random.split(jax.random.key(seed))
    _, state = env.reset(reset_key, params)
    out = {group: jnp.zeros(num, bool) for group, num in env.groups.items()}
    step = functools.partial(play_both, env, params)
    return jax.lax.scan(step, (state, state, out), jax.random.split(scan_key, T))[1]


def play_both(env, params, carry, key):
    before, twin, out = carry
    key, action_key, idle_key = jax.random.split(key, 3)
    action, idle = (env.action_space(params).sample(one) for one in (action_key, idle_key))
    idle = {group: jax.vmap(jnp.where)(out[group], idle[group], action[group]) for group in out}
    result, second = env.step(key, before, action, params), env.step(key, twin, idle, params)
    _, after, reward, terminated, truncated, info = result
    changes = jax.tree.map(lambda one, other: jnp.any(one != other), result, second)
    record = {
        "before": before,
        "after": after,
        "reward": joined(reward),
        "terminated": joined(terminated),
        "truncated": joined(truncated),
        "tags": info["tags"],
        "differs": jnp.stack(jax.tree.leaves(changes)).any(),
    }
    return (after, second[1], terminated), record


def joined(groups):
    return jnp.concatenate([groups["tagger"], groups["runner"]])


def play(env, name, seed, changes):
    _, params = wdjax.make(name, **dataclasses.asdict(env), **changes)
    return params, jax.tree.map(np.asarray, run(env, np.uint32(seed), params))


def continuous(mode, seed, changes):
    return play(ENVS[mode], "tag_continuous", seed, changes)


def grid(seed, changes):
    return play(GRID, "tag_gridworld", seed, changes)


def check_ends(steps):
    """Check that ends are exclusive and absorbing, without later rewards or effects."""
    ended = steps["terminated"]
    assert not steps["truncated"].any()
    assert (ended[1:] >= ended[:-1]).all()
    assert (steps["reward"][1:][ended[:-1]] == 0).all()
    assert not steps["differs"].any()
    assert np.isfinite(steps["reward"]).all()


# --- tag_continuous ---


@pytest.mark.slow
@each_mode
@hypothesis.given(seeds, continuous_params)
def test_positions_directions_and_speeds_stay_in_bounds(mode, seed, changes):
    params, steps = continuous(mode, seed, changes)
    after = steps["after"]
    skill = np.repeat([params.skill_level_tagger, params.skill_level_runner], [2, 4])
    for place in (after.x, after.y):
        assert ((place >= 0) & (place <= params.grid_length)).all()
    assert ((after.direction >= 0) & (after.direction <= np.float32(2 * np.pi))).all()
    assert ((after.speed >= 0) & (after.speed <= params.max_speed * skill)).all()
    moved = np.hypot(after.x - steps["before"].x, after.y - steps["before"].y)
    assert (moved <= after.speed * 1.0001 + 1e-5 * params.grid_length).all()
    at_bound = (after.speed == 0) | (after.speed == params.max_speed * skill)
    assert (after.acceleration[at_bound] == 0).all()


@each_mode
@hypothesis.given(seeds, continuous_params)
def test_ends_of_tag_continuous(mode, seed, changes):
    params, steps = continuous(mode, seed, changes)
    check_ends(steps)
    runners_left = steps["after"].active[:, 2:].any(axis=1)
    over = (steps["after"].time >= params.episode_length) | ~runners_left
    last = int(np.argmax(over)) + 1 if over.any() else T
    # time stops at the end
    np.testing.assert_array_equal(steps["after"].time, np.minimum(np.arange(1, T + 1), last))
    np.testing.assert_array_equal(steps["terminated"], ~steps["after"].active | over[:, None])


@hypothesis.given(seeds, continuous_params)
def test_inactive_runners_do_not_move(seed, changes):
    _, steps = continuous("exit", seed, changes)
    gone, after, before = ~steps["before"].active, steps["after"], steps["before"]
    assert after.active[:, :2].all()  # taggers never leave
    assert not after.active[gone].any()
    for name in ("x", "y"):
        np.testing.assert_array_equal(getattr(after, name)[gone], getattr(before, name)[gone])
    for name in ("speed", "direction", "acceleration"):
        assert (getattr(after, name)[gone] == 0).all()


@each_mode
@hypothesis.given(seeds, continuous_params)
def test_rewards_count_the_tags(mode, seed, changes):
    """Other rewards are 0."""
    none = {"edge_hit_penalty": 0.0, "step_penalty_for_tagger": 0.0, "step_reward_for_runner": 0.0}
    rewards = {
        "tag_reward_for_tagger": 1.0,
        "tag_penalty_for_runner": -2.0,
        "end_of_game_reward_for_runner": 0.0,
    }
    _, steps = continuous(mode, seed, {**changes, **none, **rewards})
    np.testing.assert_array_equal(steps["reward"][:, :2].sum(axis=1), steps["tags"])
    np.testing.assert_array_equal(steps["reward"][:, 2:].sum(axis=1), -2 * steps["tags"])
    left = steps["before"].active.sum(axis=1) - steps["after"].active.sum(axis=1)
    np.testing.assert_array_equal(left, steps["tags"] if mode == "exit" else np.zeros(T))


def test_random_episodes_cover_all_ends():
    """The invariants require episodes with tags and with both kinds of ends."""
    wide = {"tagging_distance": 0.2, "edge_hit_penalty": -1.0, "episode_length": 20}
    games = [continuous("exit", seed, wide)[1] for seed in range(20)]
    assert any(game["after"].active[-1, 2:].any() for game in games)  # ended by the time limit
    assert any(not game["after"].active[15, 2:].any() for game in games)  # ended by the last tag
    assert sum(game["tags"].sum() > 0 for game in games) > 10


# --- tag_gridworld ---


@hypothesis.given(seeds, grid_params)
def test_invariants_of_tag_gridworld(seed, changes):
    params, steps = grid(seed, changes)
    check_ends(steps)
    before, after, ended = steps["before"], steps["after"], steps["terminated"]
    assert (ended == ended[:, :1]).all()  # for all agents at once
    for place in (after.x, after.y):
        assert ((place >= 0) & (place <= params.grid_length)).all()
    distance = np.abs(after.x - before.x) + np.abs(after.y - before.y)
    assert (distance <= 1).all()
    assert (distance[1:][ended[:-1]] == 0).all()
    assert steps["tags"].sum() <= 1
    met = ((after.x[:, :-1] == after.x[:, -1:]) & (after.y[:, :-1] == after.y[:, -1:])).any(axis=1)
    np.testing.assert_array_equal(ended[:, 0], met | (after.time >= params.episode_length))
    np.testing.assert_array_equal(
        after.time, np.minimum(np.arange(1, T + 1), T - ended[:-1, 0].sum())
    )


@hypothesis.given(seeds, grid_params)
def test_step_costs_of_taggers_are_rewards_of_the_runner(seed, changes):
    params, steps = grid(seed, {**changes, "wall_hit_penalty": 0.0})
    active = ~np.concatenate([[False], steps["terminated"][:-1, 0]]) & (steps["tags"] == 0)
    np.testing.assert_array_equal(steps["reward"][active, :3], -params.step_cost_for_tagger)
    np.testing.assert_array_equal(steps["reward"][active, 3], params.step_cost_for_tagger)


# --- determinism ---


@each_mode
@hypothesis.given(seeds)
@hypothesis.settings(max_examples=5)
def test_episodes_are_deterministic(mode, seed):
    _, one = continuous(mode, seed, {"tagging_distance": 0.1})
    _, other = continuous(mode, seed, {"tagging_distance": 0.1})
    jax.tree.map(np.testing.assert_array_equal, one, other)
    _, third = continuous(mode, seed + 1, {"tagging_distance": 0.1})
    assert np.any(one["after"].x != third["after"].x)
