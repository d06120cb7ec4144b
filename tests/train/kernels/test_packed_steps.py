"""The loop of a rollout on a GPU: small arrays of its carry are packed, and it is unrolled."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.kernels.mapped import map_replicas_kernel
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
    # bytes are not packed
    outcome = {"reward": carry["number"], "flags": carry["flag"], "byte": carry["byte"]}
    return after, outcome | {"seen": (carry["count"] * drawn).astype(jnp.int8)}


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
    # words of three arrays, and three others; without packing, no words and six; and words and
    # bytes of outcomes
    assert outputs_of_scans(jax.make_jaxpr(scan)(start(), drawn)) == [(4 if limit else 7) + 3]
    found, outcomes = scan(start(), drawn)
    expected, expected_outcomes = Engine().scan_steps(step, start(), drawn, unroll)
    jax.tree.map(np.testing.assert_array_equal, data(found), data(expected))
    jax.tree.map(np.testing.assert_array_equal, outcomes, expected_outcomes)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, start())


def unrolls(engine, step, unroll, length=8):
    """Return the steps in an iteration of the loop of a rollout."""
    scan = functools.partial(engine.scan_steps, step, unroll=unroll)
    jaxpr = jax.make_jaxpr(scan)(start(), jnp.ones(length))
    lengths = [eqn.params["length"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    return [length // iterations for iterations in lengths]


# of 4, 5 and 3 the first that divides the steps, otherwise 4
@pytest.mark.parametrize(("length", "expected"), [(8, 4), (20, 4), (10, 5), (9, 3), (14, 4)])
def test_a_gpu_unrolls_so_that_no_steps_are_left(length, expected):
    assert unrolls(Cuda(), step, 0, length)[0] == expected


def test_a_gpu_unrolls_small_steps_unless_told_otherwise(monkeypatch):
    assert unrolls(Cuda(), step, 2) == [2]
    monkeypatch.setattr(cuda, "MAX_EQUATIONS", 5)
    assert unrolls(Cuda(), step, 0) == [1]
    assert unrolls(Cuda(), step, 2) == [2]
    assert unrolls(Engine(), step, 0) == [1]


def step_by_kernel(carry, drawn):
    """Advance two arrays of three replicas by one kernel. Bytes are not packed."""

    def of_one(replica, drawn):
        place, count = replica["place"], replica["count"]
        return {"place": place * drawn + count.astype(jnp.float32), "count": count + 1}

    after = map_replicas_kernel(of_one, carry, drawn, interpret=True)
    return after, {"reward": after["place"], "seen": after["count"].astype(jnp.int8)}


@pytest.mark.parametrize("length", [6, 8])
@pytest.mark.parametrize("unroll", [1, 3, 7])
def test_arrays_that_one_kernel_writes_are_packed_only_in_iterations_of_one_step(length, unroll):
    drawn = jnp.linspace(0.5, 1.5, length)
    carry = {"place": jnp.arange(12.0).reshape(3, 4), "count": jnp.arange(3, dtype=jnp.int32)}
    scan = functools.partial(Cuda().scan_steps, step_by_kernel, unroll=unroll)
    jaxpr = jax.make_jaxpr(scan)(carry, drawn)
    loop, *_ = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    # outcomes: words and bytes; carry: words, or empty words and two arrays
    expected = 2 + (1 if unroll == 1 else 3), length // min(unroll, length)
    assert (len(loop.outvars), loop.params["length"]) == expected
    found, expected = scan(carry, drawn), Engine().scan_steps(step_by_kernel, carry, drawn, 1)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("length", [8, 10])
def test_keys_of_a_rollout_are_used_once(length):
    def draws(carry, key):
        return carry + jax.random.uniform(key), carry

    def run(key):
        return Cuda().scan_steps(draws, jnp.float32(0), jax.random.split(key, length), 0)

    with jax.debug_key_reuse(True):
        jax.jit(run)(jax.random.key(0))  # raises KeyReuseError if a key is used twice


def test_a_step_is_traced_once():
    calls = []

    def counted(carry, drawn):
        calls.append(None)
        return step(carry, drawn)

    jax.make_jaxpr(functools.partial(Cuda().scan_steps, counted, unroll=0))(start(), jnp.ones(8))
    assert len(calls) == 1


@pytest.mark.parametrize("length", [1, 2, 6])
def test_lengths_that_are_no_multiple_of_the_steps_of_an_iteration(length):
    drawn = jnp.linspace(0.5, 1.5, length)
    found, outcomes = Cuda().scan_steps(step, start(), drawn, 0)
    expected, expected_outcomes = Engine().scan_steps(step, start(), drawn, 0)
    jax.tree.map(np.testing.assert_array_equal, data(found), data(expected))
    jax.tree.map(np.testing.assert_array_equal, outcomes, expected_outcomes)


def members(axes, draws, times=1):
    """Return the results of both engines for members, with the last carry as numbers."""

    def run(engine, carry, drawn):
        last, outcomes = engine.scan_steps(step, carry, drawn, 0)
        return data(last), outcomes

    carry, of_engine = start(), [functools.partial(run, engine) for engine in (Cuda(), Engine())]
    for _ in range(times):
        of_engine = [jax.vmap(run, axes) for run in of_engine]
        if axes[0] == 0:
            carry = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), carry)
    return [jax.jit(run)(carry, draws) for run in of_engine]


# members with an own carry, with own random numbers, and with both
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_each_member_of_a_population_has_its_own_words(axes):
    drawn = jnp.linspace(0.5, 1.5, 12).reshape(2, 6)
    found, expected = members(axes, drawn if axes[1] == 0 else drawn[0])
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_populations_of_populations():
    found, expected = members((0, 0), jnp.linspace(0.5, 1.5, 24).reshape(2, 2, 6), times=2)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_observations_of_members_are_written_in_place():
    """A population contains no scatter: XLA would read the old rows for it."""
    carry = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), start())
    scan = jax.vmap(functools.partial(Cuda().scan_steps, step, unroll=0))
    jaxpr = str(jax.make_jaxpr(scan)(carry, jnp.ones((2, 8))))
    assert "dynamic_update_slice" in jaxpr
    assert "scatter" not in jaxpr


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
