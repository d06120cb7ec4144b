"""The algorithms: one file each, and one line in the list below."""

from wdjax.train.algorithms.algorithm import Algorithm
from wdjax.train.algorithms.ddpg import DDPG
from wdjax.train.algorithms.on_policy import OnPolicy

# A2C and PPO share everything but the policy's loss (on_policy.POLICY_LOSSES).
ALGORITHMS: dict[str, Algorithm] = {"A2C": OnPolicy(), "PPO": OnPolicy(), "DDPG": DDPG()}

__all__ = ["ALGORITHMS", "Algorithm"]
