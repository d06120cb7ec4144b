"""A metric of an update, with the rule that aggregates it over several updates."""

from collections.abc import Mapping
from typing import Literal, get_args

import jax
from flax import struct

from wdjax.checks import require_known

Rule = Literal["mean", "sum", "max", "min", "deviation"]
RULES = get_args(Rule)


class Metric(struct.PyTreeNode):
    """A metric of `Algorithm.update` that is not averaged over the updates of a chunk.

    Plain arrays are averaged.

        metrics["largest_step"] = Metric(jnp.max(step), "max")
        metrics["q_mean"] = Metric(q, weight=("live_fraction",))
    """

    value: jax.Array  # ()
    over: Rule = struct.field(pytree_node=False, default="mean")
    """aggregation over updates; "deviation": standard deviation of all values around `mean`"""
    weight: tuple[str, ...] = struct.field(pytree_node=False, default=())
    """names of metrics of the same update; their product is its weight in a mean or deviation"""
    mean: str = struct.field(pytree_node=False, default="")
    """name of the metric that contains the mean, for a deviation"""


# weights that a custom algorithm may leave out
FRACTIONS = ("live_fraction", "decision_fraction")


def beside(metrics: Mapping[str, jax.Array | Metric], prefix: str) -> dict[str, jax.Array | Metric]:
    """Return metrics under `prefix/name`; names that they refer to get the same prefix.

    Raises:
        ValueError: for an unknown rule, weight or mean, with the closest name.
    """
    put = lambda name: f"{prefix}/{name}" if name else ""  # noqa: E731
    found: dict[str, jax.Array | Metric] = {}
    for name, metric in metrics.items():
        if isinstance(metric, Metric):
            require_known(f"rule of the metric {name!r}", metric.over, RULES)
            weight = [
                other for other in metric.weight if other in metrics or other not in FRACTIONS
            ]
            for other in (*weight, *filter(None, [metric.mean])):
                require_known(f"metric that {name!r} refers to", other, metrics)
            metric = metric.replace(weight=tuple(map(put, weight)), mean=put(metric.mean))
        found[put(name)] = metric
    return found


def rule_of(metric: jax.Array | Metric) -> Metric:
    """Return a metric as a `Metric`; a plain array is averaged over updates."""
    return metric if isinstance(metric, Metric) else Metric(metric)


def values_of(metrics: Mapping[str, jax.Array | Metric]) -> dict[str, jax.Array]:
    """Return the values of metrics as plain arrays, by name."""
    return {name: rule_of(metric).value for name, metric in metrics.items()}
