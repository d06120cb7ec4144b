"""Loaded and exported policies act like the policy of the run."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refusal
from tiny_runs import small_config

import wdjax
from wdjax.experiments import cli
from wdjax.train import (
    Trainer,
    export_policy,
    load_policy,
    make_learner,
    record_episode,
    trained_policy,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

NORMALISED = {"policies.agent.normalize_observation": True}
RECURRENT = {"policies.agent.network.recurrent_size": 4, "policies.agent.minibatches": 1}
OBS = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)

OUTSIDE = """
import json, sys
import jax, jax.export
import numpy as np
folder = sys.argv[1]
obs = np.load(f"{folder}/obs.npy")
act = jax.export.deserialize(bytearray(open(f"{folder}/agent.stablehlo", "rb").read()))
key = np.arange(2 * len(obs), dtype=np.uint32).reshape(-1, 2)
best, memory = act.call(obs, None, key, True)
drawn, _ = act.call(obs, None, key, False)
w = np.load(f"{folder}/agent.npz")
x = (obs - w["normalizer/obs/mean"]) / np.sqrt(w["normalizer/obs/variance"] + 1e-8)
x = np.clip(x, -10, 10)
x = np.tanh(x @ w["params/trunk/mlp/layer_0/kernel"] + w["params/trunk/mlp/layer_0/bias"])
logits = x @ w["params/policy_head/kernel"] + w["params/policy_head/bias"]
assert memory is None
assert not {name.split(".")[0] for name in sys.modules} & {"wdjax", "flax"}
print(json.dumps([best.tolist(), drawn.tolist(), logits.argmax(-1).tolist()]))
"""


def a_policy(**changes):
    learner = make_learner(small_config(best_metric="none", **changes))
    state = learner.init(jax.random.key(0))
    if learner.config.policies["agent"].normalize_observation:
        known = state.policies["agent"].normalizer
        mean = jnp.array([0.5, -1.0, 2.0, 0.0])
        known = known.replace(
            obs=known.obs.replace(mean=mean, variance=jnp.array([1.0, 4.0, 0.25, 9.0]))
        )
        state = state.replace(policies={"agent": state.policies["agent"].replace(normalizer=known)})
    return learner, state, trained_policy(learner, state)


@pytest.fixture(scope="module")
def normalised():
    return a_policy(**NORMALISED)


@pytest.fixture(scope="module")
def recurrent():
    return a_policy(**RECURRENT)


@pytest.mark.slow
def test_policy_acts_as_in_an_episode_of_the_run(normalised):
    learner, state, policy = normalised
    episode = record_episode(
        learner, state, jax.random.key(1), greedy=True, max_steps=5, observations=True
    )
    action, memory = jax.jit(policy.act)(episode.obs)
    assert memory is None
    np.testing.assert_array_equal(action, episode.action)
    assert (action.dtype, policy.action_space) == (jnp.int32, wdjax.Discrete(2))


@pytest.mark.slow
def test_leading_axes_keys_and_arguments(normalised):
    policy, key = normalised[2], jax.random.key(2)
    act = jax.jit(lambda policy, obs, key: policy.act(obs, None, key)[0])
    whole = act(policy, OBS, key)
    assert whole.shape == (3, 2)
    np.testing.assert_array_equal(whole, act(policy, OBS, key))
    shares = np.mean(
        [act(policy, np.broadcast_to(OBS[0, 0], (500, 4)), jax.random.key(i)) for i in range(4)]
    )
    assert 0.2 < shares < 0.8  # drawn: the head's gain is 0.01
    assert policy.act(OBS[0, 0])[0].shape == ()
    for wrong in (OBS[..., :3], {"obs": OBS}, OBS[0, 0, 0]):
        assert "must be (4,), the shapes for one agent" in refusal(policy.act, wrong)


def test_unknown_policy_is_refused(normalised):
    learner, state, _ = normalised
    assert "did you mean 'agent'" in refusal(trained_policy, learner, state, "agnet")


@pytest.mark.slow
def test_memory_is_passed_from_step_to_step(recurrent):
    policy = recurrent[2]
    empty = policy.init_memory(3, 2)
    assert {leaf.shape for leaf in jax.tree.leaves(empty)} == {(3, 2, 4)}
    action, first = policy.act(OBS)
    np.testing.assert_array_equal(action, policy.act(OBS, empty)[0])
    second = policy.act(OBS, first)[1]
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert np.abs(a - b).max() > 1e-3
    alone = policy.act(OBS[1, 1], jax.tree.map(lambda leaf: leaf[1, 1], first))[1]
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b[1, 1], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_exports_act_alike_without_wdjax(tmp_path):
    """The function with jax alone, the arrays with NumPy alone."""
    pytest.importorskip("flatbuffers")
    policy = a_policy(**NORMALISED, **{"policies.agent.network.activation": "tanh"})[2]
    policy.learned.params["policy_head"]["kernel"] *= (
        100  # far from even: no rounding changes an action
    )
    there = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
    obs = there + np.concatenate(
        [OBS[:, 0], -OBS[:, 0]]
    )  # tanh without biases is odd: the two halves act differently
    np.save(tmp_path / "obs.npy", obs)
    export_policy(policy, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDE, tmp_path], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    best, drawn, by_hand = map(np.array, json.loads(done.stdout))
    np.testing.assert_array_equal(best, policy.act(obs)[0])
    np.testing.assert_array_equal(best, by_hand)
    keys = jax.random.wrap_key_data(
        np.arange(12, dtype=np.uint32).reshape(6, 2), impl="threefry2x32"
    )
    np.testing.assert_array_equal(
        drawn, jax.vmap(lambda obs, key: policy.act(obs, None, key)[0])(obs, keys)
    )
    np.testing.assert_array_equal(best[3:], 1 - best[:3])


@pytest.mark.slow
def test_a_run_is_loaded_and_exported(tmp_path, no_pictures, capsys):
    pytest.importorskip("flatbuffers")
    trainer = Trainer(small_config(best_metric="none", **RECURRENT), tmp_path / "run", quiet=True)
    state = trainer.train()
    mine, loaded = trained_policy(trainer.learner, state), load_policy(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, mine.learned, loaded.learned)
    cli.call("export", str(tmp_path / "run"))
    folder = tmp_path / "run" / "export"
    assert f"Wrote {folder}/agent.stablehlo, {folder}/agent.npz" in capsys.readouterr().out
    act = jax.export.deserialize(bytearray((folder / "agent.stablehlo").read_bytes()))
    action, memory = act.call(OBS[0], mine.init_memory(2), np.zeros((2, 2), np.uint32), True)
    expected = mine.act(OBS[0])
    np.testing.assert_array_equal(action, expected[0])
    for a, b in zip(jax.tree.leaves(memory), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    with pytest.raises(SystemExit):
        cli.call("export", str(tmp_path / "run"), "--policies", "tagger")
    assert "unknown policy 'tagger'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        (
            None,
            r"^obs shapes = None: must be \(4,\), the shapes for one agent, after any leading axes",
        ),
        ({}, r"^obs shapes = {}: must be"),
        ([0.0] * 4, r"^obs shapes = \[\(\), \(\), \(\), \(\)\]: must be"),
        (np.zeros((0, 4)), r"^obs shapes = \(0, 4\): must be .* \(none of size 0\)"),
        (np.array(["a"] * 4), r"^obs dtype <U1: must be float32"),
        (np.array([None] * 4), r"^obs dtype object: must be float32"),
        (np.zeros(4, complex), r"^obs dtype complex128: must be float32"),
    ],
)
def test_loaded_policy_refuses_wrong_observations(normalised, obs, words):
    with pytest.raises((ValueError, TypeError), match=words):
        normalised[2].act(obs)


@pytest.mark.slow
def test_loaded_policy_refuses_memory_of_other_agents(recurrent):
    policy = recurrent[2]
    with pytest.raises(ValueError, match=r"^memory shapes = \(\(2, 4\), \(2, 4\)\): must be"):
        policy.act(OBS, policy.init_memory(2))
