"""Fewer kernels with the same results: unrolled loops, and selections instead of scatters."""

import functools

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.kernels import launches
from wdjax.kernels.backend import CUDA, cuda_or_default, platform
from wdjax.kernels.lanes import limited
from wdjax.kernels.launches import trace, with_few_launches
from wdjax.replicas import scan_replicas_kernel

pytestmark = pytest.mark.usefixtures("quick_compile")


def unrolls(jaxpr):
    """Return (length, unroll) of all scans of a jaxpr."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            found.append((eqn.params["length"], eqn.params["unroll"]))
        for inner in jex.core.jaxprs_in_params(eqn.params):
            found += unrolls(inner)
    return found


def step(x, key):
    """Run scans in a condition and in a scan, and a function with a custom derivative."""

    def outer(x, i):
        total = jax.lax.fori_loop(0, 3, lambda j, y: 0.5 * y + j, x)
        return jax.lax.cond(x > 1.0, lambda: total, lambda: jax.nn.relu(x) + i), total

    x, rows = jax.lax.scan(outer, x, jnp.arange(20.0))
    _, key = jax.lax.scan(lambda key, _: (jax.random.split(key)[0], None), key, length=4), key
    return {"x": x + jax.random.uniform(key), "rows": rows, "key": key}


def test_results_are_equal_and_long_scans_stay():
    args = jnp.float32(0.3), jax.random.key(0)
    found, expected = jax.jit(with_few_launches(step))(*args), jax.jit(step)(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for name in ("x", "rows"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    assert sorted(unrolls(jax.make_jaxpr(with_few_launches(step))(*args).jaxpr)) == [
        (3, 3), (4, 4), (20, 1)
    ]  # fmt: skip


def test_scans_with_many_equations_stay(monkeypatch):
    monkeypatch.setattr(launches, "MAX_EQUATIONS", 3)
    args = jnp.float32(0.3), jax.random.key(0)
    assert {
        unroll for _, unroll in unrolls(jax.make_jaxpr(with_few_launches(step))(*args).jaxpr)
    } == {1}


def test_the_limit_counts_the_iterations_of_inner_loops(monkeypatch):
    monkeypatch.setattr(launches, "MAX_EQUATIONS", 50)
    inner = lambda x: jax.lax.fori_loop(0, 10, lambda _, y: 0.5 * y + 1.0, x)  # noqa: E731
    nested = lambda x: jax.lax.fori_loop(0, 4, lambda _, y: inner(y), x)  # noqa: E731
    found = unrolls(jax.make_jaxpr(with_few_launches(nested))(1.0).jaxpr)
    assert sorted(found) == [(4, 1), (10, 10)]


def test_equations_are_counted_as_on_a_gpu():
    """Of two branches only one is compiled, and `scan_replicas` limits its kernels itself."""

    def dependent(x):
        return cuda_or_default(lambda x: x + 1.0, lambda x: x * x * x * x, x)

    with platform(CUDA):
        known = trace(dependent, 1.0)[1]
    choice = 2  # for the platform and the branch
    assert known == 1
    assert trace(dependent, 1.0)[1] == known + choice

    def scanned(times):
        def step(x, _):
            return functools.reduce(lambda y, _: y * x, range(times), x), None

        kernel = functools.partial(scan_replicas_kernel, step, length=2)
        return trace(kernel, jax.ShapeDtypeStruct((8,), jnp.float32))[1]

    assert scanned(100) == scanned(1)


@pytest.mark.slow
def test_wrapped_environments_unroll_loops_on_gpus(monkeypatch):
    pytest.importorskip("jaxmarl", exc_type=ImportError)
    env, params = wdjax.make("jaxmarl:HeuristicEnemySMAX", credit="team")
    key = jax.random.key(0)
    _, state = env.reset(key, params)
    action = {"ally": jnp.full(5, 4, jnp.int32)}
    call = lambda: env.step(key, state, action, params)  # noqa: E731
    assert (8, 1) in unrolls(jax.make_jaxpr(call)().jaxpr)
    expected = jax.jit(call)()
    monkeypatch.setattr("wdjax.adapters._foreign.on_gpu", lambda: True)
    assert (8, 8) in unrolls(jax.make_jaxpr(lambda: call())().jaxpr)
    for ours, theirs in zip(
        *map(jax.tree.leaves, (jax.jit(lambda: call())(), expected)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


SCATTERS = {
    "one place": lambda x, i: x.at[i[0], i[1]].set(7.0),
    "a row": lambda x, i: x.at[i[0]].add(jnp.arange(4.0)),
    "a column": lambda x, i: x.at[:, i[1]].multiply(jnp.arange(5.0)),
    "a known place of a column": lambda x, i: x.at[2, i[1]].min(-1.0),
    "several places": lambda x, i: x.at[i, 1].max(jnp.array([3.0, 9.0])),
    "the same place twice": lambda x, i: x.at[i[0] * 0 + jnp.array([1, 1]), 0].add(1.0),
    "several rows": lambda x, i: x.at[i].add(jnp.arange(8.0).reshape(2, 4)),
    "several columns": lambda x, i: x.at[:, i].max(jnp.arange(10.0).reshape(5, 2)),
    "promised": lambda x, i: x.at[i[0] % 5, i[1] % 4].set(7.0, mode="promise_in_bounds"),
    "all places": lambda x, i: x.at[...].set(i[0]),
    "a part that is known": lambda x, i: x.at[:, 1].set(i[0]).at[-1].add(1.0),
    "clipped": lambda x, i: x.at[i[0], i[1]].set(7.0, mode="clip"),
    "8 bits": lambda x, i: jnp.tile(x, 9).at[i[0], i[1].astype(jnp.uint8) + 30].set(7.0),
    "flags": lambda x, i: (x > 1.0).at[i[0], i[1]].set(True),
}
LARGE = {
    "a block": lambda x, i: x.at[i[0] + jnp.arange(2), 1].set(7.0).at[:2].set(1.0),
    "too many places": lambda x, i: x.at[i[0] + jnp.arange(5), 1].set(7.0),
    "too many numbers": lambda x, i: jnp.tile(x, (64, 64)).at[i[0], i[1]].set(7.0),
    "a key": lambda x, i: jax.random.split(jax.random.key(0), 3).at[i[0]].set(jax.random.key(7)),
}


def scatters(jaxpr):
    """Return how many scatters a jaxpr contains."""
    inner = sum(
        scatters(inner) for e in jaxpr.eqns for inner in jex.core.jaxprs_in_params(e.params)
    )
    return inner + sum(eqn.primitive.name.startswith("scatter") for eqn in jaxpr.eqns)


@pytest.mark.parametrize("name", SCATTERS)
def test_updates_at_a_few_indices_become_selections(name):
    update, x = SCATTERS[name], jnp.arange(20.0).reshape(5, 4) - 3.0
    rewritten = with_few_launches(update)
    indices = jnp.array([[1, 2], [4, 3], [5, 0], [-1, -2], [-7, 1], [0, 99]])
    assert scatters(jax.make_jaxpr(update)(x, indices[0]).jaxpr) >= 1
    assert scatters(jax.make_jaxpr(rewritten)(x, indices[0]).jaxpr) == 0
    for index in indices:
        np.testing.assert_array_equal(rewritten(x, index), update(x, index))
    both = [jax.jit(jax.vmap(f, (None, 0)))(x, indices) for f in (rewritten, update)]
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("name", LARGE)
def test_other_updates_stay(name):
    update, args = LARGE[name], (jnp.arange(20.0).reshape(5, 4), jnp.array([1, 2]))
    found, expected = with_few_launches(update), update
    assert scatters(jax.make_jaxpr(found)(*args).jaxpr) > 0
    data = lambda x: jax.random.key_data(x) if name == "a key" else x  # noqa: E731
    np.testing.assert_array_equal(data(found(*args)), data(expected(*args)))


@pytest.mark.slow
@pytest.mark.parametrize(("game", "left"), [("Breakout-MinAtar", 2), ("Asterix-MinAtar", 0)])
def test_games_of_gymnax_have_few_scatters_on_gpus(game, left, monkeypatch):
    """Breakout sets three rows of bricks, at a known place, in the reset and in the step."""
    pytest.importorskip("gymnax", exc_type=ImportError)
    env, params = wdjax.make(f"gymnax:{game}")

    def play(key):
        obs, state = env.reset(key, params)

        def step(state, key):
            action = jax.random.randint(key, (), 0, 3)
            obs, state, *rest = env.step(key, state, action, params)
            return state, (obs, *rest)

        return obs, jax.lax.scan(step, state, jax.random.split(key, 30))[1]

    keys = jax.random.split(jax.random.key(0), 16)
    expected = jax.jit(jax.vmap(play))(keys)
    assert scatters(jax.make_jaxpr(play)(keys[0]).jaxpr) > 5
    monkeypatch.setattr("wdjax.adapters._foreign.on_gpu", lambda: True)
    again = lambda key: play(key)  # noqa: E731  # not in the cache
    assert scatters(jax.make_jaxpr(again)(keys[0]).jaxpr) == left
    jax.tree.map(np.testing.assert_array_equal, jax.jit(jax.vmap(again))(keys), expected)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_methods_of_wrapped_environments_accept_names(on_gpu, monkeypatch):
    pytest.importorskip("gymnax", exc_type=ImportError)
    monkeypatch.setattr("wdjax.adapters._foreign.on_gpu", lambda: on_gpu)
    env, params = wdjax.make("gymnax:CartPole-v1")
    key = jax.random.key(0)
    obs, state = env.reset(key, params=params)
    jax.tree.map(np.testing.assert_array_equal, (obs, state), env.reset(key, params))
    stepped = env.step(key, state, action=jnp.int32(1), params=params)
    jax.tree.map(np.testing.assert_array_equal, stepped, env.step(key, state, jnp.int32(1), params))


def test_a_known_part_of_an_index_costs_no_operations_in_a_kernel():
    """Ten comparisons, selections and additions, not one for each of 400 numbers."""

    @with_few_launches
    def step(carry, x):
        place, total = carry
        board = jnp.broadcast_to(total, (10, 10, 4)).at[1, place, 0].set(x)
        return ((place + 1) % 10, board[1, :, 0].sum()), board[1, :, 0].sum()

    carry, xs = (jnp.arange(8), jnp.ones(8)), jnp.arange(24.0).reshape(3, 8)
    with limited(60):
        found = scan_replicas_kernel(step, carry, xs, interpret=True)
    expected = jax.vmap(lambda carry, xs: jax.lax.scan(step, carry, xs), (0, 1), (0, 1))(carry, xs)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, expected)
