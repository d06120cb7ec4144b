"""A kernel that scans a function of one replica over time, for many replicas.

One program runs up to LANES replicas, one per lane, and loops over time with the carry in
registers. The carry is read from memory once before the loop and written once after it. Only the
inputs and outputs of each step access memory inside the loop, and no step launches a kernel.
"""

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.extend as jex
import jax.numpy as jnp

from wdjax.kernels import pallas, shared
from wdjax.kernels.elementwise import check_dtype
from wdjax.kernels.jaxpr import evaluate, steps_at_once
from wdjax.kernels.lanes import MAX_ELEMENTS, Elements, constant, with_words, words_of
from wdjax.kernels.matrices import numbers_of
from wdjax.kernels.words import from_words, load, store, to_words, words_shape

LANES = 32  # replicas per program, a power of two
FEW_LANES = 8  # replicas per program with a network and few replicas: more and faster programs
FEW_REPLICAS = 4096  # above this number, every program has LANES replicas
MIN_ROWS = 16  # rows of a block in a matrix product, as Triton requires
WARPS = 1  # warps per program: "does any lane" then needs no communication between warps
# warps per program with a network, whose blocks [LANES, width] are distributed over them
NETWORK_WARPS = 4


def scan_kernel(
    jaxpr: jex.core.Jaxpr,
    consts: Sequence[Any],
    carry: Sequence[Any],
    xs: Sequence[Any],
    length: int,
    interpret: bool = False,
) -> list[jax.Array]:
    """Scan the step of one replica over time, for N replicas.

    Args:
        jaxpr: the step. Its inputs are the leaves of (carry, x), its outputs the leaves of
            (carry, output).
        consts: constants of the jaxpr, equal for all replicas.
        carry: leaves [N, ...].
        xs: leaves [length, N, ...].
        length: number of steps.
        interpret: run step by step in XLA, on any device, for tests.

    Returns:
        The leaves of the carry, [N, ...], and then of the outputs, [length, N, ...].

    Raises:
        NotImplementedError: if kernels do not support the step.
    """
    _require_supported(jaxpr, carry, length)
    num_replicas = carry[0].shape[0]
    changed = [i for i in range(len(carry)) if jaxpr.outvars[i] is not jaxpr.invars[i]]
    known = [_known(value) for value in consts]
    used = _used(jaxpr, range(len(carry), len(jaxpr.invars)))
    inputs = [
        *(_to_shared(value) for value, array in zip(consts, known, strict=True) if array is None),
        *(to_words(leaf, 1) for leaf in carry),
        *(to_words(xs[i - len(carry)], 2) for i in used),
    ]
    avals = [v.aval for v in jaxpr.outvars]
    written = [words_shape(avals[i], num_replicas) for i in changed]
    written += [words_shape(aval, num_replicas, length) for aval in avals[len(carry) :]]
    if not written:
        return list(carry)
    for i in used:
        words_shape(jaxpr.invars[i].aval, num_replicas, length)  # raises if too large
    lanes, warps = _program_size(jaxpr, consts, num_replicas)
    places: list[list[Any]] = []
    kernel = functools.partial(
        _kernel,
        jaxpr=jaxpr,
        known=known,
        changed=changed,
        used=used,
        num_carry=len(carry),
        length=length,
        lanes=lanes,
        num_replicas=num_replicas,
        places=places,
    )
    grid = (pallas.cdiv(num_replicas, lanes),)
    words = pallas.call(
        kernel, "scan_replicas", written, grid, warps, stages=1, interpret=interpret
    )(*inputs)
    after = list(carry)
    for i, array, stored in zip(changed, words, places, strict=False):
        after[i] = from_words(array, avals[i], (num_replicas,), stored)
    outputs = zip(words[len(changed) :], avals[len(carry) :], places[len(changed) :], strict=True)
    return [
        *after,
        *(
            from_words(array, aval, (length, num_replicas), stored)
            for array, aval, stored in outputs
        ),
    ]


def _require_supported(jaxpr: jex.core.Jaxpr, carry: Sequence[Any], length: int) -> None:
    """Raise NotImplementedError for a scan without carry or work, or an unsupported dtype."""
    if not carry:
        raise NotImplementedError("a scan without a carry")
    if not (length and carry[0].shape[0]):
        raise NotImplementedError("a scan with no steps or no replicas")
    for var in (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars):
        check_dtype("an array", cast(Any, var.aval).dtype)


def _program_size(
    jaxpr: jex.core.Jaxpr, consts: Sequence[Any], num_replicas: int
) -> tuple[int, int]:
    """Return the lanes (one per replica) and warps of a program; networks need other numbers."""
    has_matrix = any(shared.is_weights(value) and value.ndim == 2 for value in consts)
    rows = _rows_of_a_lane(jaxpr) if has_matrix else None
    if rows is None:
        return LANES, WARPS
    few_lanes = max(FEW_LANES, MIN_ROWS // rows)
    return LANES if num_replicas > FEW_REPLICAS else few_lanes, NETWORK_WARPS


def _rows_of_a_lane(jaxpr: jex.core.Jaxpr) -> int | None:
    """Return the rows per lane of the smallest matrix product, or None without any product."""
    row_counts = []
    for eqn in jaxpr.eqns:
        inner: list[Any] = [
            getattr(x, "jaxpr", x)
            for value in eqn.params.values()
            for x in (value if isinstance(value, (tuple, list)) else (value,))
        ]
        inside = [_rows_of_a_lane(x) for x in inner if hasattr(x, "eqns")]
        rows = [1] if eqn.primitive.name == "dot_general" else [n for n in inside if n is not None]
        row_counts += [n * steps_at_once(eqn) for n in rows]
    return min(row_counts, default=None)


def _used(jaxpr: jex.core.Jaxpr, places: Sequence[int]) -> list[int]:
    """Return the positions among `places` of the inputs that the jaxpr reads.

    For example, a deterministic step does not read its key.
    """
    atoms = [*jaxpr.outvars, *(atom for eqn in jaxpr.eqns for atom in eqn.invars)]
    read = {atom for atom in atoms if not isinstance(atom, jex.core.Literal)}
    return [i for i in places if jaxpr.invars[i] in read]


def _kernel(
    *refs: Any,
    jaxpr: jex.core.Jaxpr,
    known: Sequence[Elements | None],
    changed: Sequence[int],
    used: Sequence[int],
    num_carry: int,
    length: int,
    lanes: int,
    num_replicas: int,
    places: list[list[Any]],
) -> None:
    """Run all steps of the replicas of one program; `words` describes the memory layout.

    The carry stays in registers from the first step to the last. Carry leaves that the step does
    not change are read but not written. `places` receives the result of `store` for each output.
    """
    in_avals = [v.aval for v in jaxpr.invars]
    num_shared = sum(array is None for array in known)
    num_inputs = num_shared + num_carry + len(used)
    shared_refs, carry_refs = refs[:num_shared], refs[num_shared : num_shared + num_carry]
    x_refs, carry_after_refs = (
        refs[num_shared + num_carry : num_inputs],
        refs[num_inputs:][: len(changed)],
    )
    output_refs = refs[num_inputs + len(changed) :]
    rows = pallas.program_id() * lanes + jax.lax.broadcasted_iota(jnp.int32, (lanes,), 0)
    # lanes beyond the last replica repeat it and write the same values
    rows = jnp.minimum(rows, num_replicas - 1)

    shared_vars = (v for v, array in zip(jaxpr.constvars, known, strict=True) if array is None)
    loaded = iter(
        [shared.load(ref, v.aval) for ref, v in zip(shared_refs, shared_vars, strict=True)]
    )
    consts: list[Any] = [next(loaded) if array is None else array for array in known]
    start = [
        load(ref, aval, rows, num_replicas) for ref, aval in zip(carry_refs, in_avals, strict=False)
    ]

    def step(t: jax.Array, words: tuple) -> tuple:
        carry = list(start)
        for i, array in zip(changed, with_words([start[i] for i in changed], words), strict=True):
            carry[i] = array
        x: list[Any] = [None] * (len(in_avals) - num_carry)
        for i, ref in zip(used, x_refs, strict=True):
            x[i - num_carry] = load(ref, in_avals[i], rows, num_replicas, t)
        after = [*map(numbers_of, evaluate(jaxpr, consts, [*carry, *x]))]
        outputs = zip(output_refs, after[num_carry:], strict=True)
        places[:] = [store(ref, array, rows, num_replicas, t) for ref, array in outputs]
        after = words_of([after[i] for i in changed])
        return tuple(_like(word, old) for word, old in zip(after, words, strict=True))

    words = jax.lax.fori_loop(0, length, step, tuple(words_of([start[i] for i in changed])))
    last = with_words([start[i] for i in changed], words)
    places[:0] = [
        store(ref, array, rows, num_replicas)
        for ref, array in zip(carry_after_refs, last, strict=True)
    ]


def _known(value: Any) -> Elements | None:
    """Return a constant as elements, or None for tracers, network weights and large arrays."""
    in_memory = (
        isinstance(value, jax.core.Tracer) or shared.is_weights(value) or value.size > MAX_ELEMENTS
    )
    return None if in_memory else constant(value)


def _to_shared(value: Any) -> jax.Array:
    """Convert an array that all replicas share to the layout that `shared.load` reads."""
    return shared.padded(value) if shared.is_weights(value) else to_words(value, 0)[None]


def _like(word: Any, old: jax.Array) -> jax.Array:
    """Broadcast and cast a word to the type that the loop carries."""
    return jax.lax.convert_element_type(jnp.broadcast_to(word, old.shape), old.dtype)
