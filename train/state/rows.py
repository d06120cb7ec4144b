"""What a rollout returns: the rows that policies learn from, and the episodes that ended."""

from typing import Any

import jax
from flax import struct

OBSERVATIONS = ("obs", "next_obs")
"""fields of rows and of batches whose leaves are wide: they are not packed (devices/packing.py)"""


class Rows(struct.PyTreeNode):
    """What one policy's agents did: leaves [T, N, n, ...], T steps of N replicas with n agents of this policy."""

    obs: Any  # what the action was chosen on
    action: jax.Array  # as it was drawn: the environment got `to_space` of it (networks/distributions.py), clipped
    reward: jax.Array  # float32, for the action
    terminated: jax.Array  # bool, the agent's game ended in this step or before
    # bool, the agent's episode had not ended before this step (and it was not played by an earlier self)
    live: jax.Array
    truncated: jax.Array | None = None  # bool, a time limit cut the agent off in this step or before; None: nothing can
    # bool, the mask left the agent a choice; None: nobody asks, `decisions_only` is false
    decides: jax.Array | None = None
    final_decides: jax.Array | None = None  # bool, would it in final obs; None: nobody asks, or nothing truncates
    # on-policy algorithms:
    log_prob: jax.Array | None = None  # float32, of the action when it was drawn; PPO only
    value: jax.Array | None = None  # float32, V(obs)
    final_value: jax.Array | None = None  # float32, V(final obs) where truncated, else 0; None: nothing truncates
    # off-policy algorithms, and feed-forward ones where something truncates:
    next_obs: Any = None  # what the agent saw after the step, before any reset
    own: Any = None  # whatever else an algorithm of one's own notes

    @property
    def learned(self) -> jax.Array:
        """bool, the rows to learn from: those that are live, and where somebody asks decide."""
        return self.live if self.decides is None else self.live & self.decides

    def ends(self, over: jax.Array) -> jax.Array:
        """Returns bool, [T, N, n] ([T, N, 1] where nothing truncates): nothing that follows is of the same episode, as
        the agent was truncated, maybe before the others, or all were through (`over`, [T, N])."""
        return over[..., None] if self.truncated is None else over[..., None] | self.truncated


class Rollout(struct.PyTreeNode):
    """The rows of the policies that learn, and the episodes that ended. Dicts list policies in alphabetical order."""

    rows: dict[str, Rows]
    first_carry: dict[str, Any]  # [N, n, ...], what each policy carried into the first row
    last_carry: dict[str, Any]  # and out of the last
    last_obs: dict[str, Any]  # [N, n, ...], the observations after the last row
    over: jax.Array  # [T, N] bool, an episode ended in this step; what follows is valid where it is true
    episode_return: dict[str, jax.Array]  # by policy, [T, N] float32, summed over its agents
    episode_length: jax.Array  # [T, N] int32
    episode_info: dict[str, jax.Array]  # [T, N], the environment's own statistics
