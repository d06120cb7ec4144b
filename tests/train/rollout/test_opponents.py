"""Who plays in the place of a policy beside its earlier selves: scripts, random play, runs; and who beats them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Leaver, LeaverState, tiny_config, tiny_policy

from wdjax.train import PolicyConfig, make_learner
from wdjax.train.host.plots import save_opponents
from wdjax.train.rollout.self_play import (
    NOBODY,
    PRESENT,
    act_by_rule,
    chances,
    choose_selves,
    draw_members,
    new_pool,
    pool_of,
    remember,
)
from wdjax.train.rollout.standings import Standings, add_episodes, new_standings, whole_episodes
from wdjax.train.state.actors import run_script
from wdjax.train.state.agents import assign_agents
from wdjax.train.state.policy import Policy
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import Memory, PolicyState

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(5)
# in a pool: two earlier selves, then the run, then the rules in their order
RISING = ((0.0, 0.0), (100.0, 0.2))
MIXED = PolicyConfig(
    past_selves=2,
    opponents={"random": RISING, "runs/a:b": 0.1, "ambush": 0.2},
    opponents_priority=2.0,
)


def test_members_of_a_pool_by_number():
    pool = pool_of(MIXED)
    assert (pool.past, pool.runs, pool.rules, pool.learned, pool.size) == (
        2,
        ("runs/a:b",),
        ("random", "ambush"),
        3,
        5,
    )
    places = {name: list(range(5))[own] for name, own in pool.names.items()}
    assert places == {"past": [0, 1], "runs/a:b": [2], "random": [3], "ambush": [4]}
    assert pool_of(PolicyConfig()).size == 0


def standings(wins, games):
    return Standings(
        jnp.array(wins, jnp.float32), jnp.array(games, jnp.float32), jnp.float32(0), jnp.float32(0)
    )


def test_chances_are_shares_times_how_rarely_one_is_beaten():
    """At env step 50 the shares are .2, .2 (half of .4), .1, .1, .2; the win rates .5, .75, .5, .25, .5."""
    state = PolicyState(None, None, standings=standings([0, 2, 0, 0, 3, 9], [0, 2, 0, 2, 6, 9]))
    fraction, steps = jnp.float32(0.4), jnp.float32(50)
    weight = np.array([0.2 * 0.25, 0.2 * 0.0625, 0.1 * 0.25, 0.1 * 0.5625, 0.2 * 0.25])
    np.testing.assert_allclose(
        chances(MIXED, state, fraction, steps), 0.8 * weight / weight.sum(), rtol=1e-5
    )
    rarest = dataclasses.replace(
        MIXED, opponents_priority=1e4
    )  # a power that makes 0 of every rate
    np.testing.assert_allclose(
        chances(rarest, state, fraction, steps), [0, 0, 0, 0.8, 0], atol=1e-6
    )
    by_share = dataclasses.replace(MIXED, opponents_priority=0.0)
    np.testing.assert_allclose(
        chances(by_share, state, fraction, steps), [0.2, 0.2, 0.1, 0.1, 0.2], rtol=1e-6
    )


@pytest.mark.slow
def test_who_plays_falls_by_its_chance():
    config = PolicyConfig(opponents={"random": 0.1, "ambush": 0.0, "hide": 0.3})
    member = draw_members(config, PolicyState(None, None), None, jnp.float32(0), KEY, 1024)
    share = np.bincount(member + 1, minlength=4) / 1024
    np.testing.assert_allclose(share, [0.6, 0.1, 0, 0.3], atol=0.05)


@pytest.mark.parametrize(
    ("num_updates", "anew"), [(6, [True, True, True, True]), (7, [False, False, True, False])]
)
def test_somebody_plays_several_rollouts_in_a_row(num_updates, anew):
    config = PolicyConfig(opponents={"random": 0.5, "ambush": 0.5}, opponents_every=3)
    policy = Policy("runner", config, None, None, None, None, None, None)
    memory = Memory(None, None, member=jnp.array([PRESENT, 7, NOBODY, 8]))
    state, env_steps = PolicyState(None, None), jnp.float32(0)
    selves = choose_selves(policy, state, memory, None, jnp.int32(num_updates), env_steps, KEY)
    drawn = draw_members(config, state, None, env_steps, KEY, 4)
    np.testing.assert_array_equal(selves.member, np.where(anew, drawn, memory.member))
    assert selves.learned is None


def test_standings_by_hand():
    """Three members and the present self; of six ends five count, whose returns sum to 10, and 10 / 5 is the mean."""
    member = jnp.array([0, PRESENT, 2])
    counted = jnp.array([[True, True, True], [False, True, True]])
    returns = jnp.array([[5.0, 1.0, 3.0], [99.0, -1.0, 2.0]])
    first, games, sums = add_episodes(new_standings(3), member, counted, returns)
    np.testing.assert_array_equal(games, [1, 0, 2, 2])
    np.testing.assert_array_equal(sums, [5, 0, 5, 0])
    np.testing.assert_array_equal(first.wins, [1, 0, 1.5, 0])
    assert (first.returns, first.episodes) == (10, 5)
    np.testing.assert_allclose(first.win_rate, [2 / 3, 1 / 2, 2.5 / 4, 1 / 4])
    second, *_ = add_episodes(first, member, counted & (jnp.arange(3) == 0)[None], returns)
    np.testing.assert_allclose(second.games, [np.exp(-1 / 200) + 1, 0, 2, 2], rtol=1e-6)
    forgotten = second.without(jnp.int32(2))
    np.testing.assert_array_equal(forgotten.games[2:], [0, 2])
    np.testing.assert_array_equal(second.without(jnp.int32(NOBODY)).games, second.games)


@pytest.mark.parametrize("zero", [-1000.0, 0.0, 1000.0])
def test_win_rates_do_not_depend_on_the_zero_of_returns(zero):
    """The others do better against the first member than against the second, which then plays more often."""
    new, member = new_standings(2), jnp.array([0, 0, 1])
    for i in range(30):
        returns = zero + jnp.array([[1.0 + 0.1 * (i % 3), 2.0, -3.0]])
        new, *_ = add_episodes(new, member, jnp.ones((1, 3), bool), returns)
    np.testing.assert_allclose(new.wins[:2] / new.games[:2], [1, 0], atol=1e-6)
    config = PolicyConfig(opponents={"random": 0.5, "ambush": 0.5}, opponents_priority=1.0)
    found = chances(config, PolicyState(None, None, standings=new), None, jnp.float32(0))
    assert found[1] > 20 * found[0]


@pytest.mark.parametrize("outcome", [-1000.1, -1.0, 0.0, 0.3])
def test_equal_returns_are_half_won(outcome):
    old = new_standings(1)
    for _ in range(300):
        old, *_ = add_episodes(
            old, jnp.array([0]), jnp.ones((2, 1), bool), jnp.full((2, 1), outcome)
        )
    np.testing.assert_allclose(old.wins / old.games, [0.5, np.nan], rtol=1e-6)


def test_a_snapshot_takes_an_earlier_selfs_place_and_never_a_rules():
    """Two earlier selves are 0 and 1, the rules 2 and 3; only every other update is due for a snapshot."""
    state = PolicyState(
        {"w": jnp.ones(2)}, None, standings=standings([1, 1, 1, 1, 1], [2, 2, 2, 2, 2])
    )
    state = state.replace(past=new_pool(state, 2))
    memory = Memory(None, None, member=jnp.array([PRESENT, 0, 1, 2, 3]))
    for done, taken in ((3, []), (4, [1])):
        after, played = remember(state, memory, jnp.int32(done), every=2, size=2)
        there = np.isin(memory.member, taken)
        np.testing.assert_array_equal(played.member, np.where(there, NOBODY, memory.member))
        np.testing.assert_array_equal(
            after.standings.games, np.where(np.isin(np.arange(5), taken), 0, 2)
        )


def test_only_whole_episodes_against_present_selves_count():
    """Two blocks of two replicas and two steps. In the first block the tagger's script has played 5 steps at the end of
    the rollout, so 4 at that of its first step; in the second an earlier self of the runner plays."""
    played = Rollout(
        {}, {}, {}, {}, over=jnp.array([[True, True, True, True], [True, False, True, True]]), episode_return={},
        episode_length=jnp.array([[4, 5, 4, 4], [5, 5, 4, 9]]), episode_info={},
    )  # fmt: skip
    tagger = Memory(None, None, member=jnp.array([2, 2]), since=jnp.array([5, 5]))
    runner = Memory(None, None, member=jnp.array([PRESENT, 0]), since=jnp.array([50, 5]))
    memory = {"tagger": tagger, "runner": runner, "bystander": Memory(None, None)}
    of_tagger = [[True, False, False, False], [True, False, False, False]]
    np.testing.assert_array_equal(whole_episodes(memory, played, "tagger"), of_tagger)
    assert not whole_episodes(memory, played, "runner").any()


class Ambush(Leaver):
    """Its script, of both players, is the time for the first and the time after it for the second."""

    scripts = {"ambush": ("player", lambda env, state, params, key: state.time + jnp.arange(2))}  # noqa: RUF012


def test_rules_act_where_they_play_and_nobody_else():
    env, config = Ambush(), PolicyConfig(agents=("player[1]",), opponents={"ambush": 0.3})
    assignment = assign_agents(
        env, env.default_params, {"first": config, "rest": PolicyConfig(agents=("player[0]",))}
    )
    policy = Policy("first", config, assignment["first"], None, None, None, None, None)
    member, situation = (
        jnp.array([PRESENT, 0]),
        (LeaverState(jnp.array([0, 0, -1, 0])), env.default_params),
    )
    ruled = act_by_rule(
        env, policy, member, None, situation, jax.random.split(KEY), jnp.full((4, 1), 9)
    )
    np.testing.assert_array_equal(ruled, [[9], [9], [0], [1]])


def test_a_script_plays_two_slices_of_its_group():
    """Three replicas whose times are 0, 5 and 9; the second player's action is asked for before the first one's."""
    env, config = Ambush(), PolicyConfig(agents=("player[1]", "player[0]"))
    assignment = assign_agents(env, env.default_params, {"all": config})["all"]
    situation = (LeaverState(jnp.array([0, 5, 9])), env.default_params)
    found = run_script(env, env.scripts["ambush"][1], assignment, situation, KEY)
    np.testing.assert_array_equal(found, [[1, 0], [6, 5], [10, 9]])


def test_a_picture_only_where_somebody_plays_in_a_place(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"env_steps": 1, "a/episode_return": 1.0}\n', encoding="utf8"
    )
    assert save_opponents(tmp_path) is None
    run = f"runs/{'b' * 200}"  # a name as wide as the picture
    row = {
        "env_steps": 1,
        "a/episode_return": 1.0,
        f"a/opponent_win_rate/{run}": 0.5,
        f"a/opponent_return/{run}": None,
    }
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n", encoding="utf8")
    assert save_opponents(tmp_path).stat().st_size > 1000


@pytest.mark.slow
def test_scripts_teach_others_and_not_whom_they_stand_for():
    """A frozen policy of which a script plays all: its taggers walk as the script does, and the runner learns."""
    tagger = tiny_policy(
        "A2C", agents=("tagger",), trainable=False, opponents={"chase_nearest": 1.0}
    )
    runner = tiny_policy("A2C", agents=("runner",), opponents={"flee_nearest": 0.4}, past_selves=1)
    runner = dataclasses.replace(runner, past_selves_fraction=0.2)
    size = {"num_taggers": 2, "episode_length": 4}
    config = tiny_config(
        "tag_gridworld", {"tagger": tagger, "runner": runner}, num_blocks=4, env_params=size
    )
    learner = make_learner(config)
    start = learner.init(KEY)
    state, metrics = learner.run(start, num_updates=4)
    np.testing.assert_array_equal(metrics["tagger/opponent_blocks/chase_nearest"], 4)
    np.testing.assert_array_equal(metrics["tagger/opponent_blocks/present"], 0)
    sums = sum(
        metrics[f"runner/opponent_blocks/{who}"] for who in ("past", "flee_nearest", "present")
    )
    np.testing.assert_array_equal(sums, 4)
    assert len(set(metrics["runner/opponent_blocks/flee_nearest"].tolist())) > 1
    same = jax.tree.map(
        np.array_equal, state.policies["tagger"].params, start.policies["tagger"].params
    )
    assert all(jax.tree.leaves(same))
    same = jax.tree.map(
        np.array_equal, state.policies["runner"].params, start.policies["runner"].params
    )
    assert not all(jax.tree.leaves(same))
    halves, _ = learner.run(learner.run(start, num_updates=1)[0], num_updates=3)
    jax.tree.map(np.testing.assert_array_equal, halves.policies, state.policies)
