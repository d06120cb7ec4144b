"""`vectorize`: params per replica, keys per block, cost of a step, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import lowered
from toy_walk import Params, Walk

import wdjax
from wdjax import ResetPool
from wdjax.branches import when_any
from wdjax.stepping import begin_episodes, step_replicas

pytestmark = pytest.mark.usefixtures("quick_compile")

N = 8


def stack(params, **changes):
    """Return params with a leading axis [N] on every leaf, and changes."""
    spread = jax.tree.map(lambda leaf: jnp.full(N, leaf), params)
    return spread.replace(
        **{name: jnp.asarray(value, getattr(spread, name).dtype) for name, value in changes.items()}
    )


def take(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


def assert_near(one, other, rtol=1e-6, atol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def random_actions(env, params):
    return jax.vmap(env.action_space(params).sample)(jax.random.split(jax.random.key(7), N))


# --- params per replica ---


def test_each_replica_uses_its_own_params():
    env, params = wdjax.make("cartpole")
    limits = np.arange(1, N + 1)
    many = stack(
        params,
        gravity=np.linspace(1, 30, N),
        masspole=np.linspace(0.05, 2, N),
        episode_length=limits,
    )
    replicas = wdjax.vectorize(env, N, params_axis=0)
    _, state = jax.jit(replicas.reset)(jax.random.key(0), many)
    step, alone = jax.jit(replicas.step), jax.jit(env.step)
    for t in range(1, 4):
        before, action = state.env_state, jnp.full(N, t % 2)
        _, state, reward, terminated, truncated, info = step(jax.random.key(t), state, action, many)
        np.testing.assert_array_equal(truncated, t % limits == 0)
        np.testing.assert_array_equal(info["over"], truncated)
        for i in (0, 2, N - 1):
            alone_obs, _, *rest = alone(
                jax.random.key(9), take(before, i), action[i], take(many, i)
            )
            assert_near(info["final_obs"][i], alone_obs)
            assert_same((reward[i], terminated[i], truncated[i]), tuple(rest[:3]))
    assert len(np.unique(info["final_obs"][:, 3])) == N


@pytest.mark.slow
@pytest.mark.parametrize("reset", ["fresh", "fixed", ResetPool(3)], ids=str)
def test_each_replica_resets_with_its_own_params(reset):
    env, params = wdjax.make("tag_gridworld", num_taggers=3, random_start=True)
    lengths = np.array([5, 10**6] * (N // 2))
    many = stack(params, grid_length=lengths, episode_length=np.full(N, 1))
    replicas = wdjax.vectorize(env, N, reset, params_axis=0)
    _, state = jax.jit(replicas.reset)(jax.random.key(0), many)
    action = random_actions(env, params)
    _, after, *_, info = jax.jit(replicas.step)(jax.random.key(1), state, action, many)
    assert info["over"].all()
    for places in (state.env_state.x, after.env_state.x):
        assert (places <= lengths[:, None]).all()
        assert (places[1::2].max(axis=1) > 5).all()
    equal = np.asarray(state.env_state.x == after.env_state.x).all(axis=1)[1::2]
    if reset == "fixed":
        assert equal.all()
    elif reset == "fresh":
        assert not equal.any()
    else:
        pool = state.starts[1].x
        assert pool.shape == (N, 3, 4)
        assert (
            (np.asarray(after.env_state.x)[:, None] == np.asarray(pool))
            .all(axis=-1)
            .any(axis=1)
            .all()
        )


def test_action_bounds_may_differ_between_replicas():
    many = stack(Params(), reach=np.linspace(0.5, 4, N))
    replicas = wdjax.vectorize(Walk(), N, params_axis=0)
    _, state = jax.jit(replicas.reset)(jax.random.key(0), many)
    assert (state.env_state.place <= many.reach).all()
    jax.eval_shape(replicas.step, jax.random.key(1), state, jnp.zeros((N, 1)), many)


# --- stepping without resets ---


def test_step_replicas_agrees_with_single_replicas_and_does_not_reset():
    env, params, action = Walk(), Params(episode_length=2), jnp.zeros((N, 1))
    starts = jax.random.split(jax.random.key(0), N)
    _, env_state = jax.vmap(env.reset, (0, None))(starts, params)
    state = begin_episodes(env, starts, env_state, params)
    alone = begin_episodes(env, starts[3], take(env_state, 3), params)
    lengths = []
    for t in range(4):
        keys, before = jax.random.split(jax.random.key(t + 1), N), state.env_state
        obs, state, reward, *_, info = step_replicas(env, keys, state, action, params)
        result = step_replicas(env, keys[3], alone, action[3], params)
        assert_near(take((obs, state, reward, info), 3), (*result[:3], result[-1]))
        np.testing.assert_array_equal(obs, info["final_obs"])
        np.testing.assert_array_equal(state.env_state.time, before.time + 1)  # also past the end
        lengths.append(np.asarray(info["episode_length"]))
        alone = result[1]
    assert info["over"].all()
    np.testing.assert_array_equal(lengths, np.arange(1, 5)[:, None].repeat(N, axis=1))


# --- keys ---


@pytest.mark.slow
@pytest.mark.parametrize(("num_blocks", "reset"), [(1, "fresh"), (4, ResetPool(5)), (N, "fresh")])
def test_keys_per_block_reproduce_each_block_alone(num_blocks, reset):
    env, params, size = Walk(), Params(episode_length=1), N // num_blocks
    whole, block = wdjax.vectorize(env, N, reset), wdjax.vectorize(env, size, reset)
    _, state = jax.jit(whole.reset)(jax.random.key(0), params)
    keys = jax.random.split(jax.random.key(1), num_blocks)
    action = random_actions(env, params)
    result = jax.jit(whole.step)(keys, state, action, params)
    step = jax.jit(block.step)
    for b in range(num_blocks):
        rows = slice(b * size, (b + 1) * size)
        part = take(state.replace(starts=None), rows).replace(starts=state.starts)
        obs, after, *rest = step(keys[b], part, action[rows], params)
        assert rest[-1]["over"].all()
        assert_same(
            (obs, after.env_state, *rest), take((result[0], result[1].env_state, *result[2:]), rows)
        )


def test_no_key_is_used_twice():
    walk = wdjax.vectorize(Walk(), N, ResetPool(2))
    with jax.debug_key_reuse(True):
        _, state = jax.jit(walk.reset)(jax.random.key(0), Params())
        jax.jit(functools.partial(play_walk, walk))(jax.random.key(0), state)


def play_walk(walk, key, state):
    def body(state, key):
        return (walk.step(key, state, jnp.zeros((N, 1)), Params())[1], None)

    return jax.lax.scan(body, state, jax.random.split(key, 3))[0]


# --- cost of a step ---


def equations(jaxpr, inside=()):
    """Yield (equation, names of the enclosing primitives) of a jaxpr, recursively."""
    for equation in jaxpr.eqns:
        yield equation, inside
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner, (*inside, equation.primitive.name))


def programs():
    """Return name -> (function, arguments) of cartpole's step, alone and in populations."""
    env, params = wdjax.make("cartpole")
    replicas = wdjax.vectorize(env, N)
    _, state = jax.jit(replicas.reset)(jax.random.key(0), params)
    action = jnp.zeros(N, jnp.int32)
    keys = jax.random.split(jax.random.key(1), 3)

    def many(tree):
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), tree)

    params = jax.tree.map(jnp.asarray, params)
    over_all, over_params = jax.vmap(replicas.step), jax.vmap(replicas.step, (None, None, None, 0))
    twice = jax.vmap(jax.vmap(replicas.step, (0, None, None, None)), (None, None, None, 0))
    return {
        "alone": (replicas.step, (keys[0], state, action, params)),
        "population": (over_all, (keys, many(state), many(action), many(params))),
        "params": (over_params, (keys[0], state, action, many(params))),
        "population of populations": (twice, (keys, state, action, many(params))),
    }


@pytest.mark.parametrize("name", ["alone", "population", "params", "population of populations"])
def test_resets_are_behind_one_scalar_condition(name, monkeypatch):
    monkeypatch.setattr("wdjax.envs.classic_control.cartpole.CartPole.cheap_reset", False)
    function, arguments = programs()[name]
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    nested = list(equations(jaxpr))
    conditions = [equation for equation, _ in nested if equation.primitive.name == "cond"]
    assert len(conditions) == 1
    assert conditions[0].invars[0].aval.shape == ()
    draws = [inside for equation, inside in nested if equation.primitive.name == "random_bits"]
    assert draws
    assert all("cond" in inside for inside in draws)
    assert "conditional(" in jax.jit(function).lower(*arguments).compile().as_text()


def test_cheap_resets_are_unconditional_on_cuda():
    function, arguments = programs()["alone"]
    texts = [lowered(function, *arguments, platform=platform) for platform in ("cpu", "cuda")]
    cases = [text.count("stablehlo.case") for text in texts]
    assert cases[0] == cases[1] + 1


def test_cheap_resets_agree_with_conditional_resets(monkeypatch):
    env, params = wdjax.make("cartpole", episode_length=5)
    replicas = wdjax.vectorize(env, N)
    _, start = replicas.reset(jax.random.key(0), params)

    def run(state):
        def body(state, key):
            return (lambda out: (out[1], out))(replicas.step(key, state, jnp.zeros(N, int), params))

        return jax.lax.scan(body, state, jax.random.split(jax.random.key(1), 12))[1]

    with_branch = jax.jit(run)(start)
    with monkeypatch.context() as patch:
        patch.setattr(
            "jax.lax.platform_dependent", lambda *operands, cuda, default: cuda(*operands)
        )
        without = jax.jit(run)(start)
    assert_near(with_branch, without)
    assert with_branch[-1]["over"].sum() >= 2 * N


class Slips(Walk):
    """Moves back after it was observed, so that the scene differs from the state."""

    def step(self, key, state, action, params):
        scene, *played = self.advance(key, state, action, params)
        return self.observe(scene, params), *played

    def advance(self, key, state, action, params):
        _, scene, *played = super().step(key, state, action, params)
        return scene, scene.replace(place=scene.place / 2), *played


class SlipsLate(Slips):
    observes_late = True


class SlipsLateAndCheap(SlipsLate):
    cheap_reset = True


@pytest.mark.parametrize(("late", "way"), [(SlipsLate, "default"), (SlipsLateAndCheap, "cuda")])
@pytest.mark.parametrize("strategy", ["fresh", ResetPool(3)])
def test_late_observation_agrees_with_step(strategy, late, way, monkeypatch):
    def run(env):
        replicas = wdjax.vectorize(env, N, strategy)

        def body(state, key):
            return (lambda out: (out[1], out))(
                replicas.step(key, state, jnp.ones((N, 1)), Params())
            )

        state = replicas.reset(jax.random.key(0), Params())[1]
        return jax.lax.scan(body, state, jax.random.split(jax.random.key(1), 12))[1]

    early = jax.jit(lambda: run(Slips()))()
    monkeypatch.setattr(
        "jax.lax.platform_dependent", lambda *operands, **ways: ways[way](*operands)
    )
    assert_near(early, jax.jit(lambda: run(late()))())
    over = early[-1]["over"]
    assert over.sum() >= 2 * N
    assert (over != over[:, :1]).any()
    assert ((early[0] != early[-1]["final_obs"]).any(axis=-1) == over).all()


@pytest.mark.slow
def test_population_members_agree_with_single_runs():
    """Episodes of members end at different times: the shared condition must reset only those."""
    env, params = Walk(), jax.tree.map(jnp.asarray, Params())
    replicas = wdjax.vectorize(env, N, ResetPool(6))
    lengths = jnp.array([2, 3, 50])
    many = jax.vmap(lambda length: params.replace(episode_length=length, reach=jnp.float32(100.0)))(
        lengths
    )

    def run(key, params):
        reset_key, key = jax.random.split(key)
        _, state = replicas.reset(reset_key, params)

        def body(state, key):
            return (lambda out: (out[1], out))(replicas.step(key, state, jnp.zeros((N, 1)), params))

        return jax.lax.scan(body, state, jax.random.split(key, 7))[1]

    keys = jax.random.split(jax.random.key(0), 3)
    together, alone = jax.jit(jax.vmap(run))(keys, many), jax.jit(run)
    for i in range(3):
        one = alone(keys[i], take(many, i))
        assert_near(take(together, i), one)
        assert one[-1]["over"][:, 0].sum() == 7 // lengths[i]


def test_step_without_ends_does_not_depend_on_the_reset_key():
    env, params = wdjax.make("cartpole")
    replicas = wdjax.vectorize(env, N, ResetPool(3))
    _, state = jax.jit(replicas.reset)(jax.random.key(0), params)
    step, action = jax.jit(replicas.step), jnp.ones(N, jnp.int32)
    one = step(jax.random.key(1), state, action, params)
    assert not one[-1]["over"].any()
    assert_same(one, step(jax.random.key(2), state, action, params))


def test_when_any_under_vmap():
    def double(current, rows, factor):
        return jnp.where(rows, current * factor, current)

    condition = jnp.array([[False, False, True], [False, False, False]])
    values = jnp.arange(1.0, 7.0).reshape(2, 3)

    def call(condition, values, factor):
        return when_any(condition, double, values, condition, factor)

    np.testing.assert_array_equal(call(condition[0], values[0], 2.0), [1, 2, 6])
    np.testing.assert_array_equal(call(condition[1], values[1], 2.0), values[1])
    np.testing.assert_array_equal(
        jax.vmap(call, (0, 0, None))(condition, values, 2.0), [[1, 2, 6], [4, 5, 6]]
    )
    np.testing.assert_array_equal(
        jax.vmap(call, (0, None, None))(condition, values[0], 2.0), [[1, 2, 6], [1, 2, 3]]
    )
    np.testing.assert_array_equal(
        jax.vmap(call, (None, None, 0))(condition[0], values[0], values[0])[:, 2], [3, 6, 9]
    )


# --- errors ---


def test_invalid_keys_raise():
    replicas = wdjax.vectorize(Walk(), N)
    with pytest.raises(TypeError, match=r"typed key\. Create it with jax.random.key\(seed\)"):
        replicas.reset(jax.random.PRNGKey(0), Params())
    _, state = jax.jit(replicas.reset)(jax.random.key(0), Params())
    with pytest.raises(TypeError, match="typed key"):
        replicas.step(jax.random.PRNGKey(0), state, jnp.zeros((N, 1)), Params())
    with pytest.raises(ValueError, match="number of keys = 3: must be a divisor of num_envs = 8"):
        replicas.step(jax.random.split(jax.random.key(0), 3), state, jnp.zeros((N, 1)), Params())


def test_vector_envs_are_equal_and_hashable_by_value():
    env = wdjax.make("tag_gridworld")[0]
    one, other = (
        wdjax.vectorize(env, N, ResetPool(3)),
        wdjax.vectorize(wdjax.make("tag_gridworld")[0], N, ResetPool(3)),
    )
    assert one == other
    assert hash(one) == hash(other)
    assert one != wdjax.vectorize(env, N, ResetPool(4))
