"""Engines with kernels for rollouts or steps, interpreted in XLA on any device."""

import dataclasses

import jax

from wdjax.train.fast.cuda import Cuda, note_by_kernel
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


class InterpretedNotes(Cuda):
    """Values and log-probabilities after a rollout, as of policies that a kernel supports."""

    def acts_by_kernel(self, policy):
        return False

    def notes_after(self, policy):
        return True

    def note(self, policy, state, obs, action=None, carry=None):
        axes = jax.eval_shape(policy.apply, state, obs)[1].shape
        return note_by_kernel(policy, axes, state, obs, action, interpret=True)


def with_interpreted_rollouts(setup):
    """Return the static part of a run with a kernel for whole rollouts."""
    return dataclasses.replace(setup, engine=InterpretedRollouts())


def with_interpreted_steps(setup):
    """Return the static part of a run with a kernel for steps."""
    return dataclasses.replace(setup, engine=InterpretedSteps())


def with_interpreted_notes(setup):
    """Return the static part of a run with a kernel for rollouts and one for notes after them."""
    policies = {
        name: dataclasses.replace(policy, engine=InterpretedNotes(policy.engine.shape))
        for name, policy in setup.policies.items()
    }
    return dataclasses.replace(with_interpreted_rollouts(setup), policies=policies)
