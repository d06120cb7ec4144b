"""Choice of the engine of a run and of each policy, from the objects that were built."""

from wdjax.kernels.backend import on_cpu
from wdjax.train.fast.cpu import Cpu
from wdjax.train.fast.cuda import Cuda
from wdjax.train.kernels.layers import NO_KERNELS, shape_of
from wdjax.train.state.engine import Engine
from wdjax.train.state.policy import Policy


def engine_class(kernels: bool) -> type[Engine]:
    """Return the engine class for this machine.

    Args:
        kernels: as in the configuration of the run.
    """
    if on_cpu():
        return Cpu if kernels else Engine
    return Cuda


def policy_engine(policy: Policy, kernels: bool) -> Engine:
    """Return the engine of a policy.

    Args:
        policy: static part of the policy.
        kernels: as in the configuration of the run.
    """
    engine, has_kernels = engine_class(kernels), policy.algorithm.has_kernels
    shape = shape_of(policy) if has_kernels else f"{policy.config.algorithm} has no kernels"
    if isinstance(shape, str):
        return engine(None, shape if kernels else NO_KERNELS)
    return engine(shape) if kernels else engine(None, NO_KERNELS)
