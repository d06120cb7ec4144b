"""An engine whose rollouts are one kernel, interpreted in XLA on any device."""

import dataclasses

from wdjax.train.fast.cuda import Cuda
from wdjax.train.kernels.rollout import play_replicas


class InterpretedRollouts(Cuda):
    """Rollouts as on a GPU whose kernel for whole rollouts supports the environment."""

    def rollout(self, by_scan, given, carry, keys):
        return play_replicas(given, carry, keys, interpret=True)


def with_interpreted_rollouts(setup):
    """Return the static part of a run with this engine."""
    return dataclasses.replace(setup, engine=InterpretedRollouts())
