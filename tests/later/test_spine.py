"""Faults 10, 27 and 33 of the issue "A spine you can read". Those of 27 fail until it is done."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from wdjax.train import (
    Algorithm,
    Memory,
    PolicyConfig,
    PolicyState,
    TrainConfig,
    load_config,
    make_learner,
    sample_blocks,
)

REASON = "A spine you can read"


def refusal(function, *arguments, **named):
    """Return the message of the exception that a call raises, "" if it raises none."""
    try:
        function(*arguments, **named)
    except Exception as error:
        return str(error)
    return ""


class Plain(Algorithm):
    """A linear policy without normalizer, encoder or recurrent state that does not learn."""

    def make_network(self, context, config, assignment, rngs):
        return nnx.Linear(
            assignment.observation_space.shape[0], assignment.action_space.n, rngs=rngs
        )

    def init(self, policy, params):
        return PolicyState(params, None)

    def act(self, policy, state, carry, obs, keys, hypers):
        logits = nnx.merge(policy.graphdef, state.params)(obs)
        return sample_blocks(policy.distribution, keys, logits), {}, carry

    def play(self, policy, state, carry, obs, keys, greedy):
        return policy.distribution.mode(nnx.merge(policy.graphdef, state.params)(obs)), carry

    def update(self, policy, state, memory, hypers, played, key, num_blocks):
        return state, memory, {"loss": jnp.float32(0), "grad_norm": jnp.float32(0)}


class WithReplay(Plain):
    """Stores transitions in `Memory.replay`, in a custom form."""

    def init_memory(self, policy, run):
        return Memory(None, None, replay={"rows": jnp.zeros((run.num_envs, 1000))})

    def update(self, policy, state, memory, *rest):
        memory = memory.replace(replay={"rows": memory.replay["rows"].at[:, 0].set(1.0)})
        return super().update(policy, state, memory, *rest)


class WithOwnMemory(Plain):
    """Stores transitions in `Memory.own`."""

    def init_memory(self, policy, run):
        return Memory(None, None, own={"rows": jnp.zeros((run.num_envs, 1000))})

    def update(self, policy, state, memory, *rest):
        memory = memory.replace(own={"rows": memory.own["rows"].at[:, 0].set(1.0)})
        return super().update(policy, state, memory, *rest)


class WithoutLoss(Plain):
    def update(self, *arguments):
        state, memory, _ = super().update(*arguments)
        return state, memory, {"critic": jnp.float32(0)}


class WithBatchNorm(Plain):
    def make_network(self, context, config, assignment, rngs):
        size = assignment.observation_space.shape[0]
        linear = nnx.Linear(size, assignment.action_space.n, rngs=rngs)
        return nnx.Sequential(nnx.BatchNorm(size, use_running_average=True, rngs=rngs), linear)


@dataclasses.dataclass(frozen=True)
class PlainOptions:
    decay: float = 0.9
    """decay of a running mean, between 0 and 1"""


class WithPlainOptions(Plain):
    Options = PlainOptions


def config_of(algorithm, **policy):
    policies = {"agent": PolicyConfig(algorithm=f"{__name__}:{algorithm.__name__}", **policy)}
    return TrainConfig(env="cartpole", num_envs=8, rollout_length=4, policies=policies)


def traced_update(algorithm, **policy):
    learner = make_learner(config_of(algorithm, **policy))
    return learner, jax.eval_shape(learner.init, jax.random.key(0))


@pytest.mark.parametrize(
    "field", ["normalize_observation", "network.recurrent_size", "network.encoder"]
)
def test_an_option_that_a_custom_algorithm_ignores_is_refused(field):
    value = {
        "normalize_observation": True,
        "network.recurrent_size": 8,
        "network.encoder": "fourier",
    }[field]
    raw = dataclasses.asdict(config_of(Plain))
    block = (
        raw["policies"]["agent"]["network"]
        if field.startswith("network")
        else raw["policies"]["agent"]
    )
    block[field.split(".")[-1]] = value
    assert f"policies.agent.{field}" in refusal(lambda: make_learner(load_config(raw)))


@pytest.mark.xfail(
    strict=True, raises=AttributeError, reason=f"{REASON}: a replay of another form (27)"
)
def test_a_custom_algorithm_keeps_a_replay_of_its_own_form():
    learner, state = traced_update(WithReplay)
    jax.eval_shape(learner.update, state)


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason=f"{REASON}: a replay in Memory.own is copied (27)"
)
def test_a_replay_in_memory_own_is_not_selected_as_a_whole():
    learner, state = traced_update(WithOwnMemory)
    lines = str(jax.make_jaxpr(learner.update)(state)).splitlines()
    assert not [line for line in lines if "f32[8,1000]" in line and "select_n" in line]


def test_metrics_without_a_loss_train_or_are_refused_by_name():
    learner, state = traced_update(WithoutLoss)
    message = refusal(jax.eval_shape, learner.update, state)
    assert not message or ("metrics" in message and "loss" in message)


def test_a_network_with_batch_statistics_trains_or_is_refused_by_name():
    def update():
        learner, state = traced_update(WithBatchNorm)
        jax.eval_shape(learner.update, state)

    message = refusal(update)
    assert not message or "Batch" in message


def test_a_plain_option_that_is_not_finite_is_refused():
    message = refusal(
        lambda: make_learner(config_of(WithPlainOptions, options={"decay": float("nan")}))
    )
    assert "policies.agent.decay = nan" in message
