"""Agreement of replica kernels with plain XLA for every primitive, on this device.

    python -m wdjax.experiments.benchmarks.kernel_cases      # compiled on a GPU, interpreted elsewhere
    python -m wdjax.experiments.benchmarks.kernel_cases 8    # every eighth case

The cases cover every primitive that kernels translate, with every dtype; values that include NaN, infinities, -0, ties
and values close to overflow; constant and traced indices, negative and out of bounds, in every mode; and empty arrays.
Cases that a kernel refuses run in plain XLA and are not errors.
"""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from wdjax.replicas import scan_replicas_kernel

N = 8  # replicas
AT_ONCE = 48  # cases of a kernel
DRAWN = 200
KINDS = {
    "f": ("float32", "float16", "bfloat16"), "i": ("int32", "int8", "int16"), "u": ("uint32", "uint8", "uint16"),
    "b": ("bool",),
}  # fmt: skip
# relative, of what is rounded on the way: a kernel multiplies and adds at once, and divides with an error of 2 ulp
ERRORS = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
SPECIAL = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.0, 1.0, 2.0, -3.0, 127.6, -128.7, 300.0, 7e4, 5e9,
]  # fmt: skip


def _taking(kinds: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kinds)


EXACT = """abs add and bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clz eq floor ge gt is_finite le lt max
    min mul ne neg nextafter population_count round sign square sub"""
SURE = frozenset(EXACT.split())  # what no rounding on the way changes
UNARY = {
    **_taking("f", """acos acosh asin asinh atan atanh cbrt ceil cos cosh erf_inv exp exp2 expm1 floor is_finite log
        log1p logistic rsqrt sin sinh sqrt tan tanh round"""),
    **_taking("fiu", "neg sign square"), "abs": "fi", "population_count": "iu", "clz": "iu", "bitwise_not": "iub",
}  # fmt: skip
BINARY = {
    **_taking("fiu", "add sub mul div rem"), **_taking("fiub", "max min eq ne lt le gt ge"),
    **_taking("iub", "bitwise_and bitwise_or bitwise_xor"), **_taking("f", "atan2 pow nextafter"),
    **_taking("iu", "shift_left shift_right_arithmetic shift_right_logical"),
}  # fmt: skip
FOLDS = {
    **_taking("fiu", "reduce_sum reduce_prod"), **_taking("fiub", "reduce_max reduce_min"),
    **_taking("iub", "reduce_and reduce_or reduce_xor"),
}  # fmt: skip
RUNNING = {"cumsum": "fiu", "cumprod": "fiu", "cummax": "fiu", "cummin": "fiu"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of one replica and what it is called with, [N, ...] each."""

    name: str
    function: Callable[..., Any]
    operands: tuple[np.ndarray, ...]
    exact: bool = True


def main(every: int = 1) -> None:
    """Compares every so many-th of all cases and of DRAWN drawn ones; raises RuntimeError where some disagree."""
    interpret = jax.default_backend() != "gpu"
    cases = [*all_cases(), *(random_case(np.random.default_rng(seed)) for seed in range(DRAWN))][
        ::every
    ]
    faults, refused = compare(cases, interpret)
    faults += [f"shared: {line}" for line in compare(cases, interpret, shared=True)[0]]
    for line in (*refused, *faults):
        print(line, flush=True)
    print(
        f"replica kernels: {len(cases)} cases, {len(refused)} refused, {len(faults)} differ from plain XLA"
    )
    if faults:
        raise RuntimeError("\n".join(faults))


def compare(
    cases: Sequence[Case], interpret: bool, shared: bool = False
) -> tuple[list[str], list[str]]:
    """Runs cases by kernels and by plain XLA. Returns (what differs or fails, what is refused), a line a case.

    Args:
        shared: all replicas have the numbers of the first, which their step closes over.
    """
    if shared:
        first = lambda x: np.broadcast_to(x[:1], x.shape)  # noqa: E731
        cases = [
            dataclasses.replace(case, operands=tuple(map(first, case.operands))) for case in cases
        ]
    faults: list[str] = []
    refused: list[str] = []
    for i in range(0, len(cases), AT_ONCE):
        _compare(cases[i : i + AT_ONCE], interpret, shared, faults, refused)
    return faults, refused


def run_kernel(
    cases: Sequence[Case], operands: Sequence[tuple], interpret: bool, shared: bool = False
) -> list[Any]:
    """Runs cases in one kernel of a single step. Returns what each gives, leaves [N, ...]."""
    of_first = jax.tree.map(lambda x: jnp.asarray(x)[0], [*operands])

    def step(carry: Any, _: None) -> tuple[Any, list[Any]]:
        given = of_first if shared else carry
        return carry, [case.function(*own) for case, own in zip(cases, given, strict=True)]

    _, outputs = scan_replicas_kernel(step, [*operands], length=1, interpret=interpret)
    return jax.tree.map(lambda leaf: leaf[0], outputs)


def _compare(
    cases: Sequence[Case], interpret: bool, shared: bool, faults: list[str], refused: list[str]
) -> None:
    """Runs cases in one kernel; where that fails, each half of them in one of its own."""
    operands = [case.operands for case in cases]
    try:
        found = jax.device_get(
            jax.jit(lambda operands: run_kernel(cases, operands, interpret, shared))(operands)
        )
    except Exception as error:  # of many kinds: any of them would have ended a run
        if len(cases) > 1:
            for half in (cases[: len(cases) // 2], cases[len(cases) // 2 :]):
                _compare(half, interpret, shared, faults, refused)
        elif isinstance(error, NotImplementedError):
            refused.append(f"refused: {cases[0].name}: {error}")
        else:
            faults.append(f"{cases[0].name}: {type(error).__name__}: {str(error).splitlines()[0]}")
        return
    plain = jax.jit(
        lambda operands: [
            jax.vmap(c.function)(*given) for c, given in zip(cases, operands, strict=True)
        ]
    )
    expected = jax.device_get(plain(operands))
    words = (difference(*each) for each in zip(cases, found, expected, strict=True))
    faults += [line for line in words if line]


def difference(case: Case, found: Any, expected: Any) -> str | None:
    """Returns in words where what a kernel gave is not what XLA gave, or None."""
    for value, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if (value.shape, value.dtype) != (other.shape, other.dtype):
            return f"{case.name}: {value.dtype}{value.shape}, expected {other.dtype}{other.shape}"
        error = 0.0 if case.exact else ERRORS.get(str(other.dtype), 0.0)
        a, b = (
            np.asarray(x, np.float64) if x.dtype.name in ERRORS else np.asarray(x)
            for x in (value, other)
        )
        same = (
            np.isclose(a, b, error, error / 10, equal_nan=True)
            if error
            else (a == b) | ((a != a) & (b != b))
        )
        if not same.all():
            place = tuple(np.argwhere(~same)[0])
            given = [np.asarray(operand[place[0]]).tolist() for operand in case.operands]
            return f"{case.name}: {a[place]}, expected {b[place]}, for {given}"
    return None


def numbers(
    rng: np.random.Generator, dtype: str, shape: tuple[int, ...], tame: bool = False
) -> np.ndarray:
    """Draws numbers of a dtype, [N, *shape], every third a special one; `tame`: sums and products stay in range."""
    shape = (N, *shape)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if jnp.issubdtype(dtype, jnp.integer):
        info = np.iinfo(dtype)
        special = rng.choice(
            np.array([info.min, info.max, 0, 1, 2, info.max - 1, info.min + 1], dtype), shape
        )
        wide = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        small = rng.integers(0, 12, shape).astype(dtype) - np.asarray(
            5 if info.min < 0 else 0, dtype
        )
        return np.choose(rng.integers(0, 3, shape), [special, wide, small])
    usual = rng.normal(size=shape) * (1.0 if tame else rng.choice([1.0, 40.0], shape))
    special = rng.choice(SPECIAL[:12] if tame else SPECIAL, shape)
    with np.errstate(over="ignore"):
        return np.where(rng.random(shape) < 0.3, special, usual).astype(jnp.dtype(dtype))


def dtypes_of(kinds: str) -> Iterator[str]:
    """Yields the dtypes of some kinds."""
    return itertools.chain.from_iterable(KINDS[kind] for kind in kinds)


def all_cases() -> Iterator[Case]:
    """Yields every primitive with every dtype that it takes, in turns of odd shapes."""
    rng = np.random.default_rng(0)
    shapes = itertools.cycle([(), (3,), (2, 1, 3), (5,), (0,), (7,)])
    for table, make in ((UNARY, unary), (BINARY, binary), (FOLDS, fold), (RUNNING, running)):
        for name, kinds in table.items():
            for dtype in dtypes_of(kinds):
                yield from (make(rng, name, dtype, shape) for shape in ((4,), next(shapes)))
    for dtype in dtypes_of("fiub"):
        yield from (convert(rng, dtype, other) for other in dtypes_of("fiub"))
        yield from (
            clamp(rng, dtype),
            choice(rng, dtype),
            product(rng, dtype, (3, 4)),
            product(rng, dtype, (2, 0)),
        )
        yield from (
            make(rng, dtype)
            for make in (arg, move, gather, scatter, slices, branches, loop)
            for _ in range(3)
        )
    for index in dtypes_of("iu"):
        yield from (gather(rng, "float32", index) for _ in range(8))


def random_case(rng: np.random.Generator) -> Case:
    """Draws a case: a primitive, or several in a row, with dtypes, shapes, numbers, indices and modes."""
    maker = str(rng.choice([*MAKERS]))
    shape = tuple(int(size) for size in rng.integers(0, 4, rng.integers(0, 4)))
    tables = {"unary": UNARY, "binary": BINARY, "fold": FOLDS, "running": RUNNING}
    if maker in tables:
        name = str(rng.choice(list(tables[maker])))
        return MAKERS[maker](
            rng, name, str(rng.choice(list(dtypes_of(tables[maker][name])))), shape
        )
    dtype = str(rng.choice(list(dtypes_of("fiub"))))
    if maker == "convert":
        return convert(rng, dtype, str(rng.choice(list(dtypes_of("fiub")))))
    if maker == "product":
        return product(rng, dtype, (int(rng.integers(0, 4)), int(rng.integers(0, 5))))
    if maker == "gather":
        return gather(rng, dtype, str(rng.choice(list(dtypes_of("iu")))))
    return MAKERS[maker](rng, dtype)


def unary(rng: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> Case:
    """One number in."""
    function = getattr(lax, name)
    if name == "round":
        method = lax.RoundingMethod(int(rng.integers(0, 2)))
        return Case(
            f"round {method.name} {dtype}",
            lambda x: lax.round(x, method),
            (numbers(rng, dtype, shape),),
        )
    x = numbers(rng, dtype, shape, tame=name == "exp2")  # XLA's own is off by much where x is large
    return Case(f"{name} {dtype}{list(shape)}", function, (x,), name in SURE)


def binary(rng: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> Case:
    """Two numbers in, or one of them known."""
    x, y = numbers(rng, dtype, shape), numbers(rng, dtype, shape)
    if (
        name in ("rem", "pow") and dtype in KINDS["f"]
    ):  # Triton's remainder of a large quotient is rounded
        x, y = (
            (np.abs(x), y) if name == "pow" else (x, np.where(np.abs(y) > 0.4, y, np.ones_like(y)))
        )
        x = np.where(np.abs(x) < 1e3, x, np.ones_like(x))
    exact = name in SURE or dtype not in KINDS["f"]
    if rng.random() < 0.4:
        known = y[0]
        return Case(
            f"{name} {dtype}{list(shape)}, {known} known",
            lambda x: getattr(lax, name)(x, known),
            (x,),
            exact,
        )
    return Case(f"{name} {dtype}{list(shape)}", getattr(lax, name), (x, y), exact)


def fold(rng: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> Case:
    """A reduction, over no, some or all axes."""
    axes = tuple(axis for axis in range(len(shape)) if rng.random() < 0.7)
    function = lambda x: getattr(lax, name)(x, axes)  # noqa: E731
    exact = dtype not in KINDS["f"] or name in ("reduce_max", "reduce_min")
    return Case(
        f"{name} {dtype}{list(shape)} over {axes}",
        function,
        (numbers(rng, dtype, shape, tame=True),),
        exact,
    )


def running(rng: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> Case:
    """A running fold."""
    shape, reverse = shape or (3,), bool(rng.integers(0, 2))
    axis = int(rng.integers(0, len(shape)))
    function = lambda x: getattr(lax, name)(x, axis=axis, reverse=reverse)  # noqa: E731
    exact = dtype not in KINDS["f"] or name in ("cummax", "cummin")
    return Case(
        f"{name} {dtype}{list(shape)} along {axis}",
        function,
        (numbers(rng, dtype, shape, tame=True),),
        exact,
    )


def convert(rng: np.random.Generator, dtype: str, other: str) -> Case:
    """A conversion, and where the size is the same the bits of it."""
    one, both = jnp.dtype(dtype), jnp.dtype(other)
    if one.itemsize == both.itemsize and "bool" not in (dtype, other) and rng.random() < 0.3:
        function = lambda x: lax.bitcast_convert_type(  # noqa: E731
            lax.bitcast_convert_type(x, both), f"int{8 * one.itemsize}"
        )
        return Case(
            f"bits of {dtype} as {other}", function, (np.abs(numbers(rng, dtype, (4,), tame=True)),)
        )
    exact = not (one.kind in "iu" and other in KINDS["f"])
    return Case(
        f"{dtype} to {other}",
        lambda x: lax.convert_element_type(x, both),
        (numbers(rng, dtype, (6,)),),
        exact,
    )


def clamp(rng: np.random.Generator, dtype: str) -> Case:
    """Numbers between two, also where these are the wrong way about or not numbers."""
    return Case(f"clamp {dtype}", lax.clamp, tuple(numbers(rng, dtype, (4,)) for _ in range(3)))


def choice(rng: np.random.Generator, dtype: str) -> Case:
    """One of two by a flag, or of several by a number that may be beyond them."""
    cases = int(rng.integers(2, 5))
    which = (
        numbers(rng, "bool", (3,))
        if cases == 2
        else rng.integers(-1, cases + 1, (N, 3)).astype(np.int32)
    )
    values = tuple(numbers(rng, dtype, (3,)) for _ in range(cases))
    return Case(f"select_n of {cases} {dtype}", lax.select_n, (which, *values))


def product(rng: np.random.Generator, dtype: str, sizes: tuple[int, int]) -> Case:
    """A product of matrices, one of which may have no numbers; with a batch."""
    rows, depth = sizes
    left, right = (
        numbers(rng, dtype, (2, rows, depth), tame=True),
        numbers(rng, dtype, (2, depth, 3), tame=True),
    )
    function = lambda a, b: lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))))  # noqa: E731
    if dtype in KINDS["f"]:  # small whole numbers, which no rounding of products changes
        left, right = (rng.integers(-3, 4, x.shape).astype(x.dtype) for x in (left, right))
    return Case(
        f"dot_general {dtype} of {rows} x {depth} and {depth} x 3", function, (left, right), False
    )


def arg(rng: np.random.Generator, dtype: str) -> Case:
    """The place of the largest or the least, of several that are equal too."""
    name, x = str(rng.choice(["argmax", "argmin"])), numbers(rng, dtype, (2, 5), tame=True)
    axis, index = int(rng.integers(0, 2)), str(rng.choice(["int32", "uint32", "int8"]))
    return Case(
        f"{name} {dtype}",
        lambda x: getattr(lax, name)(x, axis, jnp.dtype(index)),
        (np.repeat(x, 2, 2),),
    )


def move(rng: np.random.Generator, dtype: str) -> Case:
    """What moves numbers about."""
    fill = np.ones((), jnp.dtype(dtype))
    moves = {
        "pad": lambda x: lax.pad(x, fill, ((1, -1, 0), (0, 2, 1))),
        "reshape": lambda x: lax.reshape(x, (4, 3), (1, 0)),
        "rev": lambda x: lax.rev(x, (0, 1)),
        "join": lambda x: lax.concatenate([x[:0], x, x[1:2]], 0),
        "tile": lambda x: (jnp.tile(x, (2, 1)), jnp.stack([x, x], 1), *x),
        "slice": lambda x: (lax.slice(x, (0, 1), (3, 4), (2, 3)), x[..., None].squeeze(-1).T),
        "iota": lambda x: lax.select(x == x, x, lax.full_like(x, 0)) + lax.iota(jnp.dtype(dtype), 4)[None].repeat(3, 0)
        if dtype != "bool" else ~x,
        "split": lambda x: lax.split(x, (1, 0, 3), 1),
    }  # fmt: skip
    name = str(rng.choice(list(moves)))
    return Case(f"{name} {dtype}", moves[name], (numbers(rng, dtype, (3, 4), tame=True),))


def gather(rng: np.random.Generator, dtype: str, index: str = "int32") -> Case:
    """Numbers at places that are known or not, negative and beyond the end among them, in every mode."""
    size = int(rng.integers(1, 6))
    x = numbers(rng, dtype, (size, *([2] if rng.random() < 0.5 else [])))
    count = tuple(int(n) for n in rng.integers(0, 4, rng.integers(0, 3)))
    places = rng.integers(-8 if index[0] == "i" else 0, 9, (N, *count)).astype(index)
    mode = str(rng.choice(["fill", "clip", "promise_in_bounds"]))
    if mode == "promise_in_bounds":
        places = places % size
    fills = (
        [None, 0, 1]
        if dtype == "bool"
        else [None, 0, 1, 3, np.nan]
        if dtype in KINDS["f"]
        else [None, 0, 1, 3]
    )
    fill = fills[int(rng.integers(0, len(fills)))] if mode == "fill" else None
    wrap, known = bool(rng.integers(0, 2)), places[0]
    at = lambda x, i: x.at[i].get(mode=mode, fill_value=fill, wrap_negative_indices=wrap)  # noqa: E731
    name = f"gather {dtype}{list(x.shape[1:])} {mode} {fill} {index}{list(count)} wrap={wrap}"
    if rng.random() < 0.5:
        return Case(f"{name} at {known.tolist()}", lambda x: at(x, known), (x,))
    return Case(name, at, (x, places))


def scatter(rng: np.random.Generator, dtype: str) -> Case:
    """Numbers put at known places, beyond the end among them."""
    x, new = numbers(rng, dtype, (5,)), numbers(rng, dtype, (3,))
    places, mode = rng.permutation(14)[:3] - 5, str(rng.choice(["drop", "clip"]))
    put_at = np.where(places < 0, places + 5, places)
    put_at = np.clip(put_at, 0, 4) if mode == "clip" else put_at
    places = places[np.unique(put_at, return_index=True)[1]]  # of two for one place either may stay
    new = new[:, : len(places)]
    put = lambda x, new: x.at[places].set(new, mode=mode)  # noqa: E731
    return Case(f"scatter {dtype} {mode} at {places.tolist()}", put, (x, new))


def slices(rng: np.random.Generator, dtype: str) -> Case:
    """A window, read or written, from a place that may be beyond."""
    x, new = numbers(rng, dtype, (4, 3)), numbers(rng, dtype, (2, 1))
    start = rng.integers(-3, 6, (N, 2)).astype(str(rng.choice(["int32", "int8"])))
    read = lambda x, new, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 1))  # noqa: E731
    write = lambda x, new, i: lax.dynamic_update_slice(x, new, (i[0], i[1]))  # noqa: E731
    reads = bool(rng.integers(0, 2))
    return Case(
        f"dynamic_{'' if reads else 'update_'}slice {dtype}",
        read if reads else write,
        (x, new, start),
    )


def branches(rng: np.random.Generator, dtype: str) -> Case:
    """One of two or three functions, by a number that may be beyond."""
    several = int(rng.integers(2, 4))
    functions = [lambda x: x, lambda x: lax.rev(x, (0,)), lambda x: lax.max(x, lax.rev(x, (0,)))][
        :several
    ]
    which = rng.integers(-1, 4, N).astype(np.int32)
    return Case(
        f"switch of {several} {dtype}",
        lambda i, x: lax.switch(i, functions, x),
        (which, numbers(rng, dtype, (3,))),
    )


def loop(rng: np.random.Generator, dtype: str) -> Case:
    """A scan of no, one or three steps, either way."""
    length, reverse = int(rng.choice([0, 1, 3])), bool(rng.integers(0, 2))
    step = lambda c, x: (lax.max(c, x), lax.min(c, x))  # noqa: E731
    function = lambda c, x: lax.scan(step, c, x, reverse=reverse)  # noqa: E731
    return Case(
        f"scan {length} {dtype}",
        function,
        (numbers(rng, dtype, ()), numbers(rng, dtype, (length,))),
    )


def chain(rng: np.random.Generator, dtype: str) -> Case:
    """A small program: elementwise primitives one after the other, each of what was before."""
    kind = next(kind for kind, names in KINDS.items() if dtype in names)
    ones = [
        name
        for name, kinds in UNARY.items()
        if kind in kinds and name in SURE and name not in ("is_finite", "round")
    ]
    twos = [
        name
        for name, kinds in BINARY.items()
        if kind in kinds and name not in ("rem", "div", "atan2", "pow")
    ]
    names = [str(rng.choice(ones + twos)) for _ in range(int(rng.integers(2, 6)))]

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        for name in names:
            new = getattr(lax, name)(x) if name in ones else getattr(lax, name)(x, y)
            x, y = lax.convert_element_type(new, x.dtype), x
        return x, y

    return Case(
        f"chain {dtype} {' '.join(names)}",
        function,
        (numbers(rng, dtype, (3,)), numbers(rng, dtype, (3,))),
        False,
    )


MAKERS = {
    make.__name__: make for make in (
        unary, binary, fold, running, convert, clamp, choice, product, arg, move, gather, scatter, slices, branches,
        loop, chain,
    )
}  # fmt: skip

if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
