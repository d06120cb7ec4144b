"""The engine for CPUs: plain XLA, arranged for its threads."""

import dataclasses

from wdjax.train.fast.packed import PackedEngine
from wdjax.train.state.engine import Ahead, uniform_policies
from wdjax.train.state.policy import Setup

FEW_REPLICAS = 256
"""most replicas for which all random numbers are drawn before the loop of a rollout; this makes 64
replicas of cartpole faster and 1,000 slower"""


@dataclasses.dataclass(frozen=True)
class Cpu(PackedEngine):
    """Plain XLA with fewer wake-ups of threads in loops.

    XLA wakes a thread in every iteration of a loop in which more than eight operations are ready at
    once. With few replicas this can cost more than the step. `drawn_ahead` moves such operations
    out of the loop, as does the `cond` of `Engine.apply_if`.
    """

    def drawn_ahead(self, setup: Setup) -> Ahead:
        few = setup.replicas.num_envs <= FEW_REPLICAS
        return Ahead(few, uniform_policies(setup) if few else ())
