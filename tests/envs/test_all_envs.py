"""All registered environments: jit, vmap, scan, spaces, gradients and number of compilations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.env_checker.case import quick_jit
from wdjax.spaces import agent_axes

pytestmark = pytest.mark.usefixtures("quick_compile")
each_env = pytest.mark.parametrize("name", wdjax.list_envs())
N, T = 3, 12


@functools.cache
def play(name):
    """Return (env, params, start, steps [T, N, ...]) of N random replicas, also past their ends."""
    env, params = wdjax.make(name, episode_length=8)

    def body(state, key):
        action_key, step_key = jax.random.split(key)
        action = jax.vmap(env.action_space(params).sample)(jax.random.split(action_key, N))
        obs, after, *rest = jax.vmap(env.step, (0, 0, 0, None))(
            jax.random.split(step_key, N), state, action, params
        )
        return after, (action, obs, after, *rest)

    @quick_jit
    def run(key):
        obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, N), params)
        return (obs, state), jax.lax.scan(
            body, state, jax.random.split(jax.random.fold_in(key, 1), T)
        )[1]

    return env, params, *jax.tree.map(np.asarray, run(jax.random.key(0)))


@each_env
def test_observations_and_actions_are_in_their_spaces(name):
    env, params, (first_obs, _), (action, obs, *_) = play(name)
    check_obs, check_action = (quick_jit(jax.vmap(space.contains)) for space in spaces(env, params))

    def flat(tree):
        return jax.tree.map(lambda leaf: leaf.reshape(T * N, *leaf.shape[2:]), tree)

    assert check_obs(first_obs).all()
    assert check_obs(flat(obs)).all()
    assert check_action(flat(action)).all()


def spaces(env, params):
    return env.observation_space(params), env.action_space(params)


@each_env
def test_outputs_have_the_required_shapes_and_dtypes(name):
    env, params, (_, start), (_, _, after, reward, terminated, truncated, info) = play(name)
    groups = env.groups
    for value, dtype in ((reward, np.float32), (terminated, np.bool_), (truncated, np.bool_)):
        assert (set(value) == set(groups)) if groups else not isinstance(value, dict)
        for group in groups or [None]:
            leaf = value if group is None else value[group]
            assert leaf.shape == ((T, N) if group is None else (T, N, groups[group]))
            assert leaf.dtype == dtype
    axes = {group: {(num,)} for group, num in groups.items()}
    for space in spaces(env, params):
        assert (
            not groups or {group: agent_axes(part) for group, part in space.spaces.items()} == axes
        )
    assert all(leaf.shape == (T, N) for leaf in info.values())
    for one, many in zip(jax.tree.leaves(start), jax.tree.leaves(after), strict=True):
        assert (one.dtype, (T, *one.shape)) == (many.dtype, many.shape)
    assert dataclasses.is_dataclass(start)
    assert start.replace(time=5).time == 5


@each_env
def test_ends_are_absorbing_and_exclusive(name):
    env, _, _, (_, _, _, reward, terminated, truncated, _) = play(name)
    for group in env.groups or [None]:
        ended, cut, gain = (
            tree if group is None else tree[group] for tree in (terminated, truncated, reward)
        )
        assert not (ended & cut).any()
        assert (ended[1:] >= ended[:-1]).all()
        assert (gain[1:][ended[:-1]] == 0).all()
        assert (ended | cut)[7:].all()  # episode_length is 8
        assert env.can_truncate or not cut.any()


@each_env
def test_environments_are_equal_and_hashable_by_value(name):
    (env, params), (other, _) = wdjax.make(name), wdjax.make(name)
    assert env == other
    assert hash(env) == hash(other)
    assert len({env, other}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        env.groups = {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.episode_length = 3
    assert list(env.groups) == list(wdjax.make(name)[0].groups)
    for one, same in zip(spaces(env, params), spaces(other, params), strict=True):
        assert one == same
        assert hash(one) == hash(same)


@each_env
def test_gradients_are_finite(name):
    """Of rewards, observations and float states with respect to float params and states."""
    env, params = wdjax.make(name, episode_length=T - 3)

    def step(params, state, key):
        action_key, step_key = jax.random.split(key)
        action = env.action_space(params).sample(action_key)
        obs, after, reward, *_ = env.step(step_key, state, action, params)
        leaves = jax.tree.leaves((obs, after, reward))
        return after, sum(
            jnp.sum(leaf) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)
        )

    def total(params, state, key):
        return jax.lax.scan(functools.partial(step, params), state, jax.random.split(key, T))[
            1
        ].sum()

    @quick_jit
    def gradients(params, key):
        return jax.grad(total, (0, 1), allow_int=True)(params, env.reset(key, params)[1], key)

    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients(params, jax.random.key(1))):
        assert leaf.dtype == jax.dtypes.float0 or np.isfinite(leaf).all(), jax.tree_util.keystr(
            path
        )


@pytest.mark.parametrize("change", [{"num_taggers": 2}, {"use_full_observation": False}])
@pytest.mark.parametrize("name", ["tag_continuous", "tag_gridworld"])
def test_environments_differ_by_static_fields(name, change):
    assert wdjax.make(name)[0] != wdjax.make(name, **change)[0]


@each_env
def test_steps_compile_once(name):
    """Further steps, other params and params on a device do not trace again."""
    env, params = wdjax.make(name)
    traces = []

    @quick_jit
    def step(key, state, action, params):
        traces.append(1)
        return env.step(key, state, action, params)

    _, state = quick_jit(env.reset)(jax.random.key(0), params)
    action = quick_jit(env.action_space(params).sample)(jax.random.key(1))
    for changed in (
        params,
        params,
        wdjax.make(name, episode_length=77)[1],
        jax.tree.map(jnp.asarray, params),
    ):
        _, state, *_ = step(jax.random.key(2), state, action, changed)
    assert len(traces) == 1


VARIED = {
    "acrobot": {
        "gravity": [5.0, 9.8, 20.0],
        "LINK_MASS_2": [0.5, 1.0, 2.0],
        "AVAIL_TORQUE": [[-1, 0, 1], [2, 3, 4], [5, 6, 7]],
    },
    "cartpole": {
        "gravity": [5.0, 9.8, 20.0],
        "masspole": [0.1, 0.5, 2.0],
        "episode_length": [1, 2, 500],
    },
    "continuous_mountain_car": {"gravity": [0.002, 0.0025, 0.01], "power": [0.001, 0.02, 0.03]},
    "covid_economy": {
        "sick_rate": [0.1, 0.5, 1.0],
        "interest": [0.0, 0.03, 0.3],
        "cooldown": [1, 28, 90],
    },
    "mountain_car": {
        "gravity": [0.001, 0.01, 0.05],
        "force": [0.001, 0.01, 0.05],
        "max_speed": [0.01, 0.07, 0.1],
    },
    "pendulum": {"gravity": [5.0, 10.0, 20.0], "l": [0.5, 1.0, 2.0], "max_torque": [2.0, 0.5, 9.0]},
    "reaction_one_atom": {
        "ienergy": [-99.0, -45.0, 9.0],
        "nz": [4, 5, 9],
        "episode_length": [1, 2, 500],
    },
    "reaction_two_atoms": {"ienergy": [-9.0, -2.7, 9.0], "min_reward": [-1000.0, -1.0, 0.0]},
    "rice": {
        "a_2": [0.001, 0.00236, 0.01],
        "rho": [0.0, 0.015, 0.1],
        "carbon_price": [0.0, 1.0, 2.0],
    },
    "tag_continuous": {
        "max_speed": [0.5, 1.0, 2.0],
        "tagging_distance": [0, 0.3, 1],
        "grid_length": [1.0, 10.0, 9.0],
    },
    "taxed_commons": {"capacity": [40, 60, 99], "cost": [0.1, 0.2, 0.9], "fishing_days": [1, 4, 5]},
    "tag_gridworld": {
        "grid_length": [2, 10, 50],
        "step_cost_for_tagger": [0.0, 0.5, 1.0],
        "episode_length": [1, 9, 9],
    },
}


@each_env
def test_params_may_be_vmapped(name):
    """Each variant gives the same result as on its own."""
    env, params = wdjax.make(name)
    changes = {
        key: jnp.asarray(value, getattr(params, key).dtype)
        for key, value in VARIED.get(name, {}).items()
    }
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (3, *leaf.shape)), params).replace(
        **changes
    )

    def run(key, params):
        reset_key, action_key, step_key = jax.random.split(key, 3)
        _, state = env.reset(reset_key, params)
        return env.step(step_key, state, env.action_space(params).sample(action_key), params)

    together, alone = quick_jit(jax.vmap(run, (None, 0)))(jax.random.key(3), many), quick_jit(run)
    results = [
        alone(jax.random.key(3), jax.tree.map(lambda leaf, i=i: leaf[i], many)) for i in range(3)
    ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *results)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), together, stacked
    )
    if name in VARIED:
        assert any(np.any(leaf[0] != leaf[1]) for leaf in jax.tree.leaves(stacked))


@each_env
def test_rollouts_do_not_reuse_keys(name):
    env, params = wdjax.make(name, episode_length=2)
    replicas = wdjax.vectorize(env, 4)
    sample = (
        env.action_space(params).batch(4).sample
        if not env.groups
        else jax.vmap(env.action_space(params).sample)
    )

    def body(state, key):
        action_key, step_key = jax.random.split(key)
        action = sample(jax.random.split(action_key, 4) if env.groups else action_key)
        return replicas.step(step_key, state, action, params)[1], None

    def run(key):
        reset_key, key = jax.random.split(key)
        _, state = replicas.reset(reset_key, params)
        return jax.lax.scan(body, state, jax.random.split(key, 3))[0]

    with jax.debug_key_reuse(True):
        state = quick_jit(run)(jax.random.key(0))
    np.testing.assert_array_equal(state.episode_length, 1)
