"""Elementwise JAX primitives with the results of XLA where Triton differs or has none.

XLA defines several cases that Triton does not: integer division by 0, division of the smallest
integer by -1, shifts by more bits than there are, conversion of floats outside the range of an
integer, -0, NaN in maxima and minima, and booleans. They are implemented here. (Triton's compiler
even assumes that a divisor is not 0.) float16 and bfloat16 are computed in float32 and rounded, as
XLA does on a CPU.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels.threefry import check_key

# Primitives with equal results in Triton and XLA, from jax/_src/pallas/triton/lowering.py.
PLAIN = (
    "acos",
    "acosh",
    "add",
    "add_any",
    "and",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "eq",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "ge",
    "gt",
    "integer_pow",
    "is_finite",
    "le",
    "log",
    "log1p",
    "logistic",
    "lt",
    "mul",
    "ne",
    "nextafter",
    "not",
    "or",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
    "xor",
)
HALVES = (jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16))
DTYPES = {
    np.dtype(kind) for kind in ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
} | {*HALVES}


def check_dtype(what: str, dtype: Any) -> None:
    """Raise NotImplementedError if kernels do not support a dtype."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        check_key(dtype)
    elif dtype not in DTYPES:
        raise NotImplementedError(
            f"{what} has dtype {dtype}: kernels support bool, integers, and 16 to 64 bit floats"
        )


def maximum(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the maximum: NaN if either input is NaN (unlike Triton), and `or` for bools."""
    if x.dtype == bool:
        return x | y
    return jnp.where((y > x) | (y != y), y, x) if _is_float(x) else jnp.maximum(x, y)


def minimum(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the minimum: NaN if either input is NaN (unlike Triton), and `and` for bools."""
    if x.dtype == bool:
        return x & y
    return jnp.where((y < x) | (y != y), y, x) if _is_float(x) else jnp.minimum(x, y)


def select(which: jax.Array, *cases: jax.Array) -> jax.Array:
    """Select a case as XLA's select_n does, with the index clamped to the valid range."""
    if which.dtype == bool:
        return jax.lax.select_n(which, *cases)
    chosen = cases[-1]
    for i in range(len(cases) - 2, -1, -1):
        chosen = jnp.where(which <= i, cases[i], chosen)
    return chosen


def convert(x: jax.Array, dtype: Any) -> jax.Array:
    """Convert as XLA does: floats are truncated to integers and clamped, and NaN becomes 0."""
    if not _is_float(x) or _is_float(dtype) or np.dtype(dtype).kind == "b":
        by_way = x if dtype not in HALVES else x.astype(jnp.float32)
        return by_way.astype(dtype)
    x, info = (x.astype(jnp.float32) if x.dtype in HALVES else x), jnp.iinfo(dtype)
    # powers of two: float32 represents these exactly, unlike the largest integer
    least, beyond = float(info.min), float(info.max) + 1
    inside = jnp.where((x >= least) & (x < beyond), x, 0)
    whole = inside.astype(jnp.int32).astype(dtype) if info.bits < 32 else inside.astype(dtype)
    limit = functools.partial(jnp.full, x.shape, dtype=dtype)
    return jnp.where(x >= beyond, limit(info.max), jnp.where(x < least, limit(info.min), whole))


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(getattr(x, "dtype", x), jnp.floating)


def _sign(x: jax.Array) -> jax.Array:
    # a constant -1, because Triton cannot lower the negation of a constant 1
    least = 0 if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else -1
    return jnp.where(x > 0, jnp.ones_like(x), jnp.where(x < 0, jnp.full_like(x, least), x))


def _divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """Divide. Integers truncate, and an integer divisor of 0 sets all bits."""
    if _is_float(x):
        return jax.lax.div(x, y)
    # the smallest integer divided by -1 is itself
    quotient = jax.lax.div(x, jnp.where(_is_undefined(x, y), jnp.ones_like(y), y))
    all_bits = -1 if jnp.issubdtype(y.dtype, jnp.signedinteger) else jnp.iinfo(y.dtype).max
    return jnp.where(y == 0, jnp.full_like(y, all_bits), quotient)


def _remainder(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the remainder, with the sign of x. An integer divisor of 0 gives x."""
    if _is_float(x):
        return jax.lax.rem(x, y)
    undefined = _is_undefined(x, y)
    # the remainder of a division by 1 is 0
    return jnp.where(y == 0, x, jax.lax.rem(x, jnp.where(undefined, jnp.ones_like(y), y)))


def _is_undefined(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return whether an integer division has no representable result."""
    if not jnp.issubdtype(x.dtype, jnp.signedinteger):
        return y == 0
    return (y == 0) | ((y == -1) & (x == jnp.iinfo(x.dtype).min))


def _shift(shift: Callable, fills: Callable) -> Callable:
    """Return a version of `shift` that gives `fills(x)` unless 0 <= distance < bits of x."""

    def function(x: jax.Array, distance: jax.Array) -> jax.Array:
        bits = jnp.iinfo(x.dtype).bits
        inside = (distance >= 0) & (distance < bits)
        return jnp.where(
            inside, shift(x, jnp.where(inside, distance, jnp.zeros_like(distance))), fills(x)
        )

    return function


def _signs(x: jax.Array) -> jax.Array:
    return jax.lax.shift_right_arithmetic(x, jnp.full_like(x, jnp.iinfo(x.dtype).bits - 1))


def _in_32_bits(count: Callable, excess: int) -> Callable:
    """Return a bit count for up to 32 bits that uses the 32-bit one, the only one in Triton.

    Args:
        count: the 32-bit primitive.
        excess: 1 if `count` includes the leading zeros from widening the input, else 0.
    """

    def function(x: jax.Array) -> jax.Array:
        bits = jnp.iinfo(x.dtype).bits
        if bits > 32:
            raise NotImplementedError(
                f"{count.__name__} of {x.dtype}: kernels support integers of up to 32 bits"
            )
        unsigned = x.astype(f"uint{bits}").astype(jnp.uint32)
        counted = count(jax.lax.bitcast_convert_type(unsigned, jnp.int32))
        return (counted - excess * (32 - bits)).astype(x.dtype)

    return function


def _round(x: jax.Array, rounding_method: Any) -> jax.Array:
    """Round to the nearest integer, halves to even or away from 0."""
    size = jnp.abs(x)
    low = jnp.floor(size)
    rest = size - low
    even = low == 2 * jnp.floor(low / 2)
    halves_down = even if rounding_method == jax.lax.RoundingMethod.TO_NEAREST_EVEN else False
    near = jnp.where((rest < 0.5) | ((rest == 0.5) & halves_down), low, low + 1)
    # integers, infinities and -0 stay unchanged
    return jnp.where(low == size, x, jnp.where(x < 0, near * -1, near))


def _polynomial(x: jax.Array, *coefficients: jax.Array, unroll: int | None = None) -> jax.Array:
    """Evaluate a_0 + x (a_1 + x (a_2 + ...)), a primitive since jax 0.12."""
    return functools.reduce(
        lambda value, coefficient: value * x + coefficient, reversed(coefficients)
    )


def _erf_inv(x: jax.Array) -> jax.Array:
    if isinstance(x, jax.core.Tracer) and not x.ndim:  # the rule in Pallas requires an array
        raise NotImplementedError(
            "erf_inv of a traced scalar that all replicas share is not supported in kernels"
        )
    return jax.lax.erf_inv(x)


FUNCTIONS: dict[str, Callable] = {
    "abs": lambda x: jax.lax.abs(x) if _is_float(x) else jnp.where(x < 0, -x, x),
    "clamp": lambda low, x, high: minimum(maximum(low, x), high),
    "clz": _in_32_bits(jax.lax.clz, 1),
    "div": _divide,
    "erf_inv": _erf_inv,
    "max": maximum,
    "min": minimum,
    # Triton subtracts from 0, which turns -0 into 0
    "neg": lambda x: x * -1 if _is_float(x) else jax.lax.neg(x),
    "polynomial": _polynomial,
    "population_count": _in_32_bits(jax.lax.population_count, 0),
    "pow": lambda x, y: jax.lax.pow(x, convert(y, x.dtype)),
    "rem": _remainder,
    "round": _round,
    "select_n": select,
    "shift_left": _shift(jax.lax.shift_left, jnp.zeros_like),
    "shift_right_arithmetic": _shift(jax.lax.shift_right_arithmetic, _signs),
    "shift_right_logical": _shift(jax.lax.shift_right_logical, jnp.zeros_like),
    "sign": _sign,
}


def computed(eqn: Any, by: np.ndarray | None = None) -> Callable:
    """Return the function of equally shaped arrays that an elementwise equation computes.

    Args:
        eqn: the equation.
        by: the last input if it is known at trace time, else None. Known divisors and shift
            distances that are always defined are not checked again in the kernel.

    Raises:
        NotImplementedError: if the primitive is not supported for its dtypes.
    """
    name, (out,) = eqn.primitive.name, (v.aval for v in eqn.outvars)
    if name == "convert_element_type":
        return lambda x: convert(x, out.dtype)
    dtypes = [atom.aval.dtype for atom in eqn.invars]
    if name == "bitcast_convert_type" and (
        "bool" in (out.dtype, *dtypes) or out.shape != eqn.invars[0].aval.shape
    ):
        raise NotImplementedError(
            f"bitcast_convert_type of {dtypes[0]} to {out.dtype} is not supported in kernels"
        )
    if name == "nextafter" and dtypes[0] in HALVES:
        raise NotImplementedError(f"nextafter of {dtypes[0]} is not supported in kernels")
    function = FUNCTIONS.get(name, eqn.primitive.bind)
    if name in LOOKS and by is not None and _is_defined(name, by):
        function = eqn.primitive.bind
    function = functools.partial(function, **eqn.params)
    halves = name != "bitcast_convert_type" and any(dtype in HALVES for dtype in dtypes)
    return _by_float32(function, out.dtype) if halves else function


def _is_defined(name: str, by: np.ndarray) -> bool:
    """Return whether a division or shift by these known numbers is always defined."""
    if name in ("div", "rem"):
        return bool(np.all((by != 0) & (by != -1)))
    return bool(np.all((by >= 0) & (by < 8 * by.dtype.itemsize)))


def _by_float32(function: Callable, dtype: Any) -> Callable:
    """Wrap a function: compute 16-bit floats in float32, and cast the result to `dtype`."""

    def widen(x) -> jax.Array:
        return x.astype(jnp.float32) if x.dtype in HALVES else x

    return lambda *arrays: function(*map(widen, arrays)).astype(dtype)


# primitives that check their last input for undefined results
LOOKS = frozenset(("div", "rem", "shift_left", "shift_right_arithmetic", "shift_right_logical"))
COMPUTED = frozenset((*PLAIN, *FUNCTIONS, "bitcast_convert_type", "convert_element_type"))
