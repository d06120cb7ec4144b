"""The learner's functions: runs in parts, no state, no donation, no recompilation, metrics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from probes import FALLING, SignalParams, tiny_config, tiny_policy

from wdjax.train import (
    PPO,
    evaluate,
    load_run,
    make_learner,
    read_metrics,
    save_run,
    with_hypers,
)
from wdjax.train.learner.learner import update
from wdjax.train.storage.folder import hold_folder

pytestmark = pytest.mark.usefixtures("quick_compile")

STEPS = 8 * 6  # env steps of an update
GAME = {"constant": 1.0, "by_match": 0.5, "episode_length": 4, "time_limit": True}


USERS = pytest.param("as users do", marks=pytest.mark.slow)
# Slow tests need one learner only. `USERS` is first in both lists: pytest groups tests by the
# position of a parameter, and so creates each learner once.
as_users_do = pytest.mark.parametrize("learner", [USERS], indirect=True, scope="module")


@pytest.fixture(scope="module", params=[USERS, "quickly"])
def learner(request):
    """One agent, PPO, time limits. Slow tests compile it with all optimizations."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", request.param == "quickly")
    yield make_learner(tiny_config("probe_signal", {"agent": tiny_policy("PPO")}, env_params=GAME))
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def state(learner):
    return learner.init(jax.random.key(3))


def is_key(leaf):
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain(tree):
    """Return a tree of NumPy arrays, typed keys as their data."""
    return jax.tree.map(
        lambda leaf: np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree
    )


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, plain(a), plain(b))


# --- runs ---


@as_users_do
def test_run_in_parts_equals_single_updates(learner, state):
    """Bit for bit, although they are two programs."""
    half, first = learner.run(state, num_updates=4)
    end, second = learner.run(half, num_updates=4)
    one, rows = state, []
    for _ in range(8):
        one, metrics = learner.update(one)
        rows.append(metrics)
    assert_equal(end, one)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)
    assert_equal(joined, jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows))
    assert end.num_updates == 8


def test_wrong_arguments_are_refused(learner, state):
    with pytest.raises(
        TypeError, match=r"must be a typed key\. Create it with jax.random.key\(seed\)"
    ):
        learner.init(0)
    with pytest.raises(TypeError, match="key = 1: must be a typed key"):
        evaluate(learner, state, 1)
    for wrong in (3, (state, {})):
        with pytest.raises(TypeError, match=r"state: must be a TrainState, from learner.init"):
            learner.update(wrong)
    with pytest.raises(TypeError, match=r"^Learner.run\(\) missing 1 required"):
        learner.run(state)


@as_users_do
def test_a_rollout_is_the_one_that_an_update_learns_from(learner, state):
    before = plain(state)
    after, rollout = learner.rollout(state)
    updated, metrics = learner.update(state)
    assert_equal(state, before)
    for part in ("replicas", "obs", "live", "key"):
        assert_equal(getattr(after, part), getattr(updated, part))
    assert_equal((after.policies, after.num_updates), (state.policies, state.num_updates))
    np.testing.assert_allclose(
        metrics["agent/reward_mean"], rollout.rows["agent"].reward.mean(), 1e-5
    )
    assert metrics["episodes"] == rollout.over.sum()
    assert jax.tree.map(lambda leaf: leaf.dtype, state) == jax.tree.map(
        lambda leaf: leaf.dtype, learner.shapes
    )


@as_users_do
def test_a_saved_state_loads_as_a_run(learner, state, tmp_path):
    after, _ = learner.update(state)
    row = {"updates": 1, "env_steps": STEPS}
    for _ in range(2):  # also over an older one
        save_run(tmp_path / "run", learner.config, after, [row])
    other, loaded = load_run(f"{tmp_path}/run@1")
    assert_equal(loaded, after)
    assert other.config.policies == learner.config.policies
    assert read_metrics(tmp_path / "run") == [row]


def test_save_run_refuses_other_objects_before_it_replaces_a_run(learner, state, tmp_path):
    save_run(tmp_path / "run", learner.config, state)
    with pytest.raises(TypeError, match="must be a TrainConfig, learner"):
        save_run(tmp_path / "run", learner, state)
    with pytest.raises(TypeError, match="must be a TrainState, from"):
        save_run(tmp_path / "run", learner.config, state.policies)
    assert load_run(tmp_path / "run")[1].num_updates == state.num_updates


def test_a_run_survives_when_save_run_fails(learner, state, tmp_path):
    save_run(tmp_path / "run", learner.config, state)
    unwritable = dataclasses.replace(learner.config, env_params={"level": object()})
    with pytest.raises(TypeError):
        save_run(tmp_path / "run", learner.config, state, [{"updates": object()}])
    with pytest.raises(yaml.YAMLError, match="object"):  # after the checkpoint was written
        save_run(tmp_path / "run", unwritable, state)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert int(load_run(tmp_path / "run")[1].num_updates) == int(state.num_updates)


def test_save_run_replaces_only_runs_that_do_not_train(learner, state, tmp_path):
    save_run(tmp_path / "run", learner.config, state)
    with hold_folder(tmp_path / "run"), pytest.raises(BlockingIOError, match="is training there"):
        save_run(tmp_path / "run", learner.config, state)
    with pytest.raises(FileExistsError, match="contains other files"):
        save_run(tmp_path, learner.config, state)
    (tmp_path / "sweep.yaml").touch()
    with pytest.raises(FileExistsError, match="contains a sweep"):
        save_run(tmp_path, learner.config, state)
    assert int(load_run(tmp_path / "run")[1].num_updates) == int(state.num_updates)


def test_update_does_not_donate_its_input(learner, state):
    before = plain(state)
    first = learner.update(state)
    assert_equal(state, before)  # also raises where a buffer was donated
    assert_equal(learner.update(state), first)


def test_initial_state_depends_only_on_the_key(learner, state):
    assert_equal(learner.init(jax.random.key(3)), state)
    other = learner.init(jax.random.key(4))
    for part in ("policies", "replicas", "key"):
        leaves = zip(
            *(jax.tree.leaves(plain(getattr(s, part))) for s in (state, other)), strict=True
        )
        assert any(np.any(np.not_equal(a, b)) for a, b in leaves), part


def test_every_update_draws_new_numbers(learner, state):
    after, first = learner.update(state)
    _, second = learner.update(
        after.replace(replicas=state.replicas, obs=state.obs, policies=state.policies)
    )
    assert first["agent/reward_mean"] != second["agent/reward_mean"]


def test_nothing_recompiles(learner, state):
    learner.update(state)
    compiled = learner.update._cache_size()
    after, _ = learner.update(state)
    hypers = {
        "learning_rate": 0.1,
        "gamma": 0.5,
        "gae_lambda": 0.0,
        "clip": 0.5,
        "value_clip": 0.1,
        "max_grad_norm": 9,
        "entropy_coefficient": 0.0,
        "value_coefficient": np.float64(2),
    }
    learner.update(with_hypers(after, **{f"agent.{name}": value for name, value in hypers.items()}))
    assert learner.update._cache_size() == compiled


# --- metrics ---


@as_users_do
def test_metrics_have_one_number_per_update(learner, state):
    _, metrics = learner.run(state, num_updates=4)
    assert all(leaf.shape == (4,) for leaf in jax.tree.leaves(metrics))
    assert {
        "episodes",
        "episode_length",
        "agent/episode_return",
        "agent/loss",
        "agent/approx_kl",
    } <= set(metrics)


@as_users_do
def test_schedules_count_env_steps(learner, state):
    _, metrics = learner.run(state, num_updates=4)
    (start, first), (end, last) = FALLING
    expected = np.interp(np.arange(4) * STEPS, [start, end], [first, last])
    np.testing.assert_allclose(metrics["agent/learning_rate"], expected, rtol=1e-6)
    _, later = learner.run(state.replace(num_updates=jnp.int32(150)), num_updates=4)
    expected = np.interp((150 + np.arange(4)) * STEPS, [start, end], [first, last])
    np.testing.assert_allclose(later["agent/learning_rate"], expected, rtol=1e-6)


@as_users_do
def test_episodes_are_counted_where_they_end(learner, state):
    # 6 steps a rollout, 8 replicas: an episode of 4 steps ends after 4, 8, 12, 16, 20, 24
    _, metrics = learner.run(state, num_updates=4)
    np.testing.assert_array_equal(metrics["episodes"], [8, 16, 8, 16])
    np.testing.assert_array_equal(metrics["episode_length"], 4)
    assert np.all(np.abs(metrics["agent/episode_return"] - 4) <= 2)


def test_update_without_an_end_gives_nan(learner, state):
    long = state.env_params.replace(episode_length=jnp.int32(10))
    _, metrics = learner.run(state.replace(env_params=long), num_updates=4)
    np.testing.assert_array_equal(metrics["episodes"], [0, 8, 0, 8])
    for name in ("episode_length", "agent/episode_return"):
        np.testing.assert_array_equal(np.isnan(metrics[name]), [True, False, True, False])
    np.testing.assert_array_equal(metrics["episode_length"][1::2], 10)


def test_ppo_moves_off_the_old_policy(learner, state):
    _, metrics = learner.run(with_hypers(state, **{"agent.learning_rate": 0.05}), num_updates=4)
    assert np.all(metrics["agent/approx_kl"] > 1e-5)
    assert np.any(metrics["agent/clip_fraction"] > 0)


# --- hyperparameters ---


def test_number_replaces_a_schedule(state):
    changed = with_hypers(state, **{"agent.learning_rate": 0.125, "agent.gamma": 0.5})
    for env_steps in (0.0, 1e9):
        assert changed.hypers["agent"].at(jnp.float32(env_steps))["learning_rate"] == 0.125
    assert changed.hypers["agent"]["gamma"] == 0.5
    assert state.hypers["agent"]["gamma"] == jnp.float32(0.7)


def test_names_with_the_blocks_of_0_2_are_accepted(state):
    changed = with_hypers(state, **{"agent.options.gamma": 0.25, "agent.ddpg.clip": 0.1})
    assert changed.hypers["agent"]["gamma"] == 0.25
    assert changed.hypers["agent"]["clip"] == jnp.float32(0.1)


def test_unknown_hyperparameter_is_refused(state):
    with pytest.raises(
        ValueError, match=r"unknown hyperparameter 'agent.gama': did you mean 'agent.gamma'"
    ):
        with_hypers(state, **{"agent.gama": 0.5})


def test_hyperparameters_of_another_population_are_refused(state):
    for name in ("agent.gamma", "agent.learning_rate"):
        with pytest.raises(ValueError, match=name):
            with_hypers(state, **{name: jnp.ones(3)})


# --- tracing ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "policies", "reset"),
    [
        ("probe_signal", ("agent",), "fresh"),
        ("probe_signal", ("agent",), 3),
        ("probe_pair", ("pilot", "clerk"), "fixed"),
    ],
)
def test_no_key_is_used_twice_and_no_tracer_leaks(env, policies, reset, frozen_objects):
    learner = make_learner(
        tiny_config(env, {name: tiny_policy("PPO") for name in policies}, reset=reset)
    )
    with jax.debug_key_reuse(True), jax.checking_leaks():  # both look while jax traces
        state = jax.eval_shape(learner.init, jax.random.key(0))
        learner.update.trace(state)


def test_keys_of_an_update_are_all_different(monkeypatch, learner, state):
    """Includes derived keys: fold_in(key, i) is split(key)[i], unknown to jax.debug_key_reuse."""
    seen = []

    def record(result, *args):
        seen.extend(arg for arg in args if is_key(arg))
        return result

    played = None
    monkeypatch.setattr(
        "wdjax.train.learner.learner.rollout", lambda *args: record((state, played), *args)
    )
    monkeypatch.setattr(PPO, "update", lambda *args: record((args[2], None, {}), *args))
    nothing = {"episode_metrics": {}, "look_at_rows": None, "look_at_steps": None, "first_bad": 0}
    for name, value in nothing.items():
        monkeypatch.setattr(f"wdjax.train.learner.learner.{name}", lambda *args, value=value: value)
    monkeypatch.setattr(
        "wdjax.train.learner.learner.commit", lambda setup, before, after, code: after
    )
    after, _ = update(learner.setup, state)
    assert len(seen) == 2
    keys = [state.key, after.key, *seen]
    keys += [jax.random.fold_in(key, i) for key in seen for i in range(8)]
    different = np.unique(np.stack([jax.random.key_data(key) for key in keys]), axis=0)
    assert len(different) == len(keys) == 20


@as_users_do
def test_without_jit_the_numbers_are_the_same(learner, state):
    jitted = learner.update(state)
    # eager operations are hundreds of programs
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        eager = update(learner.setup, state)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        plain(jitted),
        plain(eager),
    )


def test_update_uses_env_params_of_the_state(learner, state):
    richer = jax.tree.map(
        lambda old, new: jnp.asarray(new, old.dtype), state.env_params, SignalParams(constant=7.0)
    )
    assert learner.update(state.replace(env_params=richer))[1]["agent/reward_mean"] == 7
