"""A scan over time of a function of one replica, for many replicas, as one kernel.

A program takes LANES replicas (or fewer), a lane each, and loops over time with everything that they carry in
registers: memory is read once before and written once after the loop, but for what the function takes or gives in every
step. Nothing is launched between the steps.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np

from wdjax.kernels import pallas, shared
from wdjax.kernels.elementwise import check_dtype
from wdjax.kernels.jaxpr import evaluate
from wdjax.kernels.lanes import MAX_ELEMENTS, Elements, array_of, constant, identity, with_words, words_of
from wdjax.kernels.matrices import numbers_of
from wdjax.kernels.threefry import Key, check_key

LANES = 32  # replicas of a program, a power of two
FEW_LANES = 16  # where there are few replicas and a network: more programs, each quicker
FEW_REPLICAS = 4096
WARPS = 1  # of a program: one, so that "does any lane" asks no other warp
NETWORK_WARPS = 4  # where there are weights of a network: its blocks, [LANES, width], are spread over them
MAX_SIZE = 2**31 - 1  # elements of one array in memory: indices are int32


def scan_kernel(
    jaxpr: jex.core.Jaxpr, consts: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], length: int,
    interpret: bool = False,
) -> list[jax.Array]:  # fmt: skip
    """Runs the step of one replica, `jaxpr`: its inputs are the leaves of (carry, x), its outputs of (carry, output).

    Args:
        consts: of the jaxpr, the same for all replicas.
        carry: leaves [N, ...]; xs: leaves [length, N, ...].
        interpret: step by step in XLA, on any device, for tests.

    Returns:
        the leaves of the carry, [N, ...], then those of the output, [length, N, ...].

    Raises:
        NotImplementedError: for what has no place in a kernel.
    """
    if not carry:
        raise NotImplementedError("a scan that carries nothing")
    num_replicas = carry[0].shape[0]
    if not (length and num_replicas):
        raise NotImplementedError("a scan of no steps or of no replicas")
    for var in (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars):
        check_key(var.aval.dtype) if _is_key(var.aval.dtype) else check_dtype("an array", var.aval.dtype)
    changed = [i for i in range(len(carry)) if jaxpr.outvars[i] is not jaxpr.invars[i]]
    known = [_known(value) for value in consts]
    in_memory = [_to_shared(value) for value, array in zip(consts, known, strict=True) if array is None]
    used = _used(jaxpr, range(len(carry), len(jaxpr.invars)))
    inputs = [*in_memory, *(_to_words(leaf, 1) for leaf in carry), *(_to_words(xs[i - len(carry)], 2) for i in used)]
    avals = [v.aval for v in jaxpr.outvars]
    written = [_words_shape(avals[i], (num_replicas,)) for i in changed]
    written += [_words_shape(aval, (num_replicas,), (length,)) for aval in avals[len(carry) :]]
    if not written:
        return list(carry)
    for array in (*inputs, *written):
        if math.prod(array.shape) > MAX_SIZE:
            raise NotImplementedError(f"an array of {array.shape}: a kernel reaches {MAX_SIZE} numbers")
    has_network = any(shared.is_weights(value) and value.ndim == 2 for value in consts)
    lanes = LANES if not has_network or num_replicas > FEW_REPLICAS else FEW_LANES
    places: list[list[Any]] = []
    kernel = functools.partial(
        _kernel, jaxpr=jaxpr, known=known, changed=changed, used=used, num_carry=len(carry), length=length, lanes=lanes,
        places=places,
    )  # fmt: skip
    grid, warps = (pallas.cdiv(num_replicas, lanes),), NETWORK_WARPS if has_network else WARPS
    words = pallas.call(kernel, "scan_replicas", written, grid, warps, stages=1, interpret=interpret)(*inputs)
    after = list(carry)
    for i, array in zip(changed, words, strict=False):
        after[i] = _from_words(array, avals[i], 1)
    outputs = zip(map(_put_together, words[len(changed) :], places), avals[len(carry) :], strict=True)
    return [*after, *(_from_words(array, aval, 2) for array, aval in outputs)]


def _used(jaxpr: jex.core.Jaxpr, places: Sequence[int]) -> list[int]:
    """Returns those places of inputs that the jaxpr reads: a step that is not random leaves its key alone."""
    atoms = [*jaxpr.outvars, *(atom for eqn in jaxpr.eqns for atom in eqn.invars)]
    read = {atom for atom in atoms if not isinstance(atom, jex.core.Literal)}
    return [i for i in places if jaxpr.invars[i] in read]


def _kernel(
    *refs: Any, jaxpr: jex.core.Jaxpr, known: Sequence[Elements | None], changed: Sequence[int], used: Sequence[int],
    num_carry: int, length: int, lanes: int, places: list[list[Any]],
) -> None:  # fmt: skip
    """Reads and writes the words of some replicas: refs [W, N] of a leaf, [length, W, N] of one with time, [W] shared.

    Everything stays in registers from the first step to the last. Leaves that the step does not change are read only.
    Of the output each word is written once; `places` gets those of every leaf's words (`_store_once`).
    """
    in_avals = [v.aval for v in jaxpr.invars]
    num_shared = sum(array is None for array in known)
    num_inputs = num_shared + num_carry + len(used)
    shared_refs, carry_refs = refs[:num_shared], refs[num_shared : num_shared + num_carry]
    x_refs, carry_after_refs = refs[num_shared + num_carry : num_inputs], refs[num_inputs:][: len(changed)]
    output_refs = refs[num_inputs + len(changed) :]
    num_replicas = carry_refs[0].shape[-1]
    rows = pallas.program_id() * lanes + jax.lax.broadcasted_iota(jnp.int32, (lanes,), 0)
    rows = jnp.minimum(rows, num_replicas - 1)  # lanes beyond the last replica repeat it, and write the same

    shared_vars = (v for v, array in zip(jaxpr.constvars, known, strict=True) if array is None)
    loaded = iter([shared.load(ref, v.aval) for ref, v in zip(shared_refs, shared_vars, strict=True)])
    consts = [next(loaded) if array is None else array for array in known]
    start = [_load(ref, aval, (rows,)) for ref, aval in zip(carry_refs, in_avals, strict=False)]

    def step(t: jax.Array, words: tuple) -> tuple:
        carry = list(start)
        for i, array in zip(changed, with_words([start[i] for i in changed], words), strict=True):
            carry[i] = array
        x: list[Elements | None] = [None] * (len(in_avals) - num_carry)
        for i, ref in zip(used, x_refs, strict=True):
            x[i - num_carry] = _load(ref, in_avals[i], (rows,), (t,))
        after = [*map(numbers_of, evaluate(jaxpr, consts, [*carry, *x]))]
        outputs = zip(output_refs, after[num_carry:], strict=True)
        places[:] = [_store_once(ref, array, rows, t) for ref, array in outputs]
        after = words_of([after[i] for i in changed])
        return tuple(_like(word, old) for word, old in zip(after, words, strict=True))

    words = jax.lax.fori_loop(0, length, step, tuple(words_of([start[i] for i in changed])))
    last = with_words([start[i] for i in changed], words)
    for ref, array in zip(carry_after_refs, last, strict=True):
        for i, word in enumerate(words_of([array])):
            _store(ref, word, (i, rows))


def _known(value: Any) -> Elements | None:
    """Returns a constant as elements where it is known while tracing and small, and no network's weights."""
    in_memory = isinstance(value, jax.core.Tracer) or shared.is_weights(value) or value.size > MAX_ELEMENTS
    return None if in_memory else constant(value)


def _to_shared(value: Any) -> jax.Array:
    """Returns what all replicas share as it lies in memory."""
    return shared.padded(value) if shared.is_weights(value) else _to_words(value, 0)[None]


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _words_shape(aval: Any, replicas: tuple, steps: tuple = ()) -> jax.ShapeDtypeStruct:
    """Returns what holds a leaf in memory: its numbers before the replicas, which neighbouring lanes read together."""
    words = max(_num_words(aval), 1)  # of an array without numbers there is one, which nobody reads
    dtype = jnp.uint32 if _is_key(aval.dtype) else jnp.int8 if aval.dtype == bool else aval.dtype
    return jax.ShapeDtypeStruct((*steps, words, *replicas), dtype)


def _num_words(aval: Any) -> int:
    return math.prod(aval.shape) * (2 if _is_key(aval.dtype) else 1)


def _to_words(leaf: Any, leading: int) -> jax.Array:
    """Returns a leaf [..., N, *shape] with `leading` axes before its own as [..., W, N]; a shared one as [W]."""
    words = jax.random.key_data(leaf) if _is_key(leaf.dtype) else jnp.asarray(leaf)
    words = words.astype(jnp.int8) if words.dtype == bool else words
    words = words.reshape(*words.shape[:leading], math.prod(words.shape[leading:]))
    words = words if words.shape[-1] else jnp.zeros((*words.shape[:leading], 1), words.dtype)
    return words if leading == 0 else jnp.swapaxes(words, -1, -2)


def _from_words(words: jax.Array, aval: Any, leading: int) -> jax.Array:
    """The way back."""
    words = jnp.swapaxes(words, -1, -2)[..., : _num_words(aval)]
    shape = (*words.shape[:leading], *aval.shape)
    if _is_key(aval.dtype):
        return jax.random.wrap_key_data(words.reshape(*shape, 2), impl="threefry2x32")
    return words.reshape(shape).astype(aval.dtype)


def _load(ref: Any, aval: Any, rows: tuple, step: tuple = ()) -> Elements:
    """Reads a leaf of every replica of the block, number by number."""
    words = []
    for i in range(_num_words(aval)):
        word = pallas.load(ref.at[(*step, i, *rows)])
        words.append(word != 0 if aval.dtype == bool else word)
    if _is_key(aval.dtype):
        words = [Key(*words[i : i + 2]) for i in range(0, len(words), 2)]
    return array_of(words, aval.shape)


def _store_once(ref: Any, array: Elements, rows: jax.Array, step: jax.Array) -> list[Any]:
    """Writes the words of an output, those that are known or the same only once: fewer accesses, of which each costs
    Triton's compiler a look at the whole kernel. Returns for every word its row, or the number that it is."""
    written: dict[Any, int] = {}
    places: list[Any] = []
    for word in words_of([array]):
        if not isinstance(word, np.generic) and identity(word) not in written:
            written[identity(word)] = len(written)
            _store(ref, word, (step, len(written) - 1, rows))
        places.append(word if isinstance(word, np.generic) else written[identity(word)])
    return places


def _store(ref: Any, word: Any, place: tuple) -> None:
    pallas.store(ref.at[place], jnp.broadcast_to(word, place[-1].shape).astype(ref.dtype))


def _put_together(words: jax.Array, places: Sequence[Any]) -> jax.Array:
    """Returns all words of an output, [..., W, N], from those that were written and their places."""
    rows = np.array([0 if isinstance(place, np.generic) else place for place in places], np.int32)
    known = np.array([isinstance(place, np.generic) for place in places], bool)
    if not len(places) or (not known.any() and np.array_equal(rows, np.arange(len(places)))):
        return words
    numbers = np.array([place if isinstance(place, np.generic) else 0 for place in places], words.dtype)
    found = words[:, rows]
    return jnp.where(known[None, :, None], numbers[None, :, None], found) if known.any() else found


def _like(word: Any, old: jax.Array) -> jax.Array:
    """Returns an element in lanes, for the next step of a loop."""
    return jax.lax.convert_element_type(jnp.broadcast_to(word, old.shape), old.dtype)
