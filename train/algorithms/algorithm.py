"""What an algorithm provides: how its policies act, and how they learn."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import jax
from flax import nnx

from wdjax.checks import require
from wdjax.train.config import PolicyConfig, TrainConfig
from wdjax.train.policies import Assignment
from wdjax.train.rollout import Rollout
from wdjax.train.state import Hypers, Memory, Policy, PolicyState


def require_defaults(path: str, config: Any, names: Iterable[str], where: str) -> None:
    """Raises ValueError, naming the field, where one that means nothing has been set: it would be silently ignored."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in names:
        value = getattr(config, name)
        require(value == defaults[name], f"{path}.{name}", value, f"{defaults[name]} (left out) {where}")


class Algorithm(abc.ABC):
    """One way of acting and learning, without a state of its own. A new one is a file and a line in ALGORITHMS.

    Arrays of a policy have leading axes [N, n]: N replicas, n agents of the policy. Keys are one for each block of
    replicas, [num_blocks], and what is drawn for a block comes from its key alone.

    On several devices `act` and `update` see the replicas and blocks of one of them: losses, gradients, statistics and
    metrics there are those of all through train/collectives.py and train/masked.py, and so the same on each.
    """

    scheduled: ClassVar[tuple[str, ...]]
    """the hyperparameters that a schedule may change, which the metrics therefore report ("ddpg.noise_scale")"""

    @abc.abstractmethod
    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        """Raises ValueError or TypeError, naming the field of policy `name`, for what the algorithm cannot do."""

    @abc.abstractmethod
    def make_network(self, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs) -> nnx.Module:
        """Returns new networks, all in one module."""

    @abc.abstractmethod
    def init(self, policy: Policy, params: Any) -> PolicyState:
        """Returns what a policy with new parameters has learned: nothing yet; no optimizer where it is frozen."""

    @abc.abstractmethod
    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        """Returns what a policy keeps for every replica, at the start of a run."""

    @abc.abstractmethod
    def init_carry(self, policy: Policy, num_envs: int) -> Any:
        """Returns what acting carries from step to step, at the start of an episode, leaves [num_envs, n, ...]."""

    def before_rollout(self, policy: Policy, state: PolicyState) -> PolicyState:
        """Returns what `act` gets in all steps of a rollout: here is what should be computed once and not in each."""
        return state

    @abc.abstractmethod
    def act(
        self, policy: Policy, state: PolicyState, carry: Any, obs: Any, keys: jax.Array, hypers: Hypers
    ) -> tuple[jax.Array, dict[str, Any], Any]:
        """Chooses actions to learn from. Returns (action [N, n, ...], fields of Rows, carry).

        `keys`: [num_blocks], or, of categorical actions, what `rollout.draw_uniform` drew from them, [N, n, c].
        """

    @abc.abstractmethod
    def play(
        self, policy: Policy, state: PolicyState, carry: Any, obs: Any, keys: jax.Array, greedy: bool
    ) -> tuple[jax.Array, Any]:
        """Chooses actions in an evaluation. Returns (action [N, n, ...], carry)."""

    def describe(self, policy: Policy, state: PolicyState, carry: Any, obs: Any) -> dict[str, Any]:
        """Returns what a recorded episode shows of a choice beside the action, leaves [N, n, ...]; nothing by default.

        Names: those of the distribution's `describe`, and "value".
        """
        return {}

    @abc.abstractmethod
    def end_of_step(
        self, policy: Policy, state: PolicyState, carry: Any, final_obs: Any, truncated: jax.Array | None
    ) -> dict[str, Any]:
        """Returns the fields of Rows that follow from the observation after the step, before any reset.

        `truncated` ([N, n] bool) is None in an environment without time limits.
        """

    @abc.abstractmethod
    def update(
        self,
        policy: Policy,
        state: PolicyState,
        memory: Memory,
        hypers: Hypers,
        played: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, dict[str, jax.Array]]:
        """Learns from one rollout. Returns (state, memory, metrics: scalars)."""

    @abc.abstractmethod
    def losses(
        self, policy: Policy, before: PolicyState, after: PolicyState, metrics: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns (loss, norm of gradients) of an update's gradient steps, scalars; 0 where none was taken.

        Bad numbers are looked for there (train/bad_numbers.py): the metrics, where no step was taken, hold NaN.
        """
