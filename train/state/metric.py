"""A number that an update reports, with the rule that joins the numbers of several updates."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
from flax import struct

from wdjax.checks import require_known

Rule = Literal["mean", "sum", "max", "min", "deviation"]
RULES = get_args(Rule)


@struct.dataclass
class Metric:
    """A metric of `Algorithm.update` that is not joined as a plain array is, by the mean over the updates of a chunk.

    metrics["largest_step"] = Metric(jnp.max(step), "max")
    metrics["q_mean"] = Metric(q, weight=("live_fraction",))
    """

    value: jax.Array  # ()
    over: Rule = struct.field(pytree_node=False, default="mean")
    """how the values of several updates are joined; "deviation": standard deviation of all values, around `mean`"""
    weight: tuple[str, ...] = struct.field(pytree_node=False, default=())
    """names of other metrics of the update, whose product is the weight of this update in a mean or deviation"""
    mean: str = struct.field(pytree_node=False, default="")
    """name of the metric that holds the mean, for a deviation"""


FRACTIONS = (
    "live_fraction",
    "decision_fraction",
)  # a custom algorithm may leave them out: then means are plain


def beside(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return metrics under `prefix/name`, with the names that they refer to.

    Raises:
        ValueError: for an unknown rule, weight or mean, with the closest name.
    """
    put = lambda name: f"{prefix}/{name}" if name else ""  # noqa: E731
    found = {}
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


def rule_of(metric: Any) -> Metric:
    """Return a metric as a `Metric`: a plain array is joined by the mean over updates."""
    return metric if isinstance(metric, Metric) else Metric(metric)


def values_of(metrics: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return the values of metrics as plain arrays, by name."""
    return {name: rule_of(metric).value for name, metric in metrics.items()}
