"""Replay buffer: n-step transitions against a loop over rollouts, and the ring against a list."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wdjax.train.algorithms.ddpg.replay import (
    Ring,
    Steps,
    append,
    by_block,
    empty_replay,
    n_step_transitions,
    remember,
    take,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

T, ROLLOUTS, N, AGENTS, BLOCKS = 3, 3, 4, 2, 2
ALL = (T * ROLLOUTS, N, AGENTS)
GAMMA = 0.5
ONE_STEP = Steps(
    obs=jax.ShapeDtypeStruct((1,), jnp.float32),
    action=jax.ShapeDtypeStruct((2,), jnp.float32),
    reward=jax.ShapeDtypeStruct((), jnp.float32),
    next_obs=jax.ShapeDtypeStruct((1,), jnp.float32),
    terminated=jax.ShapeDtypeStruct((), bool),
    over=jax.ShapeDtypeStruct((), bool),
    live=jax.ShapeDtypeStruct((), bool),
)


def numbered_steps(reward, terminated, over, live):
    """Return steps [T, N, n] with observations 100 t + 10 i + j, and 0.5 more after the step."""
    time, replica, agent = np.indices(reward.shape)
    place = (100 * time + 10 * replica + agent)[..., None].astype(np.float32)
    return Steps(
        place, np.concatenate([place, -place], -1), reward, place + 0.5, terminated, over, live
    )


def transitions_by_loop(steps, n_step, gamma):
    """Return (obs, reward, next_obs, discount) of all complete n-step transitions of each block."""
    blocks = [[] for _ in range(BLOCKS)]
    for t, i, j in np.ndindex(*steps.reward.shape):
        if not steps.live[t, i, j] or t + n_step > len(steps.reward):
            continue
        total = 0.0
        for k in range(n_step):
            row = (t + k, i, j)
            total += gamma**k * steps.reward[row]
            if steps.terminated[row] or steps.over[row] or k == n_step - 1:
                discount = 0.0 if steps.terminated[row] else gamma ** (k + 1)
                break
        blocks[i // (N // BLOCKS)].append(
            [steps.obs[t, i, j, 0], total, steps.next_obs[row][0], discount]
        )
    return [np.array(rows).reshape(-1, 4) for rows in blocks]


@functools.partial(jax.jit, static_argnums=2)
def remember_all(steps, gamma, n_step):
    """Store the steps, one rollout after the other."""
    replay = empty_replay(ONE_STEP, N, AGENTS, BLOCKS, T * ROLLOUTS * N * AGENTS, n_step, T)
    for first in range(0, T * ROLLOUTS, T):
        part = jax.tree.map(lambda leaf, first=first: leaf[first : first + T], steps)
        replay = remember(replay, part, gamma, n_step)
    return replay.ring


flags = arrays(bool, ALL, elements=st.sampled_from([False, False, True]))


# 5 steps span three rollouts of 3 steps
@pytest.mark.parametrize("n_step", [1, 2, 5])
@given(
    reward=arrays(np.float32, ALL, elements=st.integers(-9, 9)),
    terminated=flags,
    over=flags,
    dead=flags,
)
def test_transitions_equal_a_loop(n_step, reward, terminated, over, dead):
    steps = numbered_steps(reward, terminated, over, ~dead)
    ring = jax.device_get(remember_all(steps, GAMMA, n_step))
    for block, expected in enumerate(transitions_by_loop(steps, n_step, GAMMA)):
        rows = jax.tree.map(lambda leaf, block=block: leaf[block, : ring.size[block]], ring.rows)
        assert ring.size[block] == len(expected)
        got = np.stack([rows.obs[:, 0], rows.reward, rows.next_obs[:, 0], rows.discount], axis=1)
        # powers of 1/2 and small integers are exact
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(rows.action, np.concatenate([rows.obs, -rows.obs], axis=1))


def column(values, dtype=np.float32):
    return np.array(values, dtype)[:, None, None]


def three_steps(reward, terminated, over):
    """Return (reward, next_obs, discount) of the 3-step transitions of one agent."""
    flags = (column(values, bool) for values in (terminated, over))
    steps = numbered_steps(column(reward), *flags, column([1] * len(reward), bool))
    rows, _ = n_step_transitions(steps, jnp.float32(0.5), 3)
    return rows.reward.ravel(), rows.next_obs.ravel(), rows.discount.ravel()


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


def test_a_block_contains_its_replicas_in_order_of_time():
    place = numbered_steps(*[np.zeros((3, 4, 2), np.float32)] * 4).obs
    rows = by_block(jnp.array(place), 2)[..., 0]
    np.testing.assert_array_equal(
        rows[0], [100 * t + 10 * i + j for t in range(3) for i in (0, 1) for j in (0, 1)]
    )
    np.testing.assert_array_equal(rows[1], rows[0] + 20)


# --- the ring ---

CAPACITY, NEW = 5, 4


def empty_ring(capacity=CAPACITY, room=NEW):
    zeros = jnp.zeros(2, jnp.int32)
    rows = {
        "x": jnp.zeros((2, capacity + room)),
        "y": jnp.zeros((2, capacity + room, 1), jnp.int32),
    }
    return Ring(rows, zeros, zeros, zeros, capacity)


def held_rows(ring):
    """Return the stored transitions of each block as NumPy arrays."""
    numbers = np.broadcast_to(np.arange(ring.capacity), (2, ring.capacity))
    ring, rows = jax.device_get((ring, take_jit(ring, numbers)))
    rows = jax.tree.map(lambda leaf: leaf.reshape(2, ring.capacity, *leaf.shape[1:]), rows)
    return [
        jax.tree.map(lambda leaf, block=block: leaf[block, : ring.size[block]], rows)
        for block in range(2)
    ]


append_jit, take_jit = jax.jit(append), jax.jit(take)


@given(live=arrays(bool, (6, 2, NEW)))
def test_the_ring_holds_the_newest_valid_transitions(live):
    ring, seen = empty_ring(), [[], []]
    for k, alive in enumerate(live):
        number = 1.0 + k * 2 * NEW + np.arange(2 * NEW, dtype=np.float32).reshape(2, NEW)
        ring = jax.device_get(append_jit(ring, {"x": number, "y": -number[..., None]}, alive))
        held = held_rows(ring)
        for block in range(2):
            seen[block] += list(number[block][alive[block]])
            newest = seen[block][-CAPACITY:]
            assert ring.size[block] == len(newest)
            assert ring.position[block] == len(seen[block]) % CAPACITY
            # transition i is at i % 5
            rolled = np.roll(newest, len(seen[block]) if len(newest) == CAPACITY else 0)
            np.testing.assert_array_equal(held[block]["x"], rolled)
            np.testing.assert_array_equal(held[block]["y"][:, 0], -rolled.astype(np.int32))


def test_the_ring_keeps_the_last_of_more_transitions_than_its_capacity():
    number = jnp.arange(1.0, 15.0).reshape(2, 7)
    live = jnp.ones((2, 7), bool).at[0, 6].set(False)
    ring = append(empty_ring(3, 3), {"x": number, "y": number[..., None]}, live)
    np.testing.assert_array_equal(
        [np.sort(rows["x"]) for rows in held_rows(ring)], [[4, 5, 6], [12, 13, 14]]
    )
    np.testing.assert_array_equal(ring.size, [3, 3])
    np.testing.assert_array_equal(ring.position, [0, 1])


@given(live=arrays(bool, (3, 2, NEW)), later=arrays(bool, (2, NEW)))
def test_restoring_the_positions_of_a_ring_undoes_an_append(live, later):
    ring = empty_ring()
    for k, alive in enumerate([*live, later]):
        before, number = (
            ring,
            1.0 + k * NEW + np.arange(NEW, dtype=np.float32) + np.array([[0.0], [100.0]]),
        )
        ring = append_jit(ring, {"x": number, "y": -number[..., None]}, alive)
    back = before.replace(rows=ring.rows)
    for mine, theirs in zip(held_rows(back), held_rows(before), strict=True):
        jax.tree.map(np.testing.assert_array_equal, mine, theirs)


def test_take_returns_transitions_of_each_block():
    zeros = jnp.zeros(2, jnp.int32)
    rows = {"x": jnp.arange(6.0).reshape(2, 3), "y": jnp.arange(12.0).reshape(2, 3, 2)}
    rows = take(Ring(rows, zeros, zeros, zeros + 3, capacity=3), jnp.array([[2, 2], [0, 1]]))
    np.testing.assert_array_equal(rows["x"], [2, 2, 3, 4])
    np.testing.assert_array_equal(rows["y"], [[4, 5], [4, 5], [6, 7], [8, 9]])
