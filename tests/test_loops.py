"""Short loops are unrolled with the same results."""

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.kernels import loops
from wdjax.kernels.loops import unroll_short_loops

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
    """Run scans in a condition, beside a function with a derivative of its own, and in a scan."""

    def outer(x, i):
        total = jax.lax.fori_loop(0, 3, lambda j, y: 0.5 * y + j, x)
        return jax.lax.cond(x > 1.0, lambda: total, lambda: jax.nn.relu(x) + i), total

    x, rows = jax.lax.scan(outer, x, jnp.arange(20.0))
    _, key = jax.lax.scan(lambda key, _: (jax.random.split(key)[0], None), key, length=4), key
    return {"x": x + jax.random.uniform(key), "rows": rows, "key": key}


def test_results_are_equal_and_long_scans_stay():
    args = jnp.float32(0.3), jax.random.key(0)
    found, expected = jax.jit(unroll_short_loops(step))(*args), jax.jit(step)(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for name in ("x", "rows"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    assert sorted(unrolls(jax.make_jaxpr(unroll_short_loops(step))(*args).jaxpr)) == [
        (3, 3), (4, 4), (20, 1)
    ]  # fmt: skip


def test_scans_with_many_equations_stay(monkeypatch):
    monkeypatch.setattr(loops, "MAX_EQUATIONS", 3)
    args = jnp.float32(0.3), jax.random.key(0)
    assert {
        unroll for _, unroll in unrolls(jax.make_jaxpr(unroll_short_loops(step))(*args).jaxpr)
    } == {1}


def test_the_limit_counts_the_iterations_of_inner_loops(monkeypatch):
    monkeypatch.setattr(loops, "MAX_EQUATIONS", 50)
    inner = lambda x: jax.lax.fori_loop(0, 10, lambda _, y: 0.5 * y + 1.0, x)  # noqa: E731
    nested = lambda x: jax.lax.fori_loop(0, 4, lambda _, y: inner(y), x)  # noqa: E731
    found = unrolls(jax.make_jaxpr(unroll_short_loops(nested))(1.0).jaxpr)
    assert sorted(found) == [(4, 1), (10, 10)]


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
