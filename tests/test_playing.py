"""`wdjax.play`: the interpreted kernel against a scan and against single environment steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import lowered

import wdjax
from wdjax import playing
from wdjax.kernels.scan import LANES
from wdjax.playing import play, start_play, uniform_action
from wdjax.replicas import scan_replicas_kernel

GAMES = ("cartpole", "acrobot", "mountain_car", "continuous_mountain_car", "pendulum")
NUM_ENVS, NUM_STEPS = LANES + 3, 24

pytestmark = pytest.mark.usefixtures("quick_compile")


def make(game):
    return wdjax.make(game, episode_length=10)


def policy_of(env, params):
    return lambda key, obs: uniform_action(env.action_space(params), key)


def keep(total, step):
    """Record every step and sum the rewards."""
    return total + step.reward, step


@functools.cache
def started(game):
    """Return (env, params, state) of 35 replicas."""
    env, params = make(game)
    start = functools.partial(start_play, env, params, num_envs=NUM_ENVS)
    return env, params, jax.jit(start)(jax.random.key(5))


@functools.cache
def played(game, path):
    """Return the result of `play` for 35 replicas and 24 steps, at least two episodes each."""
    env, params, state = started(game)

    def run(state):
        return play(
            env, params, policy_of(env, params), state, NUM_STEPS, keep, jnp.zeros(NUM_ENVS)
        )

    with pytest.MonkeyPatch.context() as patch:
        if path == "kernel":
            patch.setattr(
                playing, "scan_replicas", functools.partial(scan_replicas_kernel, interpret=True)
            )
        return state, jax.jit(run)(state)


@pytest.mark.slow
@pytest.mark.parametrize("game", ["cartpole", "acrobot", "pendulum"])
def test_kernel_agrees_with_scan(game):
    actual, expected = played(game, "kernel")[1], played(game, "scan")[1]
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, value), other in zip(
        jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True
    ):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value, other = jax.random.key_data(value), jax.random.key_data(other)
        assert (value.shape, value.dtype) == (other.shape, other.dtype)
        if value.dtype == np.float32:
            np.testing.assert_allclose(
                value, other, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path)
            )
        else:
            np.testing.assert_array_equal(value, other, err_msg=jax.tree_util.keystr(path))


@pytest.mark.slow
@pytest.mark.parametrize("game", ["cartpole", "pendulum"])
def test_play_agrees_with_single_steps(game):
    """Replicas are stepped one by one, with the keys that the module documents."""
    env, params = make(game)
    _, (state, total, steps) = played(game, "scan")
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for i in (0, NUM_ENVS - 1):
        action_key, step_key, start_key = jax.random.split(
            jax.random.fold_in(jax.random.key(5), i), 3
        )
        episode, length, returned, rewards = 0, 0, 0.0, 0.0
        obs, env_state = reset(jax.random.fold_in(start_key, 0), params)
        for t in range(NUM_STEPS):
            action = policy_of(env, params)(jax.random.fold_in(action_key, t), obs)
            played_step = jax.tree.map(lambda leaf: leaf[t, i], steps)  # noqa: B023
            np.testing.assert_allclose(played_step.obs, obs, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(played_step.action, action, rtol=1e-6)
            env_key = jax.random.fold_in(step_key, t)
            obs, env_state, reward, terminated, truncated, _ = step(
                env_key, env_state, action, params
            )
            length, returned, rewards = length + 1, returned + reward, rewards + reward
            np.testing.assert_allclose(played_step.final_obs, obs, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(
                (played_step.reward, played_step.episode_return),
                (reward, returned),
                rtol=1e-5,
                atol=1e-5,
            )
            assert played_step.episode_length == length
            assert (played_step.terminated, played_step.truncated, played_step.over) == (
                terminated,
                truncated,
                terminated | truncated,
            )
            if terminated | truncated:
                episode, length, returned = episode + 1, 0, 0.0
                obs, env_state = reset(jax.random.fold_in(start_key, episode), params)
            np.testing.assert_allclose(played_step.next_obs, obs, rtol=1e-5, atol=1e-5)
        assert (state.episode[i], state.episode_length[i], state.time[i]) == (
            episode,
            length,
            NUM_STEPS,
        )
        np.testing.assert_allclose(total[i], rewards, rtol=1e-5)
        assert episode >= 2


@pytest.mark.slow
def test_play_continues_from_its_state():
    env, params = make("cartpole")
    start, (state, _, steps) = played("cartpole", "scan")
    policy, zeros = policy_of(env, params), jnp.zeros(NUM_ENVS)
    run = jax.jit(lambda state: play(env, params, policy, state, NUM_STEPS // 2, keep, zeros))
    middle, _, first = run(start)
    end, _, second = run(middle)
    np.testing.assert_array_equal(np.concatenate([first.over, second.over]), steps.over)
    np.testing.assert_allclose(
        np.concatenate([first.obs, second.obs]), steps.obs, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(end.episode, state.episode)


def with_short_episodes(env):
    """Return an environment with an end in at least every other step.

    Its starts are used faster than they are drawn ahead.
    """

    class Short(type(env)):
        def step(self, key, state, action, params):
            *rest, terminated, truncated, info = super().step(key, state, action, params)
            return *rest, terminated | jax.random.bernoulli(key, 0.7), truncated, info

    return Short()


@pytest.mark.slow
def test_short_episodes_use_the_documented_reset_keys():
    env, params = make("cartpole")
    env = with_short_episodes(env)
    state = start_play(env, params, jax.random.key(1), 4)
    state, _, (obs, over) = jax.jit(
        lambda state: play(
            env, params, policy_of(env, params), state, 16, lambda m, s: (m, (s.next_obs, s.over))
        )
    )(state)
    for i in range(4):
        key = jax.random.split(jax.random.fold_in(jax.random.key(1), i), 3)[2]
        places = np.flatnonzero(over[:, i])
        assert len(places) == state.episode[i] > 7
        for episode, t in enumerate(places, 1):
            expected = env.reset(jax.random.fold_in(key, episode), params)[0]
            np.testing.assert_allclose(obs[t, i], expected, rtol=1e-5)


@pytest.mark.parametrize("game", GAMES)
def test_small_environments_have_a_kernel(game):
    env, params = wdjax.make(game)
    state = jax.eval_shape(lambda: start_play(env, params, jax.random.key(0), 1_000))

    def run(state):
        return play(env, params, policy_of(env, params), state, 200)[0]

    text = lowered(run, state)
    assert "triton" in text
    assert "while" not in text


@pytest.mark.slow
def test_play_accepts_traced_params():
    env, params = make("cartpole")
    state = start_play(env, params, jax.random.key(0), 3)
    policy = policy_of(env, params)
    traced = jax.jit(lambda params, state: play(env, params, policy, state, 12)[0])(params, state)
    known = jax.jit(lambda state: play(env, params, policy, state, 12)[0])(state)
    np.testing.assert_allclose(traced.obs, known.obs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_play_supports_groups():
    env, params = wdjax.make("tag_gridworld", episode_length=5)
    state = start_play(env, params, jax.random.key(0), 3)

    def sample(key, obs):
        return env.action_space(params).sample(key)

    state, _, over = jax.jit(
        lambda state: play(env, params, sample, state, 12, lambda memory, step: (memory, step.over))
    )(state)
    assert over.sum(axis=0).min() >= 2
    assert set(state.episode_return) == set(env.groups)


@pytest.mark.slow
def test_uniform_action_is_uniform_and_independent():
    keys = jax.random.split(jax.random.key(0), 6_000)
    for space, counts in ((wdjax.Discrete(3), (3,)), (wdjax.MultiDiscrete((2, 3)), (2, 3))):
        actions = jax.vmap(functools.partial(uniform_action, space))(keys)
        assert actions.dtype == jnp.int32
        for column, n in zip(actions.reshape(6_000, -1).T, counts, strict=True):
            share = np.bincount(column, minlength=n) / 6_000
            np.testing.assert_allclose(share, 1 / n, atol=0.02)
    pairs = wdjax.MultiDiscrete((2, 3)).batch(50)
    assert pairs.contains(uniform_action(pairs, keys[0]))
    both = wdjax.Dict(
        {"one": wdjax.Discrete(3).batch(3_000), "other": wdjax.Discrete(3).batch(3_000)}
    )
    drawn = uniform_action(both, keys[0])
    assert both.contains(drawn)
    # independent keys
    np.testing.assert_allclose((drawn["one"] == drawn["other"]).mean(), 1 / 3, atol=0.03)
    boxes = jax.vmap(functools.partial(uniform_action, wdjax.Box(-2.0, 3.0, (2,))))(keys)
    assert boxes.min() >= -2.0
    assert boxes.max() < 3.0
    np.testing.assert_allclose(boxes.mean(axis=0), 0.5, atol=0.1)
