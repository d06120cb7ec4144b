"""Which engine runs and policies have, chosen once, in `make_setup`, from the objects that were built."""

import jax

from wdjax.train.fast.cpu import Cpu
from wdjax.train.fast.cuda import Cuda
from wdjax.train.fast.plain import Plain
from wdjax.train.kernels.layers import Shape, shape_of
from wdjax.train.state.policy import Policy


def run_engine() -> Plain:
    """Return the engine of a run's rollouts."""
    return Cpu() if jax.default_backend() == "cpu" else Cuda()


def policy_engine(policy: Policy, kernels: bool) -> Plain:
    """Return the engine of a policy; `kernels` as in the configuration of the run."""
    kind = Cpu if jax.default_backend() == "cpu" else Cuda
    if not policy.algorithm.has_kernels:
        return kind(None, f"{policy.config.algorithm} has no kernels")
    found = shape_of(policy.config, policy.assignment, policy.distribution, policy.encoder)
    if not isinstance(found, Shape):
        return kind(None, found)
    return kind(found) if kernels else kind(None, "kernels: false")
