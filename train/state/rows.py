"""Results of a rollout: the transitions that policies learn from, and the finished episodes."""

from typing import Any, NamedTuple

import jax
from flax import struct

OBSERVATIONS = ("obs", "next_obs")
"""fields of rows and of batches whose leaves are wide: they are not packed (devices/packing.py)"""


class Rows(struct.PyTreeNode):
    """Transitions of one policy in a rollout, leaves [T, N, n, ...]: T steps, N replicas, n agents of the policy."""

    obs: Any  # observation that the action was chosen on
    # as sampled; the environment receives `to_space` of it (networks/distributions.py), clipped
    action: jax.Array
    reward: jax.Array  # float32, for the action
    terminated: jax.Array  # bool, the agent terminated in this step or before
    # bool, valid transition: the agent was active before this step, and no opponent acted in its place
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
    next_obs: Any = None  # observation after the step, before any reset
    own: Any = None  # additional fields of a custom algorithm

    @property
    def learned(self) -> jax.Array:
        """bool, the transitions to learn from: valid ones, with `decisions_only` also with a choice of actions."""
        return self.live if self.decides is None else self.live & self.decides

    def ends(self, over: jax.Array) -> jax.Array:
        """Return whether the agent's episode ended at each transition, by `over` or its own truncation.

        Args:
            over: [T, N] bool, the episode of the replica ended in this step.

        Returns:
            [T, N, n] bool; [T, N, 1] without truncation.
        """
        return over[..., None] if self.truncated is None else over[..., None] | self.truncated


class Evaluation(NamedTuple):
    """The actions and observations of a batch, evaluated under the parameters being trained; [B] each."""

    log_prob: jax.Array  # of the batch's actions
    entropy: jax.Array  # of the distribution of actions
    value: jax.Array  # V(obs)


class Rollout(struct.PyTreeNode):
    """The rows of the policies that learn, and the episodes that ended. Dicts list policies in alphabetical order."""

    rows: dict[str, Rows]  # by policy that learns, leaves [T, N, n, ...]
    first_carry: dict[str, Any]  # [N, n, ...], what each policy carried into the first row
    last_carry: dict[str, Any]  # and out of the last
    last_obs: dict[str, Any]  # [N, n, ...], the observations after the last row
    over: (
        jax.Array
    )  # [T, N] bool, an episode ended in this step; what follows is valid where it is true
    episode_return: dict[str, jax.Array]  # by policy, [T, N] float32, summed over its agents
    episode_length: jax.Array  # [T, N] int32
    episode_info: dict[str, jax.Array]  # [T, N], the environment's own statistics
    # of each replica, once for all its agents; None unless an algorithm `keeps` it
    global_state: jax.Array | None = None  # [T, N, S], before the step
    # [T, N, S], after the step, before any reset; None without truncation
    final_global_state: jax.Array | None = None
    last_global_state: jax.Array | None = None  # [N, S], after the last step
