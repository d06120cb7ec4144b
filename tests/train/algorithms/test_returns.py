"""Advantages and returns: numbers by hand, and a double loop over the equation."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wdjax.train import PPO, gae
from wdjax.train.fast.cpu import Cpu
from wdjax.train.kernels.decayed import decayed_kernel
from wdjax.train.learning import Rows, experience, next_value

T, N = 6, 3


def advantages_by_loop(reward, value, next_value, terminated, over, gamma, gae_lambda):
    """A_t = sum_k (gamma lambda)^k delta_{t+k}, up to the end of the episode, in float64."""
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
def test_gae_is_the_sum_of_its_definition(
    reward, value, next_value, terminated, over, gamma, gae_lambda
):
    inputs = (
        reward,
        value,
        next_value,
        terminated,
        over,
        np.float32(gamma),
        np.float32(gae_lambda),
    )
    advantage, returned = jitted_gae(*inputs)
    exact = advantages_by_loop(
        *(part.astype(np.float64) for part in inputs[:3]), *inputs[3:5], gamma, gae_lambda
    )
    np.testing.assert_allclose(advantage, exact, atol=1e-4)
    np.testing.assert_allclose(returned, exact + value, atol=1e-4)


def gae_of_column(reward, value, next_value, terminated=None, over=None, gamma=0.5, gae_lambda=0.5):
    """Return the advantages of one agent from lists."""
    column = lambda numbers: np.array(numbers, np.float32)[:, None]  # noqa: E731
    nothing = np.zeros((len(reward), 1), bool)
    terminated = nothing if terminated is None else column(terminated).astype(bool)
    over = nothing if over is None else column(over).astype(bool)
    return jitted_gae(
        column(reward), column(value), column(next_value), terminated, over, gamma, gae_lambda
    )[0][:, 0]


@pytest.mark.parametrize("length", [1, 2, 7, 15, 16, 17, 31, 33, 250])
def test_gae_of_any_length_by_lax_scan_and_by_an_engine(length):
    rng = np.random.default_rng(length)
    reward, value, next_value = rng.normal(size=(3, length, N)).astype(np.float32)
    terminated, over = rng.random((2, length, N)) < 0.1
    advantage, _ = jitted_gae(reward, value, next_value, terminated, over, 0.9, 0.8)
    exact = advantages_by_loop(reward, value, next_value, terminated, over, 0.9, 0.8)
    assert advantage.shape == exact.shape
    np.testing.assert_allclose(advantage, exact, rtol=1e-5, atol=1e-5)
    inputs = (reward, value, next_value, terminated, over, 0.9, 0.8)
    by_engine = functools.partial(gae, sums=Cpu().decayed_sums)
    np.testing.assert_array_equal(jax.jit(by_engine)(*inputs)[0], advantage)
    traced = jax.make_jaxpr(by_engine)(*inputs)
    [loop] = [eqn.params for eqn in traced.eqns if eqn.primitive.name == "scan"]
    assert loop["length"] % loop["unroll"] == 0
    assert loop["length"] // loop["unroll"] >= 2


@pytest.mark.parametrize("shape", [(1, 1), (15, 33), (16, 3, 2), (17, 32), (33, 5, 1)])
def test_a_kernel_computes_the_sums_of_plain_xla(shape):
    term_t, decay_t = np.random.default_rng(0).random((2, *shape), np.float32)
    expected = jax.jit(Cpu().decayed_sums)(term_t, decay_t)
    kernel = functools.partial(decayed_kernel, interpret=True)
    found = jax.jit(kernel)(term_t, decay_t)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    members = jax.jit(jax.vmap(kernel))(np.stack([term_t, 2 * term_t]), np.stack([decay_t] * 2))
    np.testing.assert_allclose(members, [expected, 2 * expected], rtol=1e-6)


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
    # delta = 1 + 0.5 * 4 - 2, 3 + 0.5 * 6 - 4, 5 + 0.5 * 8 - 6 = 1, 2, 3; gamma lambda = 0.25
    advantage = gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8])
    np.testing.assert_allclose(advantage, [1 + 0.25 * 2.75, 2 + 0.25 * 3, 3])


def test_termination_ends_the_sum_without_bootstrapping():
    # the second delta loses its 0.5 * 6, and the first sum ends with it
    advantage = gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8], terminated=[0, 1, 0], over=[0, 1, 0])
    np.testing.assert_allclose(advantage, [1 + 0.25 * -1, -1, 3])


def test_truncation_ends_the_sum_and_bootstraps():
    advantage = gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8], over=[0, 1, 0])
    np.testing.assert_allclose(advantage, [1 + 0.25 * 2, 2, 3])


def test_steps_after_the_termination_of_an_agent_have_no_effect():
    advantage = gae_of_column(
        [1, 3, 100], [2, 4, 100], [4, 6, 100], terminated=[0, 1, 1], over=[0, 0, 1]
    )
    np.testing.assert_allclose(advantage[:2], [1 + 0.25 * -1, -1])


def test_lambda_0_is_the_one_step_error():
    np.testing.assert_allclose(
        gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8], gae_lambda=0.0), [1, 2, 3]
    )


def test_lambda_1_is_the_discounted_return_minus_the_value():
    advantage = gae_of_column([1, 3, 5], [2, 4, 6], [4, 6, 8], gae_lambda=1.0)
    last = 5 + 0.5 * 8
    np.testing.assert_allclose(
        advantage + np.array([2, 4, 6]), [1 + 0.5 * (3 + 0.5 * last), 3 + 0.5 * last, last]
    )


def test_the_end_of_an_episode_applies_to_all_agents_of_a_replica():
    rows = jnp.ones((2, 1, 3))
    none, over = jnp.zeros(rows.shape, bool), jnp.array([[[True]], [[False]]])
    advantage, _ = jitted_gae(rows, rows, rows, none, over, 1.0, 1.0)
    np.testing.assert_array_equal(advantage, rows)


# --- the value after each transition ---


class GivenValue(PPO):
    """Observations are their own values."""

    def value(self, policy, state, obs, carry):
        return obs


def experienced(rows, last_obs, over):
    """Return (data, next values) of one policy in a rollout."""
    policy = SimpleNamespace(name="agent", algorithm=GivenValue())
    rollout = SimpleNamespace(
        rows={"agent": rows}, last_obs={"agent": last_obs}, last_carry={"agent": None}, over=over
    )
    data = experience(policy, None, rollout, jnp.float32(0.5), jnp.float32(0.5))
    return data, next_value(policy, None, rollout, data)


VALUE = jnp.array([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])
FINAL = jnp.array([[[0.0, 0.0]], [[-3.0, -4.0]], [[0.0, 0.0]]])


def rows_of(**fields):
    zeros = jnp.zeros_like(VALUE)
    names = ("obs", "action", "reward")
    flags = {"terminated": zeros > 0, "live": zeros == 0}
    return Rows(**{**dict.fromkeys(names, zeros), **flags, "value": VALUE, **fields})


@pytest.mark.parametrize("truncates", [True, False])
def test_next_value_is_of_the_next_observation_or_of_the_final_one(truncates):
    over = jnp.array([[False], [True], [False]])
    rows = rows_of(final_value=FINAL if truncates else None)
    _, after = experienced(rows, jnp.array([[7.0, 8.0]]), over)
    middle = [-3, -4] if truncates else [5, 6]
    np.testing.assert_array_equal(after[:, 0], [[3, 4], middle, [7, 8]])


def test_final_values_are_evaluated_after_the_rollout_where_agents_are_truncated():
    over = jnp.array([[False], [True], [False]])
    truncated = jnp.zeros(VALUE.shape, bool).at[1, 0, 0].set(True)
    rows = rows_of(truncated=truncated, next_obs=FINAL - 10)
    data, after = experienced(rows, jnp.array([[7.0, 8.0]]), over)
    np.testing.assert_array_equal(data.rows.final_value[:, 0], [[0, 0], [-13, 0], [0, 0]])
    assert data.rows.next_obs is None
    np.testing.assert_array_equal(after[:, 0], [[3, 4], [-13, 0], [7, 8]])


def test_valid_transitions_are_those_of_active_agents_that_decide():
    live = jnp.array([[[True, False]]])
    decides = jnp.array([[[False, True]]])
    rows = rows_of(live=live)
    assert experienced(rows, VALUE[0], jnp.zeros((3, 1), bool))[0].valid is live
    rows = rows_of(live=live, decides=decides)
    valid = experienced(rows, VALUE[0], jnp.zeros((3, 1), bool))[0].valid
    np.testing.assert_array_equal(valid, [[[False, False]]])
