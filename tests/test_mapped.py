"""`map_replicas_kernel`, interpreted, against `jax.vmap` of the same function."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.kernels.mapped import map_replicas_kernel
from wdjax.kernels.neighbors import neighbor_rows_kernel
from wdjax.stepping import StepResult
from wdjax.train import load_config, make_learner
from wdjax.train.kernels.rollout import step_in_blocks
from wdjax.train.state.engine import Engine

N = 3
X = jax.random.normal(jax.random.key(0), (N, 7))
FLAGS = jax.random.bernoulli(jax.random.key(1), 0.6, (N, 7))
NUMBERS = jax.random.randint(jax.random.key(2), (N, 7), -9, 9)
KEYS = jax.random.split(jax.random.key(3), N)
WITH_NAN = X.at[0, 3].set(jnp.nan).at[1, 0].set(jnp.nan)
TIED = jnp.round(X)

FUNCTIONS = {
    "slices overlap": (lambda x, c: x[3:] * x[:4] + c[0], X),
    "a join is sliced": (lambda x, c: jnp.concatenate([x[:2], c, x[4:]])[1:6], X),
    "a join is joined": (lambda x, c: jnp.concatenate([c, jnp.concatenate([x, c])]), X),
    "a stack is sliced": (lambda x, c: jnp.stack([x, 2 * x, x - 1], axis=1)[2:, 1:], X),
    "a stack is flat": (lambda x, c: jnp.stack([x, x + 1], axis=1).reshape(-1), X),
    "flat parts are joined": (
        lambda x, c: jnp.concatenate([jnp.stack([x, -x], axis=1).reshape(-1), c, x]),
        X,
    ),
    "a stack is padded": (lambda x, c: jnp.pad(jnp.stack([x, 2 * x]), ((2, 3), (0, 0)))[:2], X),
    "padded": (lambda x, c: jnp.pad(x, (2, 3), constant_values=7.0)[1:9], X),
    "split": (lambda x, c: jnp.split(x, [2, 3])[2] + jnp.split(x, [4])[0], X),
    "unstacked": (lambda x, c: jnp.unstack(jnp.stack([x, c[1] * x]))[1], X),
    "all pairs": (lambda x, c: jnp.abs(x[:, None] - c[None]).sum(axis=1), X),
    "both axes": (lambda x, c: (x[:, None] * c[None] > 0).any(), X),
    "all flags": (lambda flags, c: (flags.all(), flags[:3].any(), (~flags).sum()), FLAGS),
    "extremes": (lambda x, c: (jnp.max(x), jnp.min(x[2:]), x.argmax(), x.argmin()), X),
    "extremes with NaN": (lambda x, c: (x.max(), x.min(), x.argmax(), x.argmin()), WITH_NAN),
    "the first of equal numbers": (lambda x, c: (x.argmax(), x.argmin()), TIED),
    "integers": (lambda n, c: (n.max(), n.min(), n.sum(), n // 3, n % -4, n.argmin()), NUMBERS),
    "selected": (lambda x, c: jnp.where(x > 0, x, c[0]), X),
    "a vector along rows": (lambda x, c: jnp.broadcast_to(x, (4, 7)) + jnp.arange(4)[:, None], X),
    "uniform": (lambda key, c: jax.random.uniform(key, (2, 5))[1], KEYS),
    "integers are drawn": (lambda key, c: jax.random.randint(key, (6,), 0, 4), KEYS),
    "keys": (lambda key, c: jax.random.key_data(jax.random.split(key, 3)[1]), KEYS),
    "keys are stored": (lambda key, c: jax.random.split(jax.random.fold_in(key, 5)), KEYS),
    "keys of several agents": (
        lambda key, c: jax.vmap(lambda k: jax.random.normal(k, (3,)))(jax.random.split(key, 5)),
        KEYS,
    ),
    "a barrier": (
        lambda x, c: jnp.subtract(*jax.lax.optimization_barrier((x, c[0] * x))),
        X,
    ),
    "unchanged, constant and shared": (lambda x, c: (x, jnp.zeros(5), c * 2), X),
}
CONSTANT = jnp.array([0.5, -1.0, 2.0])


def data(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def require_equal(found, expected, rtol=1e-6):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(data(a), data(b), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_equal_those_of_vmap(name):
    function, replicas = FUNCTIONS[name]
    partly = name == "keys"  # the numbers of a key have no rule
    found = map_replicas_kernel(function, replicas, CONSTANT, interpret=True, partly=partly)
    require_equal(found, jax.vmap(function, (0, None))(replicas, CONSTANT))


def test_arrays_of_a_mesh_are_resharded():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))

    def function(x, _):
        return 2 * jax.sharding.reshard(x, jax.P(None))

    with jax.set_mesh(mesh):
        found = jax.jit(lambda x: map_replicas_kernel(function, x, None, interpret=True))(X)
    np.testing.assert_array_equal(found, 2 * X)


def test_xla_computes_what_depends_on_another_kernel():
    x, y = jax.random.uniform(jax.random.key(0), (2, N, 9))
    rows = functools.partial(
        neighbor_rows_kernel, k=2, num_relative=1, sizes=(4, 5), interpret=True
    )

    def function(replica, _):
        x, y = replica
        inputs = x, y, x > 0.2, jnp.stack([x, y], axis=1), 2 * y[:, None]
        first, second = jax.vmap(rows)(*(leaf[None] for leaf in inputs))  # as in a step
        return jnp.sort(first[0, 0]), second[0], x + y

    found = map_replicas_kernel(function, (x, y), None, interpret=True)
    require_equal(found, jax.vmap(function, (0, None))((x, y), None))


@pytest.mark.parametrize(
    ("function", "replicas", "word"),
    [
        (lambda x, _: jnp.sort(x), X, "sort"),
        (lambda x, _: x[jnp.argmax(x)], X, "dynamic_slice"),
        (lambda key, _: jnp.stack([key, key]) == key, KEYS, "eq of key"),
        (lambda n, _: jnp.bitwise_or.reduce(n), NUMBERS, "reduce_or of int32"),
        (lambda flags, _: flags.argmax(), FLAGS, "argmax of bool"),
        (lambda x, _: jax.lax.bitcast_convert_type(x, jnp.int8), X, "bitcast_convert_type"),
        (lambda x, _: x + 1, jnp.zeros((1_000, 2)), "1000 replicas"),
        (lambda x, _: x + 1, jnp.zeros((2, 5_000)), "5,000 numbers"),
        (lambda x, _: (x[:, None] * x[None]).sum(), jnp.zeros((2, 200)), "mul of shape"),
        (  # at the span of the whole join, the first part has too many numbers
            lambda x, _: (
                jnp.append((x[:, None] * jnp.arange(900.0)[None]).sum(1), jnp.zeros(99)) * 2
            ),
            X,
            "a block of shape",
        ),
    ],
)
def test_unsupported_functions_are_refused(function, replicas, word):
    with pytest.raises(NotImplementedError, match=word):
        map_replicas_kernel(function, replicas, None, interpret=True)


def tag(**params):
    changes = {f"env_params.{name}": value for name, value in params.items()}
    learner = make_learner(load_config("tag_continuous", num_envs=2, devices=1, **changes))
    return learner, learner.init(jax.random.key(0))


def steps(setup, env, state, num_steps):
    """Yield (by the kernel, plain) for steps with random actions."""
    plain = jax.jit(functools.partial(Engine().step, setup))
    kernel = jax.jit(functools.partial(step_in_blocks, setup, interpret=True))
    replicas, params = state.replicas, state.env_params
    for i in range(num_steps):
        first, second = jax.random.split(jax.random.key(i))
        draws = jax.random.split(first, setup.replicas.num_envs)
        action = jax.vmap(env.action_space(params).sample)(draws)
        keys = setup.replicas.draw_keys(second)
        by_kernel: StepResult = kernel(keys, replicas, action, params)
        expected = plain(keys, replicas, action, params)
        yield by_kernel, expected
        replicas = expected[1]


@pytest.mark.slow
def test_steps_of_tag_with_tags_and_resets():
    learner, state = tag(num_runners=50, episode_length=6, tagging_distance=0.05)
    tags = ends = 0
    for found, expected in steps(learner.setup, learner.env, state, 8):
        require_equal(found, expected, rtol=1e-5)
        tags, ends = tags + int(found[5]["tags"].sum()), ends + int(found[5]["over"].sum())
    assert tags > 0
    assert ends == 2


@pytest.mark.parametrize(
    ("preset", "word"),
    [("cartpole", "includes its observation"), ("tag_small", "less than 256 numbers")],
)
def test_steps_that_would_not_pay_are_refused(preset, word):
    learner = make_learner(load_config(preset, num_envs=2, devices=1))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    with pytest.raises(NotImplementedError, match=word):
        step_in_blocks(learner.setup, None, state.replicas, None, state.env_params)
