"""The loop of a rollout on a GPU: small arrays of its carry are packed, and it is unrolled."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.train.fast import cuda
from wdjax.train.fast.cuda import Cuda
from wdjax.train.state.engine import Engine


def start():
    """Return a carry of all kinds of arrays. The byte and the key are never packed."""
    return {
        "number": jnp.float32(0.5),
        "count": jnp.arange(6, dtype=jnp.int32).reshape(2, 3),
        "flag": jnp.array([True, False]),
        "byte": jnp.int8(3),
        "key": jax.random.key(0),
        "large": jnp.arange(20, dtype=jnp.uint32),
        "none": None,
    }


def step(carry, drawn):
    key, draw = jax.random.split(carry["key"])
    after = {
        "number": carry["number"] * drawn + jax.random.uniform(draw),
        "count": carry["count"] + carry["byte"],
        "flag": carry["flag"] ^ (carry["number"] > 1.0),
        "byte": carry["byte"] + jnp.int8(1),
        "key": key,
        "large": carry["large"] + carry["flag"][0].astype(jnp.uint32),
        "none": None,
    }
    return after, {"reward": carry["number"], "flags": carry["flag"]}


def data(tree):
    return {
        name: jax.random.key_data(leaf) if name == "key" else leaf for name, leaf in tree.items()
    }


def outputs_of_scans(jaxpr):
    """Return the numbers of outputs of the scans of a jaxpr."""
    return [len(eqn.outvars) for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]


@pytest.mark.parametrize("limit", [10, 0])
@pytest.mark.parametrize("unroll", [1, 2])
def test_packing_changes_no_bit(limit, unroll, monkeypatch):
    monkeypatch.setattr(cuda, "PACKED", limit)
    drawn = jnp.linspace(0.5, 1.5, 4)
    scan = functools.partial(Cuda().scan_steps, step, unroll=unroll)
    # words of three arrays, and three others; without packing, six; and the words of outcomes
    assert outputs_of_scans(jax.make_jaxpr(scan)(start(), drawn)) == [(4 if limit else 6) + 1]
    found, outcomes = scan(start(), drawn)
    expected, expected_outcomes = Engine().scan_steps(step, start(), drawn, unroll)
    jax.tree.map(np.testing.assert_array_equal, data(found), data(expected))
    jax.tree.map(np.testing.assert_array_equal, outcomes, expected_outcomes)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, start())


def unrolls(engine, step, unroll, length=8):
    """Return the steps in an iteration of the loop of a rollout."""
    scan = functools.partial(engine.scan_steps, step, unroll=unroll)
    jaxpr = jax.make_jaxpr(scan)(start(), jnp.ones(length))
    return [eqn.params["unroll"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]


def test_a_gpu_unrolls_small_steps_unless_told_otherwise(monkeypatch):
    assert unrolls(Cuda(), step, 0) == [cuda.UNROLL]
    assert unrolls(Cuda(), step, 2) == [2]
    monkeypatch.setattr(cuda, "MAX_EQUATIONS", 5)
    assert unrolls(Cuda(), step, 0) == [1]
    assert unrolls(Cuda(), step, 2) == [2]
    assert unrolls(Engine(), step, 0) == [1]


def test_keys_of_a_rollout_are_used_once():
    def draws(carry, key):
        return carry + jax.random.uniform(key), carry

    def run(key):
        return Cuda().scan_steps(draws, jnp.float32(0), jax.random.split(key, 8), 0)

    with jax.debug_key_reuse(True):
        jax.jit(run)(jax.random.key(0))  # raises KeyReuseError if a key is used twice


def test_a_step_is_traced_once():
    calls = []

    def counted(carry, drawn):
        calls.append(None)
        return step(carry, drawn)

    jax.make_jaxpr(functools.partial(Cuda().scan_steps, counted, unroll=0))(start(), jnp.ones(8))
    assert len(calls) == 1


@pytest.mark.parametrize("length", [1, 6])
def test_lengths_that_are_no_multiple_of_the_steps_of_an_iteration(length):
    drawn = jnp.linspace(0.5, 1.5, length)
    found, outcomes = Cuda().scan_steps(step, start(), drawn, 0)
    expected, expected_outcomes = Engine().scan_steps(step, start(), drawn, 0)
    jax.tree.map(np.testing.assert_array_equal, data(found), data(expected))
    jax.tree.map(np.testing.assert_array_equal, outcomes, expected_outcomes)


def test_each_member_of_a_population_has_its_own_words():
    drawn = jnp.linspace(0.5, 1.5, 8).reshape(2, 4)
    carry = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), start())
    found, expected = (
        jax.vmap(lambda carry, drawn, e=engine: e.scan_steps(step, carry, drawn, 1))(carry, drawn)
        for engine in (Cuda(), Engine())
    )
    jax.tree.map(np.testing.assert_array_equal, data(found[0]), data(expected[0]))


@pytest.mark.parametrize("change", ["dtype", "shape", "structure"])
def test_a_step_that_changes_the_carry_raises_the_error_of_jax(change):
    def changed(carry, drawn):
        after, outcome = step(carry, drawn)
        changes = {
            "dtype": {"count": after["count"].astype(jnp.float32)},
            "shape": {"count": after["count"].T},
            "structure": {"more": after["number"]},
        }
        return after | changes[change], outcome

    with pytest.raises(TypeError, match=r"'count'|'more'"):
        Cuda().scan_steps(changed, start(), jnp.ones(4), 1)
