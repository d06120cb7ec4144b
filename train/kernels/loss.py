"""Analysis of loss(new, batch, options, mean) -> (loss, means), such as `PPO.loss`, for kernels."""

import dataclasses
from typing import Any, NamedTuple, TypeAlias

import chex
import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval as pe

from wdjax.checks import require
from wdjax.train.config.facts import is_traced
from wdjax.train.state.engine import ROW_FIELDS, BatchRows, ExtraProbe, Loss, Means, combine
from wdjax.train.state.rows import Evaluation

Options: TypeAlias = Any
"""options of an algorithm, an instance of its dataclass `Options`"""


def rows_of(batch: object) -> BatchRows:
    """Return the numbers per transition that a batch contains, without `extra`."""
    return BatchRows(**{name: getattr(batch, name) for name in ROW_FIELDS})


class _Recorder:
    """Options that record which traced fields a loss reads."""

    def __init__(self, options: Options) -> None:
        self.__dict__.update(_options=options, _read={})

    def __getattr__(self, name: str) -> Any:
        field = type(self._options).__dataclass_fields__.get(name)
        if field is None or not is_traced(field):
            return getattr(self._options, name)
        return self._read.setdefault(name, jnp.float32(0))


class Study(NamedTuple):
    """Properties of a loss that a kernel requires before it traces the loss."""

    read: list[str]  # traced options that it reads, in the order of reading
    terms: list[str]  # names of its terms, sorted
    of_value: frozenset[str]  # terms that depend on the new value, and not on the policy
    # a result that depends on both, which prevents separate gradients of two networks
    mixed: str | None
    extra: list[str]  # names that it reads from `extra` of the evaluation and the batch


def study(loss: Loss, options: Options, rows: BatchRows) -> Study:
    """Trace a loss on one transition."""
    recorder, one, extra = _Recorder(options), jnp.zeros(1), ExtraProbe()
    probe = jax.tree.map(lambda values: jnp.zeros(1, values.dtype), rows).replace(extra=extra)

    def loss_of(new: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, Means]:
        total, terms = loss(Evaluation(*new, extra), probe, recorder, lambda terms: terms)
        return jnp.sum(total), terms

    def traced(new: tuple[jax.Array, jax.Array, jax.Array]) -> dict[str, chex.ArrayTree]:
        slopes, terms = jax.grad(loss_of, has_aux=True)(new)
        return {
            "the gradient in the policy": slopes[:2],
            "the gradient in the value": slopes[2],
            "terms": terms,
        }

    closed, shapes = jax.make_jaxpr(traced, return_shape=True)((one, one, one))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    places = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    needs = {}
    for i, place in enumerate(places):
        used = pe.dce_jaxpr(closed.jaxpr, [j == i for j in range(len(places))])[1]
        needs[place] = used[0] or used[1], used[2]
    terms = {
        place.removeprefix("terms."): need
        for place, need in needs.items()
        if place.startswith("terms.")
    }
    # the gradient in the policy may not depend on the value, and vice versa
    wrong = [
        place
        for place in needs
        if place.startswith("the gradient in the value") and needs[place][0]
    ]
    wrong += [
        place
        for place, (policy, value) in needs.items()
        if (value if "policy" in place else policy and value)
    ]
    of_value = frozenset(name for name, (policy, value) in terms.items() if value and not policy)
    mixed = wrong[0].removeprefix("terms.") if wrong else None
    return Study(list(recorder._read), sorted(terms), of_value, mixed, sorted(set(extra.names)))


def is_custom(loss: Loss) -> bool:
    """Return whether the loss of an algorithm is defined outside of wdjax."""
    owner = getattr(loss, "__self__", None)
    module = loss.__module__ if owner is None else type(owner).__module__
    return not module.startswith("wdjax.train.algorithms.")


def require_valid(path: str, name: str, loss: Loss, options: Options) -> None:
    """Raise ValueError for a loss that is not linear, or reads what `fit` does not provide.

    Args:
        path: field of the algorithm.
        name: name of the algorithm.
        loss: its loss.
        options: its options.
    """
    allowed = "linear in the means of its terms (a square or a logarithm of a mean is not)"
    try:
        require(is_linear(loss, options), f"{path}: its loss", name, allowed)
    except KeyError as error:
        words = f"its loss must return the mean of {error} in its second result"
        raise ValueError(f"{path}: {words}.") from error
    except AttributeError as error:
        if not isinstance(error.obj, (Evaluation, BatchRows)):
            raise
        new, batch = ", ".join(Evaluation._fields), ", ".join((*ROW_FIELDS, "extra"))
        words = f"its loss may read only {new} of `new` and {batch} of `batch`, not {error.name!r}"
        use = "Return other numbers per transition from `evaluate`, as `extra`."
        raise ValueError(f"{path}: {words}. {use}") from None


def is_linear(loss: Loss, options: Options) -> bool:
    """Return whether a loss is linear in the means of its terms.

    Sums over minibatches and devices require it.
    """
    one = jnp.zeros(1)
    terms = study(loss, options, BatchRows(one, one, one, one, one > 0)).terms
    traced = {
        field.name: jnp.float32(0.5) for field in dataclasses.fields(options) if is_traced(field)
    }
    # configured values may be schedules, infinite or 0
    options = dataclasses.replace(options, **traced)
    x, y = (
        dict(zip(terms, jax.random.normal(jax.random.key(seed), (len(terms),)), strict=True))
        for seed in (0, 1)
    )
    at = lambda means: float(combine(loss, options, means))  # noqa: E731
    both = at({name: 2.0 * x[name] - 3.0 * y[name] for name in terms})
    return abs(both - (2.0 * at(x) - 3.0 * at(y))) <= 1e-4 * (1.0 + abs(both))
