"""`to_gymnax`: agreement with wdjax's steps, gymnax's wrappers, and a loop as in PureJaxRL."""

import dataclasses
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_contract import Line
from toy_walk import Walk

import wdjax

gymnax = pytest.importorskip("gymnax")
from gymnax.environments import spaces  # noqa: E402
from gymnax.wrappers import FlattenObservationWrapper, LogWrapper  # noqa: E402

from wdjax.adapters import to_gymnax  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_compile")

N, T = 4, 12


def make(name, **changes):
    if name == "walk":
        return Walk(), Walk().default_params.replace(**changes)
    return wdjax.make(name, **changes)


def rollout(env, params, sample, key):
    """Return (first obs, steps [T, N, ...]) of N copies, stepped as in PureJaxRL."""

    def body(carry, key):
        _, state = carry
        action_key, step_key = jax.random.split(key)
        action = jax.vmap(sample)(jax.random.split(action_key, N))
        keys = jax.random.split(step_key, N)
        next_obs, after, reward, terminated, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
            keys, state, action, params
        )
        return (next_obs, after), (
            keys,
            state,
            action,
            next_obs,
            reward,
            terminated,
            truncated,
            info,
        )

    key, reset_key = jax.random.split(key)
    start = jax.vmap(env.reset, (0, None))(jax.random.split(reset_key, N), params)
    return start[0], jax.lax.scan(body, start, jax.random.split(key, T))[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole", "pendulum", "reaction_one_atom", "walk"])
def test_steps_agree_with_the_environment(name):
    """Repeat every step with wdjax's functions and the keys that gymnax splits."""
    env, params = make(name, episode_length=5)
    theirs = to_gymnax(env, params)
    sample = theirs.action_space(params).sample
    _, steps = jax.jit(lambda key: rollout(theirs, params, sample, key))(jax.random.key(0))
    keys, state, action, obs, reward, terminated, truncated, info = steps

    @jax.jit
    @jax.vmap
    @jax.vmap
    def again(key, state, action):
        step_key, reset_key = jax.random.split(key)
        return env.step(step_key, state.env_state, action, params), env.reset(reset_key, params)[0]

    (final_obs, _, *rest, own_info), first_obs = again(keys, state, action)
    over = np.asarray(terminated | truncated)
    assert (np.asarray(truncated).any(), over.all()) == (True, False)
    for one, other in zip((reward, terminated, truncated), rest, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    np.testing.assert_allclose(info["final_observation"], final_obs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        obs, np.where(over[..., None], first_obs, final_obs), rtol=1e-5, atol=1e-6
    )
    for name in own_info:
        np.testing.assert_allclose(info[name], own_info[name], rtol=1e-5, atol=1e-6)
    steps_so_far = np.asarray(state.time)
    np.testing.assert_array_equal(steps_so_far[1:], np.where(over[:-1], 0, steps_so_far[:-1] + 1))


def test_log_wrapper_counts_episodes():
    """The returns of CartPole are the lengths of its episodes."""
    env, params = wdjax.make("cartpole", episode_length=5, theta_threshold_radians=0.06)
    wrapped = LogWrapper(FlattenObservationWrapper(to_gymnax(env, params)))
    sample = wrapped.action_space(params).sample
    first, steps = jax.jit(lambda key: rollout(wrapped, params, sample, key))(jax.random.key(1))
    *_, obs, _, terminated, truncated, info = jax.device_get(steps)
    assert first.shape == (N, 4)
    assert obs.shape == (T, N, 4)
    over = terminated | truncated
    np.testing.assert_array_equal(info["returned_episode"], over)
    assert terminated.any()
    assert truncated.any()
    length = np.zeros(N)
    for t in range(T):
        length += 1
        np.testing.assert_array_equal(info["returned_episode_returns"][t][over[t]], length[over[t]])
        np.testing.assert_array_equal(info["returned_episode_lengths"][t][over[t]], length[over[t]])
        length[over[t]] = 0


def test_discount_is_0_after_termination_and_1_after_truncation():
    env, params = wdjax.make("cartpole", episode_length=1)
    theirs = to_gymnax(env, params)
    assert dataclasses.astuple(theirs.default_params) == dataclasses.astuple(params)
    key = jax.random.key(0)
    _, state = theirs.reset_env(key, params)
    assert not theirs.is_truncated(state, params)
    _, after, reward, terminated, _ = theirs.step_env(key, state, 1, params)
    assert (reward, terminated) == (1.0, False)
    assert theirs.is_truncated(after, params)
    assert not theirs.is_terminated(after, params)
    assert theirs.discount(after, params) == 1.0
    narrow = params.replace(theta_threshold_radians=np.float32(1e-9))
    _, after, _, terminated, _ = theirs.step_env(
        key, state.replace(env_state=state.env_state.replace(time=5)), 1, narrow
    )
    assert terminated
    assert not theirs.is_truncated(after, narrow)
    assert theirs.is_terminated(after, narrow)
    assert theirs.is_terminal(after, narrow)
    assert theirs.discount(after, narrow) == 0.0


def test_params_are_optional_and_may_be_vmapped():
    env, params = wdjax.make("cartpole", force_mag=0.0)
    theirs = to_gymnax(env, params)
    key = jax.random.key(0)
    _, state = theirs.reset(key)
    default = theirs.step(key, state, 1)[0]
    forces = jnp.array([0.0, 10.0])
    sweep = jax.vmap(lambda force: theirs.step(key, state, 1, params.replace(force_mag=force))[0])(
        forces
    )
    np.testing.assert_allclose(sweep[0], default, rtol=1e-6)
    assert sweep[1, 1] > default[1] + 0.1


class Two(Walk):
    def action_space(self, params):
        return wdjax.MultiDiscrete((2, 3))


def test_spaces_are_converted():
    cartpole = to_gymnax(*wdjax.make("cartpole"))
    assert isinstance(cartpole.action_space(), spaces.Discrete)
    assert (cartpole.name, cartpole.num_actions, cartpole.action_space().n) == ("CartPole", 2, 2)
    observation_space = cartpole.observation_space(cartpole.default_params)
    assert (type(observation_space), observation_space.shape, observation_space.dtype) == (
        spaces.Box,
        (4,),
        jnp.float32,
    )
    walk = to_gymnax(Walk(), Walk().default_params.replace(reach=3.0))
    actions = walk.action_space(walk.default_params)
    assert (actions.low, actions.high, actions.shape, walk.num_actions) == (-3.0, 3.0, (1,), 1)
    assert walk.action_space(Walk().default_params).high == 2.0
    line = to_gymnax(Line()).observation_space()
    assert isinstance(line, spaces.Dict)
    mask = line.spaces["action_mask"]
    assert (type(mask), mask.low, mask.high, mask.shape) == (spaces.Box, 0, 1, (3,))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            wdjax.make("tag_gridworld"),
            ValueError,
            "TagGridworld has groups of agents (tagger, runner): gymnax supports a single agent",
        ),
        (
            (Two(),),
            TypeError,
            "action space = MultiDiscrete(nvec=(2, 3), batch_shape=()): must be Box",
        ),
        ((3,), TypeError, "env = 3: must be a wdjax.Env"),
        ((Walk(), 3), TypeError, "params is a builtins.int: must be a Params of Walk"),
    ],
)
def test_unsupported_environments_raise(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        to_gymnax(*arguments)


def test_params_have_max_steps_in_episode():
    """Also under jit, and for every class of params."""
    for env, params in (wdjax.make("pendulum", episode_length=7), make("walk", episode_length=7)):
        params = to_gymnax(env, params).default_params
        assert params.max_steps_in_episode == 7
        assert (
            jax.jit(lambda params: params.max_steps_in_episode)(params.replace(episode_length=8))
            == 8
        )
        assert to_gymnax(env, params).default_params == params


def test_gymnax_rollout_wrapper_works():
    """It scans over `max_steps_in_episode` steps."""
    rollouts = pytest.importorskip("gymnax.experimental.rollout")
    if "env" not in inspect.signature(rollouts.RolloutWrapper).parameters:
        pytest.skip("before 1.0 it takes gymnax's own environments only")
    env = to_gymnax(*wdjax.make("cartpole", episode_length=6, force_mag=0.0))
    wrapper = rollouts.RolloutWrapper(
        lambda params, obs, key: 0, env=env, env_params=env.default_params
    )
    obs, *_, returns = wrapper.single_rollout(jax.random.key(0), None)
    assert obs.shape == (6, 4)
    assert returns == 6.0


@pytest.mark.slow
def test_rejax_trains():
    rejax = pytest.importorskip("rejax")
    if hasattr(gymnax.environments.environment.Environment, "is_truncated"):
        pytest.skip(
            "rejax 0.1.3 takes the steps of gymnax below 1.0: it cannot train on gymnax's own "
            "either"
        )
    env = to_gymnax(*wdjax.make("cartpole"))
    options = {"total_timesteps": 40_000, "eval_freq": 20_000, "num_envs": 32, "num_steps": 128}
    ppo = rejax.PPO.create(env=env, env_params=env.default_params, learning_rate=1e-3, **options)
    _, (lengths, returns) = jax.jit(ppo.train)(jax.random.PRNGKey(0))
    np.testing.assert_array_equal(lengths, returns)
    assert returns[-1].mean() > 2 * returns[0].mean()
