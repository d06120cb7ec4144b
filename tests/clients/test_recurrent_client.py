"""A custom network with memory: recognized by its `unroll`, without `network.recurrent_size`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from wdjax.train import PPO, load_config, make_learner
from wdjax.train.learning import Batch, Metric, experience, largest

pytestmark = pytest.mark.usefixtures("quick_compile")

SIZE = 8


class Leaky(nnx.Module):
    """Heads on a memory that decays: m' = 0.5 m + tanh(W obs)."""

    def __init__(self, size, num_outputs, rngs):
        self.enter = nnx.Linear(size, SIZE, rngs=rngs)
        self.policy = nnx.Linear(SIZE, num_outputs, rngs=rngs)
        self.value = nnx.Linear(SIZE, 1, rngs=rngs)

    def __call__(self, obs, carry):
        carry = 0.5 * carry + jnp.tanh(self.enter(obs))
        return self.policy(carry), self.value(carry)[..., 0], carry


class Unrolled(Leaky):
    def unroll(self, obs, carry, restart):
        def step(carry, row):
            obs, restart = row
            outputs, value, carry = self(obs, jnp.where(restart[:, None], 0.0, carry))
            return carry, (outputs, value)

        return jax.lax.scan(step, carry, (obs, restart))[1]


class Forgetful(PPO):
    """Its network has `unroll`, but it has no `init_carry`."""

    network = Unrolled

    def make_network(self, context, config, assignment, rngs):
        distribution = self.make_distribution(config, assignment)
        (size,) = assignment.observation_space.shape
        return self.network(size, distribution.num_outputs, rngs)


class Recurrent(Forgetful):
    def init_carry(self, policy, num_envs):
        return jnp.zeros((num_envs, policy.assignment.num_agents, SIZE))


class NoUnroll(Recurrent):
    network = Leaky


class WrongCarry(Recurrent):
    def init_carry(self, policy, num_envs):
        return {"h": super().init_carry(policy, num_envs)}


class WiderCarry(Recurrent):
    """Broadcasting in the network gives another shape than that of `init_carry`."""

    def init_carry(self, policy, num_envs):
        return super().init_carry(policy, num_envs)[..., :1]


class OneValue(Unrolled):
    def unroll(self, obs, carry, restart):
        outputs, value = super().unroll(obs, carry, restart)
        return outputs, value[-1]


class WrongUnroll(Recurrent):
    network = OneValue


class Checked(Recurrent):
    """Reports how far the unrolled network is from the one that acted."""

    def update(self, policy, state, memory, hypers, rollout, key, num_blocks):
        data = experience(policy, state, rollout, 0.99, 0.95)
        batch = Batch.of(policy, rollout, data, data.reward, data.reward).flat()
        outputs, value = policy.unroll(state, batch.obs, batch.carry, batch.restart)
        gap = jnp.abs(policy.distribution.log_prob(outputs, batch.action) - batch.log_prob)
        metrics = {
            "gap": Metric(largest(jnp.max(gap)), "max"),
            "value_gap": Metric(largest(jnp.max(jnp.abs(value - batch.value))), "max"),
            "outputs_gap": Metric(
                largest(jnp.max(jnp.abs(batch.outputs(policy, state)[0] - outputs))), "max"
            ),
            "restarts": batch.restart.sum(),
        }
        state, memory, learned = super().update(
            policy, state, memory, hypers, rollout, key, num_blocks
        )
        return state, memory, learned | metrics


class CheckedGRU(Checked):
    """The same with the built-in network."""

    make_network, init_carry = PPO.make_network, PPO.init_carry


def check_unroll(network, obs, carry, start, restart):
    """Compare `unroll` with single steps.

    Args:
        network: module with `unroll`.
        obs: [T, M, ...].
        carry: before the first step, leaves [M, ...].
        start: at the start of an episode, leaves [M, ...].
        restart: [T, M] bool.
    """
    outputs, value = network.unroll(obs, carry, restart)
    for t, begins in enumerate(restart):
        carry = jax.tree.map(
            lambda first, leaf, begins=begins: jnp.where(begins[:, None], first, leaf), start, carry
        )
        step_outputs, step_value, carry = network(obs[t], carry)
        np.testing.assert_allclose(outputs[t], step_outputs, atol=1e-5)
        np.testing.assert_allclose(value[t], step_value, atol=1e-5)


def config_of(algorithm, **changes):
    changes = {"policies.agent.minibatches": 4, "num_blocks": 2} | changes
    own = {"policies.agent.algorithm": f"{__name__}:{algorithm.__name__}", "num_envs": 8}
    return load_config("cartpole_ppo", **{**own, "rollout_length": 40, **changes})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [(Checked, {}), (CheckedGRU, {"policies.agent.network.recurrent_size": 8})],
)
def test_unrolled_networks_equal_the_ones_that_acted(algorithm, changes):
    learner = make_learner(config_of(algorithm, **changes))
    assert learner.setup.policies["agent"].is_recurrent
    state, _ = learner.update(learner.init(jax.random.key(0)))
    _, metrics = learner.update(state)  # the carry before the first step is no longer 0
    assert metrics["agent/restarts"] > 4
    for name in ("gap", "value_gap", "outputs_gap"):
        assert metrics[f"agent/{name}"] < 1e-5, name
    assert np.isfinite(metrics["agent/loss"])


@pytest.mark.slow
@pytest.mark.parametrize("place", ["lstm:LSTMPPO", f"{__name__}:Recurrent"])
def test_unroll_equals_steps(place):
    changes = {"policies.agent.algorithm": place, "policies.agent.minibatches": 1}
    learner = make_learner(load_config("cartpole_ppo", **changes))
    policy, state = learner.setup.policies["agent"], learner.init(jax.random.key(0))
    network = nnx.merge(policy.graphdef, state.policies["agent"].params)
    keys = jax.random.split(jax.random.key(1), 3)
    obs, restart = (
        jax.random.normal(keys[0], (12, 5, 4)),
        jax.random.bernoulli(keys[1], 0.3, (12, 5)),
    )
    start = jax.tree.map(lambda leaf: leaf[:, 0], policy.algorithm.init_carry(policy, 5))
    carry = jax.tree.map(lambda leaf: leaf + jax.random.normal(keys[2], leaf.shape), start)
    check_unroll(network, obs, carry, start, restart)


def test_minibatches_of_a_custom_recurrent_network_divide_the_sequences():
    changes = {"policies.agent.minibatches": 8}
    allowed = "a divisor of 4, the number of sequences per block .*Increase num_envs or decrease"
    with pytest.raises(ValueError, match=f"agent.minibatches = 8: must be {allowed}"):
        make_learner(config_of(Recurrent, **changes))


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (
            Forgetful,
            "policies.agent.algorithm: its init_carry = None: must be the carry at the start of an "
            "episode, as the network Unrolled has unroll",
        ),
        (
            NoUnroll,
            "policies.agent.algorithm: its network = 'Leaky': must be a module with "
            r"unroll\(obs, carry, restart\), because init_carry returns a carry",
        ),
        (
            WrongCarry,
            r"policies\.agent: its network does not accept the carry of init_carry, "
            r"\{'h': 'float32\[3,1,8\]'\}: .*dict",
        ),
        (
            WiderCarry,
            r"policies\.agent: its network returned a carry float32\[3,1,8\]: must have the "
            r"structure of init_carry, float32\[3,1,1\]",
        ),
        (
            WrongUnroll,
            r"policies\.agent: shapes of unroll = \[\(2, 3, 2\), \(3,\)\]: must be "
            r"\[\(2, 3, 2\), \(2, 3\)\]",
        ),
    ],
)
def test_a_network_with_half_a_memory_is_refused(algorithm, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make_learner(config_of(algorithm))
