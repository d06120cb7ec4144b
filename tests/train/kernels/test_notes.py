"""Values and log-probabilities of sampled actions by a kernel, interpreted in XLA."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from interpreted import with_interpreted_notes
from test_kernels import make_case, random_batch

from wdjax.train import load_config, make_learner
from wdjax.train.fast.choose import policy_engine
from wdjax.train.fast.cuda import note_by_kernel
from wdjax.train.kernels import act
from wdjax.train.kernels.act import FEW
from wdjax.train.kernels.rollout import apart
from wdjax.train.state.engine import Engine

pytestmark = pytest.mark.usefixtures("quick_compile")

SLOW = [("one_tower", True), ("one_tower", False), ("encoder", True), ("wide", True)]
SLOW += [("wide", False), ("streamed", True)]


@pytest.mark.parametrize(
    ("name", "with_action"),
    [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]
    + [("two_towers", True), ("two_towers", False)],
)
def test_kernel_computes_values_and_log_probabilities_of_given_actions(name, with_action):
    policy, state, _, tolerance = make_case(name)
    batch = random_batch(policy, 3 * 7 * 2)
    obs, action = (leaf.reshape(3, 7, 2, *leaf.shape[1:]) for leaf in (batch.obs, batch.action))
    action = action if with_action else None
    found = jax.jit(functools.partial(note_by_kernel, policy, (3, 7, 2), interpret=True))(
        state, obs, action
    )
    expected = jax.jit(functools.partial(Engine().note, policy))(state, obs, action)
    keeps = with_action and policy.algorithm.keeps_log_prob
    assert set(found) == set(expected) == ({"value", "log_prob"} if keeps else {"value"})
    for note, values in expected.items():
        assert found[note].shape == (3, 7, 2)
        np.testing.assert_allclose(
            found[note], values, rtol=2 * tolerance, atol=2 * tolerance, err_msg=note
        )


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_notes_follow_the_rollout_unless_they_cost_nothing_in_it(algorithm, shared, monkeypatch):
    network = {"hidden_sizes": [16], "shared_trunk": shared}
    policies = {"agent": {"algorithm": algorithm, "network": network}}
    config = load_config({"env": "cartpole", "num_envs": 2, "policies": policies})
    policy = make_learner(config).setup.policies["agent"]
    assert not policy.engine.notes_after(policy)  # on the CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    engine = policy_engine(policy, kernels=True)
    assert engine.notes_after(policy) == (algorithm == "PPO" or not shared)


@pytest.mark.parametrize("few", [FEW, 4])
def test_vmapped_notes_equal_the_notes_of_members(few, monkeypatch):
    """With 4, two rows of a member are few, but six rows of three members are not."""
    monkeypatch.setattr(act, "FEW", few)
    policy, state, _, _ = make_case("two_towers")
    batch = random_batch(policy, 6)
    obs, action = (leaf.reshape(3, 2, *leaf.shape[1:]) for leaf in (batch.obs, batch.action))
    states = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf, 3 * leaf]), state)
    note = functools.partial(note_by_kernel, policy, (2,), interpret=True)
    found = jax.jit(jax.vmap(note))(states, obs, action)
    for i in range(3):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        for name, values in jax.jit(note)(own, obs[i], action[i]).items():
            np.testing.assert_allclose(found[name][i], values, rtol=1e-5, err_msg=name)


def test_values_have_the_derivative_of_the_network(monkeypatch):
    policy, state, _, _ = make_case("two_towers")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    policy = dataclasses.replace(policy, engine=policy_engine(policy, kernels=True))
    obs = random_batch(policy, 6).obs

    def total(params, engine):
        return engine.note(policy, state.replace(params=params), obs)["value"].sum()

    found, expected = (
        jax.jit(jax.grad(functools.partial(total, engine=engine)))(state.params)
        for engine in (policy.engine, Engine())
    )
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 0.1
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), found, expected)


def test_the_rollout_kernel_returns_no_notes_that_come_after_it():
    config = load_config("cartpole_ppo", num_envs=4, rollout_length=4)
    setup = make_learner(config).setup
    drafts = {"agent": {"obs": 0, "action": 1, "value": 2, "log_prob": 3}}
    assert apart(setup, drafts)[1] == {"agent": {"obs": 0, "value": 2, "log_prob": 3}}
    assert apart(with_interpreted_notes(setup), drafts)[1] == {"agent": {"obs": 0}}
