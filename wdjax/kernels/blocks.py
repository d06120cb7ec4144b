"""Arrays of one replica as blocks in the registers of a program, computed where they are needed.

`Blocks` evaluates a jaxpr of one replica backwards. A kernel asks for an array at a span of
positions on each axis. The rule of the equation that makes the array asks for the spans of its
inputs, down to the inputs of the jaxpr, which are loaded from memory. Slices and concatenations
thereby only change the spans, although Triton can neither slice nor join registers. An array that
is needed at other spans is computed again there.

On each axis, a block has the size of the span rounded up to a power of two, or 1 if all its numbers
along that axis are equal. Positions outside of the span or the array contain arbitrary numbers.
Keys are a `threefry.Key` of two blocks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.extend as jex
import jax.numpy as jnp

from wdjax.kernels.block_rules import RULES
from wdjax.kernels.elementwise import COMPUTED, check_dtype, computed
from wdjax.kernels.spans import Spans, inside, whole
from wdjax.kernels.threefry import Key
from wdjax.kernels.words import is_key

MAX_BLOCK = 2**14  # numbers of a block
MAX_BLOCKS = 2_500  # blocks that a program computes, which limits compile time


class Blocks:
    """Blocks of the arrays of a jaxpr, each computed once."""

    def __init__(
        self, eqns: Sequence[jex.core.JaxprEqn], load: Callable[[Any, Spans], jax.Array | Key]
    ) -> None:
        """Evaluate equations for which `why_not` returns None.

        Args:
            eqns: the equations, without calls.
            load: returns the block of an input, a variable that no equation makes.
        """
        self.made_by = {var: eqn for eqn in eqns for var in eqn.outvars}
        self.load = load
        self.known: dict[tuple[Any, Spans], Any] = {}

    def at(self, atom: Any, spans: Spans) -> Any:
        """Return the block of an array at some spans."""
        if isinstance(atom, jex.core.Literal):
            aval = cast(Any, atom.aval)
            return jnp.full((1,) * len(spans), atom.val, aval.dtype)
        spans = tuple(map(inside, spans, atom.aval.shape))
        place = (atom, spans)
        if place not in self.known:
            _check_size(f"a block of shape {atom.aval.shape}", spans)
            if len(self.known) >= MAX_BLOCKS:
                raise NotImplementedError(f"a step has more than {MAX_BLOCKS:,} blocks")
            eqn = self.made_by.get(atom)
            self.known[place] = (
                self.load(atom, spans)
                if eqn is None
                else RULES[eqn.primitive.name](self, eqn, atom, spans)
            )
        return self.known[place]

    def pieces(self, atom: Any, first: int = 0) -> list[tuple[Any, int]]:
        """Return arrays that lie one after the other in memory as `atom`, and their first places.

        Reshaped arrays, and joined ones if they are contiguous, need not be computed as such.
        """
        eqn = None if isinstance(atom, jex.core.Literal) else self.made_by.get(atom)
        if eqn is None or not is_flat(eqn):
            return [(atom, first)]
        found = []
        for part in eqn.invars:
            found += self.pieces(part, first)
            first += cast(Any, part.aval).size
        return found


def why_not(eqn: jex.core.JaxprEqn) -> str | None:
    """Return why `Blocks` does not support an equation, or None."""
    name, params = eqn.primitive.name, eqn.params
    if name not in RULES:
        return f"{name}: this primitive is not supported"
    avals: list[Any] = [var.aval for var in (*eqn.invars, *eqn.outvars)]
    dtypes = [aval.dtype for aval in avals[: len(eqn.invars)]]
    try:
        for aval in avals:
            _check_size(f"{name} of shape {aval.shape}", whole(aval.shape))
            check_dtype(name, aval.dtype)
        if name in COMPUTED:
            computed(eqn)
    except NotImplementedError as error:
        return str(error)
    of_flags = [dtype == jnp.bool_ for dtype in dtypes]
    unsupported = {
        "slice": any(stride != 1 for stride in params.get("strides") or ()),
        "pad": any(
            low < 0 or high < 0 or inner for low, high, inner in params.get("padding_config", ())
        ),
        "random_bits": params.get("bit_width") != 32,
        "reshape": params.get("dimensions") is not None,
        "argmin": params.get("index_dtype") != jnp.int32 or any(of_flags),
        "argmax": params.get("index_dtype") != jnp.int32 or any(of_flags),
        "reduce_and": not all(of_flags),  # bit by bit for integers
        "reduce_or": not all(of_flags),
        "eq": any(map(is_key, dtypes)),
        "ne": any(map(is_key, dtypes)),
    }
    return f"{name} of {dtypes[0]} with {params}" if unsupported.get(name) else None


def _check_size(what: str, spans: Spans) -> None:
    """Raise NotImplementedError for a block that is empty or has more than MAX_BLOCK numbers."""
    numbers = math.prod(span.width if span.size else 0 for span in spans)
    if not 0 < numbers <= MAX_BLOCK:
        raise NotImplementedError(f"{what}: a block has 1 to {MAX_BLOCK:,} numbers")


def is_merged(eqn: jex.core.JaxprEqn) -> bool:
    """Return whether an equation merges or splits axes, so that only `pieces` of it are known."""
    if eqn.primitive.name != "reshape":
        return False
    avals: list[Any] = [eqn.invars[0].aval, eqn.outvars[0].aval]
    before, after = ([n for n in aval.shape if n != 1] for aval in avals)
    return before != after


def is_flat(eqn: jex.core.JaxprEqn) -> bool:
    """Return whether an equation leaves the order of all numbers of its inputs in memory."""
    name = eqn.primitive.name
    before, after = ([cast(Any, v.aval) for v in vs] for vs in (eqn.invars, eqn.outvars))
    if name == "concatenate":
        return math.prod(after[0].shape[: eqn.params["dimension"]]) == 1
    return name in ("reshape", "squeeze", "broadcast_in_dim") and before[0].size == after[0].size
