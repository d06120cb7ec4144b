"""Custom algorithms: refused options, replays in their memory, metrics and batch statistics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
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
    with_hypers,
)
from wdjax.train.learning import Steps, new_replay


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
    """Stores transitions in `Memory.own`, with a number of updates per replica."""

    def init_memory(self, policy, run):
        step = Steps.shapes(policy.assignment.observation_space, policy.assignment.action_space)
        replay = new_replay(step, 1000, shape=(run.rollout_length, run.num_envs, 1))
        return Memory(None, None, own={"replay": replay, "updates": jnp.zeros(run.num_envs)})

    def end_of_step(self, policy, state, carry, final_obs, truncated):
        return {"next_obs": final_obs}

    def update(self, policy, state, memory, hypers, rollout, key, num_blocks):
        steps = Steps.of(rollout.rows[policy.name], rollout.over)
        own = {"replay": memory.own["replay"].add(steps, 0.9), "updates": memory.own["updates"] + 1}
        metrics = {"loss": 1 / hypers["learning_rate"], "grad_norm": jnp.float32(0)}
        return state, memory.replace(own=own), metrics


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


def test_a_replay_may_have_any_form():
    learner, state = traced_update(WithReplay)
    jax.eval_shape(learner.update, state)


def test_a_replay_in_memory_own_is_not_selected_as_a_whole():
    learner, state = traced_update(WithOwnMemory)
    lines = str(jax.make_jaxpr(learner.update)(state)).splitlines()
    # 1000 transitions, and space for 4 x 8
    assert [line for line in lines if "f32[1,1032]" in line]
    assert not [line for line in lines if "[1,1032" in line and "select_n" in line]
    assert [line for line in lines if "f32[8]" in line and "select_n" in line]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compile")
def test_a_bad_update_adds_nothing_to_a_replay_in_memory_own():
    learner = make_learner(config_of(WithOwnMemory))
    state = learner.update(learner.init(jax.random.key(0)))[0]
    bad = with_hypers(state, **{"agent.learning_rate": 0.0})
    after = learner.run(bad, num_updates=1)[0]
    replay, own = state.memory["agent"].own["replay"], after.memory["agent"].own
    np.testing.assert_array_equal(own["updates"], 1)
    np.testing.assert_array_equal(own["replay"].size, [32])
    index = jnp.arange(32)[None]
    jax.tree.map(np.testing.assert_array_equal, replay.take(index), own["replay"].take(index))


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
