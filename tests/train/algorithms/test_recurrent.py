"""Recurrent policies: a task that requires memory, and resets of the recurrent state."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from probes import NETWORK, change_policy, tiny_config, tiny_policy

from wdjax import Box
from wdjax.train import PPO, NetworkConfig, evaluate, make_learner
from wdjax.train.learning import ActorCritic, Categorical
from wdjax.train.networks.actor_critic import empty_carry

pytestmark = pytest.mark.usefixtures("quick_compile")

UPDATES = 150
# episodes of 4 steps cross rollouts
SIZES = {"num_envs": 16, "num_blocks": 4, "rollout_length": 6}
RATE = ((0, 0.02), (UPDATES * 16 * 6, 0.0))
LEARNING = {"learning_rate": RATE, "gamma": 0.9, "entropy_coefficient": 0.01}


def recall(recurrent_size, algorithm="PPO", memory="gru"):
    """Train on Recall. Return (learner, state, mean return of the last 20 updates in [-1, 1])."""
    network = dataclasses.replace(NETWORK, recurrent_size=recurrent_size, memory=memory)
    policy = tiny_policy(algorithm, network=network, **LEARNING)
    learner = make_learner(tiny_config("probe_recall", {"agent": policy}, **SIZES))
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=UPDATES)
    return learner, state, jnp.mean(metrics["agent/episode_return"][-20:])


@pytest.fixture(scope="module")
def remembering():
    return recall(8)


@pytest.mark.slow
def test_a_recurrent_policy_solves_a_task_that_requires_memory(remembering):
    assert remembering[2] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "memory"), [("PPO", "lstm"), ("A2C", "mingru")])
def test_every_memory_solves_it(algorithm, memory):
    assert recall(8, algorithm, memory)[2] > 0.9


@pytest.mark.slow
def test_a_feed_forward_policy_does_not_solve_it():
    assert abs(recall(0)[2]) < 0.3


@pytest.mark.slow
def test_evaluations_carry_the_recurrent_state(remembering):
    learner, state, _ = remembering
    assert (
        evaluate(learner, state, jax.random.key(1), 64, True).episode_return["agent"].mean() > 0.95
    )


class StartsElsewhere(PPO):
    """PPO with an initial recurrent state for each agent."""

    def init_carry(self, policy, num_envs):
        agents = jnp.arange(1.0, 1 + policy.assignment.num_agents)
        spread = lambda zeros: zeros + agents[None, :, None]  # noqa: E731
        return jax.tree.map(spread, super().init_carry(policy, num_envs))


@pytest.mark.slow
def test_every_episode_starts_from_init_carry():
    network = dataclasses.replace(NETWORK, recurrent_size=3)
    policy = tiny_policy("PPO", network=network, epochs=1, minibatches=1)
    policy = change_policy(policy, algorithm=f"{__name__}:StartsElsewhere")
    # two episodes of 4 steps
    learner = make_learner(tiny_config("probe_leaver", {"player": policy}, rollout_length=8))
    state, metrics = learner.update(learner.init(jax.random.key(0)))
    expected = jnp.broadcast_to(jnp.array([1.0, 2.0])[None, :, None], (8, 2, 3))
    np.testing.assert_array_equal(state.memory["player"].carry[0], expected)
    assert metrics["player/approx_kl"] < 1e-9  # unrolling in the loss equals acting


# --- the network ---


def make(shared_trunk=True, **changes):
    config = NetworkConfig(
        hidden_sizes=(4,), activation="tanh", recurrent_size=3, shared_trunk=shared_trunk, **changes
    )
    network = ActorCritic(Box(shape=(2,)), Categorical((2,), scalar=True), config, rngs=nnx.Rngs(0))
    return network, config


act, unroll = nnx.jit(ActorCritic.__call__), nnx.jit(ActorCritic.unroll)


@functools.cache
def unrolled(shared_trunk):
    """Return (outputs of unroll, outputs of single steps, network, observations).

    5 steps of 2 sequences; the second one restarts twice.
    """
    network, config = make(shared_trunk)
    obs = jax.random.normal(jax.random.key(1), (5, 2, 2))
    carry = jax.tree.map(lambda leaf: leaf + 0.5, empty_carry(network.trunk.cell, config, (2,)))
    restart = jnp.zeros((5, 2), bool).at[2, 1].set(True).at[3, 1].set(True)
    together, rows, now = unroll(network, obs, carry, restart), [], carry
    for t in range(5):
        now = jax.tree.map(lambda leaf, t=t: jnp.where(restart[t][:, None], 0.0, leaf), now)
        *row, now = act(network, obs[t], now)
        rows.append(row)
    return together, [jnp.stack(part) for part in zip(*rows, strict=True)], network, obs


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_unroll_equals_single_steps(shared_trunk):
    together, alone, _, _ = unrolled(shared_trunk)
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_a_step_depends_only_on_the_past_of_its_episode(shared_trunk):
    _, _, network, obs = unrolled(shared_trunk)
    carry = empty_carry(network.trunk.cell, make(shared_trunk)[1], (2,))
    restart = jnp.zeros((5, 2), bool).at[3, 1].set(True)
    before = unroll(network, obs, carry, restart)
    after = unroll(network, obs.at[1].add(1.0), carry, restart)
    for ours, theirs in zip(before, after, strict=True):
        changed = np.any(np.reshape(ours != theirs, (5, 2, -1)), axis=-1)
        np.testing.assert_array_equal(
            changed, [[False] * 2, [True] * 2, [True] * 2, [True, False], [True, False]]
        )


def test_empty_carry_has_one_part_for_each_trunk():
    shared, separate = (
        empty_carry(network.trunk.cell, config, (4, 2))
        for network, config in map(make, (True, False))
    )
    assert shared[0].shape == separate[0].shape == separate[1].shape == (4, 2, 3)
    assert shared[1] is None
    assert empty_carry(None, NetworkConfig(), (4,)) is None


@pytest.mark.parametrize("initializer", ["orthogonal", "xavier"])
def test_initializer_of_the_cell(initializer):
    cell = make(initializer=initializer)[0].trunk.cell
    inwards, own = np.asarray(cell.dense_i.kernel[...]), np.asarray(cell.dense_h.kernel[...])
    np.testing.assert_allclose(own @ own.T, np.eye(3), atol=1e-5)
    if initializer == "orthogonal":
        np.testing.assert_allclose(inwards @ inwards.T, np.eye(4), atol=1e-5)
    else:
        assert np.abs(inwards).max() <= np.sqrt(6 / (4 + 9))
    assert np.all(cell.dense_i.bias[...] == 0)
