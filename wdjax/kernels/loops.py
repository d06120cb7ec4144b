"""Unrolling of short loops. On a GPU, each iteration of a loop launches its kernels separately."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend as jex

MAX_LENGTH = 16  # iterations of a loop that is unrolled
MAX_EQUATIONS = 2_000  # equations in all of its iterations, which limits compile time


def unroll_short_loops(function: Callable) -> Callable:
    """Return a function with the same results whose short scans are unrolled.

    Args:
        function: a function of pytrees of arrays that returns pytrees of arrays.
    """

    def unrolled(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        results = jex.core.jaxpr_as_fun(_unrolled(closed))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return unrolled


def _unrolled(param: Any) -> Any:
    """Return a parameter of an equation with unrolled scans in the jaxprs that it contains."""
    if isinstance(param, jex.core.Jaxpr):  # in jax 0.11, every ClosedJaxpr is one
        return param.replace(eqns=[_unrolled_equation(eqn) for eqn in param.eqns])
    if isinstance(param, jex.core.ClosedJaxpr):
        return param.replace(jaxpr=_unrolled(param.jaxpr))
    return tuple(map(_unrolled, param)) if type(param) is tuple else param


def _unrolled_equation(eqn: jex.core.JaxprEqn) -> jex.core.JaxprEqn:
    params = {name: _unrolled(param) for name, param in eqn.params.items()}
    if eqn.primitive.name == "scan" and _is_short(params["length"], params["jaxpr"].jaxpr):
        params["unroll"] = params["length"]
    return eqn.replace(params=params)


def _is_short(length: int, body: jex.core.Jaxpr) -> bool:
    return 0 < length <= MAX_LENGTH and length * _count(body) <= MAX_EQUATIONS


def _count(jaxpr: jex.core.Jaxpr) -> int:
    """Return the number of equations of a jaxpr; the body of a scan counts `unroll` times."""
    total = len(jaxpr.eqns)
    for eqn in jaxpr.eqns:
        times = eqn.params["unroll"] if eqn.primitive.name == "scan" else 1
        total += times * sum(map(_count, jex.core.jaxprs_in_params(eqn.params)))
    return total
