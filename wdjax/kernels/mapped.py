"""A kernel that applies a function of one replica to many replicas, one program per replica.

Programs compute blocks of numbers (blocks.py). Equations without a rule for blocks, for example
another kernel, follow in XLA, together with everything that depends on them.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.kernels.blocks import Blocks, is_flat, is_merged, why_not
from wdjax.kernels.jaxpr import CALLS
from wdjax.kernels.spans import Spans, places, positions, whole
from wdjax.kernels.threefry import Key
from wdjax.kernels.words import as_leaf, is_key, memory_dtype, to_words, words_shape

MAP_REPLICAS = "map_replicas"  # name of the kernel
WARPS = 8  # warps of a program
# about one program for each multiprocessor; XLA computes more or larger replicas as fast
MAX_REPLICAS = 128
MAX_LEAF = 2_048  # numbers of an input, without the axis of the replicas


def map_replicas_kernel(
    function: Callable[[Any, Any], Any],
    replicas: Any,
    shared: Any,
    interpret: bool = False,
    partly: bool = False,
) -> Any:
    """Return `jax.vmap(function, in_axes=(0, None))(replicas, shared)`, by one kernel.

    Args:
        function: (replica, shared) -> results, pytrees of arrays and typed keys.
        replicas: leaves [N, ...].
        shared: arrays of all replicas.
        interpret: run step by step in XLA, on any device, for tests.
        partly: let XLA compute unsupported equations, and everything that depends on them.
            Otherwise, only other kernels, equations that depend on them, and equations that read
            arrays with merged axes follow.

    Raises:
        NotImplementedError: for something that is not supported.
    """
    leaves, constants = jax.tree.leaves(replicas), jax.tree.leaves(shared)
    num_replicas = leaves[0].shape[0]
    if num_replicas > MAX_REPLICAS:
        raise NotImplementedError(f"{num_replicas} replicas: programs support up to {MAX_REPLICAS}")
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), replicas)
    closed, shape = jax.make_jaxpr(_without_calls(function), return_shape=True)(one, shared)
    jaxpr: Any = getattr(closed, "jaxpr", closed)
    constants = [*closed.consts, *constants]
    own, common = jaxpr.invars[: len(leaves)], [*jaxpr.constvars, *jaxpr.invars[len(leaves) :]]
    first, rest, stored = _parts(jaxpr, partly)
    task = Task(first, own, common, stored, num_replicas)
    mapped = dict(zip(own, leaves, strict=True))
    mapped.update(zip(stored, _run(task, leaves, constants, interpret), strict=True))
    needed = [var for var in mapped if var in _read(rest) or var in jaxpr.outvars]

    def finish(values: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        known = {
            **dict(zip(needed, values, strict=True)),
            **dict(zip(common, constants, strict=True)),
        }
        return _evaluate(rest, jaxpr.outvars, known)

    results = jax.vmap(finish, (0, None))([mapped[var] for var in needed], constants)
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def _evaluate(eqns: Sequence[Any], outvars: Sequence[Any], known: Mapping[Any, Any]) -> list[Any]:
    """Evaluate equations, with inlined calls."""
    values = dict(known)

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.core.Literal) else values[atom]

    for eqn in eqns:
        inputs = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name in INLINED:
            inner = eqn.params[CALLS[eqn.primitive.name]]
            body: Any = getattr(inner, "jaxpr", inner)
            variables = [*body.constvars, *body.invars]
            inside = zip(variables, [*getattr(inner, "consts", ()), *inputs], strict=True)
            outputs = _evaluate(body.eqns, body.outvars, dict(inside))
        else:
            outputs = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
            outputs = outputs if eqn.primitive.multiple_results else [outputs]
        values.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in outvars]


# calls whose equations take their place; a `custom_vmap` has its own rule for replicas
INLINED = frozenset(CALLS) - {"custom_vmap_call"}


def _without_calls(function: Callable) -> Callable:
    """Return the function with the equations of all calls in their place."""

    def flat(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        jaxpr: Any = getattr(closed, "jaxpr", closed)
        inputs = zip(
            [*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *jax.tree.leaves(args)], strict=True
        )
        results = _evaluate(jaxpr.eqns, jaxpr.outvars, dict(inputs))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return flat


def _read(eqns: Sequence[Any]) -> set[Any]:
    """Return the variables that equations read."""
    atoms = [atom for eqn in eqns for atom in eqn.invars]
    return {atom for atom in atoms if not isinstance(atom, jex.core.Literal)}


def _parts(jaxpr: Any, partly: bool) -> tuple[list[Any], list[Any], list[Any]]:
    """Divide the equations of a jaxpr.

    Returns:
        (equations of the kernel, other equations, variables that the kernel stores).

    Raises:
        NotImplementedError: as `map_replicas_kernel`.
    """
    for var in jaxpr.invars:
        if var.aval.size > MAX_LEAF:
            raise NotImplementedError(
                f"an array of {var.aval.size:,} numbers: programs support up to {MAX_LEAF:,}"
            )
    known: set[Any] = {*jaxpr.constvars, *jaxpr.invars}
    pieces: set[Any] = set()
    first, rest, reasons = [], [], []
    for eqn in jaxpr.eqns:
        inputs, reason = _read([eqn]), why_not(eqn)
        if reason is None and inputs <= known and not is_merged(eqn):
            known.update(eqn.outvars)
        elif reason is None and inputs <= known | pieces and (is_merged(eqn) or is_flat(eqn)):
            pieces.update(eqn.outvars)
        else:
            rest.append(eqn)
            if reason and inputs <= known | pieces and eqn.primitive.name != "pallas_call":
                reasons.append(reason)
            continue
        first.append(eqn)
    if reasons and not partly:
        raise NotImplementedError(reasons[0])
    made = [var for eqn in first for var in eqn.outvars]
    needed = _read(rest) | {v for v in jaxpr.outvars if not isinstance(v, jex.core.Literal)}
    return first, rest, [var for var in made if var in needed]


@dataclasses.dataclass(frozen=True)
class Task:
    """Static part of a kernel."""

    eqns: Sequence[Any]
    """equations that it evaluates"""
    own: Sequence[Any]
    """inputs of a replica"""
    common: Sequence[Any]
    """inputs of all replicas"""
    stored: Sequence[Any]
    """variables that it stores"""
    num_replicas: int


def _run(
    task: Task, leaves: Sequence[Any], constants: Sequence[Any], interpret: bool
) -> list[jax.Array]:
    """Run the kernel. Return the arrays of `task.stored`, [N, ...]."""
    if not task.stored:
        return []
    read = _read(task.eqns)
    inputs = [
        to_words(leaf, 0) if var in read else None
        for var, leaf in zip([*task.own, *task.common], [*leaves, *constants], strict=True)
    ]
    leading = (task.num_replicas,)
    shapes = [words_shape(var.aval, leading) for var in task.stored]
    kernel = functools.partial(_kernel, task)
    run = pallas.call(kernel, MAP_REPLICAS, shapes, leading, WARPS, stages=1, interpret=interpret)
    stored = zip(run(inputs), task.stored, strict=True)
    return [as_leaf(words, var.aval, leading) for words, var in stored]


def _kernel(task: Task, input_refs: Sequence[Any], *stored_refs: Any) -> None:
    """Compute the arrays of one replica."""
    replica = pallas.program_id()
    refs = dict(zip([*task.own, *task.common], input_refs, strict=True))
    first_of = {var: replica * var.aval.size for var in task.own}

    def load(var: Any, spans: Spans) -> Any:
        ref, place = refs[var], first_of.get(var, jnp.int32(0)) + places(spans, var.aval.shape)
        if not is_key(var.aval.dtype):
            return pallas.load(ref.at[place])
        return Key(*(pallas.load(ref.at[2 * place + word]) for word in range(2)))

    loaded = {place: load(*place) for place in _loads(task)}  # at once: each load takes a while
    found = _computed(task, lambda *place: loaded[place])
    for var, ref, pieces in zip(task.stored, stored_refs, found, strict=True):
        for block, aval, first in pieces:
            _store(ref, block, aval, replica * var.aval.size + first)


def _computed(task: Task, load: Callable[[Any, Spans], Any]) -> list[list[tuple]]:
    """Return (block, shape and dtype, first place) of the pieces of each stored variable."""
    blocks = Blocks(task.eqns, load)
    return [
        [(blocks.at(var, whole(var.aval.shape)), var.aval, first) for var, first in pieces]
        for pieces in map(blocks.pieces, task.stored)
    ]


def _loads(task: Task) -> list[tuple[Any, Spans]]:
    """Return the inputs that a program loads, with their spans."""
    places: list[tuple[Any, Spans]] = []

    def note(var: Any, spans: Spans) -> Any:
        places.append((var, spans))
        words = jnp.zeros(tuple(span.width for span in spans), memory_dtype(var.aval))
        return Key(words, words) if is_key(var.aval.dtype) else words

    jax.eval_shape(lambda: [block for block, *_ in itertools.chain(*_computed(task, note))])
    return places


def _store(ref: Any, block: Any, aval: Any, first: jax.Array) -> None:
    """Store the block of a whole array of one replica from the place `first` on."""
    spans = whole(aval.shape)
    place, is_inside = first + places(spans, aval.shape), None
    for axis, span in enumerate(spans):
        if span.width != span.size:
            inside = jnp.broadcast_to(positions(spans, axis) < span.size, place.shape)
            is_inside = inside if is_inside is None else is_inside & inside
    if is_inside is not None:  # lanes beyond the end must not have the place of another lane
        place = jnp.where(is_inside, place, ref.shape[0])
    words = block if isinstance(block, Key) else [block]
    for i, word in enumerate(words):
        word = jnp.broadcast_to(word, place.shape).astype(ref.dtype)
        pallas.store(ref.at[len(words) * place + i], word, mask=is_inside)
