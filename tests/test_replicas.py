"""Replicas in a kernel, traced scalar by scalar and interpreted, against `lax.scan` of `vmap`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import lowered

from wdjax.branches import when_any
from wdjax.kernels import elementwise
from wdjax.kernels.jaxpr import MAX_UNROLL, evaluate_closed
from wdjax.kernels.lanes import array_of, limited
from wdjax.kernels.scan import LANES
from wdjax.kernels.support import listening
from wdjax.kernels.threefry import Key
from wdjax.replicas import scan_replicas, scan_replicas_kernel, why_no_kernel

LANES_OF_TEST = 8

pytestmark = pytest.mark.usefixtures("quick_compile")


def by_scalar(function, *operands):
    """Evaluate a function of one replica on arrays [n, ...] scalar by scalar. Return its leaves."""
    leaves = jax.tree.leaves(operands)
    closed = jax.make_jaxpr(function)(*jax.tree.map(lambda leaf: leaf[0], operands))

    @jax.jit
    def evaluate(leaves):
        results = evaluate_closed(closed, [in_elements(leaf) for leaf in leaves])
        return [from_elements(array, len(leaves[0])) for array in results]

    return evaluate(leaves)


def in_elements(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(leaf)
        keys = [
            Key(data[(slice(None), *i, 0)], data[(slice(None), *i, 1)])
            for i in np.ndindex(leaf.shape[1:])
        ]
        return array_of(keys, leaf.shape[1:])
    return array_of([leaf[(slice(None), *i)] for i in np.ndindex(leaf.shape[1:])], leaf.shape[1:])


def from_elements(array, n):
    columns = [
        jnp.broadcast_to(
            jnp.stack(x, -1) if isinstance(x, Key) else x, (n, 2) if isinstance(x, Key) else (n,)
        )
        for x in array.ravel()
    ]
    return jnp.stack(columns, 1).reshape(n, *array.shape, *columns[0].shape[1:])


def data_of(leaf):
    return np.asarray(
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    )


def check(function, *operands, exact=True):
    """Compare a function evaluated scalar by scalar with the function under vmap."""
    expected = jax.tree.leaves(jax.jit(jax.vmap(function))(*operands))
    actual = by_scalar(function, *operands)
    assert len(actual) == len(expected)
    for value, other in zip(actual, map(data_of, expected), strict=True):
        assert value.dtype == other.dtype
        if exact:
            np.testing.assert_array_equal(value, other)
        else:
            np.testing.assert_allclose(value, other, rtol=3e-6, atol=1e-7)


KEYS = jax.random.split(jax.random.key(3), LANES_OF_TEST)
DRAWS = {
    "split": lambda key: jax.random.split(key),
    "split_to_a_shape": lambda key: jax.random.split(key, (3, 2))[1:, 0],
    "split_of_splits": lambda key: jax.vmap(jax.random.split)(jax.random.split(key, 3)),
    "fold_in": lambda key: jax.random.fold_in(key, 2**31 + 5),
    "fold_in_of_a_drawn_number": lambda key: jax.random.fold_in(
        key, jax.random.randint(key, (), -9, 9)
    ),
    "clone_and_data": lambda key: jax.random.key_data(jax.random.clone(key)),
    "wrap": lambda key: jax.random.split(
        jax.random.wrap_key_data(jax.random.key_data(key) + 1, impl="threefry2x32")
    ),
    "bits": lambda key: jax.random.bits(key),
    "bits_of_a_shape": lambda key: jax.random.bits(key, (2, 3)),
    "many_bits": lambda key: jax.random.bits(key, (3, 3)),
    "many_splits": lambda key: jax.random.split(jax.random.split(key, 3)[1], 9),
    "bytes": lambda key: jax.random.bits(key, (5,), "uint8"),
    "many_bytes": lambda key: jax.random.bits(key, (9,), "uint8"),
    "bits_of_many_keys": lambda key: jax.vmap(lambda k: jax.random.bits(k, (3,)))(
        jax.random.split(key, 13)
    ),
    "halves": lambda key: jax.random.bits(key, (5,), "uint16"),
    "randint": lambda key: jax.random.randint(key, (2, 2), -3, 11),
    "randint_of_several_ranges": lambda key: jax.random.randint(
        key, (3,), 0, jnp.array([2, 3, 1_000_000])
    ),
    "randint_unsigned": lambda key: jax.random.randint(key, (), 3, 200, jnp.uint32),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (5,)),
    "key_of_a_choice": lambda key: jnp.where(
        jax.random.bernoulli(key), jax.random.split(key)[0], key
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_random_bits_equal_those_of_jax(draw):
    check(draw, KEYS)


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05),
        lambda key: jax.random.normal(key, (3,)),
        lambda key: jax.random.gumbel(key, (2, 2)),
        lambda key: jax.random.exponential(key),
    ],
)
def test_random_floats_agree_with_jax(draw):
    check(draw, KEYS, exact=False)


@pytest.mark.slow
def test_categorical_draws_equal_those_of_jax():
    logits = jnp.array([0.1, -2.0, 0.7, 0.0])
    check(lambda key: jax.random.categorical(key, logits), KEYS)
    check(lambda key: jax.random.categorical(key, logits, shape=(3,)), KEYS)


X = jnp.asarray(np.random.default_rng(0).normal(size=(LANES_OF_TEST, 2, 3)), jnp.float32)
WHOLE = jnp.asarray(np.random.default_rng(1).integers(0, 3, (LANES_OF_TEST, 3)), jnp.int32)
SPECIAL = jnp.asarray(
    [[np.nan, 1, -0.5], [1, np.nan, 2.5], [np.inf, 1, 1.5], [-np.inf, np.nan, 0.5]], jnp.float32
)
MOVES = {
    "slices": lambda x: (x[:, ::2], x[::-1], x[1, 0], x[..., -1]),
    "shapes": lambda x: (x.reshape(3, 2), x.T, x[None], jnp.squeeze(x[:1]), jnp.ravel(x)),
    "joins": lambda x: (
        jnp.concatenate([x, x + 1], 1),
        jnp.stack([x, -x], 1),
        jnp.tile(x, (2, 1)),
        jnp.append(x, 5.0),
    ),
    "parts": lambda x: jnp.split(x, [1, 2], axis=1),
    "unpacked": lambda x: tuple(x[0]),
    "padded": lambda x: jnp.pad(x, ((0, 1), (2, 0)), constant_values=7.0),
    "broadcast": lambda x: x[:, :, None] * x[:, None, :],
    "known_gather": lambda x: x[:, np.array([2, 0, 0])],
    "known_places": lambda x: x.at[0, 1].set(9.0),
    "iota": lambda x: x + jax.lax.broadcasted_iota(jnp.float32, (2, 3), 1),
    "sums": lambda x: (
        x.sum(0),
        x.max(1),
        x.min(),
        (x > 0).any(),
        (x > 0).all(1),
        (x > 0).sum(1),
        jnp.prod(x, 1),
    ),
    "running": lambda x: (jnp.cumsum(x, 1), jax.lax.cummax(x, 0, reverse=True)),
    "arg": lambda x: (jnp.argmax(x, 1), jnp.argmin(x)),
    "products": lambda x: (
        x @ jnp.arange(6.0).reshape(3, 2),
        jnp.dot(x[0], x[1]),
        jnp.einsum("ij,ik->jk", x, x),
    ),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, s: s * 0.5 + i, x),
    "scan": lambda x: jax.lax.scan(lambda c, row: (c + row[0], c * row), 1.0, x, reverse=True),
    "polynomials": lambda x: (
        jnp.polyval(jnp.array([3.0, -2.0, 0.5]), x),
        jnp.polyval(x[0], x[1]),
        jnp.sinc(x),
    ),
    "calls": lambda x: (
        jax.nn.relu(x),
        jax.jit(jnp.square)(x),
        jax.checkpoint(jnp.tanh)(x),
        jnp.clip(x, -0.5, 0.5),
    ),
}


@pytest.mark.parametrize("function", MOVES.values(), ids=MOVES)
def test_array_operations_agree_with_vmap(function):
    check(function, X, exact=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[0, i[0]],
        lambda x, i: x[i[0], i[1]],
        lambda x, i: jax.lax.dynamic_slice(x, (i[0] - 1, i[1]), (1, 2)),
        lambda x, i: jax.lax.dynamic_update_slice(x, x[:1, :2] + 1, (i[0], i[1] - 1)),
        lambda x, i: jax.lax.switch(i[0], [lambda x: x, lambda x: x * 2, lambda x: -x], x),
        lambda x, i: jax.lax.select_n(i, *([x[0]] * 2), x[1]),
        lambda x, i: jax.nn.one_hot(i[0], 3),
        lambda x, i: (
            jnp.arange(2.0, 5.0)[i],
            x[0][i],
            x[:, i],
            x[i[:1] % 2],
            jnp.array([3, 5])[i],
        ),
        lambda x, i: x[0].at[i - 1].get(mode="clip", wrap_negative_indices=False),
        lambda x, i: jnp.take(x, i - 1, axis=1, mode="fill", fill_value=7.0),
        lambda x, i: (
            i // 2,
            i % 2,
            -i // 2,
            jnp.sign(i - 1),
            i.astype(jnp.uint32) >> 1,
            ~i,
            i == 2,
        ),
    ],
)
def test_dynamic_indexing_agrees_with_vmap(function):
    check(function, X, WHOLE)


def test_nan_propagates_and_rounding_ties_go_to_even():
    check(
        lambda x: (jnp.maximum(x[0], x[1]), jnp.minimum(x[0], x[1]), jnp.clip(x, 0.0, 1.0)), SPECIAL
    )
    check(
        lambda x: (
            x.max(),
            jnp.argmax(x),
            jnp.argmin(x),
            jnp.round(x),
            jnp.isnan(x),
            jnp.isfinite(x),
        ),
        SPECIAL,
    )


@pytest.mark.slow
def test_conditions_with_random_branches_agree_with_vmap():
    def function(x, i, key):
        def rare(current, over, key):
            return jnp.where(over, jax.random.uniform(key, (3,)), current)

        drawn = when_any(i[0] == 2, rare, x[0], i[0] == 2, key)
        new = jax.random.split(key)[1]
        return drawn, jax.lax.cond(
            i[1] > 0, lambda x: (jnp.sin(x), i, key), lambda x: (x, i + 1, new), x
        )

    assert 0 < (WHOLE[:, 0] == 2).sum() < LANES_OF_TEST
    check(function, X, WHOLE, KEYS, exact=False)


def test_constant_or_equal_branches_emit_no_select():
    def function(x):
        known = jnp.where(np.array([True, False, True]), x[0], 5.0)
        same = jnp.where(x > 0, x[:1, :1], x[:1, :1])
        return (
            known,
            same,
            *jax.lax.cond(x[0, 0] > 0, lambda x: (x[0], -x, x[1]), lambda x: (x[0], x, x[0]), x),
        )

    check(function, X)
    numbers = [X[:, 0, i] for i in range(3)]
    for choose in (
        lambda x: jax.lax.cond(x[0] > 0, lambda x: (x, -x), lambda x: (x, x), x)[0],
        lambda x: jnp.where(x > 0, x, x),
        lambda x: jnp.where(np.array([True, True, False]), x, x[2]),
    ):
        (actual,) = evaluate_closed(
            jax.make_jaxpr(choose)(numbers[0][:3]), [array_of(numbers, (3,))]
        )
        assert all(a is b for a, b in zip(actual, numbers, strict=True))


def test_platform_dependent_uses_its_default():
    dependent = functools.partial(
        jax.lax.platform_dependent, cuda=jnp.negative, default=lambda x: x + 1
    )
    check(dependent, X)
    with pytest.raises(NotImplementedError, match="without a default"):
        by_scalar(functools.partial(jax.lax.platform_dependent, cuda=jnp.negative, cpu=jnp.sin), X)


def test_operations_can_be_limited():
    x = X[:, 0]
    with limited(20):
        np.testing.assert_array_equal(by_scalar(lambda x: x[0] + x[1], x)[0], x[:, 0] + x[:, 1])
    with limited(2), pytest.raises(NotImplementedError, match="more than 2 operations"):
        by_scalar(lambda x: x * x * x, x)


REFUSED = {
    "sort": lambda x: jnp.sort(x),
    "while": lambda x: jax.lax.while_loop(lambda y: y[0, 0] < 3, lambda y: y + 1, x),
    "scan": lambda x: jax.lax.fori_loop(0, MAX_UNROLL + 1, lambda i, y: y + i, x),
    "pure_callback": lambda x: jax.pure_callback(np.sin, x, x),
    "shape \\(40, 40\\)": lambda x: x[0, 0] + jnp.zeros((40, 40)),
}


@pytest.mark.parametrize("word", REFUSED)
def test_unsupported_primitives_are_named(word):
    with pytest.raises(NotImplementedError, match=word):
        by_scalar(REFUSED[word], X)


@pytest.mark.parametrize(
    "inside",
    [
        lambda f: f,
        jax.jit,
        lambda f: lambda x: jax.lax.map(f, x),
        lambda f: lambda x: jax.lax.fori_loop(0, 2, lambda i, y: f(y), x),
    ],
    ids=["top", "jit", "map", "loop"],
)
def test_unsupported_steps_are_refused_before_any_operation(inside):
    """A kernel of thousands of operations would otherwise be traced for nothing."""

    def step(x, _):
        return inside(lambda y: jnp.sort(y * y))(x), None

    with limited(0), pytest.raises(NotImplementedError, match="sort"):
        jax.eval_shape(functools.partial(scan_replicas_kernel, step, length=2), X)


def test_a_branch_that_is_never_taken_may_be_unsupported():
    def step(x, _):
        return jax.lax.cond(jnp.asarray(True), lambda x: x + 1, jnp.sort, x), None

    after, _ = scan_replicas_kernel(step, X, length=2, interpret=True)
    np.testing.assert_array_equal(after, X + 1 + 1)


def test_a_step_without_a_kernel_is_traced_once_more():
    """Not once for each platform."""
    traced = []

    def step(x, _):
        traced.append(x.shape)
        return jnp.sort(x), None

    with listening() as heard:
        jax.eval_shape(functools.partial(scan_replicas, step, length=2), X)
    assert "sort" in heard["scan_replicas"]
    assert len(traced) == 2


@pytest.mark.slow
def test_unsupported_key_types_are_named():
    def step(key, _):
        return (jax.random.split(key)[0], jax.random.bits(key))

    assert "key<rbg>" in why_no_kernel(
        step, jax.random.split(jax.random.key(0, impl="rbg"), 2), length=2
    )
    assert why_no_kernel(step, KEYS, length=2) is None
    with jax.threefry_partitionable(False):
        assert "key<fry>" in why_no_kernel(step, KEYS, length=2)


def walk(weights):
    """Return a step with closed-over arrays, a key, flags, per-step data and a rare branch."""

    def step(carry, x):
        key, count, place, was_far = carry
        place = place + 0.1 * weights * x["push"]
        far = jnp.abs(place).sum() > 1.0
        place = when_any(far, restart, place, far, jax.random.fold_in(key, count))
        outputs = {"far": far & ~was_far, "place": place, "drawn": jax.random.bits(key, (2,))}
        return (key, count + far, place, far), outputs

    def restart(place, far, key):
        return jnp.where(far, jax.random.bits(key) / 2.0**40, place)

    return step


def walkers(num_replicas, num_steps):
    rng = np.random.default_rng(num_replicas)
    keys = jax.random.split(jax.random.key(0), num_replicas)
    carry = (
        keys,
        jnp.zeros(num_replicas, jnp.int32),
        jnp.zeros((num_replicas, 2)),
        jnp.zeros(num_replicas, bool),
    )
    return carry, {"push": jnp.asarray(rng.normal(size=(num_steps, num_replicas, 2)), jnp.float32)}


@pytest.mark.slow
def test_kernel_agrees_with_scan():
    carry, xs = walkers(LANES + 5, 20)
    weights = jnp.array([4.0, 6.0])

    def both(scan):
        return jax.jit(lambda weights, carry, xs: scan(walk(weights), carry, xs))(
            weights, carry, xs
        )

    expected = both(lambda step, carry, xs: jax.lax.scan(jax.vmap(step), carry, xs))
    assert expected[1]["far"].any(axis=0).all()
    for actual in (
        both(functools.partial(scan_replicas_kernel, interpret=True)),
        both(scan_replicas),
    ):
        assert jax.tree.structure(actual) == jax.tree.structure(expected)
        for value, other in zip(
            *(map(data_of, jax.tree.leaves(tree)) for tree in (actual, expected)), strict=True
        ):
            assert value.dtype == other.dtype
            if value.dtype == np.float32:
                np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(value, other)


def network(sizes, activation):
    """Return a step (carry, x) of one replica that applies an MLP."""
    rng = np.random.default_rng(0)
    weights = [
        (
            jnp.asarray(rng.normal(size=(a, b)) / a**0.5, jnp.float32),
            jnp.asarray(rng.normal(size=b), jnp.float32),
        )
        for a, b in itertools.pairwise(sizes)
    ]

    def step(carry, x):
        features = carry[None]  # one row per agent, the layout of flax layers
        for matrix, bias in weights[:-1]:
            features = activation(features @ matrix + bias[None])
        outputs = (features @ weights[-1][0])[0] + weights[-1][1]
        return 0.9 * carry + jnp.sum(outputs), (jax.nn.log_softmax(outputs), features.ravel()[:3])

    return step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "activation"),
    [
        ((4, 32, 32, 2), jnp.tanh),
        ((20, 16, 3), jax.nn.silu),
        ((3, 7, 20, 12), jax.nn.relu),
        ((5, 40, 1), jax.nn.gelu),
    ],
)
def test_networks_in_a_kernel_agree_with_scan(sizes, activation):
    step = network(sizes, activation)
    carry = jnp.asarray(np.random.default_rng(1).normal(size=(LANES + 3, sizes[0])), jnp.float32)
    expected = jax.jit(lambda carry: jax.lax.scan(jax.vmap(step), carry, length=3))(carry)
    actual = jax.jit(lambda carry: scan_replicas_kernel(step, carry, length=3, interpret=True))(
        carry
    )
    for value, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert value.shape == other.shape
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5)
    assert "triton" in lowered(lambda carry: scan_replicas(step, carry, length=3), carry)


@pytest.mark.slow
@pytest.mark.parametrize("agents", [1, 3])
def test_networks_of_several_agents_agree_with_scan(agents):
    rng = np.random.default_rng(2)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    first, bias, second, head = draw(5, 16), draw(16), draw(16, 16) / 4, draw(16, 2) / 4

    def step(carry, _):
        place, shared = carry
        shared_rows = jnp.broadcast_to(shared, (1, agents, 2))
        one_hot = jnp.broadcast_to(jnp.eye(agents, 2)[None], (1, agents, 2))
        inputs = jnp.concatenate([shared_rows, one_hot, place[None, :, None]], axis=-1)
        features = jnp.tanh(inputs @ first + bias.reshape(1, 1, 16))
        outputs = jax.nn.relu(features @ second) @ head
        return (0.5 * place + outputs[0, :, 0], shared), outputs

    carry = (draw(LANES + 1, agents), draw(LANES + 1, 2))
    expected = jax.jit(lambda carry: jax.lax.scan(jax.vmap(step), carry, length=3))(carry)
    actual = jax.jit(lambda carry: scan_replicas_kernel(step, carry, length=3, interpret=True))(
        carry
    )
    for value, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5)


AT_ONCE = {
    "numbers": (
        lambda row, i: (jnp.sum(row * row[0]), row.max(), i + 1, row > 0, -0.0 * row),
        True,
    ),
    "known": (lambda row, i: (row + np.arange(3.0, dtype=np.float32), jnp.full(2, i)), True),
    "branches": (
        lambda row, i: jax.lax.cond(i > 1, lambda row: (row, i), lambda row: (-row, i * 2), row),
        True,
    ),
    "keys": (lambda row, i: jax.random.bits(jax.random.fold_in(KEYS[1], i)), True),
    "network": (
        lambda row, i: jnp.tanh(jnp.concatenate([row, jnp.ones(9), row]) @ WIDE) @ HEAD,
        False,
    ),
}
WIDE = np.random.default_rng(5).normal(size=(15, 16)).astype(np.float32)
HEAD = np.random.default_rng(6).normal(size=(16, 20)).astype(np.float32)


def slow_but(quick, names):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in quick)) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("numbers", "network"), AT_ONCE))
def test_loops_without_a_carry_are_vectorized(name):
    """Map over three rows, each in its own lanes. The first is shared, the last constant."""
    function, exact = AT_ONCE[name]
    rows, whole = (
        jnp.concatenate([X, X[:, :1]], 1),
        jnp.arange(3 * LANES_OF_TEST).reshape(-1, 3) % 4,
    )

    def step(carry, _):
        rows, whole = carry
        rows = jnp.concatenate([jnp.zeros((1, 3)), rows[1:]])
        return carry, jax.lax.map(lambda arguments: function(*arguments), (rows, whole))

    expected = jax.jit(lambda carry: jax.lax.scan(jax.vmap(step), carry, length=1)[1])(
        (rows, whole)
    )
    actual = jax.jit(lambda carry: scan_replicas_kernel(step, carry, length=1, interpret=True)[1])(
        (rows, whole)
    )
    for value, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (value.shape, value.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(
            value, other, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6
        )
        assert not exact or np.array_equal(np.signbit(value), np.signbit(other))


TABLES = {
    "floats": np.random.default_rng(7).normal(size=(40, 3)).astype(np.float32),
    "many": np.random.default_rng(8).normal(size=(3000, 2)).astype(np.float32),
    "integers": np.arange(60, dtype=np.int32).reshape(20, 3),
    "few": np.arange(15, dtype=np.int8).reshape(5, 3),
    "flags": np.arange(200).reshape(50, 2, 2) % 3 == 0,
    "one axis": np.arange(50, dtype=np.float32),
    "one number": np.float32([3.0]),
}
READ = {
    "a row": lambda table, i: table[i],
    "a row by a slice": lambda table, i: jax.lax.dynamic_index_in_dim(table, i, keepdims=False),
    "rows that may be beyond": lambda table, i: table.at[jnp.stack([i, -i])].get(
        mode="fill", fill_value=1
    ),
    "rows at the border": lambda table, i: table.at[i - 3].get(
        mode="clip", wrap_negative_indices=False
    ),
    "a window": lambda table, i: jax.lax.dynamic_slice(
        table, (i,) + (0,) * (table.ndim - 1), (1, *table.shape[1:])
    ),
    "numbers": lambda table, i: table.reshape(-1)[:2] if table.size <= 1024 else table[i, :1],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("floats", "flags"), TABLES))
def test_shared_tables_are_read_by_index(name):
    """Each replica reads rows by its own index, some below 0 or beyond the end."""
    places = jnp.array([0, 1, 2, 19, 45, 2_999, -1, 100_000])
    table = jnp.asarray(TABLES[name])

    def run(scan, table, places):
        def step(carry, _):
            return carry, [read(table, carry) for read in READ.values()]

        return scan(step, places)[1]

    kernel = functools.partial(scan_replicas_kernel, length=1, interpret=True)

    def simple(step, carry):
        return jax.lax.scan(jax.vmap(step), carry, length=1)

    expected = jax.jit(functools.partial(run, simple))(table, places)
    for value, other in zip(
        jax.jit(functools.partial(run, kernel))(table, places), expected, strict=True
    ):
        assert value.dtype == other.dtype
        np.testing.assert_array_equal(value, other)
    assert "triton" in lowered(
        functools.partial(run, functools.partial(scan_replicas, length=1)), table, places
    )


@pytest.mark.slow
def test_large_constant_tables_stay_in_memory():
    def step(carry, _):
        return (carry, jnp.asarray(TABLES["many"])[carry])

    places = jnp.arange(8) * 7
    actual = scan_replicas_kernel(step, places, length=1, interpret=True)[1]
    np.testing.assert_array_equal(actual[0], TABLES["many"][places])


@pytest.mark.slow
def test_stacked_outputs_agree_with_scan():
    def step(carry, _):
        key, x = carry
        return (key, x + 1), (
            jnp.stack([x, x, jnp.float32(2), -x, x]),
            jnp.stack([x > 0] * 3),
            jnp.stack([key, key]),
        )

    carry = (jax.random.split(jax.random.key(0), 5), jnp.arange(5.0))
    expected = jax.lax.scan(jax.vmap(step), carry, length=2)
    actual = scan_replicas_kernel(step, carry, length=2, interpret=True)
    for value, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(data_of(value), data_of(other))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 8, 9])
def test_small_outputs_have_the_order_of_their_leaf(size):
    """Outputs of 2 to 8 distinct words are stored without a transpose, others with one."""

    def step(carry, _):
        row, key = carry
        key = jax.random.fold_in(key, 1)
        outputs = {
            "numbers": row,
            "whole": row.astype(jnp.int32),
            "flags": row > 2 * size,
            "keys": jax.random.split(key, (size + 1) // 2),
            "equal": jnp.stack([row[0]] * size),
            "known": jnp.arange(size),
        }
        return (row + 1, key), outputs

    rows = jnp.arange((LANES + 3) * size, dtype=jnp.float32).reshape(LANES + 3, size)
    carry = rows, jax.random.split(jax.random.key(0), LANES + 3)
    expected = jax.lax.scan(jax.vmap(step), carry, length=3)
    kernel = functools.partial(scan_replicas_kernel, step, length=3)
    actual = jax.jit(functools.partial(kernel, interpret=True))(carry)
    for value, other in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert (value.shape, value.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(data_of(value), data_of(other))
    flags = f"bool[3,{LANES + 3},{size}]"
    assert (f"{flags} = transpose" in str(jax.make_jaxpr(kernel)(carry))) == (size in (1, 9))


def test_kernel_is_used_on_cuda_if_supported():
    carry, xs = walkers(LANES, 4)

    def run(carry, xs):
        return scan_replicas(walk(1.0), carry, xs)

    assert "triton" not in jax.jit(run).lower(carry, xs).as_text()
    assert "triton" in lowered(run, carry, xs)

    def sorts(carry, xs):
        return scan_replicas(lambda c, x: (c, jnp.sort(x["push"])), carry, xs)

    assert "triton" not in lowered(sorts, carry, xs)


def test_empty_carries_and_outputs():
    unchanged = scan_replicas_kernel(
        lambda carry, _: (carry, None), jnp.arange(3), length=2, interpret=True
    )
    np.testing.assert_array_equal(unchanged[0], jnp.arange(3))
    assert "without a carry" in why_no_kernel(lambda _, x: (None, x), None, jnp.zeros((2, 3)))
    assert scan_replicas(lambda _, x: (None, x + 1), None, jnp.zeros((2, 3)))[1].sum() == 6


def test_arrays_beyond_int32_indices_are_not_supported():
    """Also constant and unchanged ones, whose addresses would overflow."""
    large = jax.ShapeDtypeStruct((2**22, 512), jnp.float32)
    reason = why_no_kernel(lambda carry, _: (carry, carry[0]), large, length=1)
    assert "an array has shape (4194304, 512)" in reason
    number = jax.ShapeDtypeStruct((4,), jnp.int32)
    shared = jax.ShapeDtypeStruct((2**31,), jnp.int8)

    def run(table, carry):
        return scan_replicas_kernel(lambda i, _: (i + 1, table[i]), carry, length=1)

    with pytest.raises(NotImplementedError, match=r"an array has shape \(2147483648,\)"):
        jax.eval_shape(run, shared, number)


def test_a_step_that_prints_is_not_supported():
    """A kernel would silently omit the text."""

    def step(x, _):
        jax.debug.print("{}", x)
        return x + 1, x

    assert "debug" in why_no_kernel(step, jnp.zeros(4), length=1)


COMPUTED = {  # functions of jax.lax by their operands
    "one float": """abs acos acosh asin asinh atan atanh cbrt ceil cos cosh erf_inv exp exp2 expm1
        floor is_finite log log1p logistic neg round rsqrt sign sin sinh sqrt square tan tanh""",
    "two floats": "add atan2 div eq ge gt le lt max min mul ne nextafter pow rem sub",
    "one integer": "abs bitwise_not clz neg population_count sign",
    "two integers": """add bitwise_and bitwise_or bitwise_xor div eq ge gt le lt max min mul ne rem
        shift_left shift_right_arithmetic shift_right_logical sub""",
}


def test_all_elementwise_primitives_lower_to_a_kernel():
    since_0_12 = hasattr(jax.lax, "polynomial")

    def step(carry, _):
        x, i = carry
        u, flag = i.astype(jnp.uint32), i > 3
        outputs = [
            *(getattr(jax.lax, name)(x) for name in COMPUTED["one float"].split()),
            *(getattr(jax.lax, name)(x, x + 1) for name in COMPUTED["two floats"].split()),
            *(getattr(jax.lax, name)(i) for name in COMPUTED["one integer"].split()),
            *(
                getattr(jax.lax, name)(n, n + 1)
                for name in COMPUTED["two integers"].split()
                for n in (i, u)
            ),
            *(
                f(flag, ~flag)
                for f in (jax.lax.bitwise_and, jax.lax.bitwise_or, jax.lax.bitwise_xor, jax.lax.eq)
            ),
            jax.lax.integer_pow(x, 3),
            jax.lax.integer_pow(x, -2),
            jax.lax.clamp(0.0, x, 1.0),
            jax.lax.bitcast_convert_type(x, jnp.uint32),
            u.astype(jnp.float32),
            x.astype(jnp.int32),
            flag.astype(jnp.float32),
            i.astype(bool),
            x.astype(bool),
            i.astype(jnp.int8),
            x.astype(jnp.bfloat16),
            jax.lax.select_n(flag, x, -x),
            *([jax.lax.polynomial(x, [1.0, x, 0.5])] if since_0_12 else []),
        ]
        return carry, outputs

    covered = {eqn.primitive.name for eqn in jax.make_jaxpr(step)((1.0, 1), None).eqns}
    # Triton lowers add_any as add
    uncovered = {"add_any"} if since_0_12 else {"add_any", "polynomial"}
    assert set(elementwise.COMPUTED) - covered == uncovered
    carry = (jnp.ones(LANES), jnp.ones(LANES, jnp.int32))
    assert why_no_kernel(step, carry, length=2) is None
    assert "triton" in lowered(lambda carry: scan_replicas(step, carry, length=2), carry)
