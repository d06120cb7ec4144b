"""Every primitive that a kernel supports, with every dtype and special values, against XLA."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import CARDS, lowered
from kernel_cases import Case, N, all_cases, random_case
from kernel_comparison import compare, run_kernel

from wdjax.replicas import scan_replicas, why_no_kernel

pytestmark = pytest.mark.usefixtures("quick_compile")

X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
ROWS, FLAGS, KEY = X.reshape(N, 2, 2), X > 0, jax.random.key(7)
WIDE = np.random.default_rng(1).normal(size=(4, 20)).astype(np.float32)
BEYOND = np.array([0, 5, -7])
BOTH = (
    np.array([7, -(2**31), 0, 5], np.int32) + np.zeros((N, 1), np.int32),
    np.array([0, -1, 0, 33], np.int32) + np.zeros((N, 1), np.int32),
)
FOUND = [  # past failures: wrong results or crashes
    Case("filled with 0", lambda x: x.at[BEYOND].get(mode="fill", fill_value=0.0), (X,)),
    Case("filled with 1", lambda x: x.at[BEYOND].get(mode="fill", fill_value=1.0), (X,)),
    Case("filled", lambda x: x.at[BEYOND].get(mode="fill"), (X,)),
    Case("integers filled", lambda x: x.at[BEYOND].get(mode="fill"), (X.astype(np.int32),)),
    Case("reshaped across", lambda x: jax.lax.reshape(x, (4,), (1, 0)), (ROWS,)),
    Case("rounded", lambda x: jax.lax.round(x), (np.full((N, 2), [-0.49999997, 0.5], np.float32),)),
    Case("no steps", lambda x: jax.lax.scan(lambda c, y: (c, y), x, x[:, :0].T), (ROWS,)),
    Case("of nothing", lambda x: (x.sum(), x.prod(), jnp.all(x), x @ x, x.cumsum()), (X[:, :0],)),
    Case("no indices", lambda x: x[np.array([], int)], (X,)),
    Case(
        "no numbers",
        lambda x, none: (x + none.sum(), none, none.T),
        (X, X.reshape(N, 4, 1)[..., :0]),
    ),
    Case("flags", lambda x: (jnp.maximum(x, x[::-1]), jnp.min(x)), (FLAGS,)),
    Case("a key", lambda x: jax.random.bits(jax.random.fold_in(KEY, x[0])), (X.astype(np.int32),)),
    Case(
        "half",
        lambda x: (x / 3, jnp.round(x), jax.nn.sigmoid(x), x @ x),
        (X.astype(jnp.bfloat16),),
        False,
    ),
    Case("infinite beyond a row", lambda x: jnp.log(jnp.abs(x @ WIDE)) @ WIDE.T, (X,), False),
    Case("flags of a row", lambda x: (x @ WIDE > 0)[0] & ~(x @ WIDE > 1)[1], (X,)),
    Case("whole numbers of a row", lambda x: (x @ WIDE).astype(jnp.int32)[:2] // 2, (X,)),
    Case("overflow", lambda x, y: (x // y, x % y, x << y, x >> y, jax.lax.div(x, y)), BOTH),
]


@pytest.mark.slow
def test_past_failures_agree_with_xla():
    assert compare(FOUND, interpret=True) == ([], [])


@pytest.mark.slow
def test_past_failures_agree_with_xla_for_shared_operands():
    assert compare(FOUND, interpret=True, shared=True) == ([], [])


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: (x * 1j).real, "complex64"),
        (
            lambda x: jax.lax.bitcast_convert_type(x, jnp.uint8),
            "bitcast_convert_type of float32 to uint8",
        ),
        (lambda x: jnp.nextafter(x.astype(jnp.float16), jnp.float16(1)), "nextafter of float16"),
        (lambda x: x.astype(jnp.float8_e4m3fn).astype(x.dtype), "float8_e4m3fn"),
        (
            lambda x: jax.random.split(KEY, 2).at[np.array([3])].get(mode="fill", fill_value=0),
            "gather of keys",
        ),
    ],
)
def test_primitives_with_other_results_are_not_supported(function, why):
    def step(carry, _):
        return (carry, function(carry))

    assert why in why_no_kernel(step, X, length=1)
    assert "triton" not in lowered(lambda x: scan_replicas(step, x, length=1), X)


def test_erf_inv_of_shared_operands_is_not_supported():
    def run(shared, x):
        return scan_replicas(lambda carry, _: (carry + jax.lax.erf_inv(shared), None), x, length=1)

    assert "triton" not in lowered(run, np.float32(0.5), X)


@pytest.mark.slow
@hypothesis.settings(max_examples=2)
@hypothesis.given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=5))
def test_random_programs_agree_with_xla(seeds):
    cases = [random_case(np.random.default_rng(seed)) for seed in seeds]
    assert not compare(cases, interpret=True, shared=bool(seeds[0] % 2))[0]


def has_kernel(case):
    """Return whether a kernel supports a case."""
    try:
        jax.eval_shape(
            lambda operands: run_kernel([case], operands, interpret=False), [case.operands]
        )
    except NotImplementedError:
        return False
    return True


@pytest.mark.slow
def test_random_programs_lower_for_every_card():
    random_cases = [random_case(np.random.default_rng(seed)) for seed in range(40)]
    cases = [*FOUND, *(case for case in random_cases if has_kernel(case))]
    for i, card in enumerate(CARDS):
        part = cases[i :: len(CARDS)]

        def run(operands, part=part, i=i):
            return run_kernel(part, operands, interpret=False, shared=i % 2 == 1)

        assert "scan_replicas" in lowered(run, [case.operands for case in part], card=card)


@pytest.mark.slow
def test_all_primitives_agree_with_xla():
    """One of eleven cases: all take minutes (see the command in kernel_comparison).

    Eleven is odd, because two shapes alternate.
    """
    drawn = (random_case(np.random.default_rng(seed)) for seed in range(200))
    cases = [*all_cases(), *drawn][::11]
    assert not compare(cases, interpret=True)[0]
    taken = [case for case in cases if has_kernel(case)]
    assert len(taken) > 0.97 * len(cases)

    def run(operands):
        return run_kernel(taken, operands, interpret=False)

    assert "triton" in lowered(run, [case.operands for case in taken])
