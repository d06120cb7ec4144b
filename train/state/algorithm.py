"""What an algorithm provides: how its policies act, and how they learn."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
from flax import nnx

from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.networks.distributions import Distribution
from wdjax.train.state.agents import Assignment
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import Memory, PolicyState


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of an algorithm that has none beside the fields of PolicyConfig that it takes."""


class Algorithm(abc.ABC):
    """One way of acting and learning, without a state of its own. A new one is a class of this, or of one of its
    subclasses (`OnPolicy`), named "package.module:Class" in a preset, or by `register_algorithm`.

    Arrays of a policy have leading axes [N, n]: N replicas, n agents of the policy. Keys are one for each block of
    replicas, [num_blocks], and what is drawn for a block comes from its key alone.

    On several devices `act` and `update` see the replicas and blocks of one of them: losses, gradients, statistics and
    metrics there are those of all through devices/collectives.py and devices/moments.py, and so the same on each.
    """

    takes: ClassVar[frozenset[str]] = frozenset()
    """which fields of PolicyConfig mean something to it beside those that mean something to all: "on-policy",
    "decisions" (it learns from `Rows.learned`, by their discounts), "minibatches", "PPO", "DDPG" (config/facts.py);
    another one that is set is refused"""
    Options: ClassVar[type] = NoOptions
    """a frozen dataclass, the block `options:` of a policy: fields are `traced`, or fix shapes and code paths"""

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:  # noqa: B027  (nothing to refuse)
        """Raises ValueError or TypeError, naming the field of policy `name`, for what the algorithm cannot do. That
        fields which it does not take are left out has been checked."""

    @abc.abstractmethod
    def make_network(self, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs) -> nnx.Module:
        """Returns new networks, all in one module. Policies whose algorithms have this function in common can begin
        with each other's parameters (`checkpoint`)."""

    def make_kernels(
        self, config: PolicyConfig, assignment: Assignment, distribution: Distribution, encoder: type
    ) -> Any:
        """Returns what fixes the kernels that act and learn for a policy on a GPU; None: there are none for it."""
        return None

    @property
    def takes_uniform(self) -> bool:
        """Whether `act` accepts, in place of keys, the uniform numbers [N, n, c] of categorical actions that
        `draw_uniform` drew from them."""
        return False

    def acts_by_kernel(self, policy: Policy) -> bool:
        """Whether `act` is a kernel on a GPU now, which takes numbers that were drawn before."""
        return False

    @abc.abstractmethod
    def init(self, policy: Policy, params: Any) -> PolicyState:
        """Returns what a policy with new parameters has learned: nothing yet; no optimizer where it is frozen."""

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        """Returns what a policy keeps for every replica, at the start of a run."""
        return Memory(self.init_carry(policy, run.num_envs), None)

    def init_carry(self, policy: Policy, num_envs: int) -> Any:
        """Return the carry of `act` and `play` at the start of every episode, leaves [num_envs, n, ...].

        It may differ between agents, not between replicas. A policy's own network receives in `unroll` where episodes
        begin and starts them itself.
        """
        return None

    def before_rollout(self, policy: Policy, state: PolicyState) -> Any:
        """Returns what `act` and `end_of_step` get as `state` in all steps of a rollout: here is what should be
        computed once and not in each. (They may get a PolicyState as it is, too.)"""
        return state

    @abc.abstractmethod
    def act(
        self, policy: Policy, state: Any, carry: Any, obs: Any, keys: jax.Array, hypers: Hypers
    ) -> tuple[jax.Array, dict[str, Any], Any]:
        """Chooses actions to learn from. Returns (action [N, n, ...], fields of Rows, carry). The environment gets
        `policy.distribution.to_space` of them, in a Box the nearest one inside.

        `keys`: [num_blocks], one for each block of replicas. Built-in acting may receive numbers that were drawn from
        them (`takes_uniform`). A custom `act` receives keys; only a kernel of whole rollouts passes it such numbers,
        [1, n, c] of one replica, and is not used if `act` raises then.
        """

    @abc.abstractmethod
    def play(
        self, policy: Policy, state: PolicyState, carry: Any, obs: Any, keys: jax.Array, greedy: bool
    ) -> tuple[jax.Array, Any]:
        """Chooses actions in an evaluation, as `act` does. Returns (action [N, n, ...], carry)."""

    def describe(self, policy: Policy, state: PolicyState, carry: Any, obs: Any) -> dict[str, Any]:
        """Returns what a recorded episode shows of a choice beside the action, leaves [N, n, ...]; nothing by default.

        Names: those of the distribution's `describe`, and "value".
        """
        return {}

    def end_of_step(
        self, policy: Policy, state: Any, carry: Any, final_obs: Any, truncated: jax.Array | None
    ) -> dict[str, Any]:
        """Returns the fields of Rows that follow from the observation after the step, before any reset.

        `truncated` ([N, n] bool): a time limit cut the agent off in this step, maybe before the others; None in an
        environment without time limits.
        """
        return {}

    @abc.abstractmethod
    def update(
        self, policy: Policy, state: PolicyState, memory: Memory, hypers: Hypers, played: Rollout, key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, dict[str, jax.Array]]:  # fmt: skip
        """Learns from one rollout. Returns (state, memory, metrics: scalars)."""

    def losses(
        self, policy: Policy, before: PolicyState, after: PolicyState, metrics: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns (loss, norm of gradients) of an update's gradient steps, scalars; 0 where none was taken.

        Bad numbers are looked for there (learner/bad_numbers.py): the metrics, where no step was taken, hold NaN.
        """
        return metrics["loss"], metrics["grad_norm"]
