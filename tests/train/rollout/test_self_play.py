"""Self-play: the pool of snapshots, where they act, and which transitions are learned from."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_probes import tiny_ddpg
from probes import NETWORK, tiny_config, tiny_policy

from wdjax import Box
from wdjax.train import Memory, PolicyConfig, PolicyState, make_learner, with_hypers
from wdjax.train.learning import Steps, new_replay, new_statistics, update_statistics
from wdjax.train.rollout.opponents import (
    acting_networks,
    acting_state,
    draw_opponents,
    forget,
    new_networks,
    take_snapshot,
)
from wdjax.train.rollout.scan import rollout
from wdjax.train.state.normalization import Normalizer, discounted_returns, observation_statistics
from wdjax.train.state.state import PRESENT, REPLACED, BlockState, PoolState

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(5)
BLOCKS = 4  # of 2 replicas each


def self_of(number):
    """Return a state whose parameters are a number."""
    normalizer = Normalizer(observation_statistics(Box(shape=(2,))), None)
    state = PolicyState({"w": jnp.full(2, float(number))}, {"momentum": jnp.ones(2)}, normalizer)
    return state.replace(gradient_steps=jnp.int32(number))


def test_a_snapshot_replaces_the_oldest_one():
    """Three snapshots, a new one every two updates; the parameters after update n are n."""
    config = PolicyConfig(past_selves=3, past_selves_every=2)
    pool, blocks = PoolState(new_networks(self_of(0), 3)), BlockState(jnp.array([PRESENT, 0, 1, 2]))
    step = jax.jit(functools.partial(take_snapshot, config))
    pools, active = [], []
    for n in range(1, 11):
        pool, after = step(self_of(n), pool, blocks, jnp.int32(n))
        active.append(after.active.tolist())
        parameters = pool.networks.params["w"]
        np.testing.assert_array_equal(pool.networks.gradient_steps, parameters[:, 0])
        pools.append(parameters[:, 1].tolist())
    assert pools == [
        [0, 0, 0],
        [2, 0, 0],
        [2, 0, 0],
        [2, 4, 0],
        [2, 4, 0],
        [2, 4, 6],
        [2, 4, 6],
        [8, 4, 6],
        [8, 4, 6],
        [8, 10, 6],
    ]
    same, first, second, third = (
        [-1, 0, 1, 2],
        [-1, REPLACED, 1, 2],
        [-1, 0, REPLACED, 2],
        [-1, 0, 1, REPLACED],
    )
    assert active == [same, first, same, second, same, third, same, first, same, second]


def test_pools_contain_acting_states_only():
    networks = new_networks(self_of(3), 2)
    assert networks.opt_state is None
    assert networks.normalizer.obs.mean.shape == (2, 2)
    np.testing.assert_array_equal(networks.params["w"], [[3, 3], [3, 3]])


def drawn(fraction, num_blocks, key=KEY, size=3):
    pool = PoolState(
        jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *[acting_state(self_of(i)) for i in range(size)]
        )
    )
    hypers = {"past_selves_fraction": jnp.float32(fraction)}
    active = draw_opponents(
        PolicyConfig(past_selves=size), pool, hypers, jnp.float32(0), key, num_blocks
    )
    return acting_networks(self_of(9), pool, active)


@pytest.mark.slow
def test_the_opponent_of_a_block_follows_from_the_key_and_the_block():
    acting = drawn(0.6, 8)
    for block in range(8):
        coin_key, opponent_key = jax.random.split(jax.random.fold_in(KEY, block))
        is_past = jax.random.uniform(coin_key) < 0.6
        opponent = jax.random.randint(opponent_key, (), 0, 3) if is_past else PRESENT
        assert acting.active[block] == opponent
        np.testing.assert_array_equal(
            acting.networks.params["w"][block], opponent if is_past else 9
        )
        assert acting.networks.gradient_steps[block] == (opponent if is_past else 9)
    assert len(set(acting.active.tolist())) == 4  # all snapshots and the policy itself
    np.testing.assert_array_equal(drawn(0.6, 4).active, acting.active[:4])


@pytest.mark.slow
def test_snapshots_are_equally_likely():
    assert set(drawn(0.0, 512).active.tolist()) == {PRESENT}
    share = np.bincount(drawn(1.0, 4096).active + 1, minlength=4) / 4096
    np.testing.assert_allclose(share, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.03)
    share = np.bincount(drawn(0.3, 4096).active + 1, minlength=4) / 4096
    np.testing.assert_allclose(share, [0.7, 0.1, 0.1, 0.1], atol=0.03)


def test_carry_and_discounted_return_start_anew_with_another_opponent():
    before = Memory((jnp.ones((8, 3, 2)), None), jnp.ones((8, 3)))
    changed = jnp.array([False, True, False, True])
    after = forget(before, changed, (jnp.full((8, 3, 2), 5.0), None))
    np.testing.assert_array_equal(after.carry[0][:, 2, 1], [1, 1, 5, 5, 1, 1, 5, 5])
    np.testing.assert_array_equal(after.discounted_return[:, 2], [1, 1, 0, 0, 1, 1, 0, 0])


@pytest.mark.slow
def test_rewards_of_opponents_do_not_scale_rewards():
    """The policy receives 1 in a step and its opponent 100. Opponents change every 2 steps."""
    memory, statistics, gamma = Memory(None, jnp.zeros((8, 1))), new_statistics(), jnp.float32(0.9)
    before = jnp.full(BLOCKS, PRESENT)
    for i in range(40):
        active = jnp.where((jnp.arange(BLOCKS) + i) % 3 == 0, 1, PRESENT)
        memory, before = forget(memory, active != before, None), active
        valid = jnp.repeat(active == PRESENT, 2)[None, :, None] & jnp.ones((2, 8, 1), bool)
        reward = jnp.where(valid, 1.0, 100.0)
        totals, last = discounted_returns(
            memory.discounted_return, reward, jnp.zeros((2, 8), bool), gamma
        )
        statistics = update_statistics(statistics, totals, valid)
        memory = memory.replace(discounted_return=last)
    assert statistics.mean + 3 * jnp.sqrt(statistics.variance) < 1 / (
        1 - gamma
    )  # of rewards of 1 at most


def test_n_step_targets_end_where_another_opponent_acts():
    """Blocks of 2 replicas, 3-step targets; the last of two pending steps ends in block 2."""
    step = Steps.shapes(Box(shape=(1,)), Box(shape=(1,)))
    replay = new_replay(step, 16, n_step=3, shape=(2, 4, 1), num_blocks=2)
    after = forget(Memory(None, None, replay), jnp.array([False, True]), None)
    np.testing.assert_array_equal(
        after.replay.pending.over[..., 0], [[0, 0], [0, 0], [0, 1], [0, 1]]
    )


# --- in the learner: a recurrent policy with snapshots, and one without ---


def leaver_config(first=None, second=None, env="probe_leaver", **changes):
    """Four blocks of two replicas. Every other rollout of 6 steps starts within an episode of 4."""
    network = dataclasses.replace(NETWORK, hidden_sizes=(), recurrent_size=3)
    own = {
        "past_selves": 2,
        "past_selves_every": 2,
        "learning_rate": 0.02,
        "epochs": 1,
        "minibatches": 1,
    }
    first = first or tiny_policy("PPO", network=network, **own)
    second = second or tiny_policy("A2C")
    policies = {
        "first": dataclasses.replace(first, agents=("player[0]",)),
        "second": dataclasses.replace(second, agents=("player[1]",)),
    }
    return tiny_config(
        env, policies, **{"num_blocks": BLOCKS, "env_params": {"leave": 4}, **changes}
    )


@pytest.fixture(scope="module")
def learner():
    return make_learner(leaver_config())


@pytest.fixture(scope="module")
def states(learner):
    """Return the states after 0 to 6 updates, and the metrics of each update."""
    states, rows = [learner.init(KEY)], []
    for _ in range(6):
        state, metrics = learner.update(states[-1])
        states.append(state)
        rows.append(metrics)
    return states, rows


@pytest.fixture(scope="module")
def play(learner):
    return jax.jit(functools.partial(rollout, learner.setup))


@pytest.fixture(scope="module")
def mixed(states, play):
    """Return (a state, the rollout from it, [N] bool: a snapshot acts for the first policy)."""
    for state in states[0][2:]:
        after, played = play(state, KEY)
        earlier = np.repeat(np.asarray(after.opponents.blocks["first"].active) != PRESENT, 2)
        if 0 < earlier.sum() < 8:
            return state, played, earlier
    raise AssertionError("no rollout of both kinds")


def active_in(state):
    """Return the opponent of the first player in each block."""
    return state.opponents.blocks["first"].active


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close(a, b):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), a, b)


def differ(a, b):
    return any(jax.tree.leaves(jax.tree.map(lambda x, y: bool(np.any(np.not_equal(x, y))), a, b)))


def with_wish(state, action):
    """Return a state in which every snapshot takes one action."""
    pool = state.opponents.pools["first"]
    params = jax.tree.map(jnp.zeros_like, pool.networks.params)
    params["policy_head"]["bias"] = params["policy_head"]["bias"].at[:, action].set(50.0)
    pool = pool.replace(networks=pool.networks.replace(params=params))
    return state.replace(opponents=state.opponents.replace(pools={"first": pool}))


def test_snapshots_are_the_policy_after_the_update(states):
    params = [state.policies["first"].params for state in states[0]]
    for num_updates, held in enumerate([(0, 0), (0, 0), (2, 0), (2, 0), (2, 4), (2, 4), (6, 4)]):
        past = states[0][num_updates].opponents.pools["first"].networks
        assert past.opt_state is None
        for place, snapshot in enumerate(held):
            assert_equal(jax.tree.map(lambda leaf, i=place: leaf[i], past.params), params[snapshot])
    assert set(states[0][0].opponents.pools) == set(states[0][0].opponents.blocks) == {"first"}


def test_each_rollout_draws_new_opponents(states):
    active = np.stack([state.opponents.blocks["first"].active for state in states[0]])
    np.testing.assert_array_equal(active[0], PRESENT)
    assert len(np.unique(active[1:], axis=0)) > 3
    assert set(active[1:].ravel()) == {PRESENT, REPLACED, 0, 1}
    assert [row["first/past_self_blocks"] for row in states[1]] == np.sum(
        active[1:] != PRESENT, axis=1
    ).tolist()
    assert "second/past_self_blocks" not in states[1][0]


def test_rows_of_snapshots_are_not_live_for_their_policy_alone(mixed):
    _, played, earlier = mixed
    np.testing.assert_array_equal(
        played.rows["first"].live, np.broadcast_to(~earlier[None, :, None], (6, 8, 1))
    )
    assert played.rows["second"].live.all()


def test_snapshots_act_by_their_parameters(mixed, play):
    state, played, earlier = mixed
    for action in (0, 1):
        rows = play(with_wish(state, action), KEY)[1].rows
        np.testing.assert_array_equal(rows["first"].action[:, earlier], action)
        assert_equal(rows["first"].action[:, ~earlier], played.rows["first"].action[:, ~earlier])
        assert_equal(rows["second"], played.rows["second"])


def test_rows_of_snapshots_do_not_change_the_update(learner, mixed):
    state = mixed[0]
    one, other = (learner.update(with_wish(state, action)) for action in (0, 1))
    assert 0 < one[1]["first/past_self_blocks"] < BLOCKS
    for name in ("first", "second"):
        assert_equal(one[0].policies[name].params, other[0].policies[name].params)
        assert differ(one[0].policies[name].params, state.policies[name].params)


def test_carry_is_reset_where_the_opponent_changes(states, play):
    """Every other update starts within an episode. The carry stays only if the opponent does."""
    seen = set()
    for state in states[0][1::2]:
        after, played = play(state, KEY)
        changed = np.repeat(np.asarray(active_in(after) != active_in(state)), 2)
        carry = played.first_carry["first"][0]
        np.testing.assert_array_equal(np.any(carry != 0, axis=(1, 2)), ~changed)
        assert_equal(carry[~changed], state.memory["first"].carry[0][~changed])
        seen |= set(changed.tolist())
    assert seen == {True, False}


def test_probability_ratio_is_1_before_the_first_step(states):
    """Also in replicas whose carry was reset at the start of the rollout."""
    for row in states[1]:
        assert abs(row["first/approx_kl"]) < 1e-6
        assert row["first/clip_fraction"] == 0


def test_policy_is_unchanged_if_snapshots_act_everywhere(learner, states):
    before = states[0][2]
    state, metrics = learner.update(with_hypers(before, **{"first.past_selves_fraction": 1 - 1e-6}))
    assert metrics["first/past_self_blocks"] == BLOCKS
    first = [s.policies["first"] for s in (state, before)]
    assert_equal((first[0].params, first[0].opt_state), (first[1].params, first[1].opt_state))
    assert differ(state.policies["second"].params, before.policies["second"].params)


@pytest.mark.slow
def test_fraction_follows_its_schedule(learner):
    steps = learner.config.env_steps_per_update
    schedule = ((0.0, 0.0), (steps - 1.0, 0.0), (float(steps), 1 - 1e-6))
    first = dataclasses.replace(learner.config.policies["first"], past_selves_fraction=schedule)
    scheduled = make_learner(leaver_config(first))
    _, metrics = scheduled.run(scheduled.init(KEY), num_updates=2)
    assert metrics["first/past_self_blocks"].tolist() == [0, BLOCKS]


@pytest.mark.slow
def test_fraction_0_equals_a_run_without_snapshots(learner):
    without = make_learner(
        leaver_config(dataclasses.replace(learner.config.policies["first"], past_selves=0))
    )
    a, b = without.init(KEY), with_hypers(learner.init(KEY), **{"first.past_selves_fraction": 0.0})
    with pytest.raises(ValueError, match=r"unknown hyperparameter 'first\.past_selves_fraction'"):
        with_hypers(a, **{"first.past_selves_fraction": 0.5})
    for _ in range(3):
        (a, rows), (b, with_rows) = without.update(a), learner.update(b)
        assert with_rows.pop("first/past_self_blocks") == 0
        assert_equal((a.replicas, a.obs), (b.replicas, b.obs))
        assert_close(rows, with_rows)
    assert_close(a.policies["first"].params, b.policies["first"].params)


@pytest.mark.slow
def test_population_sweeps_the_fraction(learner):
    fractions = [0.0, 0.5, 0.999]
    together = jax.vmap(learner.init)(jnp.stack([KEY] * 3))
    together = with_hypers(together, **{"first.past_selves_fraction": jnp.array(fractions)})
    states, rows = jax.jit(jax.vmap(learner.update))(together)
    blocks = rows["first/past_self_blocks"].tolist()
    assert 0 == blocks[0] < blocks[1] < blocks[2] == BLOCKS
    for i, fraction in enumerate(fractions):
        alone, _ = learner.update(
            with_hypers(learner.init(KEY), **{"first.past_selves_fraction": fraction})
        )
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        assert_equal((mine.replicas, active_in(mine)), (alone.replicas, active_in(alone)))
        assert_close(mine.policies["first"].params, alone.policies["first"].params)


# --- snapshots of a DDPG policy ---


@pytest.fixture(scope="module")
def off_policy():
    """Return (learner with a snapshot from before learning, state after two updates)."""
    first = dataclasses.replace(tiny_ddpg(n_step=2, warmup=64), past_selves=1, past_selves_every=50)
    second = dataclasses.replace(tiny_ddpg(), trainable=False)
    learner = make_learner(leaver_config(first, second, "probe_box_leaver"))
    state = with_hypers(learner.init(KEY), **{"first.past_selves_fraction": 0.0})
    for _ in range(2):
        state, _ = learner.update(state)
    return learner, state


@pytest.mark.slow
def test_snapshots_add_no_rows_to_the_replay_buffer(off_policy):
    """A block adds 6 steps of 2 replicas. The last of each is pending until its next reward."""
    learner, start = off_policy
    np.testing.assert_array_equal(start.memory["first"].replay.ring.size, 2 * 12 - 2)
    mixed, metrics = learner.update(with_hypers(start, **{"first.past_selves_fraction": 0.5}))
    own = np.asarray(mixed.opponents.blocks["first"].active) == PRESENT
    assert 0 < own.sum() < BLOCKS
    assert metrics["first/past_self_blocks"] == BLOCKS - own.sum()
    assert metrics["first/live_fraction"] == own.mean()
    later, _ = learner.update(with_hypers(mixed, **{"first.past_selves_fraction": 0.0}))
    sizes = [state.memory["first"].replay.ring.size for state in (start, mixed, later)]
    np.testing.assert_array_equal(sizes[1] - sizes[0], np.where(own, 12, 2))
    np.testing.assert_array_equal(sizes[2] - sizes[1], np.where(own, 12, 10))
    assert differ(mixed.policies["first"].params, start.policies["first"].params)


@pytest.mark.slow
def test_ddpg_snapshot_acts_uniformly_before_its_first_step(off_policy):
    """The policy itself no longer acts uniformly. Noise restarts."""
    learner, state = off_policy
    play = jax.jit(functools.partial(rollout, learner.setup))
    state = with_hypers(state, **{"first.noise_scale": 0.0})
    spread = []
    for fraction in (0.0, 1 - 1e-6):
        after, played = play(with_hypers(state, **{"first.past_selves_fraction": fraction}), KEY)
        spread.append(np.std(played.rows["first"].action))
    assert after.opponents.blocks["first"].active.tolist() == [0] * BLOCKS
    assert spread[0] < 0.3
    np.testing.assert_allclose(spread[1], 2 / np.sqrt(12), rtol=0.15)  # uniform in [-1, 1]


@pytest.mark.slow
def test_ddpg_snapshot_acts_without_noise(off_policy):
    learner, state = off_policy
    pool = state.opponents.pools["first"].replace(networks=new_networks(state.policies["first"], 1))
    state = state.replace(opponents=state.opponents.replace(pools={"first": pool}))
    after, played = learner.rollout(with_hypers(state, **{"first.past_selves_fraction": 0.5}))
    policy, rows = learner.setup.policies["first"], played.rows["first"]
    action = policy.algorithm.play(policy, state.policies["first"], None, rows.obs, KEY, True)[0]
    distance = np.abs(np.asarray(rows.action - action)).max(axis=(0, 2, 3))
    is_past = np.repeat(np.asarray(after.opponents.blocks["first"].active) == 0, 2)
    assert 0 < is_past.sum() < 8
    assert distance[is_past].max() < 1e-5
    assert distance[~is_past].min() > 0.05


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"past_selves": -1}, r"policies\.first\.past_selves = -1: must be at least 0"),
        ({"past_selves_every": 0}, r"policies\.first\.past_selves_every = 0: must be at least 1"),
        (
            {"past_selves_fraction": 1.5},
            r"policies\.first\.past_selves_fraction = 1\.5: must be .* below 1",
        ),
        (
            {"past_selves_fraction": float("nan")},
            r"past_selves_fraction = nan: must be at least 0 and below 1",
        ),
        (
            {"past_selves_fraction": ((0.0, 0.5), (9.0, 1.0))},
            r"past_selves_fraction = \(\(0\.0, 0\.5\), .* below 1",
        ),
        (
            {"past_selves_fraction": ((9.0, 0.5), (0.0, 0.5))},
            r"past_selves_fraction = .*: must be sorted by env_step",
        ),
        (
            {"past_selves": 2, "trainable": False},
            r"past_selves = 2: must be 0 if trainable is false",
        ),
    ],
)
def test_refusals(changes, words):
    with pytest.raises(ValueError, match=words):
        make_learner(leaver_config(tiny_policy("A2C", **changes)))


def test_snapshots_need_another_policy():
    alone = tiny_policy("A2C", past_selves=3)
    with pytest.raises(
        ValueError,
        match=r"policies\.agent\.past_selves = 3: must be 0 in a run with a single policy",
    ):
        make_learner(tiny_config("probe_signal", {"agent": alone}))


@pytest.mark.slow
def test_no_key_is_used_twice(learner):
    with jax.debug_key_reuse(True):
        learner.run(learner.init(KEY), num_updates=2)
