"""Functions with the same results that launch fewer kernels on a GPU.

Short loops are unrolled, because each iteration launches its own kernels. Updates of a small array
at a few indices become selections, because XLA fuses selections with other operations, but not
scatters.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from wdjax.kernels.indexing import UPDATES
from wdjax.kernels.scan import SCAN_REPLICAS

MAX_LENGTH = 16  # iterations of a loop that is unrolled
MAX_EQUATIONS = 2_000  # equations in all of its iterations, which limits compile time
MAX_NUMBERS = 4_096  # numbers of an updated array
MAX_UPDATES = 4  # indices of an update


def with_few_launches(function: Callable) -> Callable:
    """Return a function with the same results that launches fewer kernels.

    Args:
        function: a function of pytrees of arrays that returns pytrees of arrays.
    """

    def rewritten(*args: Any, **named: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args, **named)
        return _evaluated(_rewritten(closed), shapes, (args, named))

    return rewritten


def trace(function: Callable, *args: Any) -> tuple[Callable, int, set[str]]:
    """Trace a function.

    Args:
        function: a function of pytrees of arrays that returns pytrees of arrays.
        *args: its arguments, or their shapes and dtypes.

    Returns:
        (a function with the same results for such arguments, its number of equations, names of
        its kernels).
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    traced = lambda *args: _evaluated(closed, shapes, args)  # noqa: E731
    return traced, _count(closed.jaxpr), _kernels(closed.jaxpr)


def _evaluated(closed: Any, shapes: Any, operands: Any) -> Any:
    """Return the results of a traced function, in the structure of `shapes`."""
    results = jex.core.jaxpr_as_fun(closed)(*jax.tree.leaves(operands))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def _rewritten(param: Any) -> Any:
    """Return a parameter of an equation with the jaxprs in it rewritten."""
    if isinstance(param, jex.core.Jaxpr):  # in jax 0.11, every ClosedJaxpr is one
        return param.replace(eqns=[_rewritten_equation(eqn) for eqn in param.eqns])
    if isinstance(param, jex.core.ClosedJaxpr):
        return param.replace(jaxpr=_rewritten(param.jaxpr))
    return tuple(map(_rewritten, param)) if type(param) is tuple else param


def _rewritten_equation(eqn: jex.core.JaxprEqn) -> jex.core.JaxprEqn:
    if eqn.primitive.name in UPDATES and _is_small(eqn):
        avals: list[Any] = [atom.aval for atom in eqn.invars]
        inputs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        # the equation of a `jit` takes the place of the scatter
        (call,) = jax.make_jaxpr(jax.jit(functools.partial(_selected, eqn)))(*inputs).eqns
        return eqn.replace(primitive=call.primitive, params=call.params)
    params = {name: _rewritten(param) for name, param in eqn.params.items()}
    if eqn.primitive.name == "scan" and _is_short(params["length"], params["jaxpr"].jaxpr):
        params["unroll"] = params["length"]
    return eqn.replace(params=params)


def _is_short(length: int, body: jex.core.Jaxpr) -> bool:
    return 0 < length <= MAX_LENGTH and length * _count(body) <= MAX_EQUATIONS


def _count(jaxpr: jex.core.Jaxpr) -> int:
    """Return the number of equations of a jaxpr on an NVIDIA GPU, a measure of its compile time.

    The body of a scan counts `unroll` times. Of `platform_dependent`, the branch for CUDA counts. A
    kernel of `scan_replicas` counts once, because its operations are limited anyway.
    """
    total = len(jaxpr.eqns)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "pallas_call" and eqn.params["name"] == SCAN_REPLICAS:
            continue
        inside = list(jex.core.jaxprs_in_params(eqn.params))
        platforms = eqn.params.get("branches_platforms") or ()
        cuda = [i for i, names in enumerate(platforms) if names and "cuda" in names]
        times = eqn.params["unroll"] if eqn.primitive.name == "scan" else 1
        total += times * sum(_count(inside[i]) for i in cuda or range(len(inside)))
    return total


def _kernels(jaxpr: jex.core.Jaxpr) -> set[str]:
    """Return the names of all kernels of a jaxpr."""
    own = {eqn.params["name"] for eqn in jaxpr.eqns if eqn.primitive.name == "pallas_call"}
    inside = [body for eqn in jaxpr.eqns for body in jex.core.jaxprs_in_params(eqn.params)]
    return own.union(*map(_kernels, inside))


def _is_small(eqn: Any) -> bool:
    """Return whether `_selected` supports a scatter at a low cost.

    Along each axis with an index, an update must have size 1; it must cover all other axes.
    """
    old, indices, update = (atom.aval for atom in eqn.invars)
    numbers = eqn.params["dimension_numbers"]
    if numbers.operand_batching_dims or jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
        return False
    sizes = iter([update.shape[d] for d in numbers.update_window_dims])
    window = [1 if d in numbers.inserted_window_dims else next(sizes) for d in range(old.ndim)]
    return (
        window == _window(old.shape, numbers)
        and old.size <= MAX_NUMBERS
        and math.prod(indices.shape[:-1]) <= MAX_UPDATES
    )


def _window(shape: tuple[int, ...], numbers: Any) -> list[int]:
    """Return the shape of an update: 1 along axes with an index, the whole axis along others."""
    chosen = numbers.scatter_dims_to_operand_dims
    return [1 if d in chosen else size for d, size in enumerate(shape)]


def _selected(eqn: Any, old: jax.Array, indices: jax.Array, update: jax.Array) -> jax.Array:
    """Compute a scatter by selections, one for each index.

    Args:
        eqn: the scatter, for which `_is_small` holds.
        old: array before the update, of any shape.
        indices: [*U, K], places along K axes of `old`.
        update: axes U and the axes of a window, in the order of the scatter.
    """
    numbers = eqn.params["dimension_numbers"]
    axes, window = numbers.scatter_dims_to_operand_dims, _window(old.shape, numbers)
    others = [d for d in range(update.ndim) if d not in numbers.update_window_dims]
    update = update.transpose(*others, *numbers.update_window_dims).reshape(-1, *window)
    places = indices.reshape(math.prod(indices.shape[:-1]), indices.shape[-1])
    if places.dtype.itemsize < 4:  # 8 bits cannot represent all places
        places = places.astype(jnp.int32)
    clips = eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP
    for place, new in zip(places, update, strict=True):
        is_here = jnp.full(window, True)
        for k, d in enumerate(axes):
            index = jnp.clip(place[k], 0, old.shape[d] - 1) if clips else place[k]
            is_here &= jax.lax.broadcasted_iota(places.dtype, old.shape, d) == index
        old = jnp.where(is_here, UPDATES[eqn.primitive.name](old, new), old)
    return old
