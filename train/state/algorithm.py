"""The interface of algorithms: how policies act and learn."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
from flax import nnx

from wdjax.checks import require
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.networks.distributions import Distribution, make_distribution
from wdjax.train.state.agents import Assignment
from wdjax.train.state.context import Context
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy, Team
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import Memory, PolicyState


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Options of an algorithm without any."""


class Algorithm(abc.ABC):
    """Base class of algorithms: stateless functions that act and learn.

    A custom algorithm is a subclass of this class, or of `PPO` or `A2C`. A preset names it as "package.module:Class"
    or by the name given to `register_algorithm`.

    Arrays of a policy have leading axes [N, n]: N replicas, n agents of the policy. There is one key per block of
    replicas, [num_blocks]; random numbers of a block depend only on its key.

    On several devices `act` and `update` run on each device with its share of the replicas and blocks. Reduce losses,
    gradients, statistics and metrics over devices with the functions of `wdjax.train.learning`, so that they are equal
    on all devices.
    """

    Options: ClassVar[type] = NoOptions
    """frozen dataclass of the algorithm's options; its fields are `traced` or static and have defaults"""
    has_kernels: ClassVar[bool] = False
    """whether fused kernels may replace `act` and the gradient of `loss` (train/fast)"""
    keeps: ClassVar[frozenset[str]] = frozenset()
    """what the rollout stores for `update` beside transitions: {"global_state"} or nothing; `act` never receives it"""
    takes_uniform: bool = False
    """whether `act` accepts uniform numbers [N, n, c] from `draw_uniform` instead of keys"""

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:  # noqa: B027  (nothing to refuse)
        """Validate the configuration of a policy; the values of single fields have been checked.

        Args:
            name: name of the policy.
            run: configuration of the run.
            assignment: agents and spaces of the policy.

        Raises:
            ValueError, TypeError: naming the field, if the algorithm does not support its value.
        """

    @abc.abstractmethod
    def make_network(
        self, context: Context, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs
    ) -> nnx.Module:
        """Return new networks of a policy in one module.

        Policies whose algorithms share this function can start from each other's parameters (`checkpoint`).

        Args:
            context: the environment, the run, and the agents of all policies.
            config: configuration of the policy.
            assignment: its agents and their spaces.
            rngs: random numbers for the parameters.
        """

    def make_shared(self, team: Team, context: Context, rngs: nnx.Rngs) -> nnx.Module | None:
        """Return what the policies of a team share, such as a central critic or a mixer; None: nothing."""
        return None

    def init_shared(
        self, team: Team, states: Mapping[str, PolicyState], params: Any
    ) -> PolicyState | None:
        """Return the state of what a team shares: parameters and their optimizer, or one optimizer of all policies.

        Args:
            team: static part of the team.
            states: new states of its policies, by name.
            params: new parameters of `make_shared`; None if it returned None.
        """
        return None

    def make_distribution(self, config: PolicyConfig, assignment: Assignment) -> Distribution:
        """Return the distribution of actions; `to_space` of it maps actions into the action space."""
        return make_distribution(assignment.action_space)

    @abc.abstractmethod
    def init(self, policy: Policy, params: Any) -> PolicyState:
        """Return the state of a policy with new parameters; without optimizer state if it is not trainable."""

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        """Return the memory of a policy for all replicas at the start of a run."""
        return Memory(self.init_carry(policy, run.num_envs), None)

    def init_carry(self, policy: Policy, num_envs: int) -> Any:
        """Return the carry of `act` and `play` at the start of an episode, leaves [num_envs, n, ...].

        It may differ between agents but not between replicas. A custom network receives the episode starts in `unroll`
        and resets its carry itself.
        """
        return None

    def before_rollout(self, policy: Policy, state: PolicyState) -> Any:
        """Return the `state` argument of `act` and `end_of_step` for a rollout.

        Override it to compute something once per rollout. Both functions must also accept a plain PolicyState.
        """
        return state

    @abc.abstractmethod
    def act(
        self, policy: Policy, state: Any, carry: Any, obs: Any, keys: jax.Array, hypers: Hypers
    ) -> tuple[jax.Array, dict[str, Any], Any]:
        """Choose actions in training.

        The environment receives `policy.distribution.to_space(action)`, clipped to the action space.

        Args:
            policy: static part of the policy.
            state: result of `before_rollout`.
            carry: from the previous step, leaves [N, n, ...].
            obs: leaves [N, n, ...].
            keys: [num_blocks]; uniform numbers instead if `takes_uniform`. A custom `act` receives keys. Only the
                fused kernel for whole rollouts passes it uniform numbers, [1, n, c] for one replica; if `act` raises
                then, plain XLA is used.
            hypers: hyperparameters at this point of the run.

        Returns:
            (action [N, n, ...], additional fields of Rows, carry).
        """

    @abc.abstractmethod
    def play(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Any,
        obs: Any,
        keys: jax.Array,
        greedy: bool,
    ) -> tuple[jax.Array, Any]:
        """Choose actions in an evaluation, with the arguments of `act`. Return (action [N, n, ...], carry)."""

    def describe(self, policy: Policy, state: PolicyState, carry: Any, obs: Any) -> dict[str, Any]:
        """Return details of an action for recorded episodes, leaves [N, n, ...]; empty by default.

        Names: those from the distribution's `describe`, and "value".
        """
        return {}

    def end_of_step(
        self, policy: Policy, state: Any, carry: Any, final_obs: Any, truncated: jax.Array | None
    ) -> dict[str, Any]:
        """Return the fields of Rows that depend on the observation after the step, before any reset.

        Args:
            policy: static part of the policy.
            state: result of `before_rollout`.
            carry: after the step.
            final_obs: observation after the step, leaves [N, n, ...].
            truncated: [N, n] bool, the agent was truncated in this step; None if the environment never truncates.
        """
        return {}

    def update(
        self, policy: Policy, state: PolicyState, memory: Memory, hypers: Hypers, rollout: Rollout, key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, dict[str, jax.Array]]:  # fmt: skip
        """Learn from one rollout.

        Args:
            policy: static part of the policy.
            state: state of the policy.
            memory: memory of the policy.
            hypers: hyperparameters at this point of the run.
            rollout: the rollout.
            key: () key for this update.
            num_blocks: blocks of replicas on this device.

        Returns:
            (state, memory, metrics {name: scalar or `Metric`}).
        """
        raise NotImplementedError(f"{type(self).__name__} has no update")

    def update_team(
        self, team: Team, states: dict[str, PolicyState], shared: PolicyState | None, memories: dict[str, Memory],
        hypers: Mapping[str, Hypers], rollout: Rollout, key: jax.Array, num_blocks: int,
    ) -> tuple[dict[str, PolicyState], PolicyState | None, dict[str, Memory], dict[str, dict[str, Any]]]:  # fmt: skip
        """Learn from one rollout, all policies of a team together. By default each learns alone, by `update`.

        Args:
            team: static part of the team.
            states: states of its policies, by name.
            shared: state of what they share; None: nothing.
            memories: memories of its policies, by name.
            hypers: hyperparameters of its policies, by name; those of the team are among each policy's.
            rollout: the rollout.
            key: () key for this update.
            num_blocks: blocks of replicas on this device.

        Returns:
            (states, shared, memories, metrics). Metrics are {name: scalar or `Metric`} by policy; those of what is
            shared are under the name of the team.
        """
        keys = [key] if len(team.policies) == 1 else jax.random.split(key, len(team.policies))
        learned = {
            name: self.update(
                policy, states[name], memories[name], hypers[name], rollout, own_key, num_blocks
            )
            for own_key, (name, policy) in zip(keys, team.policies.items(), strict=True)
        }
        states, memories, metrics = (
            {name: part[i] for name, part in learned.items()} for i in range(3)
        )
        return states, shared, memories, metrics

    def losses(
        self,
        policy: Policy,
        before: PolicyState,
        after: PolicyState,
        metrics: Mapping[str, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """Return (loss, gradient norm) of an update, scalars that are checked for NaN and infinity.

        Both must be 0 if the update took no gradient step; the metrics are NaN then.

        Raises:
            ValueError: if one of them is not among the metrics of `update`.
        """
        for name in ("loss", "grad_norm"):
            words = f"to contain {name!r}. Return it from update, or override losses"
            require(name in metrics, f"metrics of policies.{policy.name}", sorted(metrics), words)
        return metrics["loss"], metrics["grad_norm"]
