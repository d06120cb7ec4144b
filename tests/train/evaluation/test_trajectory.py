"""Recorded episodes: steps, and details of policies against the network itself."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, struct
from probes import NETWORK, Signal, tiny_config, tiny_policy
from toy_walk import Walk

from wdjax import envs
from wdjax.train import (
    NetworkConfig,
    PolicyConfig,
    make_learner,
    record_episode,
    save_episode,
)
from wdjax.train.evaluation.trajectory import compile_recording
from wdjax.train.learner.init import abstract_state

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compile")]

KEY = jax.random.key(5)


def make(env, policies, **env_params):
    learner = make_learner(tiny_config(env, policies, env_params=env_params))
    return learner, learner.init(jax.random.key(0))


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def check_ends(episode, steps):
    """Check that every leaf has one row per step of the episode."""
    assert {len(leaf) for leaf in jax.tree.leaves(episode.replace(states=None))} == {steps}
    assert {len(leaf) for leaf in jax.tree.leaves(episode.states)} == {steps + 1}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(episode))


def test_masked_multi_discrete_and_gaussian_policies():
    learner, state = make("probe_pair", {"pilot": tiny_policy("PPO"), "clerk": tiny_policy("A2C")})
    episode = record_episode(learner, state, KEY, observations=True)
    check_ends(episode, 3)
    np.testing.assert_array_equal(
        episode.truncated["clerk"], [[False] * 3, [False] * 3, [True] * 3]
    )
    assert not episode.terminated["pilot"].any()
    np.testing.assert_array_equal(
        episode.obs["pilot"][:, :, 0], episode.states.signal[:3, None].repeat(2, axis=1)
    )
    probs, mask = episode.choice["clerk"]["probs"], episode.obs["clerk"]["action_mask"]
    assert probs.shape == (3, 3, 5)
    np.testing.assert_array_equal(probs > 0, mask > 0)
    np.testing.assert_allclose(probs[..., :2].sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(probs[..., 2:].sum(axis=-1), 1, rtol=1e-6)
    clerk = learner.setup.policies["clerk"]
    outputs, value, _ = jax.jit(clerk.apply)(state.policies["clerk"], episode.obs["clerk"])
    np.testing.assert_allclose(probs[..., 2:], softmax(np.asarray(outputs[..., 2:])), rtol=1e-5)
    np.testing.assert_allclose(episode.choice["clerk"]["value"], value, rtol=1e-4, atol=1e-6)
    pilot = episode.choice["pilot"]
    np.testing.assert_allclose(pilot["std"], 1.0)  # exp of 0, before any training
    greedy = record_episode(learner, state, KEY, greedy=True, random=("clerk",))
    np.testing.assert_allclose(
        greedy.action["pilot"], np.clip(greedy.choice["pilot"]["mean"], -1, 1), rtol=1e-6
    )
    assert list(greedy.choice) == ["pilot"]  # random play has no choice to describe
    assert greedy.obs is None


def test_recurrent_policy_keeps_its_carry():
    network = NetworkConfig(
        hidden_sizes=(4,),
        activation="tanh",
        shared_trunk=True,
        recurrent_size=4,
        initializer="lecun",
    )
    learner, state = make(
        "probe_signal", {"agent": tiny_policy("A2C", network=network)}, episode_length=6
    )
    bigger = jax.tree.map(
        lambda leaf: 3.0 * leaf, state.policies["agent"].params
    )  # so that memory shows
    policy = state.policies["agent"].replace(params=bigger)
    state = state.replace(policies={"agent": policy})
    episode = record_episode(learner, state, KEY, greedy=True, observations=True)
    check_ends(episode, 6)
    own = learner.setup.policies["agent"]
    obs, start = episode.obs[:, None], (jnp.zeros((1, 4)), None)
    outputs, value = jax.jit(own.unroll)(policy, obs, start, jnp.zeros((6, 1), bool))
    found = episode.choice["agent"]
    np.testing.assert_allclose(found["probs"][:, 0], softmax(np.asarray(outputs[:, 0])), rtol=1e-4)
    np.testing.assert_allclose(found["value"], value, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(episode.action, np.argmax(outputs[:, 0], axis=-1))
    forgetful = jax.jit(own.apply)(policy, obs, (jnp.zeros((6, 1, 4)), None))[1]
    assert np.abs(forgetful - value).max() > 0.01


@pytest.mark.parametrize("algorithm", ["PPO", "DDPG"])
def test_normalizers_are_used_and_unchanged(algorithm, monkeypatch):
    monkeypatch.setitem(envs._REGISTRY, "walk", Walk)
    config = PolicyConfig(algorithm=algorithm, network=NETWORK, normalize_observation=True)
    learner, state = make("walk", {"agent": config}, episode_length=4, reach=50.0)
    before = state.policies["agent"]
    mean, variance = jnp.array([2.0, 1.0]), jnp.array([4.0, 0.25])
    statistics = before.normalizer.obs.replace(count=jnp.float32(9), mean=mean, variance=variance)
    policy = before.replace(normalizer=before.normalizer.replace(obs=statistics))
    state = state.replace(policies={"agent": policy})
    kept = jax.tree.map(np.array, state.policies["agent"])
    episode = record_episode(learner, state, KEY, greedy=True, observations=True)
    check_ends(episode, 4)
    scaled = np.clip((episode.obs - np.array([2.0, 1.0])) / np.array([2.0, 0.5]), -10, 10)
    network = nnx.merge(learner.setup.policies["agent"].graphdef, policy.params)
    seen = jnp.asarray(scaled, jnp.float32)
    mean = 50.0 * network.actor(seen) if algorithm == "DDPG" else network(seen, None)[0][:, :1]
    np.testing.assert_allclose(episode.action, mean, rtol=1e-3, atol=1e-4)
    assert bool(episode.choice) == (algorithm == "PPO")
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(state.policies["agent"]), strict=True):
        np.testing.assert_array_equal(a, b)


@struct.dataclass
class KeyedState:
    inner: Any
    key: jax.Array  # () typed, of the next draw


@dataclasses.dataclass(frozen=True)
class Keyed(Signal):
    """An environment with a key in its state."""

    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, KeyedState(state, jax.random.fold_in(key, 1))

    def step(self, key, state, action, params):
        own, after = jax.random.split(state.key)
        obs, inner, *rest = super().step(own, state.inner, action, params)
        return obs, KeyedState(inner, after), *rest


def test_keys_in_a_state_are_recorded_as_numbers(monkeypatch):
    monkeypatch.setitem(envs._REGISTRY, "keyed", Keyed)
    episode = record_episode(*make("keyed", {"agent": tiny_policy("A2C")}, episode_length=3), KEY)
    assert episode.states.key.shape == (4, 2)
    assert len(np.unique(episode.states.key, axis=0)) == 4


def test_arrays_for_numpy(tmp_path):
    learner, state = make(
        "tag_gridworld", {name: tiny_policy("A2C") for name in ("tagger", "runner")}, num_taggers=2
    )
    episode = record_episode(
        learner, state, KEY, players={"tagger": "chase_nearest"}, observations=True
    )
    with np.load(episode.to_npz(tmp_path / "new" / "episode.npz")) as file:
        assert sorted(file) == sorted(
            [
                *(
                    f"{part}/{group}"
                    for group in ("tagger", "runner")
                    for part in ("action", "reward", "terminated", "truncated", "obs")
                ),
                "states/x",
                "states/y",
                "states/time",
                "choice/runner/probs",
                "choice/runner/value",
            ]
        )
        np.testing.assert_array_equal(file["states/x"], episode.states.x)
        np.testing.assert_array_equal(file["reward/runner"], episode.reward["runner"])
        steps = len(file["reward/runner"])
        assert file["choice/runner/probs"].shape == (steps, 1, 5)
        assert file["terminated/tagger"][-1].all()
        assert not file["terminated/tagger"][:-1].any()


@pytest.fixture(scope="module")
def cartpole():
    return make("cartpole", {"agent": tiny_policy("A2C")})


def test_pictures_use_programs_compiled_from_shapes(cartpole, caplog):
    learner, state = cartpole
    state, _ = learner.rollout(state)  # as a run leaves it: on the learner's devices
    with jax.log_compiles():
        compile_recording(learner, abstract_state(learner.setup))
        assert "Finished XLA compilation of jit(_record_jit)" in caplog.text
        caplog.clear()
        record_episode(learner, state, KEY)
    assert "jit(_record_jit)" not in caplog.text


def test_program_compiled_from_shapes_gives_the_same_episode(cartpole, tmp_path):
    learner, state = cartpole
    program = compile_recording(learner, abstract_state(learner.setup))
    jax.tree.map(
        np.testing.assert_array_equal,
        record_episode(learner, state, KEY),
        record_episode(learner, state, KEY, program=program),
    )
    for suffix, options in (
        (".npz", {}),
        (".gif", {"greedy": True}),
    ):  # which ask for more than the program gives
        files = [tmp_path / f"{name}{suffix}" for name in ("without", "with")]
        for file, own in zip(files, (None, program), strict=True):
            save_episode(learner, state, file, program=own, **options)
        assert files[0].read_bytes() == files[1].read_bytes()
