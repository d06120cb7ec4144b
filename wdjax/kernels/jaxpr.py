"""Evaluation of a jaxpr of one replica on arrays of elements, inside a kernel."""

from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval as pe

from wdjax.kernels import matrices as blocks
from wdjax.kernels.elementwise import check_dtype, select
from wdjax.kernels.lanes import (
    Elements,
    along_steps,
    array_of,
    call,
    call_each,
    check_size,
    constant,
    identity,
    of_steps,
    with_words,
    words_of,
)
from wdjax.kernels.matrices import Block, numbers_of
from wdjax.kernels.primitives import RULES
from wdjax.kernels.shared import Shared

MAX_UNROLL = 64  # maximum steps of a loop inside the function
# call primitive -> the parameter with the called jaxpr
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
}


def check_supported(jaxpr: jex.core.Jaxpr) -> None:
    """Raise NotImplementedError as `evaluate` for a jaxpr with an unsupported equation.

    The equations are not evaluated, which could take a second. Branches of `cond` are not examined:
    a branch that is never taken may be unsupported.
    """
    for eqn in _used(jaxpr).eqns:
        _check_equation(eqn)
        name = eqn.primitive.name
        if name in CALLS or (name == "scan" and eqn.params["length"]):
            inner = eqn.params[CALLS.get(name, "jaxpr")]
            check_supported(getattr(inner, "jaxpr", inner))


def evaluate(
    jaxpr: jex.core.Jaxpr, consts: Sequence[Elements], operands: Sequence[Elements]
) -> list[Elements]:
    """Evaluate a jaxpr on its constants and operands.

    Raises:
        NotImplementedError: for an unsupported primitive, shape or dtype, which the message names.
    """
    jaxpr = _used(jaxpr)
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

    def read(atom: Any) -> Elements:
        return (
            constant(np.asarray(atom.val, cast(Any, atom.aval).dtype))
            if isinstance(atom, jex.core.Literal)
            else values[atom]
        )

    for eqn in jaxpr.eqns:
        values.update(
            zip(eqn.outvars, _outputs(eqn, [read(atom) for atom in eqn.invars]), strict=True)
        )
    return [read(atom) for atom in jaxpr.outvars]


def evaluate_closed(closed: Any, operands: Sequence[Elements]) -> list[Elements]:
    """Evaluate a closed jaxpr, or a jaxpr without constants (one class since jax 0.12)."""
    consts = [constant(const) for const in getattr(closed, "consts", ())]
    return evaluate(getattr(closed, "jaxpr", closed), consts, operands)


def _used(jaxpr: jex.core.Jaxpr) -> jex.core.Jaxpr:
    """Return a jaxpr without equations that no output depends on: they may be unsupported."""
    return pe.dce_jaxpr(jaxpr, True, instantiate=True)[0]


def _check_equation(eqn: jex.core.JaxprEqn) -> None:
    """Raise NotImplementedError for an unsupported primitive, shape or dtype."""
    name = eqn.primitive.name
    for var in eqn.outvars:
        check_size(f"output of {name}", cast(Any, var.aval).shape)
        check_dtype(f"output of {name}", cast(Any, var.aval).dtype)
    if not (name in RULES or name in CALLS or name in ("cond", "scan")):
        raise NotImplementedError(f"{name}: this primitive is not supported in kernels")


def _outputs(eqn: jex.core.JaxprEqn, inputs: list[Elements]) -> list[Elements]:
    _check_equation(eqn)
    name = eqn.primitive.name
    if name in CALLS:
        return evaluate_closed(eqn.params[CALLS[name]], inputs)
    if name == "cond":
        return _cond(eqn.params["branches"], *inputs)
    if name == "scan":
        return _scan(inputs, *_consts_and_carry(eqn.params), **eqn.params)
    if any(isinstance(x, (Block, Shared)) for x in inputs):
        outputs = blocks.apply(eqn, inputs)
        if outputs is not None:
            return outputs
    return RULES[name](eqn, *map(numbers_of, inputs))


def _cond(branches: Sequence[Any], index: Elements, *operands: Elements) -> list[Elements]:
    """Evaluate a `lax.cond` or `lax.switch`.

    If the index is known at trace time, only that branch is evaluated. Otherwise each replica
    selects from the outputs of all branches. If there are two branches, `_cond_of_lanes` skips the
    longer one when no lane takes it.
    """
    which = numbers_of(index)[()]
    if isinstance(which, np.generic):
        return evaluate_closed(branches[min(max(int(which), 0), len(branches) - 1)], operands)
    if jnp.ndim(which) and len(branches) == 2:
        return _cond_of_lanes(branches, which, operands)
    cases = [[*map(numbers_of, evaluate_closed(branch, operands))] for branch in branches]
    return [
        call_each(select, arrays[0].shape, index, *arrays) for arrays in zip(*cases, strict=True)
    ]


def _cond_of_lanes(
    branches: Sequence[Any], which: Any, operands: Sequence[Elements]
) -> list[Elements]:
    """Select each lane's outputs from two branches. Skip the longer one if no lane takes it."""
    long = int(len(branches[1].jaxpr.eqns) >= len(branches[0].jaxpr.eqns))
    takes_long = (which > 0) == bool(long)
    short = [*map(numbers_of, evaluate_closed(branches[1 - long], operands))]
    base = words_of(short)
    # (new, old) pair of words -> its position among the selected words
    places: dict[tuple, int] = {}
    pairs: list[tuple] = []

    def in_lanes(word) -> jax.Array:
        return jnp.broadcast_to(word, which.shape)

    def run() -> tuple:
        words = words_of([*map(numbers_of, evaluate_closed(branches[long], operands))])
        pairs[:] = [(identity(new), identity(old)) for new, old in zip(words, base, strict=True)]
        cases = {
            pair: case for pair, *case in zip(pairs, words, base, strict=True) if pair[0] != pair[1]
        }
        places.update({pair: i for i, pair in enumerate(cases)})
        return tuple(in_lanes(call(jnp.where, takes_long, new, old)) for new, old in cases.values())

    def skip() -> tuple:  # traced after `run`, which fills `pairs` and `places`
        old = dict(zip(pairs, base, strict=True))
        return tuple(in_lanes(old[pair]) for pair in places)

    chosen = jax.lax.cond(jnp.max(takes_long.astype(jnp.int32)) > 0, run, skip)
    words = [
        chosen[places[pair]] if pair in places else old
        for pair, old in zip(pairs, base, strict=True)
    ]
    return with_words(short, words)


def _consts_and_carry(params: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of constants and of carried operands of a scan."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].elts  # jax 0.12
    return len(consts), len(carry)


def _scan(
    inputs: Sequence[Elements],
    consts: int,
    carried: int,
    *,
    jaxpr: Any,
    length: int,
    reverse: bool,
    **_: Any,
) -> list[Elements]:
    """Unroll a short loop, or run its iterations in parallel if it has no carry (`lax.map`)."""
    if length > MAX_UNROLL:
        raise NotImplementedError(
            f"scan of {length} steps inside a replica: kernels support up to {MAX_UNROLL}"
        )
    shared, carry = inputs[:consts], inputs[consts : consts + carried]
    if not length:
        output_vars = getattr(jaxpr, "jaxpr", jaxpr).outvars[carried:]
        return [*carry, *(array_of([], (0, *v.aval.shape)) for v in output_vars)]
    xs, outputs = [*map(numbers_of, inputs[consts + carried :])], []
    if length > 1 and not carried:
        return _at_once(jaxpr, shared, xs, length)
    for i in range(length)[:: -1 if reverse else 1]:
        step = [x[i : i + 1].reshape(x.shape[1:]) for x in xs]
        after = evaluate_closed(jaxpr, [*shared, *carry, *step])
        carry = after[:carried]
        outputs.append([*map(numbers_of, after[carried:])])
    stacked = [np.stack(arrays) for arrays in zip(*outputs[:: -1 if reverse else 1], strict=True)]
    return [*carry, *stacked]


def steps_at_once(eqn: jex.core.JaxprEqn) -> int:
    """Return the number of loop iterations that an equation runs in parallel, in different lanes.

    For a loop without a carry (`lax.map`), this is its length padded to a power of two. Otherwise
    it is 1.
    """
    if eqn.primitive.name != "scan" or _consts_and_carry(eqn.params)[1]:
        return 1
    return 1 << (max(eqn.params["length"], 1) - 1).bit_length()


def _at_once(
    jaxpr: Any, shared: Sequence[Elements], xs: Sequence[Elements], length: int
) -> list[Elements]:
    """Run the iterations of a loop without a carry in parallel: [lanes] become [steps, lanes]."""
    inside = [numbers_of(x) for x in shared if not isinstance(x, Shared)]
    inner = max((jnp.ndim(word) for word in words_of([*inside, *xs])), default=0)
    outputs = evaluate_closed(jaxpr, [*shared, *(along_steps(x, inner) for x in xs)])
    return [of_steps(numbers_of(output), inner, length) for output in outputs]
