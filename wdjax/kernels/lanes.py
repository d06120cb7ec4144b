"""Arrays of elements: small arrays of one replica, held for many replicas at once, a replica a lane.

An array of shape (4,) of one replica is a NumPy array of shape (4,) whose elements are objects. Each is one number of
every replica: [lanes], traced; or, where it is the same for all, () traced, or a NumPy scalar, known now; or a
`threefry.Key`, which is two such. What moves numbers about (slices, broadcasts) then moves objects, and costs nothing;
what computes is done once for each element; and what is known is computed once, while tracing.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels.threefry import Key, check_key

MAX_ELEMENTS = 1024  # of one array: each is a register of its own

Elements = np.ndarray  # of dtype object


@contextlib.contextmanager
def now() -> Iterator[None]:
    """Computes while tracing, on the host: a card compiles a program for every few numbers, and is waited for."""
    with jax.ensure_compile_time_eval(), jax.default_device(_host()):
        yield


@functools.cache
def _host() -> jax.Device | None:
    """Returns the CPU as JAX sees it, or None where it is kept from that (JAX_PLATFORMS=cuda)."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def array_of(elements: Sequence[Any], shape: tuple[int, ...]) -> Elements:
    """Returns elements in row-major order as an array of a shape."""
    flat = np.empty(len(elements), object)
    for i, element in enumerate(elements):  # one by one: NumPy would take keys and tracers apart
        flat[i] = element
    return flat.reshape(shape)


def constant(value: Any) -> Elements:
    """Returns a known array, of numbers or of typed keys, as elements."""
    check_size("a constant", value.shape)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        check_key(value.dtype)
        with now():
            pairs = np.asarray(jax.random.key_data(value)).reshape(-1, 2)
        return array_of([Key(*pair) for pair in pairs], value.shape)
    return array_of(list(np.asarray(value).ravel()), value.shape)


def check_size(what: str, shape: tuple[int, ...]) -> None:
    """Raises NotImplementedError for an array that is too large to be held number by number."""
    if np.prod(shape) > MAX_ELEMENTS:
        raise NotImplementedError(
            f"{what} of shape {shape}: a kernel holds arrays of up to {MAX_ELEMENTS} numbers"
        )


def is_known(array: Elements) -> bool:
    """Returns whether all elements are known while tracing."""
    return all(isinstance(element, np.generic) for element in array.ravel())


def known(array: Elements, dtype: Any) -> np.ndarray:
    """Returns elements that are all known as an array of numbers."""
    return np.array(list(array.ravel()), dtype).reshape(array.shape)


def call(function: Callable, *elements: Any) -> Any:
    """Applies a function of arrays of one shape to elements: while tracing, where all are known."""
    # a choice between keys is one between their words
    if any(isinstance(element, Key) for element in elements):
        words = [
            element if isinstance(element, Key) else (element, element) for element in elements
        ]
        return Key(*(call(function, *word) for word in zip(*words, strict=True)))
    if all(isinstance(element, np.generic) for element in elements):
        with now():
            return jax.tree.map(
                lambda out: np.asarray(out)[()], function(*map(jnp.asarray, elements))
            )
    shape = np.broadcast_shapes(*(jnp.shape(element) for element in elements))
    return function(*(jnp.broadcast_to(element, shape) for element in elements))


def call_each(function: Callable, shape: tuple[int, ...], *arrays: Elements) -> Elements:
    """Applies `call` to the elements of arrays that broadcast to a shape."""
    return each(functools.partial(call, function), shape, *arrays)


def each(function: Callable, shape: tuple[int, ...], *arrays: Elements) -> Elements:
    """Applies a function to the elements of arrays that broadcast to a shape, once for those that are the same."""
    flat = [np.broadcast_to(array, shape).ravel() for array in arrays]
    places = [tuple(map(identity, elements)) for elements in zip(*flat, strict=True)]
    done: dict[tuple, Any] = {}
    for place, elements in zip(places, zip(*flat, strict=True), strict=True):
        if place not in done:
            done[place] = function(*elements)
    return array_of([done[place] for place in places], shape)


def identity(element: Any) -> Any:
    """Returns what only elements that are the same have in common, while they exist."""
    return (element.dtype, element.tobytes()) if isinstance(element, np.generic) else id(element)


def words_of(arrays: Sequence[Elements]) -> list[Any]:
    """Returns the elements of arrays, one after the other, keys as their two words."""
    elements = [element for array in arrays for element in array.ravel()]
    return [
        word
        for element in elements
        for word in (element if isinstance(element, Key) else (element,))
    ]


def with_words(arrays: Sequence[Elements], words: Sequence[Any]) -> list[Elements]:
    """Returns arrays like these with other words, in the order of `words_of`."""
    rest = iter(words)

    def take(old) -> Any:
        return Key(next(rest), next(rest)) if isinstance(old, Key) else next(rest)

    return [array_of([take(element) for element in array.ravel()], array.shape) for array in arrays]


def along_steps(array: Elements, inner: int) -> Elements:
    """Returns elements [steps, ...] as elements [...] that hold all steps, [S, *lanes], S a power of two.

    Args:
        inner: axes of the lanes of one step.
    """
    steps = [array[i : i + 1].reshape(array.shape[1:]) for i in range(len(array))]
    return each(lambda *words: join(words, inner), array.shape[1:], *steps)


def join(words: Sequence[Any], inner: int) -> Any:
    """Returns words of `inner` axes as one with an axis more in front, a power of two; as it is, one that all are."""
    if any(isinstance(word, Key) for word in words):
        return Key(*(join(own, inner) for own in zip(*words, strict=True)))
    same = [identity(word) for word in words]
    most = max(same, key=same.count)
    joined = words[same.index(most)]
    step = jax.lax.broadcasted_iota(
        jnp.int32, (1 << (len(words) - 1).bit_length(), *[1] * inner), 0
    )
    for i, word in enumerate(words):
        if same[i] != most:
            joined = call(jnp.where, step == i, word, joined)
    return joined


def of_steps(array: Elements, inner: int, length: int) -> Elements:
    """The way back: elements [...] that hold all steps as elements [length, ...]."""

    def part(word: Any, i: int) -> Any:
        if isinstance(word, Key):
            return Key(*(part(own, i) for own in word))
        if jnp.ndim(word) <= inner:
            return word
        bits = word.astype(jnp.int32) if word.dtype == bool else _bits(word)
        step = jax.lax.broadcasted_iota(jnp.int32, bits.shape, 0)
        axes = 0 if math.prod(word.shape[1:]) > 1 else None
        found = jnp.sum(
            jnp.where(step == i, bits, jnp.zeros_like(bits)), axis=axes, dtype=bits.dtype
        )
        return found != 0 if word.dtype == bool else jax.lax.bitcast_convert_type(found, word.dtype)

    return np.stack([each(functools.partial(part, i=i), array.shape, array) for i in range(length)])


def _bits(word: jax.Array) -> jax.Array:
    """Returns a number's bits: their sum with zeros is exact, that of -0 or of what is not a number too."""
    return jax.lax.bitcast_convert_type(word, f"int{8 * word.dtype.itemsize}")
