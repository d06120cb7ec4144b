"""No kernel computes a built-in function in place of one that is overridden. No GPU is needed."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest
from cards import for_card, lowered
from overriding import OVERRIDES, compare_override, overriding
from test_rollout_kernel import assert_same, both, limit, preset

import wdjax
from wdjax.experiments.examples import own_game, own_network
from wdjax.experiments.examples.own_environment import Lander
from wdjax.kernels import pallas
from wdjax.kernels.support import listening
from wdjax.train import (
    A2C,
    PPO,
    NetworkConfig,
    PolicyConfig,
    TrainConfig,
    load_config,
    make_learner,
)
from wdjax.train.fast.cuda import Cuda
from wdjax.train.kernels import layers, rollout
from wdjax.train.networks.actor_critic import MLP, ActorCritic
from wdjax.train.networks.distributions import Categorical, draws_by_uniform
from wdjax.train.networks.encoders import FlatEncoder
from wdjax.train.state.policy import Policy

SMALL = {
    "num_envs": 16,
    "rollout_length": 4,
    "policies.agent.minibatches": 1,
    "policies.agent.epochs": 1,
}
SAME, TRACED, NONE = "the built-in kernel", "a kernel of the override", "plain XLA"
# override -> what whole rollouts, acting (where rollouts are no kernel), learning, and values and
# log-probabilities of sampled actions run by
EXPECTED = {
    "network": (TRACED, NONE, NONE, NONE),
    # kernels for steps, and for the layers after it: those of the value are the built-in ones
    "encoder": (TRACED, TRACED, TRACED, SAME),
    "distribution": (TRACED, NONE, NONE, NONE),
    "activation": (TRACED, NONE, NONE, NONE),
    "policy_loss": (SAME, SAME, TRACED, SAME),
    "advantages": (SAME, SAME, SAME, SAME),
    "act": (TRACED, NONE, SAME, SAME),
    "apply": (TRACED, NONE, NONE, NONE),
    "step": (TRACED, SAME, SAME, SAME),
    "reset": (TRACED, SAME, SAME, SAME),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def payloads(*names, **changes):
    """Return kernel -> texts of its programs, in an update in which functions are overridden."""
    with overriding(*names, **{**SMALL, **changes}) as learner:
        return payloads_of(learner)


def payloads_of(learner, run="update"):
    before = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 0)  # no file names in the text
    try:
        text = lowered(getattr(learner, run), jax.eval_shape(learner.init, jax.random.key(0)))
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)
    found = {}
    for line in text.splitlines():
        if "xla.gpu.triton" in line:
            found.setdefault(re.search(r'name = "(\w+)"', line)[1], set()).add(
                line[line.index("backend_config") :]
            )
    return found


def how(kernel, found, built_in):
    if kernel not in found:
        return NONE
    return SAME if found[kernel] <= built_in[kernel] else TRACED


@pytest.mark.slow
def test_no_kernel_computes_a_function_that_is_overridden():
    kernels = ("scan_replicas", "gradient", "note")
    built_in = payloads()
    others = {"act", "decayed"}  # the first step is before a whole rollout
    assert built_in.keys() == {*kernels, *others}
    found = {name: payloads(name) for name in EXPECTED}
    for name, programs in found.items():
        assert programs.keys() <= {*kernels, *others}
        for kernel, texts in programs.items():
            # with a custom act, only values are noted
            assert texts <= built_in[kernel] or not texts & built_in[kernel], (name, kernel)
    # the first one is traced from the custom one
    assert found["network"].keys() == {"scan_replicas", "decayed"}
    ways = {
        name: tuple(how(kernel, programs, built_in) for kernel in kernels)
        for name, programs in found.items()
    }
    assert ways == {name: (way[0], *way[2:]) for name, way in EXPECTED.items()}


@pytest.mark.slow
def test_no_kernel_acts_in_place_of_a_function_that_is_overridden(monkeypatch):
    monkeypatch.setattr(rollout, "MAX_AGENTS", 0)
    monkeypatch.setattr(rollout, "MAX_OPERATIONS", 0)  # no kernel for steps

    def programs_of(*names):
        with overriding(*names, **SMALL) as learner:
            return payloads_of(learner, "rollout")

    built_in = programs_of()
    assert built_in.keys() == {"act"}  # which notes values
    found = {name: programs_of(name) for name in EXPECTED}
    for name, programs in found.items():
        texts = programs.get("act", set())
        assert texts <= built_in["act"] or not texts & built_in["act"], name
    ways = {name: how("act", programs, built_in) for name, programs in found.items()}
    assert ways == {name: way[1] for name, way in EXPECTED.items()}


@pytest.fixture(scope="module")
def policy():
    policy = make_learner(load_config("cartpole_ppo", num_envs=4)).setup.policies["agent"]
    return dataclasses.replace(policy, engine=Cuda(policy.engine.shape))


def other(*args, **named):
    raise AssertionError("called")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ActorCritic, "__call__"), (ActorCritic, "__init__"), (MLP, "__call__"),
        (FlatEncoder, "__call__"), (Categorical, "entropy"), (Categorical, "num_outputs"),
        (Policy, "inputs"),
    ],
)  # fmt: skip
def test_patched_class_is_detected(owner, name, policy, monkeypatch):
    assert layers.why_custom(policy) is None
    monkeypatch.setattr(owner, name, other)
    assert layers.why_custom(policy) == f"its {owner.__name__}.{name} is custom"


def test_wrapper_with_the_original_name_is_detected(policy, monkeypatch):
    monkeypatch.setattr(Categorical, "log_prob", functools.wraps(Categorical.log_prob)(other))
    assert layers.why_custom(policy) == "its Categorical.log_prob is custom"


@pytest.mark.parametrize("name", ["act", "end_of_step"])
def test_a_patched_algorithm_acts_by_plain_xla(name, policy, monkeypatch):
    assert policy.engine.acts_by_kernel(policy)
    monkeypatch.setattr(policy.algorithm, name, other, raising=False)
    with listening() as decisions:
        assert not policy.engine.acts_by_kernel(policy)
    assert decisions == {"acting of agent": f"its {name} is custom"}


def test_distribution_with_custom_sample_gets_keys(policy):
    class Random(Categorical):
        def sample(self, key, outputs):
            return jax.random.randint(key, outputs.shape[:-1], 0, 2)

    assert draws_by_uniform(policy.distribution)
    assert not draws_by_uniform(Random((2,), scalar=True))


class ByKeys(PPO):
    """PPO whose `act` needs keys and cannot use numbers drawn ahead."""

    def act(self, policy, state, carry, obs, keys, hypers):
        action, notes, carry = super().act(policy, state, carry, obs, keys, hypers)
        return jnp.where(jax.random.bernoulli(keys[0]), action, 0), notes, carry


@pytest.mark.slow
def test_act_that_needs_keys_is_scanned():
    changes = {"policies.agent.algorithm": f"{__name__}:ByKeys"}
    custom = overriding(**{**SMALL, **changes})
    with listening() as decisions, custom as learner, for_card():
        jax.eval_shape(learner.update, jax.eval_shape(learner.init, jax.random.key(0)))
    assert "whole rollouts" in decisions
    assert decisions["whole rollouts"] is not None
    assert decisions["acting of agent"] == "its act is custom"
    assert decisions["learning of agent"] is None


class Together(A2C):
    """All agents of a replica take the action of the first one."""

    def act(self, policy, state, carry, obs, keys, hypers):
        action, notes, carry = super().act(policy, state, carry, obs, keys, hypers)
        return jnp.broadcast_to(action[:, :1], action.shape), notes, carry


@pytest.mark.slow
def test_rollout_kernel_keeps_agents_of_a_replica_together(monkeypatch, quick_compile):
    changes = {"policies.shared.algorithm": f"{__name__}:Together", "env_params.grid_length": 4}
    expected, found = both(preset("tag_gridworld", **limit(5), **changes))
    actions = expected[1].rows["shared"].action
    assert actions.shape[2] > 1
    assert jnp.all(actions == actions[:, :, :1])
    assert_same(expected, found)


OWN = {"num_envs": 16, "rollout_length": 4, "num_blocks": 1, "devices": 1}
NETWORK = NetworkConfig(hidden_sizes=(16,), shared_trunk=True)


@pytest.mark.slow
def test_a_custom_environment_keeps_its_kernels(registry):
    wdjax.register("lander", Lander)
    config = TrainConfig(env="lander", policies={"agent": PolicyConfig(network=NETWORK)}, **OWN)
    # notes: of the rollout, of its last observation, and of final ones at truncations
    assert count_of(config) == {
        "act": 1, "scan_replicas": 1, "note": 3, "decayed": 1, "gradient": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_custom_environments_with_groups_keep_their_kernels(registry):
    ring = own_game.game()
    sets = {
        "pool_sets": 4, "pool_sets_back": 2, "act": 2, "note": 2, "gradient": 2, "scan_replicas": 1,
        "decayed": 2,
    }  # fmt: skip
    assert count_of(dataclasses.replace(ring, **OWN)) == sets
    flat = {
        "hunter": PolicyConfig(network=NETWORK),
        "prey": PolicyConfig(algorithm="A2C", network=NETWORK),
    }
    # A2C notes only the last
    kernels = {"act": 2, "scan_replicas": 1, "note": 3, "decayed": 2, "gradient": 2}
    assert count_of(dataclasses.replace(ring, policies=flat, **OWN)) == kernels
    # runners never learn
    kernels = {"act": 2, "note": 1, "decayed": 1, "gradient": 1, "nearest_neighbors": 1}
    assert count_of(dataclasses.replace(own_network.game("nearby"), **OWN)) == kernels


def count_of(config):
    """Return how many different programs of each kernel a run has."""
    return {kernel: len(texts) for kernel, texts in payloads_of(make_learner(config)).items()}


@pytest.fixture
def interpreted(monkeypatch):
    """Interpret kernels in XLA wherever a GPU would run them."""
    call, names = pallas.call, set()

    def interpret(kernel, name, *args, **named):
        names.add(name)
        return call(kernel, name, *args, **{**named, "interpret": True})

    monkeypatch.setattr(pallas, "call", interpret)
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *operands, default, cuda: cuda(*operands)
    )
    return names


# Two in each run. The kernels that are replaced because of one do not depend on the other, but a
# custom part of the network always replaces the kernel that learns.
PAIRS = [
    ("network", "activation"),
    ("distribution", "apply"),
    ("encoder", "advantages"),
    ("policy_loss", "step"),
    ("act", "reset"),
]


@pytest.mark.slow
@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_kernels_and_plain_xla_train_overrides_alike(names, interpreted, quick_compile):
    compare_override(*names)  # raises if they differ
    assert interpreted


def test_every_override_is_trained():
    assert sorted(name for pair in PAIRS for name in pair) == sorted(OVERRIDES) == sorted(EXPECTED)
