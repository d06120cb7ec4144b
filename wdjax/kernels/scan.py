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
from wdjax.kernels.lanes import MAX_ELEMENTS, constant, with_words, words_of
from wdjax.kernels.matrices import numbers_of
from wdjax.kernels.words import (
    by_dtype,
    from_words,
    group_shape,
    load,
    load_group,
    store,
    to_group,
    to_words,
    words_shape,
)

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
    num_carry, num_replicas = len(carry), carry[0].shape[0]
    avals = [cast(Any, var.aval) for var in jaxpr.outvars]
    changed = [i for i in range(num_carry) if jaxpr.outvars[i] is not jaxpr.invars[i]]
    if not changed and len(avals) == num_carry:
        return list(carry)
    groups = [[changed[i] for i in group] for group in by_dtype([avals[i] for i in changed])]
    groups += [[i] for i in range(num_carry, len(avals))]
    leading = {True: (num_replicas,), False: (length, num_replicas)}
    lanes, warps = _program_size(jaxpr, consts, num_replicas)
    places: list[Any] = [None] * len(groups)
    kernel = functools.partial(
        _kernel,
        jaxpr=jaxpr,
        consts=consts,
        num_carry=num_carry,
        groups=groups,
        length=length,
        lanes=lanes,
        num_replicas=num_replicas,
        places=places,
    )
    shapes = [
        group_shape([avals[i] for i in group], num_replicas)
        if group[0] < num_carry
        else words_shape(avals[group[0]], (length, num_replicas))
        for group in groups
    ]
    grid = (pallas.cdiv(num_replicas, lanes),)
    run = pallas.call(
        kernel, "scan_replicas", (shapes,), grid, warps, stages=1, interpret=interpret
    )
    (outputs,) = run([*map(_shared_words, consts)], *_input_words(jaxpr, carry, xs))
    leaves: list[Any] = [*carry, *[None] * (len(avals) - num_carry)]
    for words, group, rows in zip(outputs, groups, places, strict=True):
        axes = leading[group[0] < num_carry]
        for i, leaf in zip(
            group, from_words(words, [avals[i] for i in group], axes, rows), strict=True
        ):
            leaves[i] = leaf
    return leaves


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
        inside = [_rows_of_a_lane(inner) for inner in jex.core.jaxprs_in_params(eqn.params)]
        rows = [1] if eqn.primitive.name == "dot_general" else [n for n in inside if n is not None]
        row_counts += [n * steps_at_once(eqn) for n in rows]
    return min(row_counts, default=None)


def _input_words(
    jaxpr: jex.core.Jaxpr, carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[jax.Array], list[jax.Array | None]]:
    """Return the carry, by dtype, and the inputs of the steps in memory.

    Inputs that are not read, such as the key of a deterministic step, are None.
    """
    atoms = [*jaxpr.outvars, *(atom for eqn in jaxpr.eqns for atom in eqn.invars)]
    read = {atom for atom in atoms if not isinstance(atom, jex.core.Literal)}
    x_vars = jaxpr.invars[len(carry) :]
    groups = by_dtype([var.aval for var in jaxpr.invars[: len(carry)]])
    return [to_group([carry[i] for i in group]) for group in groups], [
        to_words(leaf, 2) if var in read else None for leaf, var in zip(xs, x_vars, strict=True)
    ]


def _shared_words(value: Any) -> jax.Array | None:
    """Return a constant as `shared.load` reads it; None for small known arrays without weights."""
    if shared.is_weights(value):
        return shared.padded(value)
    if isinstance(value, jax.core.Tracer) or value.size > MAX_ELEMENTS:
        return to_words(value, 0)[None]
    return None


def _kernel(
    shared_refs: Sequence[Any],
    carry_refs: Sequence[Any],
    x_refs: Sequence[Any],
    output_refs: Sequence[Any],
    *,
    jaxpr: jex.core.Jaxpr,
    consts: Sequence[Any],
    num_carry: int,
    groups: Sequence[Sequence[int]],
    length: int,
    lanes: int,
    num_replicas: int,
    places: list[Any],
) -> None:
    """Run all steps of the replicas of one program; `words` describes the memory layout.

    The carry stays in registers from the first step to the last. `carry_refs` contains the carry by
    dtype, and `output_refs` the arrays of `groups`: changed carry by dtype, then each output.
    References are None for arrays that are not in memory, as in `_shared_words` and `_input_words`.
    `places` receives the result of `store` for each of `groups`.
    """
    rows = pallas.program_id() * lanes + jax.lax.broadcasted_iota(jnp.int32, (lanes,), 0)
    # lanes beyond the last replica repeat it and write the same values
    rows = jnp.minimum(rows, num_replicas - 1)
    shared_arrays: list[Any] = [
        constant(value) if ref is None else shared.load(ref, var.aval)
        for ref, var, value in zip(shared_refs, jaxpr.constvars, consts, strict=True)
    ]
    avals = [cast(Any, var.aval) for var in jaxpr.invars]
    start: list[Any] = [None] * num_carry
    for ref, group in zip(carry_refs, by_dtype(avals[:num_carry]), strict=True):
        loaded = load_group(ref, [avals[i] for i in group], rows, num_replicas)
        for i, array in zip(group, loaded, strict=True):
            start[i] = array
    changed = [i for group in groups for i in group if i < num_carry]
    stored = list(zip(output_refs, groups, strict=True))
    num_changed = sum(group[0] < num_carry for group in groups)

    def step(t: jax.Array, words: tuple) -> tuple:
        carry = list(start)
        for i, array in zip(changed, with_words([start[i] for i in changed], words), strict=True):
            carry[i] = array
        x: list[Any] = [
            None if ref is None else load(ref, aval, rows, num_replicas, t)
            for ref, aval in zip(x_refs, avals[num_carry:], strict=True)
        ]
        after = [*map(numbers_of, evaluate(jaxpr, shared_arrays, [*carry, *x]))]
        places[num_changed:] = [
            store(ref, [after[i] for i in group], rows, num_replicas, t)
            for ref, group in stored[num_changed:]
        ]
        # broadcast and cast to the types that the loop carries
        return tuple(
            jax.lax.convert_element_type(jnp.broadcast_to(word, old.shape), old.dtype)
            for word, old in zip(words_of([after[i] for i in changed]), words, strict=True)
        )

    words = jax.lax.fori_loop(0, length, step, tuple(words_of([start[i] for i in changed])))
    last = dict(zip(changed, with_words([start[i] for i in changed], words), strict=True))
    places[:num_changed] = [
        store(ref, [last[i] for i in group], rows, num_replicas)
        for ref, group in stored[:num_changed]
    ]
