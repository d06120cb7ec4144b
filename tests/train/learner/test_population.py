"""A population of seeds and learning rates in one program equals its members' own runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import tiny_config, tiny_policy

from wdjax.train import make_learner, with_hypers

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compile")]

RATES = [1e-3, 1e-2, 3e-2]
GAME = {"constant": 1.0, "by_match": 0.5, "episode_length": 4, "time_limit": True}


@pytest.fixture(scope="module")
def learner():
    return make_learner(tiny_config("probe_signal", {"agent": tiny_policy("PPO")}, env_params=GAME))


def three_updates(update, state):
    """Return (the states after 0, 1, 2 and 3 updates, the metrics of each update)."""
    states, rows = [state], []
    for _ in range(3):
        state, metrics = update(state)
        states.append(state)
        rows.append(metrics)
    return states, rows


@pytest.fixture(scope="module")
def solo(learner):
    """Return `three_updates` for each learning rate, each with another seed."""
    states = [learner.init(jax.random.key(seed)) for seed in range(len(RATES))]
    states = [
        with_hypers(state, **{"agent.learning_rate": rate})
        for state, rate in zip(states, RATES, strict=True)
    ]
    return [three_updates(learner.update, state) for state in states]


@pytest.fixture(scope="module")
def population(learner):
    """Return the same with all members in one program."""
    states = jax.vmap(learner.init)(jnp.stack([jax.random.key(seed) for seed in range(len(RATES))]))
    states = with_hypers(
        states, **{"agent.learning_rate": jnp.array(RATES), "agent.entropy_coefficient": 0.0}
    )
    return three_updates(jax.jit(jax.vmap(learner.update)), states)


def member(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


def assert_close(a, b, rtol):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=rtol, atol=rtol), a, b)


@pytest.mark.parametrize("i", range(len(RATES)))
def test_member_draws_the_numbers_of_its_solo_run(solo, population, i):
    for alone, together in zip(solo[i][0], population[0], strict=True):
        mine = member(together, i)
        np.testing.assert_array_equal(jax.random.key_data(mine.key), jax.random.key_data(alone.key))
        # returns depend on the actions: one that differs shows
        jax.tree.map(np.testing.assert_array_equal, (mine.replicas, mine.obs, mine.live),
                     (alone.replicas, alone.obs, alone.live))  # fmt: skip


@pytest.mark.parametrize("i", range(len(RATES)))
def test_member_learns_what_its_solo_run_learns(solo, population, i):
    mine, alone = member(population[0][3], i).policies["agent"], solo[i][0][3].policies["agent"]
    assert_close(mine.params, alone.params, rtol=1e-5)
    for row, rows in zip(solo[i][1], population[1], strict=True):
        assert row["episodes"] == rows["episodes"][i]
        assert row["agent/episode_return"] == rows["agent/episode_return"][i]
        assert rows["agent/learning_rate"][i] == jnp.float32(RATES[i])
        assert_close(member(rows, i), row, rtol=1e-3)


def test_larger_learning_rates_move_members_further(population):
    first, last = (
        population[0][k].policies["agent"].params["value_head"]["kernel"] for k in (0, 3)
    )
    moved = jnp.mean(jnp.abs(last - first), axis=(1, 2))
    assert moved[0] < moved[1] < moved[2]
