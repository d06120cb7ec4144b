"""The examples run, and do what they say."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import wdjax
from wdjax.experiments.examples import own_environment, own_network, traced_physics
from wdjax.train import make_learner

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize(
    ("vary", "outcome", "field", "lowest", "highest"),
    [
        (traced_physics.vary_cartpole, traced_physics.standing_steps, "length", 22.5, 45.3),
        (traced_physics.vary_cartpole, traced_physics.standing_steps, "gravity", 38.7, 27.5),
        (traced_physics.vary_tag, traced_physics.tags, "skill_level_tagger", 1.8, 4.4),
    ],
    ids=["length", "gravity", "tag_continuous"],
)
def test_a_thousand_variants_are_one_program(vary, outcome, field, lowest, highest):
    """Physics matters, by fourths of the variants; and each gives what it gives alone, traced once for all."""
    key, traces = jax.random.key(0), []
    many, results = vary(key)
    assert results.shape == (1_000,)
    fourths = np.asarray(results)[np.argsort(getattr(many, field))].reshape(4, 250).mean(axis=1)
    np.testing.assert_allclose(fourths[[0, 3]], [lowest, highest], rtol=0.1)

    @jax.jit
    def alone(params, key):
        traces.append(1)
        return outcome(params, key)

    keys = jax.random.split(key, 1_000) if vary is traced_physics.vary_tag else [jax.random.split(key)[1]] * 1_000
    for i in (0, 1, 499, 999):
        params = jax.tree.map(lambda leaf, i=i: leaf[i], many)
        assert alone(params, keys[i]) == results[i]
    assert len(traces) == 1


def test_own_environment_is_sound_and_short():
    env = own_environment.Lander()
    wdjax.check_env(env, num_steps=1_000)
    source = Path(own_environment.__file__).read_text(encoding="utf8")
    assert len(source.splitlines()) < 80
    assert source in README.read_text(encoding="utf8")


def test_own_environment_by_hand():
    env, params = own_environment.Lander(), own_environment.Params()
    step = jax.jit(env.step)
    state = own_environment.State(jnp.float32(0.05), jnp.float32(-0.5), jnp.int32(3))
    for action, velocity, soft in ((1, -0.36, True), (0, -0.66, True)):
        _, after, reward, terminated, truncated, info = step(jax.random.key(0), state, action, params)
        np.testing.assert_allclose([after.velocity, after.height], [velocity, 0.05 + 0.1 * velocity], atol=1e-6)
        assert terminated == (after.height <= 0) == (action == 0)
        assert reward == pytest.approx(1 + velocity / 5 if terminated else -0.005)
        assert info["soft"] == (soft and terminated)
        assert not truncated
    *_, reward, terminated, truncated, info = step(jax.random.key(0), after.replace(time=jnp.int32(199)), 1, params)
    assert (float(reward), bool(terminated), bool(truncated), bool(info["soft"])) == (0.0, True, False, False)


@pytest.mark.slow
def test_own_environment_learns_to_land():
    run = [sys.executable, "-m", "wdjax.experiments.examples.own_environment"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    printed = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300, env=environment).stdout
    first, last = (int(word.rstrip("%")) for word in printed.split() if word.endswith("%"))
    assert first < 20
    assert last > 70


@pytest.mark.slow
def test_own_network_compiles_and_one_update_runs():
    source = Path(own_network.__file__).read_text(encoding="utf8")
    assert len(source.splitlines()) < 90
    config = own_network.game("nearby")
    learner = make_learner(dataclasses.replace(config, num_envs=8, rollout_length=10))
    first = learner.init(jax.random.key(0))
    state, _ = learner.update(first)
    before, after = (s.policies["tagger"].params["trunk"]["encoder"] for s in (first, state))
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), before, after)
    assert all(jax.tree.leaves(moved))


def test_own_network_sees_a_set():
    space = wdjax.Box(-np.inf, np.inf, (7 * 4 + 1,))
    encoder = own_network.Nearby(space, width=5, rngs=nnx.Rngs(0))
    others = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
    others[:, 6] = [1, 0, 1, 1]

    def features(rows):
        return encoder(jnp.concatenate([rows.T.ravel(), jnp.array([0.5])]))

    assert features(others).shape == (encoder.num_features,) == (6,)
    np.testing.assert_allclose(features(others[[2, 1, 3, 0]]), features(others), rtol=1e-5)
    others[1, :6] = 9.0
    np.testing.assert_allclose(features(others[[0, 2, 3, 1]]), features(others), rtol=1e-5)
    absent = others.copy()
    absent[1, :6] = 0.0
    np.testing.assert_array_equal(features(others), features(absent))


@pytest.mark.slow
def test_sets_tag_more_than_rows():
    run = [sys.executable, "-m", "wdjax.experiments.examples.own_network"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    printed = subprocess.run(run, capture_output=True, text=True, check=True, timeout=900, env=environment).stdout
    lines = [line.split() for line in printed.splitlines()]
    first, last = ({words[0]: float(words[i]) for words in lines} for i in (3, 7))
    assert set(last) == {"flat", "deep_sets", "nearby"}
    assert all(last[name] > first[name] + 0.4 for name in last)
    assert min(last["deep_sets"], last["nearby"]) > last["flat"]
