"""Cases for replica kernels: every primitive that they translate, with every dtype.

Values include NaN, infinities, -0, ties and values close to overflow; indices are constant or
traced, some negative or out of bounds, in every mode; some arrays are empty.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

N = 8  # replicas
KINDS = {
    "f": ("float32", "float16", "bfloat16"), "i": ("int32", "int8", "int16"),
    "u": ("uint32", "uint8", "uint16"),
    "b": ("bool",),
}  # fmt: skip
SPECIAL = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.0, 1.0, 2.0, -3.0, 127.6, -128.7,
    300.0, 7e4, 5e9,
]  # fmt: skip


def _taking(kinds: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kinds)


EXACT = """abs add and bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clz eq floor ge gt
    is_finite le lt max min mul ne neg nextafter population_count round sign square sub"""
SURE = frozenset(EXACT.split())  # primitives without intermediate rounding
UNARY = {
    **_taking("f", """acos acosh asin asinh atan atanh cbrt ceil cos cosh erf_inv exp exp2 expm1
        floor is_finite log log1p logistic rsqrt sin sinh sqrt tan tanh round"""),
    **_taking("fiu", "neg sign square"), "abs": "fi", "population_count": "iu", "clz": "iu",
    "bitwise_not": "iub",
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
    """A function of one replica and its operands, [N, ...] each."""

    name: str
    function: Callable[..., Any]
    operands: tuple[np.ndarray, ...]
    exact: bool = True


def numbers(
    rng: np.random.Generator, dtype: str, shape: tuple[int, ...], tame: bool = False
) -> np.ndarray:
    """Draw numbers of a dtype, [N, *shape], a third of them special.

    Args:
        rng: generator.
        dtype: dtype of the numbers.
        shape: shape of one replica.
        tame: keep sums and products of floats in range.
    """
    shape = (N, *shape)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if jnp.issubdtype(dtype, jnp.integer):
        info = np.iinfo(dtype)
        ends = np.array([info.min, info.max, info.max - 1, info.min + 1, 0, 1, 2], dtype)
        wide = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        small = rng.integers(0, 12, shape).astype(dtype) - np.asarray(5 if info.min else 0, dtype)
        return np.choose(rng.integers(0, 3, shape), [rng.choice(ends, shape), wide, small])
    normal = rng.normal(size=shape) * (1.0 if tame else rng.choice([1.0, 40.0], shape))
    special = rng.choice(SPECIAL[:12] if tame else SPECIAL, shape)
    with np.errstate(over="ignore"):
        return np.where(rng.random(shape) < 0.3, special, normal).astype(jnp.dtype(dtype))


def dtypes_of(kinds: str) -> list[str]:
    """Return the dtypes of some kinds."""
    return [dtype for kind in kinds for dtype in KINDS[kind]]


def pick(rng: np.random.Generator, names: Iterable[str]) -> str:
    """Draw a name."""
    return str(rng.choice(list(names)))


def all_cases() -> Iterator[Case]:
    """Yield every primitive with every dtype that it takes, in alternating unusual shapes."""
    rng = np.random.default_rng(0)
    shapes = itertools.cycle([(), (3,), (2, 1, 3), (5,), (0,), (7,)])
    for make, table in TABLES.items():
        for name, kinds in table.items():
            for dtype in dtypes_of(kinds):
                yield from (make(rng, name, dtype, shape) for shape in ((4,), next(shapes)))
    for dtype in dtypes_of("fiub"):
        yield from (convert(rng, dtype, other) for other in dtypes_of("fiub"))
        yield from (make(rng, dtype) for make in MAKERS for _ in range(3))
    for index in dtypes_of("iu"):
        yield from (gather(rng, "float32", index) for _ in range(8))


def random_case(rng: np.random.Generator) -> Case:
    """Draw a case: a primitive or a chain, with dtypes, shapes, numbers, indices and modes."""
    makers: list[Callable[..., Case]] = [*TABLES, *MAKERS]
    make = makers[int(rng.integers(len(makers)))]
    if make not in TABLES:
        return make(rng, pick(rng, dtypes_of("fiub")))
    name = pick(rng, TABLES[make])
    shape = tuple(int(size) for size in rng.integers(0, 4, rng.integers(0, 4)))
    return make(rng, name, pick(rng, dtypes_of(TABLES[make][name])), shape)


def unary(rng: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> Case:
    """Make a case of one operand."""
    function = getattr(lax, name)
    if name == "round":
        method = lax.RoundingMethod(int(rng.integers(0, 2)))
        function = functools.partial(lax.round, rounding_method=method)
    x = numbers(rng, dtype, shape, tame=name == "exp2")  # XLA's exp2 is inexact for large x
    return Case(f"{name} {dtype}{list(shape)}", function, (x,), name in SURE)


def binary(rng: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> Case:
    """Make a case of two operands, or of one operand and a constant."""
    x, y = numbers(rng, dtype, shape), numbers(rng, dtype, shape)
    if (
        name in ("rem", "pow") and dtype in KINDS["f"]
    ):  # Triton rounds remainders of large quotients
        x = np.abs(x) if name == "pow" else x
        y = y if name == "pow" else np.where(np.abs(y) > 0.4, y, np.ones_like(y))
        x = np.where(np.abs(x) < 1e3, x, np.ones_like(x))
    function, label = getattr(lax, name), f"{name} {dtype}{list(shape)}"
    exact = name in SURE or dtype not in KINDS["f"]
    if rng.random() < 0.4:
        constant = y[0]
        return Case(f"{label}, {constant}", lambda x: function(x, constant), (x,), exact)
    return Case(label, function, (x, y), exact)


def fold(rng: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> Case:
    """Make a reduction over no, some or all axes."""
    axes = tuple(axis for axis in range(len(shape)) if rng.random() < 0.7)
    exact = dtype not in KINDS["f"] or name in ("reduce_max", "reduce_min")
    label, x = f"{name} {dtype}{list(shape)} over {axes}", numbers(rng, dtype, shape, tame=True)
    return Case(label, lambda x: getattr(lax, name)(x, axes), (x,), exact)


def running(rng: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> Case:
    """Make a cumulative reduction."""
    shape, reverse = shape or (3,), bool(rng.integers(0, 2))
    axis = int(rng.integers(0, len(shape)))
    exact = dtype not in KINDS["f"] or name in ("cummax", "cummin")
    label, x = f"{name} {dtype}{list(shape)} along {axis}", numbers(rng, dtype, shape, tame=True)
    return Case(label, lambda x: getattr(lax, name)(x, axis=axis, reverse=reverse), (x,), exact)


def convert(rng: np.random.Generator, dtype: str, other: str | None = None) -> Case:
    """Make a conversion or, between dtypes of equal size, sometimes a bitcast."""
    other = other or pick(rng, dtypes_of("fiub"))
    one, both = jnp.dtype(dtype), jnp.dtype(other)
    if one.itemsize == both.itemsize and "bool" not in (dtype, other) and rng.random() < 0.3:
        bits, x = f"int{8 * one.itemsize}", np.abs(numbers(rng, dtype, (4,), tame=True))
        cast = lax.bitcast_convert_type
        return Case(f"bits of {dtype} as {other}", lambda x: cast(cast(x, both), bits), (x,))
    exact = not (one.kind in "iu" and other in KINDS["f"])
    x = numbers(rng, dtype, (6,))
    return Case(f"{dtype} to {other}", lambda x: lax.convert_element_type(x, both), (x,), exact)


def clamp(rng: np.random.Generator, dtype: str) -> Case:
    """Make a clamp, sometimes with exchanged or NaN limits."""
    return Case(f"clamp {dtype}", lax.clamp, tuple(numbers(rng, dtype, (4,)) for _ in range(3)))


def choice(rng: np.random.Generator, dtype: str) -> Case:
    """Make a selection by a flag, or by an index that may be out of bounds."""
    cases = int(rng.integers(2, 5))
    index = rng.integers(-1, cases + 1, (N, 3)).astype(np.int32)
    which = index if cases > 2 else numbers(rng, "bool", (3,))
    values = (numbers(rng, dtype, (3,)) for _ in range(cases))
    return Case(f"select_n of {cases} {dtype}", lax.select_n, (which, *values))


def product(rng: np.random.Generator, dtype: str) -> Case:
    """Make a batched matrix product of possibly empty matrices."""
    rows, depth = int(rng.integers(0, 4)), int(rng.integers(0, 5))
    arrays = (numbers(rng, dtype, shape, tame=True) for shape in ((2, rows, depth), (2, depth, 3)))
    if dtype in KINDS["f"]:  # small whole numbers, so that products are exact
        arrays = (rng.integers(-3, 4, x.shape).astype(x.dtype) for x in arrays)
    dot = functools.partial(lax.dot_general, dimension_numbers=(((2,), (1,)), ((0,), (0,))))
    return Case(f"dot_general {dtype} {rows} x {depth} x 3", dot, tuple(arrays), False)


def arg(rng: np.random.Generator, dtype: str) -> Case:
    """Make an argmax or argmin with ties."""
    name, index = pick(rng, ("argmax", "argmin")), pick(rng, ("int32", "uint32", "int8"))
    axis, x = int(rng.integers(0, 2)), np.repeat(numbers(rng, dtype, (2, 5), tame=True), 2, 2)
    return Case(f"{name} {dtype}", lambda x: getattr(lax, name)(x, axis, jnp.dtype(index)), (x,))


def move(rng: np.random.Generator, dtype: str) -> Case:
    """Make a primitive that moves numbers."""
    fill = np.ones((), jnp.dtype(dtype))
    moves = {
        "pad": lambda x: lax.pad(x, fill, ((1, -1, 0), (0, 2, 1))),
        "reshape": lambda x: lax.reshape(x, (4, 3), (1, 0)),
        "rev": lambda x: lax.rev(x, (0, 1)),
        "join": lambda x: lax.concatenate([x[:0], x, x[1:2]], 0),
        "tile": lambda x: (jnp.tile(x, (2, 1)), jnp.stack([x, x], 1), *x),
        "slice": lambda x: (lax.slice(x, (0, 1), (3, 4), (2, 3)), x[..., None].squeeze(-1).T),
        "iota": lambda x: x + lax.iota(x.dtype, 4)[None].repeat(3, 0) if dtype != "bool" else ~x,
        "split": lambda x: lax.split(x, (1, 0, 3), 1),
    }
    name = pick(rng, moves)
    return Case(f"{name} {dtype}", moves[name], (numbers(rng, dtype, (3, 4), tame=True),))


def gather(rng: np.random.Generator, dtype: str, index: str | None = None) -> Case:
    """Make a gather at constant or traced indices, some negative or out of bounds, in any mode."""
    index = index or pick(rng, dtypes_of("iu"))
    size = int(rng.integers(1, 6))
    x = numbers(rng, dtype, (size, *([2] if rng.random() < 0.5 else [])))
    count = tuple(int(n) for n in rng.integers(0, 4, rng.integers(0, 3)))
    places = rng.integers(-8 if index[0] == "i" else 0, 9, (N, *count)).astype(index)
    mode = pick(rng, ("fill", "clip", "promise_in_bounds"))
    if mode == "promise_in_bounds":
        places = places % size
    fills = [None, 0, 1, *([] if dtype == "bool" else [3]), *([np.nan] * (dtype in KINDS["f"]))]
    fill = fills[int(rng.integers(0, len(fills)))] if mode == "fill" else None
    wrap, constant = bool(rng.integers(0, 2)), places[0]
    at = lambda x, i: x.at[i].get(mode=mode, fill_value=fill, wrap_negative_indices=wrap)  # noqa: E731
    name = f"gather {dtype}{list(x.shape[1:])} {mode} {fill} {index}{list(count)} wrap={wrap}"
    if rng.random() < 0.5:
        return Case(f"{name} at {constant.tolist()}", lambda x: at(x, constant), (x,))
    return Case(name, at, (x, places))


def scatter(rng: np.random.Generator, dtype: str) -> Case:
    """Make a scatter at constant or traced indices, some out of bounds."""
    x, new = numbers(rng, dtype, (5,)), numbers(rng, dtype, (3,))
    places, mode = rng.permutation(14)[:3] - 5, pick(rng, ("drop", "clip"))
    targets = np.where(places < 0, places + 5, places)
    number = dtype in KINDS["i"] + KINDS["u"] + KINDS["f"]
    function = pick(rng, ("set", "add", "mul", "min", "max")) if number else "set"
    if function == "set" or dtype in KINDS["f"]:  # the order of duplicates is undefined
        targets = targets.clip(0, 4) if mode == "clip" else targets
        places = places[np.unique(targets, return_index=True)[1]]
    else:
        places[1] = places[0]
    new = new[:, : len(places)]
    name = f"scatter {function} {dtype} {mode} at {places.tolist()}"

    put = lambda x, new, places: getattr(x.at[places], function)(new, mode=mode)  # noqa: E731
    if rng.random() < 0.5:
        return Case(name, lambda x, new: put(x, new, places), (x, new))
    return Case(f"{name}, traced", put, (x, new, np.tile(places.astype(np.int32), (N, 1))))


def scatter_in_rows(rng: np.random.Generator, dtype: str) -> Case:
    """Make a scatter with one known and one traced index, as in a loop under `vmap`."""
    x, new = numbers(rng, dtype, (3, 4)), numbers(rng, dtype, (3,))
    places = rng.integers(-5, 6, (N, 3)).astype(np.int32)
    by_row = jax.vmap(lambda row, place, number: row.at[place].set(number))
    by_pair = lambda x, places, new: x.at[np.arange(3), places].set(new)  # noqa: E731
    window = lambda x, places, new: x.at[:, places[0]].set(new)  # noqa: E731
    name = pick(rng, ("row", "pair", "window"))
    put = {"row": by_row, "pair": by_pair, "window": window}[name]
    return Case(f"scatter by {name} {dtype} at {places[0].tolist()}", put, (x, places, new))


def gather_in_rows(rng: np.random.Generator, dtype: str) -> Case:
    """Make a gather with two traced indices, or with one known and one traced index."""
    x = numbers(rng, dtype, (3, 4))
    places = rng.integers(-5, 6, (N, 3)).astype(np.int32)
    mode = pick(rng, ("fill", "clip"))
    by_row = jax.vmap(lambda row, place: row.at[place].get(mode=mode))
    by_pair = lambda x, places: x.at[places, places[::-1]].get(mode=mode)  # noqa: E731
    name = pick(rng, ("row", "pair"))
    get = {"row": by_row, "pair": by_pair}[name]
    return Case(f"gather by {name} {dtype} {mode} at {places[0].tolist()}", get, (x, places))


def slices(rng: np.random.Generator, dtype: str) -> Case:
    """Make a dynamic slice or its update, sometimes out of bounds."""
    x, new = numbers(rng, dtype, (4, 3)), numbers(rng, dtype, (2, 1))
    start = rng.integers(-3, 6, (N, 2)).astype(pick(rng, ("int32", "int8")))
    if rng.integers(0, 2):
        read = lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 1))  # noqa: E731
        return Case(f"dynamic_slice {dtype}", read, (x, start))
    write = lambda x, new, i: lax.dynamic_update_slice(x, new, (i[0], i[1]))  # noqa: E731
    return Case(f"dynamic_update_slice {dtype}", write, (x, new, start))


def branches(rng: np.random.Generator, dtype: str) -> Case:
    """Make a switch of two or three functions, sometimes out of bounds."""
    number = int(rng.integers(2, 4))
    turn = lambda x: lax.rev(x, (0,))  # noqa: E731
    functions = [lambda x: x, turn, lambda x: lax.max(x, turn(x))][:number]
    operands = rng.integers(-1, 4, N).astype(np.int32), numbers(rng, dtype, (3,))
    switch = lambda i, x: lax.switch(i, functions, x)  # noqa: E731
    return Case(f"switch of {number} {dtype}", switch, operands)


def loop(rng: np.random.Generator, dtype: str) -> Case:
    """Make a scan of zero, one or three steps in either direction."""
    length, reverse = int(rng.choice([0, 1, 3])), bool(rng.integers(0, 2))
    step = lambda c, x: (lax.max(c, x), lax.min(c, x))  # noqa: E731
    scan = functools.partial(lax.scan, step, reverse=reverse)
    return Case(
        f"scan {length} {dtype}", scan, tuple(numbers(rng, dtype, s) for s in ((), (length,)))
    )


def chain(rng: np.random.Generator, dtype: str) -> Case:
    """Make a small program of elementwise primitives."""
    kind = next(kind for kind, names in KINDS.items() if dtype in names)
    excluded = ("is_finite", "round", "rem", "div", "atan2", "pow")
    ones = [name for name, kinds in UNARY.items() if kind in kinds and name in SURE]
    twos = [name for name, kinds in BINARY.items() if kind in kinds]
    allowed = [name for name in ones + twos if name not in excluded]
    names = [pick(rng, allowed) for _ in range(int(rng.integers(2, 6)))]

    def function(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        for name in names:
            new = getattr(lax, name)(x) if name in ones else getattr(lax, name)(x, y)
            x, y = lax.convert_element_type(new, x.dtype), x
        return x, y

    operands = numbers(rng, dtype, (3,)), numbers(rng, dtype, (3,))
    return Case(f"chain {dtype} {' '.join(names)}", function, operands, False)


TABLES = {
    unary: UNARY,
    binary: BINARY,
    fold: FOLDS,
    running: RUNNING,
}  # make(rng, name, dtype, shape)
MAKERS = (  # make(rng, dtype)
    convert, clamp, choice, product, arg, move, gather, gather_in_rows, scatter, scatter_in_rows,
    slices, branches, loop, chain,
)  # fmt: skip
