"""A number that an update reports, with the rule that joins those of several updates."""

from collections.abc import Mapping
from typing import Any, Literal

import jax
from flax import struct


@struct.dataclass
class Metric:
    """A metric of `Algorithm.update` that is not joined as a plain array is, by the mean over the updates of a chunk.

        metrics["largest_step"] = Metric(jnp.max(step), "max")
        metrics["q_mean"] = Metric(q, weight=("live_fraction",))
    """

    value: jax.Array  # ()
    over: Literal["mean", "sum", "max", "min", "deviation"] = struct.field(pytree_node=False, default="mean")
    """how the numbers of several updates become one; "deviation": that of all values together, whose mean is `mean`"""
    weight: tuple[str, ...] = struct.field(pytree_node=False, default=())
    """names of metrics beside this one, whose product weights each update in a mean or deviation"""
    mean: str = struct.field(pytree_node=False, default="")
    """name of the metric beside this one that is the mean of a deviation"""


def beside(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return metrics under `prefix/name`, with the names that they refer to."""
    put = lambda name: f"{prefix}/{name}" if name else ""  # noqa: E731
    found = {}
    for name, metric in metrics.items():
        if isinstance(metric, Metric):
            metric = metric.replace(weight=tuple(map(put, metric.weight)), mean=put(metric.mean))
        found[put(name)] = metric
    return found


def rule_of(metric: Any) -> Metric:
    """Return a metric as a `Metric`: a plain array is joined by the mean over updates."""
    return metric if isinstance(metric, Metric) else Metric(metric)


def values_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of metrics as plain arrays, by name."""
    return {name: rule_of(metric).value for name, metric in metrics.items()}
