"""The replay buffer: transitions, teams and sequences against loops, the ring against a list."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wdjax import Box, Dict, Discrete
from wdjax.train.learning import Rows, Steps, block_keys, new_replay

pytestmark = pytest.mark.usefixtures("quick_compile")

T, ROLLOUTS, N, AGENTS, BLOCKS = 3, 3, 4, 2, 2
ALL = (T * ROLLOUTS, N, AGENTS)
GAMMA = 0.5
ONE_STEP = Steps.shapes(Box(shape=(1,)), Box(shape=(2,)))


def numbered_steps(reward, terminated, over, live):
    """Return steps [T, N, n] with observations 100 t + 10 i + j, and 0.5 more after the step."""
    time, replica, agent = np.indices(reward.shape)
    place = (100 * time + 10 * replica + agent)[..., None].astype(np.float32)
    return Steps(
        place, np.concatenate([place, -place], -1), reward, place + 0.5, terminated, over, live
    )


def n_step_by_loop(steps, row, n_step):
    """Return (obs, reward, next_obs, discount) of the n-step transition from one agent's step."""
    t, i, j = row
    total = 0.0
    for k in range(n_step):
        last = (t + k, i, j)
        total += GAMMA**k * steps.reward[last]
        if steps.terminated[last] or steps.over[last] or k == n_step - 1:
            discount = 0.0 if steps.terminated[last] else GAMMA ** (k + 1)
            return [steps.obs[row][0], total, steps.next_obs[last][0], discount]


def transitions_by_loop(steps, n_step):
    """Return the complete n-step transitions of each block, in order of time."""
    blocks = [[] for _ in range(BLOCKS)]
    for t, i, j in np.ndindex(*steps.reward.shape):
        if steps.live[t, i, j] and t + n_step <= len(steps.reward):
            blocks[i // (N // BLOCKS)].append(n_step_by_loop(steps, (t, i, j), n_step))
    return [np.array(rows).reshape(-1, 4) for rows in blocks]


def sequences_by_loop(steps, n_step, length):
    """Return the sequences of each block, [num, length, 5], in order of time; the last is valid.

    The index counts steps since the start of an agent's episode.
    """
    blocks, begin = [[] for _ in range(BLOCKS)], {}
    for t, i, j in np.ndindex(*steps.reward.shape):
        if t == 0 or steps.over[t - 1, i, j]:
            begin[i, j] = t
        starts = steps.live[t, i, j] and (t - begin[i, j]) % length == 0
        if not starts or t + length + n_step - 1 > len(steps.reward):
            continue
        rows, ended = [], False
        for s in range(t, t + length):
            valid = steps.live[s, i, j] and not ended
            rows.append([*n_step_by_loop(steps, (s, i, j), n_step), valid])
            ended |= steps.over[s, i, j]
        blocks[i // (N // BLOCKS)].append(rows)
    return [np.array(rows).reshape(-1, length, 5) for rows in blocks]


def stored(rows):
    """Return obs, reward, next_obs and discount of stored rows, in the last axis."""
    return np.stack([rows.obs[..., 0], rows.reward, rows.next_obs[..., 0], rows.discount], -1)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def add_all(steps, n_step, unit="agent", length=1):
    """Store the steps, one rollout after the other."""
    agents = {} if unit == "team" else {"shape": (T, N, AGENTS)}
    replay = new_replay(
        ONE_STEP, T * ROLLOUTS * N * AGENTS * BLOCKS, n_step, unit, length,
        **{"shape": (T, N, 1), **agents}, num_blocks=BLOCKS,
    )  # fmt: skip
    for first in range(0, T * ROLLOUTS, T):
        part = jax.tree.map(lambda leaf, first=first: leaf[first : first + T], steps)
        replay = replay.add(part, GAMMA)
    return replay.ring


flags = arrays(bool, ALL, elements=st.sampled_from([False, False, True]))
rewards = arrays(np.float32, ALL, elements=st.integers(-9, 9))


# 5 steps span three rollouts of 3 steps
@pytest.mark.parametrize("n_step", [1, 2, 5])
@given(reward=rewards, terminated=flags, over=flags, dead=flags)
def test_transitions_equal_a_loop(n_step, reward, terminated, over, dead):
    steps = numbered_steps(reward, terminated, over, ~dead)
    ring = jax.device_get(add_all(steps, n_step))
    for block, expected in enumerate(transitions_by_loop(steps, n_step)):
        rows = jax.tree.map(lambda leaf, block=block: leaf[block, : ring.size[block]], ring.rows)
        assert ring.size[block] == len(expected)
        # powers of 1/2 and small integers are exact
        np.testing.assert_array_equal(stored(rows), expected)
        np.testing.assert_array_equal(rows.action, np.concatenate([rows.obs, -rows.obs], axis=1))
        assert rows.valid is None


# 2 steps within a rollout of 3, and 4 steps across rollouts
@pytest.mark.parametrize(("n_step", "length"), [(1, 2), (3, 2), (1, 4)])
@given(reward=rewards, terminated=flags, over=flags, dead=flags)
def test_sequences_equal_a_loop(n_step, length, reward, terminated, over, dead):
    steps = numbered_steps(reward, terminated, over, ~dead)
    ring = jax.device_get(add_all(steps, n_step, "sequence", length))
    for block, expected in enumerate(sequences_by_loop(steps, n_step, length)):
        rows = jax.tree.map(lambda leaf, block=block: leaf[block, : ring.size[block]], ring.rows)
        assert ring.size[block] == len(expected)
        np.testing.assert_array_equal(rows.valid, expected[..., 4])
        np.testing.assert_array_equal(stored(rows), expected[..., :4])


@pytest.mark.slow
def test_sequences_by_hand():
    """One agent; an episode of 3 steps ends by a time limit, then one of at least 4 begins."""
    replay = new_replay(ONE_STEP, 8, 1, "sequence", 2, shape=(8, 1, 1))
    over = column([0, 0, 1, 0, 0, 0, 0, 0], bool)
    live = column([1, 1, 1, 1, 1, 1, 1, 1], bool)
    steps = numbered_steps(column(range(8)), np.zeros((8, 1, 1), bool), over, live)
    replay = replay.add(steps, jnp.float32(0.5))
    np.testing.assert_array_equal(replay.size, [4])
    rows = replay.take(jnp.arange(4)[None])
    np.testing.assert_array_equal(rows.reward, [[0, 1], [2, 3], [3, 4], [5, 6]])
    np.testing.assert_array_equal(rows.valid, [[1, 1], [1, 0], [1, 1], [1, 1]])
    # the sequence from step 7 on waits for the next rollout
    np.testing.assert_array_equal(replay.pending.reward, [[[7]]])
    assert rows.obs.shape == (4, 2, 1)


def test_each_valid_step_is_in_one_sequence():
    rng = np.random.default_rng(0)
    over = rng.random(ALL) < 0.3
    steps = numbered_steps(np.zeros(ALL, np.float32), over & False, over, ~(over & False))
    ring = jax.device_get(add_all(steps, 1, "sequence", 2))
    for block in range(BLOCKS):
        size = ring.size[block]
        valid = ring.rows.valid[block, :size]
        seen = ring.rows.obs[block, :size, :, 0][valid]
        assert len(seen) == len(set(seen))
        # the last sequence may be incomplete
        expected = (T * ROLLOUTS - 1) * N // BLOCKS * AGENTS
        assert expected <= len(seen) <= expected + N // BLOCKS * AGENTS


@pytest.mark.slow
def test_a_team_stores_one_transition_per_replica():
    space = Dict({"medic": Box(shape=(3,)).batch(1), "marine": Discrete(9).batch(2)})
    step = Steps.shapes(space, Dict({"medic": Discrete(9)}))
    replay = new_replay(step, 10, 2, "team", shape=(3, 2, 5), num_blocks=1)
    number = jnp.arange(6.0).reshape(3, 2)
    seen = {"medic": jnp.broadcast_to(number[..., None, None], (3, 2, 1, 3))}
    seen["marine"] = jnp.broadcast_to(number[..., None], (3, 2, 2)).astype(jnp.int32)
    over = jnp.array([[0, 0], [0, 1], [0, 0]], bool)
    action = {"medic": number.astype(jnp.int32)}
    after = jax.tree.map(lambda leaf: leaf + 10, seen)
    steps = Steps(seen, action, number, after, over & False, over, ~over | True)
    replay = replay.add(steps, jnp.float32(0.5))
    np.testing.assert_array_equal(replay.size, [4])
    rows = replay.take(jnp.arange(4)[None])
    np.testing.assert_array_equal(rows.reward, [0 + 1, 1 + 1.5, 2 + 2, 3])
    np.testing.assert_array_equal(rows.discount, [0.25, 0.25, 0.25, 0.5])
    np.testing.assert_array_equal(rows.obs["marine"], [[0, 0], [1, 1], [2, 2], [3, 3]])
    np.testing.assert_array_equal(rows.next_obs["medic"][:, 0, 0], [12, 13, 14, 13])
    np.testing.assert_array_equal(rows.action["medic"], [0, 1, 2, 3])


def test_steps_of_a_rollout_end_at_truncations_of_agents():
    flag = lambda *values: np.array(values, bool)[:, None]  # noqa: E731
    rows = Rows(
        obs=column([0, 1]), action=column([0, 1]), reward=column([5, 6]), next_obs=column([1, 2]),
        terminated=column([0, 0], bool), live=column([1, 1], bool), truncated=column([1, 1], bool),
    )  # fmt: skip
    np.testing.assert_array_equal(Steps.of(rows, flag(0, 0)).over.ravel(), [1, 1])
    steps = Steps.of(rows.replace(truncated=None), flag(0, 1))
    np.testing.assert_array_equal(steps.over.ravel(), [0, 1])
    np.testing.assert_array_equal(steps.reward.ravel(), [5, 6])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit": "row"}, "unit = 'row': must be one of agent, team, sequence"),
        ({"n_step": 0}, "n_step = 0"),
        ({"length": 2}, "length = 2: must be 1 for unit 'agent'"),
        ({"unit": "sequence"}, "length = 1: must be at least 2"),
        ({"capacity": 3}, "capacity = 3: must be a positive multiple of num_blocks = 2"),
        ({"capacity": 0}, "capacity = 0"),
    ],
)
def test_arguments_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        new_replay(ONE_STEP, **{"capacity": 4, "shape": (2, 2, 1), "num_blocks": 2, **changes})


def column(values, dtype=np.float32):
    return np.array(values, dtype)[:, None, None]


def three_steps(reward, terminated, over):
    """Return (reward, next_obs, discount) of the 3-step transitions of one agent."""
    flags = (column(values, bool) for values in (terminated, over))
    steps = numbered_steps(column(reward), *flags, column([1] * len(reward), bool))
    replay = new_replay(ONE_STEP, 9, 3, shape=(len(reward), 1, 1)).add(steps, jnp.float32(0.5))
    rows = replay.take(jnp.arange(replay.size[0])[None])
    return rows.reward, rows.next_obs.ravel(), rows.discount


def test_three_steps_by_hand():
    reward, next_obs, discount = three_steps([1, 2, 4, 8, 16, 32], [0] * 6, [0] * 6)
    np.testing.assert_array_equal(reward, [1 + 1 + 1, 2 + 2 + 2, 4 + 4 + 4, 8 + 8 + 8])
    np.testing.assert_array_equal(next_obs, [200.5, 300.5, 400.5, 500.5])
    np.testing.assert_array_equal(discount, [0.125] * 4)


def test_termination_ends_the_sum_without_bootstrapping():
    reward, _, discount = three_steps([1, 2, 4, 8, 16, 32], [0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(reward, [1 + 1 + 1, 2 + 2, 4, 8 + 8 + 8])
    np.testing.assert_array_equal(discount, [0, 0, 0, 0.125])


def test_truncation_ends_the_sum_and_bootstraps_from_the_final_observation():
    reward, next_obs, discount = three_steps([1, 2, 4, 8, 16, 32], [0] * 6, [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(reward, [1 + 1 + 1, 2 + 2, 4, 8 + 8 + 8])
    np.testing.assert_array_equal(next_obs, [200.5, 200.5, 200.5, 500.5])
    np.testing.assert_array_equal(discount, [0.125, 0.25, 0.5, 0.125])


def test_early_termination_of_an_agent_ends_its_sum():
    reward, _, discount = three_steps([1, 2, 99, 99, 99, 99], [0, 1, 1, 1, 1, 1], [0] * 6)
    np.testing.assert_array_equal(reward[:2], [1 + 1, 2])
    np.testing.assert_array_equal(discount[:2], [0, 0])


# --- the ring ---

CAPACITY, NEW = 5, 4  # transitions of a block, and steps of a rollout of one agent in it


def empty(capacity=CAPACITY, steps=NEW, n_step=1, **kind):
    """Return an empty replay of two blocks with one replica and one agent each."""
    return new_replay(ONE_STEP, 2 * capacity, n_step, **kind, shape=(steps, 2, 1), num_blocks=2)


def rewarded(reward, live, over=None):
    """Return steps [T, 2, 1] with these rewards, [T, 2]; actions are their negatives."""
    reward = np.asarray(reward, np.float32)[:, :, None]
    over = np.zeros(reward.shape, bool) if over is None else over[:, :, None]
    obs, action = reward[..., None], np.repeat(-reward[..., None], 2, axis=-1)
    return Steps(obs, action, reward, obs + 0.5, over & False, over, live[:, :, None])


def held_rows(replay):
    """Return the stored rows of each block as NumPy arrays, by number."""
    numbers = np.broadcast_to(np.arange(replay.ring.capacity), (2, replay.ring.capacity))
    size, rows = jax.device_get((replay.size, take_jit(replay, numbers)))
    rows = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), rows)
    return [
        jax.tree.map(lambda leaf, block=block: leaf[block, : size[block]], rows)
        for block in range(2)
    ]


add_jit = jax.jit(lambda replay, steps: replay.add(steps, GAMMA))
take_jit = jax.jit(lambda replay, index: replay.take(index))
undo_jit = jax.jit(lambda after, before, bad: after.undo(before, bad))


@given(live=arrays(bool, (6, NEW, 2)))
def test_the_ring_holds_the_newest_valid_transitions(live):
    replay, seen = empty(), [[], []]
    for k, alive in enumerate(live):
        number = 1.0 + k * 2 * NEW + np.arange(2 * NEW, dtype=np.float32).reshape(NEW, 2)
        replay = jax.device_get(add_jit(replay, rewarded(number, alive)))
        held = held_rows(replay)
        for block in range(2):
            seen[block] += list(number[:, block][alive[:, block]])
            newest = seen[block][-CAPACITY:]
            assert replay.size[block] == len(newest)
            assert replay.ring.position[block] == len(seen[block]) % CAPACITY
            # transition i is at i % 5
            rolled = np.roll(newest, len(seen[block]) if len(newest) == CAPACITY else 0)
            np.testing.assert_array_equal(held[block].reward, rolled)
            np.testing.assert_array_equal(held[block].action[:, 0], -rolled)


@pytest.mark.slow
def test_the_ring_keeps_the_last_of_more_transitions_than_its_capacity():
    number = np.arange(1.0, 15.0).reshape(2, 7).T
    live = np.ones((7, 2), bool)
    live[6, 0] = False
    replay = empty(3, 7).add(rewarded(number, live), GAMMA)
    np.testing.assert_array_equal(
        [np.sort(rows.reward) for rows in held_rows(replay)], [[4, 5, 6], [12, 13, 14]]
    )
    np.testing.assert_array_equal(replay.size, [3, 3])
    np.testing.assert_array_equal(replay.ring.position, [0, 1])


@pytest.mark.slow
def test_stored_steps_have_the_dtypes_of_the_replay():
    steps = rewarded(np.ones((NEW, 2)), np.ones((NEW, 2), bool))
    replay = empty().add(steps.replace(reward=steps.reward.astype(np.int32)), GAMMA)
    assert replay.take(jnp.zeros((2, 1), jnp.int32)).reward.dtype == jnp.float32


KINDS = ({}, {"n_step": 3}, {"unit": "team", "n_step": 2}, {"unit": "sequence", "length": 3})


# four rollouts of up to 4 steps pass the end of a ring with 5 + 4 places
@pytest.mark.parametrize("kind", KINDS, ids=["1", "3", "team", "sequence"])
@given(live=arrays(bool, (4, NEW, 2)), over=arrays(bool, (4, NEW, 2)), bad=arrays(bool, 4))
def test_undone_rollouts_leave_no_trace(kind, live, over, bad):
    """Undo some rollouts. The replay equals one to which these were never added."""

    def steps_of(number):
        reward = 1.0 + number * 10 + np.arange(2 * NEW, dtype=np.float32).reshape(NEW, 2)
        steps = rewarded(reward, live[number], over[number])
        return (
            jax.tree.map(lambda leaf: leaf[:, :, 0], steps) if kind.get("unit") == "team" else steps
        )

    replay = reference = empty(**kind)
    for number in range(4):
        after = add_jit(replay, steps_of(number))
        replay = undo_jit(after, replay, bad[number])
        if not bad[number]:
            reference = add_jit(reference, steps_of(number))
        for mine, theirs in zip(held_rows(replay), held_rows(reference), strict=True):
            jax.tree.map(np.testing.assert_array_equal, mine, theirs)
    jax.tree.map(np.testing.assert_array_equal, replay.pending, reference.pending)
    np.testing.assert_array_equal(replay.size, reference.size)


def test_undo_does_not_read_the_rows_before():
    replay = jax.eval_shape(lambda: empty(1000))
    text = str(jax.make_jaxpr(lambda after, before, bad: after.undo(before, bad))(
        replay, replay, jax.ShapeDtypeStruct((), bool)
    ))  # fmt: skip
    assert "select_n" in text
    assert not [line for line in text.splitlines() if "1004" in line and "select_n" in line]


@pytest.mark.slow
def test_take_returns_transitions_of_each_block():
    number = np.array([[0, 3], [1, 4], [2, 5]])
    replay = empty(3, 3).add(rewarded(number, np.ones((3, 2), bool)), GAMMA)
    rows = replay.take(jnp.array([[2, 2], [0, 1]]))
    np.testing.assert_array_equal(rows.reward, [2, 2, 3, 4])
    np.testing.assert_array_equal(rows.action, np.outer([-2, -2, -3, -4], [1, 1]))


def test_draws_are_uniform_over_the_stored_rows_of_each_block():
    live = np.ones((NEW, 2), bool)
    live[1:, 1] = False  # 4 rows in the first block, 1 in the second
    replay = empty().add(rewarded(np.zeros((NEW, 2)), live), GAMMA)
    index = replay.draw(block_keys(jax.random.key(0), 2), (50, 40))
    assert index.shape == (50, 2, 40)
    counts = np.bincount(np.ravel(index[:, 0]), minlength=4)
    np.testing.assert_allclose(counts / 2000, [0.25] * 4, atol=0.04)
    np.testing.assert_array_equal(index[:, 1], 0)


def test_a_cut_ends_the_sums_of_a_block():
    replay = empty(n_step=3)
    ones = np.ones((NEW, 2), bool)
    replay = replay.add(rewarded(np.ones((NEW, 2)), ones), GAMMA)
    replay = replay.cut(jnp.array([False, True]))
    replay = replay.add(rewarded(np.full((NEW, 2), 100.0), ones), GAMMA)
    uncut, cut = (rows.reward[2:4] for rows in held_rows(replay))
    # steps 2 and 3, whose sums were incomplete; 5 of 6 rows fit, so that row 5 is in place 0
    np.testing.assert_array_equal(uncut, [1 + 0.5 + 25, 1 + 50 + 25])
    np.testing.assert_array_equal(cut, [1 + 0.5, 1])
    assert empty().cut(jnp.array([True, True])).pending is None


@pytest.mark.slow
def test_sequences_restart_after_a_cut():
    replay, ones = empty(8, 3, unit="sequence", length=2), np.ones((3, 2), bool)
    replay = replay.add(rewarded([[0, 0], [1, 1], [2, 2]], ones), GAMMA)
    replay = replay.cut(jnp.array([False, True]))
    replay = replay.add(rewarded([[3, 3], [4, 4], [5, 5]], ones), GAMMA)
    uncut, cut = held_rows(replay)
    np.testing.assert_array_equal(uncut.reward, [[0, 1], [2, 3], [4, 5]])
    assert uncut.valid.all()
    np.testing.assert_array_equal(cut.reward, [[0, 1], [2, 3], [3, 4]])
    np.testing.assert_array_equal(cut.valid, [[1, 1], [1, 0], [1, 1]])


@pytest.mark.slow
def test_several_rollouts_of_one_agent_equal_one_long_rollout():
    """The places where rollouts meet do not matter."""
    reward = np.arange(12.0).reshape(12, 1) * [[1, 2]]
    live, over = np.ones((12, 2), bool), np.zeros((12, 2), bool)
    over[[4, 9], :] = True
    for kind in KINDS:
        if kind.get("unit") == "team":
            continue
        whole = empty(40, 12, **kind).add(rewarded(reward, live, over), GAMMA)
        parts = empty(40, 3, **kind)
        for a, b in itertools.pairwise(range(0, 13, 3)):
            parts = parts.add(rewarded(reward[a:b], live[a:b], over[a:b]), GAMMA)
        np.testing.assert_array_equal(whole.size, parts.size)
        for mine, theirs in zip(held_rows(whole), held_rows(parts), strict=True):
            jax.tree.map(np.testing.assert_array_equal, mine, theirs)
