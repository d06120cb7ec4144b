"""The interface of algorithms: how policies act and learn."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar, TypeAlias

import jax
from flax import nnx

from wdjax.checks import require
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.networks.distributions import Distribution, make_distribution
from wdjax.train.state.agents import Assignment
from wdjax.train.state.aliases import ActingState, Carry, Fields, Observation, OptionsClass, Params
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.metric import Metric
from wdjax.train.state.policy import Context, Policy, Team
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import Memory, PolicyState

TeamUpdate: TypeAlias = tuple[
    dict[str, PolicyState],
    PolicyState | None,
    dict[str, Memory],
    dict[str, Mapping[str, jax.Array | Metric]],
]
"""the result of `Algorithm.update_team`: (states, shared, memories, metrics)"""


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Options of an algorithm without any."""


class Algorithm(abc.ABC):
    """Base class of algorithms: stateless functions that act and learn.

    A custom algorithm is a subclass of this class, or of `PPO` or `A2C`. A preset names it as
    "package.module:Class" or by the name given to `register_algorithm`.

    Arrays of a policy have leading axes [N, n]: N replicas, n agents of the policy. There is one
    key per block of replicas, [num_blocks]; random numbers of a block depend only on its key.

    On several devices `act` and `update` run on each device with its share of the replicas and
    blocks. Reduce losses, gradients, statistics and metrics over devices with the functions of
    `wdjax.train.learning`, so that they are equal on all devices.

    Attributes:
        Options: frozen dataclass of options; its fields are `traced` or `static` and have defaults.
        has_kernels: whether fused kernels may replace `act` and the gradient of `loss`. False by
            default, True for PPO and A2C; custom functions use plain XLA where kernels do not
            support them.
        keeps: additional data in the rollout for `update`: frozenset({"global_state"}) or nothing.
        takes_uniform: whether `act` accepts uniform numbers [N, n, c] in [0, 1) instead of keys,
            drawn before the rollout for c categorical components. False by default, and for a
            custom `act`.
    """

    Options: ClassVar[OptionsClass] = NoOptions
    has_kernels: ClassVar[bool] = False
    keeps: ClassVar[frozenset[str]] = frozenset()
    takes_uniform: bool = False

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:  # noqa: B027
        """Validate the configuration of a policy; the values of single fields have been checked.

        This is called before `make_distribution` and `make_network`. An override calls
        `super().check(name, run, assignment)` last, so that its own errors come first.

        Args:
            name: name of the policy.
            run: configuration of the run.
            assignment: agents and spaces of the policy.

        Raises:
            ValueError, TypeError: naming the field, if the algorithm does not support its value.
        """

    def check_network(self, policy: Policy, network: nnx.Module) -> None:  # noqa: B027
        """Validate the network of a policy, for what `check` cannot know.

        Args:
            policy: static part of the policy.
            network: result of `make_network`, with shapes and dtypes instead of arrays.

        Raises:
            ValueError, TypeError: naming the field, if the algorithm does not support the network.
        """

    @abc.abstractmethod
    def make_network(
        self, context: Context, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs
    ) -> nnx.Module:
        """Return new networks of a policy in one module.

        Policies can start from a `checkpoint` of an algorithm that inherits the same function.

        Args:
            context: the environment, the run, and the agents of all policies.
            config: configuration of the policy.
            assignment: its agents and their spaces.
            rngs: random numbers for the parameters.
        """

    def make_shared(self, team: Team, context: Context, rngs: nnx.Rngs) -> nnx.Module | None:
        """Return the module that the policies of a team share, such as a central critic; or None.

        Args:
            team: static part of the team.
            context: the environment, the run, and the agents of all policies.
            rngs: random numbers for the parameters.
        """
        return None

    def init_shared(
        self, team: Team, states: Mapping[str, PolicyState], params: Params | None
    ) -> PolicyState | None:
        """Return the state that a team shares; None: nothing.

        It contains shared parameters and their optimizer, or one optimizer of all policies.

        Args:
            team: static part of the team.
            states: new states of its policies, by name.
            params: new parameters of the shared module; None without one.
        """
        return None

    def make_distribution(self, config: PolicyConfig, assignment: Assignment) -> Distribution:
        """Return the distribution of actions; its `to_space` maps actions into the action space.

        Args:
            config: configuration of the policy.
            assignment: its agents and their spaces.

        Raises:
            ValueError, TypeError: if the algorithm does not support the action space.
        """
        return make_distribution(assignment.action_space)

    @abc.abstractmethod
    def init(self, policy: Policy, params: Params) -> PolicyState:
        """Return the state of a policy at the start of a run.

        It has no optimizer state if the policy is not trainable. `checkpoint` replaces `normalizer`
        and `gradient_steps` afterwards: use `begin` for anything that depends on them.

        Args:
            policy: static part of the policy.
            params: its parameters, new or from its `checkpoint`.
        """

    def begin(self, policy: Policy, state: PolicyState) -> PolicyState:
        """Return the state of a policy at the start of a run; by default unchanged.

        This follows `init` and `checkpoint`, which sets the normalizer and the number of gradient
        steps. It is traced; for a resumed or loaded run only to obtain shapes. Override it to keep
        parts of the initial state, such as a reference policy, in `PolicyState.own`.

        Args:
            policy: static part of the policy.
            state: its state.
        """
        return state

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        """Return the memory of a policy for all replicas at the start of a run."""
        return Memory(self.init_carry(policy, run.num_envs), None)

    def init_carry(self, policy: Policy, num_envs: int) -> Carry:
        """Return the carry of `act` and `play` at the start of an episode, [num_envs, n, ...].

        It may differ between agents but not between replicas. A policy is recurrent if this is not
        None and its network has a method unroll(obs [T, M, ...], carry [M, ...], restart [T, M]
        bool) -> (outputs [T, M, num_outputs], value [T, M]). A custom network sets its carry to the
        start of an episode itself, before the steps with `restart`.
        """
        return None

    def before_rollout(self, policy: Policy, state: PolicyState) -> ActingState:
        """Return the `state` argument of `act` and `end_of_step` for a rollout.

        Override it to compute something once per rollout. Both functions must also accept a plain
        PolicyState.
        """
        return state

    @abc.abstractmethod
    def act(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        hypers: Hypers,
    ) -> tuple[jax.Array, Fields, Carry]:
        """Choose actions in training.

        The environment receives `policy.distribution.to_space(action)`, clipped to the action
        space.

        Args:
            policy: static part of the policy.
            state: result of `before_rollout`.
            carry: from the previous step, leaves [N, n, ...].
            obs: leaves [N, n, ...].
            keys: [num_blocks]; uniform numbers instead if `takes_uniform`. A custom `act` receives
                keys, except in the fused kernel for whole rollouts, which passes uniform numbers
                [1, n, c] for one replica. If `act` raises then, plain XLA is used.
            hypers: hyperparameters at this point of the run.

        Returns:
            (action [N, n, ...], additional fields of Rows by name, carry). The fields are log_prob,
            value and own, for anything else. The carry has the structure, shapes and dtypes of
            `init_carry`.
        """

    @abc.abstractmethod
    def play(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        greedy: bool,
    ) -> tuple[jax.Array, Carry]:
        """Choose actions in an evaluation. Return (action [N, n, ...], carry).

        Args:
            policy: static part of the policy.
            state: state of the policy.
            carry: from the previous step, leaves [N, n, ...].
            obs: leaves [N, n, ...].
            keys: [num_blocks].
            greedy: choose the most likely actions.
        """

    def describe(
        self, policy: Policy, state: PolicyState, carry: Carry, obs: Observation
    ) -> dict[str, jax.Array]:
        """Return details of an action for recorded episodes, leaves [N, n, ...]; empty by default.

        Names are "value" and the names from `describe` of the distribution.
        """
        return {}

    def end_of_step(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        final_obs: Observation,
        truncated: jax.Array | None,
    ) -> Fields:
        """Return the fields of Rows that require the observation after the step, by name.

        For Q-learning, return {"next_obs": final_obs}. The fields are next_obs, final_value and
        own, for anything else; log_prob and value may come from here or from `act`, not from both.

        Args:
            policy: static part of the policy.
            state: result of `before_rollout`.
            carry: after the step.
            final_obs: observation after the step and before any reset, leaves [N, n, ...].
            truncated: [N, n] bool, whether the agent was truncated in this step; None if the
                environment never truncates.
        """
        return {}

    def update(
        self,
        policy: Policy,
        state: PolicyState,
        memory: Memory,
        hypers: Hypers,
        rollout: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, Mapping[str, jax.Array | Metric]]:
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
            (state, memory, metrics). Metrics are a scalar or `Metric` by name, with loss and
            grad_norm.
        """
        raise NotImplementedError(f"{type(self).__name__} has no update")

    def update_team(
        self,
        team: Team,
        states: dict[str, PolicyState],
        shared: PolicyState | None,
        memories: dict[str, Memory],
        hypers: Mapping[str, Hypers],
        rollout: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> TeamUpdate:
        """Learn from one rollout, all policies of a team together; by default each by `update`.

        Args:
            team: static part of the team.
            states: states of its policies, by name.
            shared: the state that they share; None: nothing.
            memories: memories of its policies, by name.
            hypers: hyperparameters of its policies, by name, each with the team's.
            rollout: the rollout.
            key: () key for this update.
            num_blocks: blocks of replicas on this device.

        Returns:
            (states, shared, memories, metrics). Metrics are a scalar or `Metric` by policy and by
            name, with loss and grad_norm. Shared metrics are under the name of the team.
        """
        keys = [key] if len(team.policies) == 1 else jax.random.split(key, len(team.policies))
        learned = {
            name: self.update(
                policy, states[name], memories[name], hypers[name], rollout, own_key, num_blocks
            )
            for own_key, (name, policy) in zip(keys, team.policies.items(), strict=True)
        }
        return (
            {name: state for name, (state, _, _) in learned.items()},
            shared,
            {name: memory for name, (_, memory, _) in learned.items()},
            {name: metrics for name, (_, _, metrics) in learned.items()},
        )

    def losses(
        self,
        policy: Policy,
        before: PolicyState,
        after: PolicyState,
        metrics: Mapping[str, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """Return (loss, gradient norm) of an update, scalars to check for NaN and infinity.

        Both must be 0 if the update took no gradient step, for which metrics are NaN.

        Args:
            policy: static part of the policy.
            before: its state before the update.
            after: its state after the update.
            metrics: its metrics, as plain arrays.

        Raises:
            ValueError: if one of them is not among the metrics of `update`.
        """
        missing = [name for name in ("loss", "grad_norm") if name not in metrics]
        require(
            not missing,
            f"metrics of policies.{policy.name}",
            sorted(metrics),
            f"a dict with {' and '.join(missing)}. Return it from update, or override losses",
        )
        return metrics["loss"], metrics["grad_norm"]
