"""Building blocks for custom algorithms: reductions over devices, random numbers per block of replicas, and metrics.

On several devices `Algorithm.update` runs on each device, with that device's share of the replicas. Parameters,
statistics and metrics must be equal on all devices: reduce gradients and sums with `total` or `average` before they are
used. On one device these functions change nothing. Call them outside of the function that is differentiated: the
gradient of the mean loss is the `total` of the gradients of each device's summed loss, divided by the `total` count.
"""

from wdjax.train.devices.blocks import block_keys, draw_blocks
from wdjax.train.devices.collectives import all_rows, any_of, average, largest, own_rows, smallest, total
from wdjax.train.devices.moments import masked_mean, masked_variance, normalize
from wdjax.train.state.metric import Metric

__all__ = [
    "Metric", "all_rows", "any_of", "average", "block_keys", "draw_blocks", "largest", "masked_mean",
    "masked_variance", "normalize", "own_rows", "smallest", "total",
]  # fmt: skip
