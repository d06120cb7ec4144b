"""Actions and states of a wrong structure: `step` names the part, while tracing."""

import re

import jax
import jax.numpy as jnp
import pytest

import wdjax
from wdjax.envs import CartPole, TagGridworld
from wdjax.spaces import sample_shapes

N = 3
KEY = jax.random.key(0)


def shapes(space, axes=()):
    return jax.tree.map(
        lambda leaf: jnp.zeros((*axes, *leaf.shape), leaf.dtype), sample_shapes(space)
    )


@pytest.fixture(scope="module")
def tag():
    env, params = wdjax.make("tag_gridworld", num_taggers=2)
    return env, params, env.reset(KEY, params)[1]


@pytest.fixture(scope="module")
def many(tag):
    env, params, _ = tag
    replicas = wdjax.vectorize(env, N)
    return replicas, params, jax.eval_shape(replicas.reset, KEY, params)[1]


WRONG = [
    (
        jnp.zeros(3, jnp.int32),
        "action = an array of shape (3,): must be a dict with the keys 'tagger', 'runner'",
    ),
    (
        {"tagger": 0},
        "action = a dict with the keys 'tagger': must be a dict with the keys 'tagger', 'runner'",
    ),
    (
        {"tagger": jnp.zeros(4, jnp.int32), "runner": jnp.zeros(1, jnp.int32)},
        "action['tagger'] = an array of shape (4,): must be an array of shape (2,)",
    ),
    (
        {"tagger": {}, "runner": 0},
        "action['tagger'] = an empty dict: must be an array of shape (2,)",
    ),
]


@pytest.mark.parametrize(("action", "message"), WRONG)
def test_step_rejects_actions_of_wrong_structure(tag, action, message):
    env, params, state = tag
    for step in (env.step, jax.jit(env.step)):
        with pytest.raises(ValueError, match=re.escape(message)):
            step(KEY, state, action, params)


@pytest.mark.parametrize("name", wdjax.list_envs())
def test_every_environment_rejects_actions_of_wrong_shape(name):
    env, params = wdjax.make(name)
    state = jax.eval_shape(env.reset, KEY, params)[1]
    wrong = shapes(env.action_space(params), axes=(7,))
    with pytest.raises(
        ValueError, match=r"action.* = an array of shape \(7,.*\): must be an array of shape"
    ):
        jax.eval_shape(env.step, KEY, state, wrong, params)


def test_vector_step_rejects_actions_of_wrong_shape(many):
    replicas, params, state = many
    action = shapes(replicas.env.action_space(params), axes=(N,))
    jax.eval_shape(replicas.step, KEY, state, action, params)
    wrong = {**action, "tagger": action["tagger"][:, :1]}
    message = (
        "action['tagger'] = an array of shape (3, 1): must be an array of shape (3, 2), "
        "3 replicas of (2,)"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        jax.eval_shape(replicas.step, KEY, state, wrong, params)
    with pytest.raises(ValueError, match=r"action = an array of shape \(3,\): must be a dict"):
        replicas.step(KEY, state, jnp.zeros(3), params)


def test_params_axis_does_not_change_action_shapes():
    env, params = wdjax.make("pendulum")
    replicas = wdjax.vectorize(env, N, params_axis=0)
    params = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (N, *jnp.shape(leaf))), params)
    state = jax.eval_shape(replicas.reset, KEY, params)[1]
    jax.eval_shape(replicas.step, KEY, state, jnp.zeros((N, 1)), params)
    with pytest.raises(
        ValueError, match=r"action = an array of shape \(3,\): must be an array of shape \(3, 1\)"
    ):
        jax.eval_shape(replicas.step, KEY, state, jnp.zeros(N), params)


def test_vector_step_rejects_states_without_its_number_of_replicas(tag, many):
    (env, params, one), (replicas, _, _) = tag, many
    action = shapes(env.action_space(params), axes=(N,))
    with pytest.raises(
        TypeError, match="state = State: must be the VectorState returned by reset, with 3 replicas"
    ):
        replicas.step(KEY, one, action, params)
    other = jax.eval_shape(wdjax.vectorize(env, 5).reset, KEY, params)[1]
    with pytest.raises(
        ValueError, match="must be the VectorState returned by reset, with 3 replicas"
    ):
        jax.eval_shape(replicas.step, KEY, other, action, params)


def test_subclass_may_convert_actions_for_the_step_of_its_parent():
    class Pushed(CartPole):
        def action_space(self, params):
            return wdjax.Box(-1.0, 1.0, (1,))

        def step(self, key, state, action, params):
            return super().step(key, state, (action[0] > 0).astype(jnp.int32), params)

    class Slow(TagGridworld):
        def action_space(self, params):
            two = wdjax.Discrete(2)
            return wdjax.Dict({"tagger": two.batch(self.num_taggers), "runner": two.batch(1)})

    for env in (Pushed(), Slow()):
        params = env.default_params
        state = jax.eval_shape(env.reset, KEY, params)[1]
        jax.eval_shape(env.step, KEY, state, shapes(env.action_space(params)), params)
