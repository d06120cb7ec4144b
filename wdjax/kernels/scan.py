"""A kernel that scans a function of one replica over time, for many replicas.

One program runs up to LANES replicas, one per lane, and loops over time with the carry in
registers. The carry is read from memory once before the loop and written once after it. Only the
inputs and outputs of each step access memory inside the loop, and no step launches a kernel.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.extend as jex
import jax.numpy as jnp

from wdjax.kernels import pallas, shared
from wdjax.kernels.elementwise import check_dtype
from wdjax.kernels.jaxpr import check_supported, evaluate, steps_at_once
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

SCAN_REPLICAS = "scan_replicas"  # name of the kernels in programs and profiles
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
    lanes, warps = _program_size(jaxpr, consts, num_replicas)
    scan = Scan(jaxpr, consts, num_carry, num_replicas, length, lanes, warps)
    if not scan.changed and len(scan.after) == num_carry:
        return list(carry)
    shapes = (
        [group_shape([scan.after[i] for i in group], num_replicas) for group in scan.changed],
        [words_shape(aval, (length, num_replicas)) for aval in scan.after[num_carry:]],
    )
    places: list[list[Any] | None] = []
    kernel = functools.partial(_kernel, scan=scan, places=places)
    grid = (pallas.cdiv(num_replicas, lanes),)
    run = pallas.call(kernel, SCAN_REPLICAS, shapes, grid, warps, stages=1, interpret=interpret)
    changed, outputs = run([*map(_shared_words, consts)], *_input_words(scan, carry, xs))
    leaves = list(carry)
    for words, group in zip(changed, scan.changed, strict=True):
        avals = [scan.after[i] for i in group]
        found = from_words(words, avals, (num_replicas,), places.pop(0))
        for i, leaf in zip(group, found, strict=True):
            leaves[i] = leaf
    for words, aval in zip(outputs, scan.after[num_carry:], strict=True):
        leaves += from_words(words, [aval], (length, num_replicas), places.pop(0))
    return leaves


@dataclasses.dataclass(frozen=True)
class Scan:
    """Static part of a kernel."""

    jaxpr: jex.core.Jaxpr
    """the step of one replica"""
    consts: Sequence[Any]
    """constants of the jaxpr"""
    num_carry: int
    """leaves of the carry"""
    num_replicas: int
    length: int
    """number of steps"""
    lanes: int
    """replicas of a program"""
    warps: int
    """warps of a program"""

    @functools.cached_property
    def before(self) -> list[Any]:
        """Shapes and dtypes of the leaves of (carry, x)."""
        return [cast(Any, var.aval) for var in self.jaxpr.invars]

    @functools.cached_property
    def after(self) -> list[Any]:
        """Shapes and dtypes of the leaves of (carry, output)."""
        return [cast(Any, var.aval) for var in self.jaxpr.outvars]

    @functools.cached_property
    def loaded(self) -> list[list[int]]:
        """Positions of the leaves of the carry, by dtype: each list is one array in memory."""
        return by_dtype(self.before[: self.num_carry])

    @functools.cached_property
    def changed(self) -> list[list[int]]:
        """Positions of the leaves of the carry that a step changes, by dtype."""
        inputs, outputs = self.jaxpr.invars, self.jaxpr.outvars
        positions = [i for i in range(self.num_carry) if outputs[i] is not inputs[i]]
        groups = by_dtype([self.after[i] for i in positions])
        return [[positions[i] for i in group] for group in groups]

    @property
    def threads_have_lanes(self) -> bool:
        """Whether one thread computes all words of a lane, and stores them without a barrier."""
        return self.lanes >= 32 * self.warps


def _require_supported(jaxpr: jex.core.Jaxpr, carry: Sequence[Any], length: int) -> None:
    """Raise NotImplementedError for a scan without carry or work, or with unsupported parts."""
    if not carry:
        raise NotImplementedError("a scan without a carry")
    if not (length and carry[0].shape[0]):
        raise NotImplementedError("a scan with no steps or no replicas")
    for var in (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars):
        check_dtype("an array", cast(Any, var.aval).dtype)
    check_supported(jaxpr)


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
    scan: Scan, carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[jax.Array], list[jax.Array | None]]:
    """Return the carry, by dtype, and the inputs of the steps in memory.

    Inputs that are not read, such as the key of a deterministic step, are None.
    """
    atoms = [*scan.jaxpr.outvars, *(atom for eqn in scan.jaxpr.eqns for atom in eqn.invars)]
    read = {atom for atom in atoms if not isinstance(atom, jex.core.Literal)}
    inputs = zip(xs, scan.jaxpr.invars[scan.num_carry :], strict=True)
    return [to_group([carry[i] for i in group]) for group in scan.loaded], [
        to_words(leaf, 2) if var in read else None for leaf, var in inputs
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
    changed_refs: Sequence[Any],
    output_refs: Sequence[Any],
    *,
    scan: Scan,
    places: list[list[Any] | None],
) -> None:
    """Run all steps of the replicas of one program; `words` describes the memory layout.

    The carry stays in registers from the first step to the last. References are None for arrays
    that are not in memory, as in `_shared_words` and `_input_words`. `places` receives the results
    of `store` for `changed_refs`, then for `output_refs`.
    """
    num_carry, num_replicas = scan.num_carry, scan.num_replicas
    lane = jax.lax.broadcasted_iota(jnp.int32, (scan.lanes,), 0)
    # lanes beyond the last replica repeat it and write the same values
    rows = jnp.minimum(pallas.program_id() * scan.lanes + lane, num_replicas - 1)
    shared_arrays: list[Any] = [
        constant(value) if ref is None else shared.load(ref, var.aval)
        for ref, var, value in zip(shared_refs, scan.jaxpr.constvars, scan.consts, strict=True)
    ]
    start = _load_carry(scan, carry_refs, rows)
    changed = [i for group in scan.changed for i in group]
    places_of_outputs: list[list[Any] | None] = []

    def carry_of(words: Sequence[jax.Array]) -> list[Any]:
        arrays = with_words([start[i] for i in changed], words)
        now = dict(zip(changed, arrays, strict=True))
        return [now.get(i, array) for i, array in enumerate(start)]

    def step(t: jax.Array, words: tuple) -> tuple:
        x: list[Any] = [
            None if ref is None else load(ref, aval, rows, num_replicas, t)
            for ref, aval in zip(x_refs, scan.before[num_carry:], strict=True)
        ]
        after = [*map(numbers_of, evaluate(scan.jaxpr, shared_arrays, [*carry_of(words), *x]))]
        places_of_outputs[:] = [
            store(ref, [array], rows, num_replicas, t, in_order=scan.threads_have_lanes)
            for ref, array in zip(output_refs, after[num_carry:], strict=True)
        ]
        # broadcast and cast to the types that the loop carries
        return tuple(
            jax.lax.convert_element_type(jnp.broadcast_to(word, old.shape), old.dtype)
            for word, old in zip(words_of([after[i] for i in changed]), words, strict=True)
        )

    first = tuple(words_of([start[i] for i in changed]))
    last = carry_of(jax.lax.fori_loop(0, scan.length, step, first))
    places[:] = [
        store(ref, [last[i] for i in group], rows, num_replicas)
        for ref, group in zip(changed_refs, scan.changed, strict=True)
    ] + places_of_outputs


def _load_carry(scan: Scan, refs: Sequence[Any], rows: jax.Array) -> list[Any]:
    """Return the carry of the replicas `rows` before the first step."""
    carry: list[Any] = [None] * scan.num_carry
    for ref, group in zip(refs, scan.loaded, strict=True):
        loaded = load_group(ref, [scan.before[i] for i in group], rows, scan.num_replicas)
        for i, array in zip(group, loaded, strict=True):
            carry[i] = array
    return carry
