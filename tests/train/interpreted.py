"""Engines with kernels for rollouts or steps, interpreted in XLA on any device."""

import dataclasses

from wdjax.train.fast.cuda import Cuda
from wdjax.train.kernels.rollout import play_replicas, step_replicas


class InterpretedRollouts(Cuda):
    """Rollouts as on a GPU whose kernel for whole rollouts supports the environment."""

    def rollout(self, by_scan, given, carry, keys):
        return play_replicas(given, carry, keys, interpret=True)


class InterpretedSteps(Cuda):
    """Rollouts as on a GPU whose kernel for steps supports the environment."""

    def rollout(self, by_scan, given, carry, keys):
        return by_scan(given, carry, keys)

    def step(self, setup, keys, replicas, action, params):
        return step_replicas(setup, keys, replicas, action, params, interpret=True)


def with_interpreted_rollouts(setup):
    """Return the static part of a run with a kernel for whole rollouts."""
    return dataclasses.replace(setup, engine=InterpretedRollouts())


def with_interpreted_steps(setup):
    """Return the static part of a run with a kernel for steps."""
    return dataclasses.replace(setup, engine=InterpretedSteps())
