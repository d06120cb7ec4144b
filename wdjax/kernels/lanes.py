"""Arrays of elements, which represent a small array of each replica. Each lane is one replica.

If the array of one replica has shape (4,), it is represented by a NumPy object array of shape (4,).
Each element represents one number in all replicas, and is one of:

* a traced array [lanes], with one number per replica;
* a traced scalar (), if all replicas have the same number;
* a NumPy scalar, if all replicas have the same number and it is known at trace time;
* a `threefry.Key` for a typed key, which contains two such elements.

Slices and broadcasts only move Python objects and cost nothing in the kernel. Arithmetic runs once
per distinct element, and at trace time for known elements.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.kernels.threefry import Key, check_key

MAX_ELEMENTS = 1024  # elements of one array; each occupies a register

Elements = np.ndarray  # dtype object

_LEFT: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("left", default=None)


@contextlib.contextmanager
def now() -> Iterator[None]:
    """Compute at trace time on the CPU.

    A GPU would have to compile and run a program for every few numbers.
    """
    with jax.ensure_compile_time_eval(), jax.default_device(_host()):
        yield


@functools.cache
def _host() -> jax.Device | None:
    """Return the CPU device, or None if JAX has none (JAX_PLATFORMS=cuda)."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


@contextlib.contextmanager
def limited(operations: int) -> Iterator[None]:
    """Raise NotImplementedError if more operations than this are traced inside this context.

    Triton's compile time grows with their square.
    """
    token = _LEFT.set([operations, operations])
    try:
        yield
    finally:
        _LEFT.reset(token)


def _count_operation() -> None:
    left = _LEFT.get()
    if left is not None:
        left[0] -= 1
        if left[0] < 0:
            raise NotImplementedError(
                f"a step has more than {left[1]:,} operations: a kernel compiles too long"
            )


def array_of(elements: Sequence[Any], shape: tuple[int, ...]) -> Elements:
    """Arrange elements, in row-major order, in an array of the given shape."""
    flat = np.empty(len(elements), object)
    for i, element in enumerate(elements):  # one by one: NumPy would unpack keys and tracers
        flat[i] = element
    return flat.reshape(shape)


def constant(value: Any) -> Elements:
    """Convert a known array of numbers or typed keys to elements."""
    check_size("a constant", value.shape)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        check_key(value.dtype)
        with now():
            pairs = np.asarray(jax.random.key_data(value)).reshape(-1, 2)
        return array_of([Key(*pair) for pair in pairs], value.shape)
    return array_of(list(np.asarray(value).ravel()), value.shape)


def check_size(what: str, shape: tuple[int, ...]) -> None:
    """Raise NotImplementedError if an array has more than MAX_ELEMENTS elements."""
    if np.prod(shape) > MAX_ELEMENTS:
        raise NotImplementedError(
            f"{what} has shape {shape}: kernels support arrays of up to {MAX_ELEMENTS} elements"
        )


def is_known(array: Elements) -> bool:
    """Return whether all elements are known at trace time."""
    return all(isinstance(element, np.generic) for element in array.ravel())


def known(array: Elements, dtype: Any) -> np.ndarray:
    """Convert elements that are all known to an array of numbers."""
    return np.array(list(array.ravel()), dtype).reshape(array.shape)


def call(function: Callable, *elements: Any) -> Any:
    """Apply a function of equally shaped arrays to elements, at trace time if all are known."""
    # apply it to both words of keys, as in a selection between keys
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
    _count_operation()
    shape = np.broadcast_shapes(*(jnp.shape(element) for element in elements))
    return function(*(jnp.broadcast_to(element, shape) for element in elements))


def call_each(function: Callable, shape: tuple[int, ...], *arrays: Elements) -> Elements:
    """Apply `call` to the elements of arrays that broadcast to `shape`."""
    return each(functools.partial(call, function), shape, *arrays)


def each(function: Callable, shape: tuple[int, ...], *arrays: Elements) -> Elements:
    """Apply a function elementwise to arrays that broadcast to `shape`.

    Each distinct combination of input elements is computed only once.
    """
    flat = [np.broadcast_to(array, shape).ravel() for array in arrays]
    places = [tuple(map(identity, elements)) for elements in zip(*flat, strict=True)]
    done: dict[tuple, Any] = {}
    for place, elements in zip(places, zip(*flat, strict=True), strict=True):
        if place not in done:
            done[place] = function(*elements)
    return array_of([done[place] for place in places], shape)


def identity(element: Any) -> Any:
    """Return a hashable identity of an element, valid while the element exists."""
    return (element.dtype, element.tobytes()) if isinstance(element, np.generic) else id(element)


def words_of(arrays: Sequence[Elements]) -> list[Any]:
    """Return all elements of several arrays in one list, with each key split into its two words."""
    return jax.tree.leaves([list(array.ravel()) for array in arrays])


def with_words(arrays: Sequence[Elements], words: Sequence[Any]) -> list[Elements]:
    """Replace the elements of arrays by `words`, in the order that `words_of` returns."""
    structure = jax.tree.structure([list(array.ravel()) for array in arrays])
    elements = jax.tree.unflatten(structure, words)
    return [array_of(new, array.shape) for new, array in zip(elements, arrays, strict=True)]


def along_steps(array: Elements, inner: int) -> Elements:
    """Stack elements [steps, ...] into elements [...], each an array [S, *lanes] over the steps.

    S is the number of steps, padded to a power of two. An element that is the same in all steps
    is returned unchanged, without the axis S.

    Args:
        array: elements [steps, ...].
        inner: number of lane axes of one step.
    """
    steps = [array[i : i + 1].reshape(array.shape[1:]) for i in range(len(array))]
    return each(lambda *words: join(words, inner), array.shape[1:], *steps)


def join(words: Sequence[Any], inner: int) -> Any:
    """Stack words with `inner` axes along a new first axis, padded to a power of two.

    If all words are the same, that word is returned unchanged.
    """
    if any(isinstance(word, Key) for word in words):
        return Key(*(join(halves, inner) for halves in zip(*words, strict=True)))
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
    """Split elements [...], each an array over the steps, into elements [length, ...].

    This is the inverse of `along_steps`.
    """

    def part(word: Any, i: int) -> Any:
        if isinstance(word, Key):
            return Key(*(part(half, i) for half in word))
        if jnp.ndim(word) <= inner:
            return word
        # as integers, since adding zeros preserves the bits of -0 and NaN
        bits = (
            word.astype(jnp.int32)
            if word.dtype == bool
            else jax.lax.bitcast_convert_type(word, f"int{8 * word.dtype.itemsize}")
        )
        step = jax.lax.broadcasted_iota(jnp.int32, bits.shape, 0)
        axes = 0 if math.prod(word.shape[1:]) > 1 else None
        chosen = jnp.sum(
            jnp.where(step == i, bits, jnp.zeros_like(bits)), axis=axes, dtype=bits.dtype
        )
        return (
            chosen != 0 if word.dtype == bool else jax.lax.bitcast_convert_type(chosen, word.dtype)
        )

    return np.stack([each(functools.partial(part, i=i), array.shape, array) for i in range(length)])
