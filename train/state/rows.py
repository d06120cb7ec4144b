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
    """Transitions of one policy in a rollout, leaves [T, N, n, ...]: T steps, N replicas, n agents.

    Every algorithm receives the first five fields. The others are None unless stated.

    Attributes:
        obs: observation before the action.
        action: action as sampled. The environment receives `distribution.to_space(action)`,
            clipped.
        reward: float32, reward for the action.
        terminated: bool, the agent terminated in this step or before; false again once another
            agent joins in its slot.
        live: bool, valid transition: the agent was active before this step, and no opponent
            replaced it.
        truncated: bool, the agent was truncated in this step or before; for environments that
            truncate.
        decides: bool, the action mask allowed more than one action; with `decisions_only`.
        final_decides: bool, the same for the final observation; also requires truncation.
        log_prob: float32, log-probability of the action when sampled; PPO.
        value: float32, V(obs); on-policy algorithms.
        final_value: float32, V(final observation) where truncated, else 0; on-policy algorithms,
            for environments that truncate.
        next_obs: observation after the step, before any reset; off-policy algorithms.
        joined: bool, an agent joins and acts in this slot from the next step on; for environments
            that agents join (`Env.present`). False where the episode ended or an opponent acts.
        own: additional fields of a custom algorithm, any pytree.
    """

    obs: Observation
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    live: jax.Array
    truncated: jax.Array | None = None
    decides: jax.Array | None = None
    final_decides: jax.Array | None = None
    log_prob: jax.Array | None = None
    value: jax.Array | None = None
    final_value: jax.Array | None = None
    next_obs: Observation | None = None
    joined: jax.Array | None = None
    own: Extra = None

    @property
    def active_next(self) -> jax.Array:
        """bool, active after the step: valid and not terminated, or joined."""
        stays = self.live & ~self.terminated
        return stays if self.joined is None else stays | self.joined

    def restarts(self, over: jax.Array) -> jax.Array:
        """Return whether memories and running sums of an agent start anew after each transition.

        Args:
            over: [T, N] bool, the episode of the replica ended in this step.

        Returns:
            [T, N, n] bool; `over` if no agents join.
        """
        return over if self.joined is None else over[..., None] | self.joined

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
    """Outputs for a batch of transitions under the parameters being trained.

    A custom `evaluate` may leave out what its loss does not read.

    Attributes:
        log_prob: [B] float32, log-probability of the actions.
        entropy: [B] float32, entropy of the action distribution.
        value: [B] float32, V(obs).
        extra: further arrays for the loss by name, [B] each, from a custom `evaluate`.
    """

    log_prob: jax.Array = None  # type: ignore[assignment]  # read only if it is set
    entropy: jax.Array = None  # type: ignore[assignment]
    value: jax.Array = None  # type: ignore[assignment]
    extra: dict[str, jax.Array] = {}  # noqa: RUF012


class Rollout(struct.PyTreeNode):
    """The transitions of trainable policies, and the finished episodes.

    Dicts list policies in alphabetical order. The episode fields are valid where `over`.

    Attributes:
        rows: transitions by trainable policy, leaves [T, N, n, ...].
        first_carry: carry by policy before the first step, leaves [N, n, ...].
        last_carry: carry by policy after the last step, leaves [N, n, ...].
        last_obs: observation by policy after the last step, leaves [N, n, ...].
        over: [T, N] bool, an episode of the replica ended in this step.
        episode_return: [T, N] float32 by policy, return of the episode, summed over its agents.
        episode_length: [T, N] int32, env steps of the episode.
        episode_info: [T, N] by name, statistics of the environment.
        global_state: [T, N, S], global state before the step; None unless an algorithm `keeps` it.
        final_global_state: [T, N, S], global state after the step, before any reset; also None
            without truncation.
        last_global_state: [N, S], global state after the last step; None unless an algorithm
            `keeps` it.
    """

    rows: dict[str, Rows]
    first_carry: dict[str, Carry]
    last_carry: dict[str, Carry]
    last_obs: dict[str, Observation]
    over: jax.Array
    episode_return: dict[str, jax.Array]
    episode_length: jax.Array
    episode_info: dict[str, jax.Array]
    global_state: jax.Array | None = None
    final_global_state: jax.Array | None = None
    last_global_state: jax.Array | None = None
