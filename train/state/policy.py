"""Static parts of a learner, from which its program is compiled."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.env import Env
from wdjax.spaces import Box, Dict, Space, sample_shapes
from wdjax.train.config.facts import is_traced
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.networks.actor_critic import ActorCritic, split_mask, without_mask
from wdjax.train.networks.distributions import Categorical, Distribution
from wdjax.train.networks.encoders import encode, encoded_size
from wdjax.train.networks.memories import RecurrentMemory
from wdjax.train.state.agents import Assignment, group_sizes
from wdjax.train.state.aliases import Carry, EnvParams, EnvState, Observation
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.normalization import normalize_observation
from wdjax.train.state.state import PolicyState
from wdjax.vector import VectorEnv


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """The environment, the configuration of the run, and the agents of all policies."""

    env: Env
    env_params: EnvParams
    run_config: TrainConfig
    assignments: Mapping[str, Assignment]
    """by policy, frozen ones included: its agents and their spaces"""

    @property
    def global_state_space(self) -> Space:
        """Space of `global_state`: `Env.global_state_space`, or a vector of all observations."""
        own = self.env.global_state_space(self.env_params)
        if own is not None:
            return own
        size = sum(encoded_size(space) * count for space, count in self._observed().values())
        return Box(-jnp.inf, jnp.inf, (size,))

    def global_state(
        self, env_state: EnvState, obs: Mapping[str, Observation], env_params: EnvParams
    ) -> jax.Array:
        """Return the global state of each replica, [N, S]: `Env.global_state`, or all observations.

        Args:
            env_state: leaves [N, ...].
            obs: by group, leaves [N, n_group, ...]. Action masks are left out.
            env_params: shared by all replicas.
        """
        if self.env.global_state_space(self.env_params) is not None:
            return jax.vmap(self.env.global_state, (0, None))(env_state, env_params)
        rows = [encode(space, obs[group]) for group, (space, _) in self._observed().items()]
        return jnp.concatenate([row.reshape(row.shape[0], -1) for row in rows], axis=-1)

    def _observed(self) -> dict[str, tuple[Space, int]]:
        """Return group -> (observation space of one agent without mask, number of agents)."""
        space, sizes = self.env.observation_space(self.env_params), group_sizes(self.env)
        one = {g: cast(Dict, space)[g].single if self.env.groups else space for g in sizes}
        return {group: (without_mask(one[group]), count) for group, count in sizes.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """The static part of a policy: its agents, algorithm and network.

    Attributes:
        name: name in the configuration.
        config: configuration, with the algorithm and options of its team if it has one.
        assignment: its agents, and the spaces of one agent.
        algorithm: the `Algorithm`.
        distribution: distribution of its actions.
        graphdef: structure of the network: `nnx.merge(policy.graphdef, state.params)` is the
            network.
        encoder: class of the network's encoder.
        context: the environment, the run, and the agents of all policies.
        engine: `Engine` that acts and learns.
        memory: memory of the built-in network, as shapes; None: feed-forward.
        is_recurrent: whether it learns from sequences: its network has a method `unroll`, and
            `init_carry` returns a carry.
    """

    name: str
    config: PolicyConfig
    assignment: Assignment
    # types of this field and of `engine` would import in a cycle
    algorithm: Any
    distribution: Distribution
    graphdef: nnx.GraphDef
    encoder: type
    context: Context
    engine: Any = None
    memory: RecurrentMemory | None = None
    is_recurrent: bool = False

    @property
    def decisions_only(self) -> bool:
        """Whether it learns only from transitions whose action mask allows several actions."""
        return getattr(self.config.options, "decisions_only", False)

    def options(self, hypers: Hypers) -> Any:
        """Return the `Options` of its algorithm, with traced fields as the scalars of `hypers`."""
        options = self.config.options
        if not dataclasses.is_dataclass(options):  # not read yet
            return options
        traced = [field.name for field in dataclasses.fields(options) if is_traced(field)]
        return dataclasses.replace(cast(Any, options), **{name: hypers[name] for name in traced})

    def apply(
        self, state: PolicyState, obs: Observation, carry: Carry = None
    ) -> tuple[jax.Array, jax.Array, Carry]:
        """Return (outputs [..., num_outputs + num_free], value [...], carry).

        `outputs` are the arguments of the functions of `policy.distribution`.

        Args:
            state: state of the policy.
            obs: observations with any leading axes.
            carry: from the previous step.
        """
        seen, mask = self.inputs(state, obs)
        outputs, value, carry = nnx.merge(self.graphdef, state.params)(seen, carry)
        return self.masked(outputs, mask), value, carry

    def unroll(
        self,
        state: PolicyState,
        obs: Observation,
        carry: Carry,
        restart: jax.Array,
        start: Carry = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Return (outputs, value) of T steps of a recurrent policy, as `apply`: [T, M, ...].

        Args:
            state: state of the policy.
            obs: leaves [T, M, ...].
            carry: leaves [M, ...], before the first step.
            restart: [T, M] bool, whether an episode begins with this step.
            start: leaves [M, ...], the carry at the start of an episode; None: zeros. A custom
                network starts episodes itself.
        """
        seen, mask = self.inputs(state, obs)
        network = nnx.merge(self.graphdef, state.params)
        starts = [start] if type(network).unroll is ActorCritic.unroll else []
        outputs, value = network.unroll(seen, carry, restart, *starts)
        return self.masked(outputs, mask), value

    def masked(self, outputs: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Return outputs with probability 0 for masked actions, which are discrete."""
        return outputs if mask is None else cast(Categorical, self.distribution).mask(outputs, mask)

    def inputs(self, state: PolicyState, obs: Observation) -> tuple[Observation, jax.Array | None]:
        """Return (network inputs: normalized observations without action mask, mask or None)."""
        seen, mask = split_mask(obs)
        if state.normalizer is not None:
            seen = normalize_observation(state.normalizer.obs, seen)
        return seen, mask

    def decides(self, obs: Observation) -> jax.Array:
        """Return whether the action mask of observations allows several actions, [...] bool."""
        return cast(Categorical, self.distribution).has_choice(cast(jax.Array, split_mask(obs)[1]))

    def sample_uniform(self, key: jax.Array, obs: Observation) -> jax.Array:
        """Draw actions uniformly from the allowed ones, [N, n, ...], for obs [N, n, ...]."""
        mask, parts = split_mask(obs)[1], sample_shapes(self.assignment.observation_space)
        if mask is not None:
            # XLA simplifies a constant mask of ones for seconds
            mask = jax.lax.optimization_barrier(mask)
            outputs = self.masked(jnp.zeros(mask.shape, jnp.float32), mask)
            return self.distribution.sample(key, outputs)
        space = self.assignment.action_space
        leaf, part = jax.tree.leaves(obs)[0], jax.tree.leaves(parts)[0]
        for size in reversed(leaf.shape[: leaf.ndim - part.ndim]):
            space = space.batch(size)
        return space.sample(key)


@dataclasses.dataclass(frozen=True, eq=False)
class Team:
    """The static part of a team: policies that are updated together, or one policy.

    Attributes:
        name: name in the configuration; the name of the policy if it has no team.
        policies: its policies by name.
        algorithm: the `Algorithm` of all of them.
        shared: structure of the module from `Algorithm.make_shared`; None without one.
    """

    name: str
    policies: dict[str, Policy]
    algorithm: Any  # a type would import in a cycle
    shared: nnx.GraphDef | None = None

    @property
    def first(self) -> Policy:
        """The policy whose optimizer, learning rate and options apply to the shared module."""
        return next(iter(self.policies.values()))

    def module(self, shared: PolicyState) -> Any:
        """Return the shared module with the parameters of its state."""
        assert self.shared is not None
        return nnx.merge(self.shared, shared.params)


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """The static part of a run."""

    config: TrainConfig
    env: Env
    env_params: EnvParams
    replicas: VectorEnv
    policies: dict[str, Policy]
    context: Context
    teams: dict[str, Team]  # teams of the trainable policies
    engine: Any = None  # the `Engine` that runs rollouts
    num_devices: int = 1  # devices that share the replicas (train/state/sharding.py)
    trust: tuple[str, ...] = ()  # modules that loaded runs may import code from (config/trust.py)

    @functools.cached_property
    def keeps(self) -> frozenset[str]:
        """Data that the rollout stores in addition to transitions (`Algorithm.keeps`)."""
        return frozenset().union(*(team.algorithm.keeps for team in self.teams.values()))

    @property
    def assignments(self) -> dict[str, Assignment]:
        return {name: policy.assignment for name, policy in self.policies.items()}
