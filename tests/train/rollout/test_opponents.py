"""Opponents of a policy: scripts, random play, runs and snapshots, and win rates against them."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Leaver, LeaverState, tiny_config, tiny_policy

from wdjax.train import PolicyConfig, PolicyState, load_config, make_learner
from wdjax.train.host.plots import save_opponents
from wdjax.train.learning import Policy, Rollout
from wdjax.train.rollout.opponents import (
    OVERRIDES,
    VALID,
    Acting,
    act_with_opponents,
    begin,
    draw_opponents,
    new_networks,
    opponent_probabilities,
    take_snapshot,
)
from wdjax.train.rollout.pool import Standings, add_episodes, new_standings, pool_of, whole_episodes
from wdjax.train.state.actors import run_script
from wdjax.train.state.agents import assign_agents
from wdjax.train.state.state import PRESENT, REPLACED, BlockState, PoolState, current_hypers

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(5)
# in a pool: two earlier selves, then the run, then the rules in their order
RISING = ((0.0, 0.0), (100.0, 0.2))
MIXED = PolicyConfig(
    past_selves=2,
    opponents={"random": RISING, "runs/a:b": 0.1, "ambush": 0.2},
    opponents_priority=2.0,
)


def test_opponents_of_a_pool_by_number():
    pool = pool_of(MIXED)
    assert (pool.past, pool.runs, pool.rules) == (2, ("runs/a:b",), ("random", "ambush"))
    assert (pool.networks, pool.size) == (3, 5)
    places = {name: list(range(5))[own] for name, own in pool.names.items()}
    assert places == {"past": [0, 1], "runs/a:b": [2], "random": [3], "ambush": [4]}
    assert pool_of(PolicyConfig()).size == 0


def standings(wins, games):
    return Standings(
        jnp.array(wins, jnp.float32), jnp.array(games, jnp.float32), jnp.float32(0), jnp.float32(0)
    )


def test_probabilities_are_shares_weighted_by_win_rates():
    """Shares at env step 50: .2, .2 (half of .4), .1, .1, .2; win rates: .5, .75, .5, .25, .5."""
    pool = PoolState(None, standings([0, 2, 0, 0, 3, 9], [0, 2, 0, 2, 6, 9]))
    hypers, steps = {"past_selves_fraction": jnp.float32(0.4)}, jnp.float32(50)
    weight = np.array([0.2 * 0.25, 0.2 * 0.0625, 0.1 * 0.25, 0.1 * 0.5625, 0.2 * 0.25])
    found = opponent_probabilities(MIXED, pool, hypers, steps)
    np.testing.assert_allclose(found, 0.8 * weight / weight.sum(), rtol=1e-5)
    rarest = dataclasses.replace(
        MIXED, opponents_priority=1e4
    )  # a power that makes 0 of every rate
    found = opponent_probabilities(rarest, pool, hypers, steps)
    np.testing.assert_allclose(found, [0, 0, 0, 0.8, 0], atol=1e-6)
    by_share = dataclasses.replace(MIXED, opponents_priority=0.0)
    found = opponent_probabilities(by_share, pool, hypers, steps)
    np.testing.assert_allclose(found, [0.2, 0.2, 0.1, 0.1, 0.2], rtol=1e-6)


@pytest.mark.slow
def test_opponents_are_drawn_by_their_probability():
    config = PolicyConfig(opponents={"random": 0.1, "ambush": 0.0, "hide": 0.3})
    active = draw_opponents(config, PoolState(None), {}, jnp.float32(0), KEY, 1024)
    share = np.bincount(active + 1, minlength=4) / 1024
    np.testing.assert_allclose(share, [0.6, 0.1, 0, 0.3], atol=0.05)


@functools.cache
def tag_with_rules():
    """Return a learner whose taggers are replaced by rules in every block, and its first state."""
    rules = {"chase_nearest": 0.5, "random": 0.5}
    tagger = tiny_policy("A2C", agents=("tagger",), opponents=rules, opponents_every=3)
    policies = {"tagger": tagger, "runner": tiny_policy("A2C", agents=("runner",))}
    learner = make_learner(tiny_config("tag_gridworld", policies, num_blocks=4))
    return learner, learner.init(KEY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_updates", "anew"), [(6, [True, True, True, True]), (7, [False, False, True, False])]
)
def test_opponents_act_in_several_rollouts_in_a_row(num_updates, anew):
    """Drawn every 3 rollouts, and where a snapshot has been replaced."""
    (learner, state), before = tag_with_rules(), jnp.array([PRESENT, 7, REPLACED, 8])
    blocks = {"tagger": state.opponents.blocks["tagger"].replace(active=before)}
    state = state.replace(
        num_updates=jnp.int32(num_updates), opponents=state.opponents.replace(blocks=blocks)
    )
    after, acting = begin(learner.setup, state, current_hypers(learner.config, state), KEY)
    env_steps = jnp.float32(num_updates * learner.config.env_steps_per_update)
    config, pool = learner.config.policies["tagger"], state.opponents.pools["tagger"]
    drawn = draw_opponents(config, pool, {}, env_steps, jax.random.fold_in(KEY, 2**31), 4)
    np.testing.assert_array_equal(acting["tagger"].active, np.where(anew, drawn, before))
    np.testing.assert_array_equal(after.opponents.blocks["tagger"].active, acting["tagger"].active)
    assert acting["tagger"].networks is None


def test_standings_by_hand():
    """Three opponents and the policy itself. Five of six ends count, with a mean return of 2."""
    active = jnp.array([0, PRESENT, 2])
    counted = jnp.array([[True, True, True], [False, True, True]])
    returns = jnp.array([[5.0, 1.0, 3.0], [99.0, -1.0, 2.0]])
    first, games, sums = add_episodes(new_standings(3), active, counted, returns)
    np.testing.assert_array_equal(games, [1, 0, 2, 2])
    np.testing.assert_array_equal(sums, [5, 0, 5, 0])
    np.testing.assert_array_equal(first.wins, [1, 0, 1.5, 0])
    assert (first.returns, first.episodes) == (10, 5)
    np.testing.assert_allclose(first.win_rate, [2 / 3, 1 / 2, 2.5 / 4, 1 / 4])
    second, *_ = add_episodes(first, active, counted & (jnp.arange(3) == 0)[None], returns)
    np.testing.assert_allclose(second.games, [np.exp(-1 / 200) + 1, 0, 2, 2], rtol=1e-6)
    forgotten = second.without(jnp.int32(2))
    np.testing.assert_array_equal(forgotten.games[2:], [0, 2])
    np.testing.assert_array_equal(second.without(jnp.int32(REPLACED)).games, second.games)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [-1000.0, 0.0, 1000.0])
def test_win_rates_do_not_depend_on_the_zero_of_returns(zero):
    """The other policies beat the first opponent more often, so the second is drawn more often."""
    new, active = new_standings(2), jnp.array([0, 0, 1])
    for i in range(30):
        returns = zero + jnp.array([[1.0 + 0.1 * (i % 3), 2.0, -3.0]])
        new, *_ = add_episodes(new, active, jnp.ones((1, 3), bool), returns)
    np.testing.assert_allclose(new.wins[:2] / new.games[:2], [1, 0], atol=1e-6)
    config = PolicyConfig(opponents={"random": 0.5, "ambush": 0.5}, opponents_priority=1.0)
    found = opponent_probabilities(config, PoolState(None, new), {}, jnp.float32(0))
    assert found[1] > 20 * found[0]


@pytest.mark.slow
@pytest.mark.parametrize("outcome", [-1000.1, 0.0, 0.3])
def test_equal_returns_count_half(outcome):
    old = new_standings(1)
    for _ in range(300):
        old, *_ = add_episodes(
            old, jnp.array([0]), jnp.ones((2, 1), bool), jnp.full((2, 1), outcome)
        )
    np.testing.assert_allclose(old.wins / old.games, [0.5, np.nan], rtol=1e-6)


def test_a_snapshot_replaces_a_snapshot_and_no_rule():
    """The snapshots are 0 and 1, the rules 2 and 3; a snapshot is taken in every other update."""
    config, state = (
        PolicyConfig(past_selves=2, past_selves_every=2),
        PolicyState({"w": jnp.ones(2)}, None),
    )
    pool = PoolState(new_networks(state, 2), standings([1, 1, 1, 1, 1], [2, 2, 2, 2, 2]))
    blocks = BlockState(jnp.array([PRESENT, 0, 1, 2, 3]))
    for done, taken in ((3, []), (4, [1])):
        after, played = take_snapshot(config, state, pool, blocks, jnp.int32(done))
        is_taken = np.isin(blocks.active, taken)
        np.testing.assert_array_equal(played.active, np.where(is_taken, REPLACED, blocks.active))
        np.testing.assert_array_equal(
            after.standings.games, np.where(np.isin(np.arange(5), taken), 0, 2)
        )


def test_only_whole_episodes_without_other_opponents_count():
    """Two blocks of two replicas and two steps.

    In the first block the tagger's script has acted for 5 steps at the end of the rollout, so for 4
    at the end of its first step. In the second block a snapshot of the runner acts.
    """
    played = Rollout(
        {},
        {},
        {},
        {},
        over=jnp.array([[True, True, True, True], [True, False, True, True]]),
        episode_return={},
        episode_length=jnp.array([[4, 5, 4, 4], [5, 5, 4, 9]]),
        episode_info={},
    )
    tagger = BlockState(jnp.array([2, 2]), since=jnp.array([5, 5]))
    runner = BlockState(jnp.array([PRESENT, 0]), since=jnp.array([50, 5]))
    blocks = {"tagger": tagger, "runner": runner}
    of_tagger = [[True, False, False, False], [True, False, False, False]]
    np.testing.assert_array_equal(whole_episodes(blocks, played, "tagger"), of_tagger)
    assert not whole_episodes(blocks, played, "runner").any()


class Ambush(Leaver):
    """The script's actions: the time for the first player, the time + 1 for the second."""

    scripts = {"ambush": ("player", lambda env, state, params, key: state.time + jnp.arange(2))}  # noqa: RUF012


def test_scripts_override_the_actions_of_their_blocks():
    env, config = Ambush(), PolicyConfig(agents=("player[1]",), opponents={"ambush": 0.3})
    assignment = assign_agents(
        env, env.default_params, {"first": config, "rest": PolicyConfig(agents=("player[0]",))}
    )
    policy = Policy("first", config, assignment["first"], None, None, None, None, None)
    acting = Acting(jnp.array([PRESENT, 0]), None)
    situation = (LeaverState(jnp.array([0, 0, -1, 0])), env.default_params)
    act = lambda policy, state, carry, *_: (jnp.full((4, 1), 9), {}, carry)  # noqa: E731
    inputs = (policy, None, None, jnp.zeros((4, 1)), jax.random.split(KEY), None)
    action, notes, _ = act_with_opponents(act, acting, env, situation, *inputs)
    np.testing.assert_array_equal(action, np.full((4, 1), 9))
    np.testing.assert_array_equal(notes[VALID], [[True], [True], [False], [False]])
    [(replicas, actions)] = notes[OVERRIDES]
    np.testing.assert_array_equal(replicas, [False, False, True, True])
    np.testing.assert_array_equal(actions, [[1], [1], [0], [1]])


def test_script_plays_two_slices_of_a_group():
    """Three replicas at times 0, 5 and 9. The second player comes before the first one."""
    env, config = Ambush(), PolicyConfig(agents=("player[1]", "player[0]"))
    assignment = assign_agents(env, env.default_params, {"all": config})["all"]
    situation = (LeaverState(jnp.array([0, 5, 9])), env.default_params)
    found = run_script(env, env.scripts["ambush"][1], assignment, situation, KEY)
    np.testing.assert_array_equal(found, [[1, 0], [6, 5], [10, 9]])


def test_win_rates_are_drawn_only_with_opponents(tmp_path):
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
def test_only_opponents_of_a_script_learn():
    """A script always replaces the frozen taggers, and the runner learns."""
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


# --- exploration ---


@pytest.mark.slow
def test_snapshots_of_a_q_network_do_not_explore():
    network = {"network": {"hidden_sizes": [8]}}
    caller = {**network, "algorithm": "PQN", "epsilon": 1.0, "past_selves": 1}
    config = {"env": "match_env:Match", "policies": {"caller": caller, "answerer": network}}
    sizes = {"num_envs": 32, "num_blocks": 8, "rollout_length": 4, "devices": 1}
    learner = make_learner(load_config({**config, **sizes}))
    policy, (state, played) = learner.setup.policies["caller"], learner.rollout(learner.init(KEY))
    rows = played.rows["caller"]
    q, _ = policy.algorithm.q_values(policy, state.policies["caller"], rows.obs)
    is_best = np.asarray(rows.action == jnp.argmax(q, axis=-1))[..., 0]
    is_past = np.repeat(np.asarray(state.opponents.blocks["caller"].active) == 0, 4)
    assert 0 < is_past.sum() < 32
    assert is_best[:, is_past].all()
    assert 0.2 < is_best[:, ~is_past].mean() < 0.8  # epsilon is 1, with two actions
