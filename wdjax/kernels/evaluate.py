"""The jaxpr of a function of one replica, evaluated on arrays of elements, within a kernel."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np

from wdjax.kernels import blocks
from wdjax.kernels.blocks import Block, Weights, numbers_of
from wdjax.kernels.elements import Elements, call, call_each, check_size, constant, with_words, words_of
from wdjax.kernels.primitives import RULES, select

MAX_UNROLL = 64  # steps of a loop within the function
# calls, and the parameter that holds what is called
CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "checkpoint": "jaxpr",
    "remat": "jaxpr", "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_vmap_call": "call",
}  # fmt: skip


def evaluate(jaxpr: jex.core.Jaxpr, consts: Sequence[Elements], operands: Sequence[Elements]) -> list[Elements]:
    """Returns what a jaxpr gives for its constants and operands.

    Raises:
        NotImplementedError: for what has no place in a kernel, naming the primitive.
    """
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

    def read(atom: Any) -> Elements:
        return constant(np.asarray(atom.val, atom.aval.dtype)) if isinstance(atom, jex.core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        values.update(zip(eqn.outvars, _outputs(eqn, [read(atom) for atom in eqn.invars]), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def evaluate_closed(closed: Any, operands: Sequence[Elements]) -> list[Elements]:
    """The same for a jaxpr with its constants, or one without any."""
    if isinstance(closed, jex.core.Jaxpr):
        return evaluate(closed, (), operands)
    return evaluate(closed.jaxpr, [constant(np.asarray(const)) for const in closed.consts], operands)


def _outputs(eqn: jex.core.JaxprEqn, inputs: list[Elements]) -> list[Elements]:
    name = eqn.primitive.name
    for var in eqn.outvars:
        check_size(f"{name} gives an array", var.aval.shape)
    if name in CALLS:
        return evaluate_closed(eqn.params[CALLS[name]], inputs)
    if name == "cond":
        return _cond(eqn.params["branches"], *inputs)
    if name == "scan":
        return _unrolled_scan(inputs, **eqn.params)
    if any(isinstance(x, (Block, Weights)) for x in inputs):
        outputs = blocks.apply(eqn, inputs)
        if outputs is not None:
            return outputs
    if name not in RULES:
        raise NotImplementedError(f"{name}: this primitive has no place in a kernel of replicas")
    return RULES[name](eqn, *map(numbers_of, inputs))


def _cond(branches: Sequence[Any], index: Elements, *operands: Elements) -> list[Elements]:
    """The branch that is known to be taken; else what each replica takes of them."""
    which = numbers_of(index)[()]
    if isinstance(which, np.generic):
        return evaluate_closed(branches[min(max(int(which), 0), len(branches) - 1)], operands)
    if jnp.ndim(which) and len(branches) == 2:
        return _cond_of_lanes(branches, which, operands)
    cases = [[*map(numbers_of, evaluate_closed(branch, operands))] for branch in branches]
    return [call_each(select, arrays[0].shape, index, *arrays) for arrays in zip(*cases, strict=True)]


def _cond_of_lanes(branches: Sequence[Any], which: jax.Array, operands: Sequence[Elements]) -> list[Elements]:
    """What each lane takes of two branches; the longer one is left out where no lane of the block takes it."""
    long = int(len(branches[1].jaxpr.eqns) >= len(branches[0].jaxpr.eqns))
    takes_long = (which > 0) == bool(long)
    short = [*map(numbers_of, evaluate_closed(branches[1 - long], operands))]
    base = [jnp.broadcast_to(word, which.shape) for word in words_of(short)]

    def run() -> tuple:
        words = words_of([*map(numbers_of, evaluate_closed(branches[long], operands))])
        return tuple(call(jnp.where, takes_long, new, old) for new, old in zip(words, base, strict=True))

    chosen = jax.lax.cond(jnp.max(takes_long.astype(jnp.int32)) > 0, run, lambda: tuple(base))
    return with_words(short, chosen)


def _unrolled_scan(
    inputs: Sequence[Elements], *, jaxpr: Any, length: int, reverse: bool, num_consts: int, num_carry: int, **_: Any
) -> list[Elements]:
    """A loop of few steps, one after the other."""
    if length > MAX_UNROLL:
        raise NotImplementedError(f"scan of {length} steps within a replica: a kernel unrolls up to {MAX_UNROLL}")
    consts, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]
    xs, outputs = [*map(numbers_of, inputs[num_consts + num_carry :])], []
    for i in range(length)[:: -1 if reverse else 1]:
        step = [x[i : i + 1].reshape(x.shape[1:]) for x in xs]
        after = evaluate_closed(jaxpr, [*consts, *carry, *step])
        carry = after[:num_carry]
        outputs.append([*map(numbers_of, after[num_carry:])])
    stacked = [np.stack(arrays) for arrays in zip(*outputs[:: -1 if reverse else 1], strict=True)]
    return [*carry, *stacked]
