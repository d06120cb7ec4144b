"""Results of a rollout: the transitions that policies learn from, and the finished episodes."""

from typing import NamedTuple

import jax
from flax import struct

from wdjax.train.state.aliases import Carry, Extra, Observation

OBSERVATIONS = ("obs", "next_obs")
"""fields of `Rows` and batches that are not packed, because they are wide (devices/packing.py)"""


STORED = ("log_prob", "value", "final_value", "next_obs", "own")
"""fields of `Rows` that `Algorithm.act` and `Algorithm.end_of_step` may return"""
KEPT = ("global_state",)
"""entries that `Algorithm.keeps` may have"""


class Rows(struct.PyTreeNode):
    """Transitions of one policy in a rollout, [T, N, n, ...]: T steps, N replicas, n agents."""

    obs: Observation  # before the action
    # as sampled; the environment receives `distribution.to_space(action)`, clipped
    action: jax.Array
    reward: jax.Array  # float32, for the action
    terminated: jax.Array  # bool, the agent terminated in this step or before
    # bool, valid transition: the agent was active before this step, and no opponent replaced it
    live: jax.Array
    # bool, the agent was truncated in this step or before; None without truncation
    truncated: jax.Array | None = None
    # bool, the action mask allowed more than one action; None unless `decisions_only`
    decides: jax.Array | None = None
    # the same for the final observation; None also without truncation
    final_decides: jax.Array | None = None
    # on-policy algorithms:
    # float32, log probability of the action when sampled; PPO only
    log_prob: jax.Array | None = None
    value: jax.Array | None = None  # float32, V(obs)
    # float32, V(final obs) where truncated, else 0; None without truncation
    final_value: jax.Array | None = None
    # off-policy algorithms, and feed-forward ones with truncation:
    next_obs: Observation | None = None  # observation after the step, before any reset
    own: Extra = None  # additional fields of a custom algorithm

    @property
    def learned(self) -> jax.Array:
        """bool, transitions to learn from: valid, and with several actions if `decisions_only`."""
        return self.live if self.decides is None else self.live & self.decides

    def ends(self, over: jax.Array) -> jax.Array:
        """Return whether the agent's episode ended at each transition, by `over` or truncation.

        Args:
            over: [T, N] bool, the episode of the replica ended in this step.

        Returns:
            [T, N, n] bool; [T, N, 1] without truncation.
        """
        return over[..., None] if self.truncated is None else over[..., None] | self.truncated


class Evaluation(NamedTuple):
    """Outputs for a batch of transitions under the parameters being trained, [B] each."""

    log_prob: jax.Array  # log-probability of the actions
    entropy: jax.Array  # entropy of the action distribution
    value: jax.Array  # V(obs)
    # further numbers for the loss, from a custom `evaluate`
    extra: dict[str, jax.Array] = {}  # noqa: RUF012


class Rollout(struct.PyTreeNode):
    """The transitions of trainable policies, and the finished episodes.

    Dicts list policies in alphabetical order.
    """

    rows: dict[str, Rows]  # by trainable policy, leaves [T, N, n, ...]
    first_carry: dict[str, Carry]  # by policy, [N, n, ...], before the first step
    last_carry: dict[str, Carry]  # by policy, [N, n, ...], after the last step
    last_obs: dict[str, Observation]  # by policy, [N, n, ...], after the last step
    # [T, N] bool, whether an episode ended in this step; the next three fields are valid there
    over: jax.Array
    episode_return: dict[str, jax.Array]  # by policy, [T, N] float32, summed over its agents
    episode_length: jax.Array  # [T, N] int32
    episode_info: dict[str, jax.Array]  # [T, N], the environment's own statistics
    # global state of each replica; None unless an algorithm `keeps` it
    global_state: jax.Array | None = None  # [T, N, S], before the step
    # [T, N, S], after the step, before any reset; None without truncation
    final_global_state: jax.Array | None = None
    last_global_state: jax.Array | None = None  # [N, S], after the last step
