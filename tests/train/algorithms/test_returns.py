"""Advantages and returns: numbers by hand, and a plain double loop over the formula of the contract."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wdjax.train import gae
from wdjax.train.algorithms.returns import shifted as next_values
from wdjax.train.fast.plain import Plain
from wdjax.train.state.rows import Rows

T, N = 6, 3


def advantages_by_loop(reward, value, next_value, terminated, over, gamma, gae_lambda):
    """A_t = sum_k (gamma lambda)^k delta_{t+k}, up to the first row that terminates or ends the episode: float64."""
    delta = reward + gamma * np.where(terminated, 0, next_value) - value
    advantage = np.zeros_like(delta)
    for t in range(len(delta)):
        for n in range(delta.shape[1]):
            for k in range(len(delta) - t):
                advantage[t, n] += (gamma * gae_lambda) ** k * delta[t + k, n]
                if terminated[t + k, n] or over[t + k, n]:
                    break
    return advantage


jitted_gae = jax.jit(gae)
numbers = arrays(np.float32, (T, N), elements=st.floats(-10, 10, width=32))
flags = arrays(bool, (T, N))
fraction = st.floats(0, 1, width=32) | st.sampled_from([0.0, 1.0])


@given(numbers, numbers, numbers, flags, flags, fraction, fraction)
def test_gae_is_the_sum_of_its_definition(reward, value, next_value, terminated, over, gamma, gae_lambda):
    inputs = (reward, value, next_value, terminated, over, np.float32(gamma), np.float32(gae_lambda))
    advantage, returned = jitted_gae(*inputs)
    exact = advantages_by_loop(*(part.astype(np.float64) for part in inputs[:3]), *inputs[3:5], gamma, gae_lambda)
    np.testing.assert_allclose(advantage, exact, atol=1e-4)
    np.testing.assert_allclose(returned, exact + value, atol=1e-4)


def gae_of_column(reward, value, next_value, terminated=None, over=None, gamma=0.5, gae_lambda=0.5):
    """gae of one agent, from lists. Returns its advantages."""
    column = lambda numbers: np.array(numbers, np.float32)[:, None]  # noqa: E731
    nothing = np.zeros((len(reward), 1), bool)
    terminated = nothing if terminated is None else column(terminated).astype(bool)
    over = nothing if over is None else column(over).astype(bool)
    return jitted_gae(column(reward), column(value), column(next_value), terminated, over, gamma, gae_lambda)[0][:, 0]


@pytest.mark.parametrize("length", [1, 2, 7, 15, 16, 17, 31, 33, 250])
def test_gae_of_any_length_takes_whole_turns(length):
    rng = np.random.default_rng(length)
    reward, value, next_value = rng.normal(size=(3, length, N)).astype(np.float32)
    terminated, over = rng.random((2, length, N)) < 0.1
    advantage, _ = jitted_gae(reward, value, next_value, terminated, over, 0.9, 0.8)
    exact = advantages_by_loop(reward, value, next_value, terminated, over, 0.9, 0.8)
    assert advantage.shape == exact.shape
    np.testing.assert_allclose(advantage, exact, rtol=1e-5, atol=1e-5)
    turns = functools.partial(gae, scan=Plain().scan)
    np.testing.assert_array_equal(jax.jit(turns)(reward, value, next_value, terminated, over, 0.9, 0.8)[0], advantage)
    traced = jax.make_jaxpr(turns)(reward, value, next_value, terminated, over, 0.9, 0.8)
    [loop] = [eqn.params for eqn in traced.eqns if eqn.primitive.name == "scan"]
    assert loop["length"] % loop["unroll"] == 0
    assert loop["length"] // loop["unroll"] >= 2


def test_gae_keeps_double_precision():
    rng = np.random.default_rng(0)
    reward, value, next_value = rng.normal(size=(3, 7, N))
    never = np.zeros((7, N), bool)
    with jax.enable_x64(True):
        advantage, _ = jitted_gae(reward, value, next_value, never, never, 0.9, 0.8)
    exact = advantages_by_loop(reward, value, next_value, never, never, 0.9, 0.8)
    assert advantage.dtype == jnp.float64
    np.testing.assert_allclose(advantage, exact, rtol=1e-5)


def test_gae_by_hand():
    # delta = 1 + 0.5 * 4 - 2, 3 + 0.5 * 6 - 4, 5 + 0.5 * 8 - 6 = 1, 2, 3; each carries 0.25 of the next
    advantage = gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8])
    np.testing.assert_allclose(advantage, [1 + 0.25 * 2.75, 2 + 0.25 * 3, 3])


def test_termination_in_the_middle_cuts_and_is_worth_nothing():
    # the second delta loses its 0.5 * 6; the first goes no further than the second
    advantage = gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8], terminated=[0, 1, 0], over=[0, 1, 0])
    np.testing.assert_allclose(advantage, [1 + 0.25 * -1, -1, 3])


def test_truncation_cuts_but_bootstraps():
    advantage = gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8], over=[0, 1, 0])
    np.testing.assert_allclose(advantage, [1 + 0.25 * 2, 2, 3])


def test_agent_that_terminates_before_its_episode_is_over_gets_nothing_from_later_rows():
    advantage = gae_of_column([1, 3, 100], [2, 4, 100], [4, 6, 100], terminated=[0, 1, 1], over=[0, 0, 1])
    np.testing.assert_allclose(advantage[:2], [1 + 0.25 * -1, -1])


def test_lambda_0_is_the_one_step_error():
    np.testing.assert_allclose(gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8], gae_lambda=0.0), [1, 2, 3])


def test_lambda_1_is_the_discounted_return_less_the_value():
    advantage = gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8], gae_lambda=1.0)
    last = 5 + 0.5 * 8
    np.testing.assert_allclose(advantage + np.array([2, 4, 6]), [1 + 0.5 * (3 + 0.5 * last), 3 + 0.5 * last, last])


def test_end_of_a_replica_holds_for_all_its_agents():
    rows = jnp.ones((2, 1, 3))
    none, over = jnp.zeros(rows.shape, bool), jnp.array([[[True]], [[False]]])
    advantage, _ = jitted_gae(rows, rows, rows, none, over, 1.0, 1.0)
    np.testing.assert_array_equal(advantage, rows)


# --- the value after each row ---


def rows_of(value, final_value):
    blank = jnp.zeros_like(value)
    return Rows(obs=blank, action=blank, log_prob=blank, value=value, reward=blank, terminated=blank, live=blank,
                final_value=final_value)  # fmt: skip


@pytest.mark.parametrize("truncates", [True, False])
def test_next_value_is_of_the_next_row_or_of_the_final_observation(truncates):
    value = jnp.array([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])
    final = jnp.array([[[0.0, 0.0]], [[-3.0, -4.0]], [[0.0, 0.0]]])
    last, over = jnp.array([[7.0, 8.0]]), jnp.array([[False], [True], [False]])
    rows = rows_of(value, final if truncates else None)
    after = next_values(SimpleNamespace(rows=rows, value=rows.value, ends=rows.ends(over)), last)
    middle = [-3, -4] if truncates else [5, 6]
    np.testing.assert_array_equal(after[:, 0], [[3, 4], middle, [7, 8]])
