"""The parts of a learner that stay fixed: what its compiled program is made from."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.env import Env
from wdjax.spaces import sample_shapes
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.networks.actor_critic import ActorCritic, split_mask
from wdjax.train.networks.distributions import Distribution
from wdjax.train.state.agents import Assignment
from wdjax.train.state.context import Context
from wdjax.train.state.hypers import Hypers, with_traced
from wdjax.train.state.normalization import normalize_observation
from wdjax.train.state.state import PolicyState
from wdjax.vector import VectorEnv


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """The fixed part of a policy: who plays it, and how its parameters are read."""

    name: str  # as in the configuration
    config: PolicyConfig  # with the options of its team, if it has one
    assignment: Assignment  # its agents and their spaces
    algorithm: Any  # an Algorithm (train/algorithms)
    distribution: Distribution  # of its actions, where the algorithm draws them
    graphdef: nnx.GraphDef
    encoder: type  # of its network: a name may stand for another class later (train/networks/encoders.py)
    context: Context  # the environment, the run, and the agents of all policies
    engine: Any = None  # how it acts and learns on this machine (train/fast)

    @property
    def decisions_only(self) -> bool:
        """Whether it learns only from transitions in which the action mask leaves a choice."""
        return getattr(self.config.options, "decisions_only", False)

    def options(self, hypers: Hypers) -> Any:
        """Return the options of its algorithm, with traced fields as the scalars of `hypers`."""
        return with_traced(self.config.options, hypers)

    def apply(
        self, state: PolicyState, obs: Any, carry: Any = None
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Returns (outputs [..., num_outputs], value [...], carry) for observations with any leading axes."""
        seen, mask = self.inputs(state, obs)
        outputs, value, carry = nnx.merge(self.graphdef, state.params)(seen, carry)
        return outputs if mask is None else self.distribution.mask(outputs, mask), value, carry

    def unroll(
        self, state: PolicyState, obs: Any, carry: Any, restart: jax.Array, start: Any = None
    ) -> tuple[jax.Array, jax.Array]:
        """Returns (outputs [T, M, num_outputs], value [T, M]) of T steps in a row of a recurrent policy.

        Args:
            obs: leaves [T, M, ...].
            carry: leaves [M, ...], before the first step.
            restart: [T, M] bool, an episode begins with this step.
            start: leaves [M, ...], the carry where one begins; None: zeros. A custom network starts episodes itself.
        """
        seen, mask = self.inputs(state, obs)
        network = nnx.merge(self.graphdef, state.params)
        starts = [start] if type(network).unroll is ActorCritic.unroll else []
        outputs, value = network.unroll(seen, carry, restart, *starts)
        return outputs if mask is None else self.distribution.mask(outputs, mask), value

    def inputs(self, state: PolicyState, obs: Any) -> tuple[Any, jax.Array | None]:
        """Returns (what the network sees of observations, their action mask or None)."""
        seen, mask = split_mask(obs)
        if state.normalizer is not None:
            seen = normalize_observation(state.normalizer.obs, seen)
        return seen, mask

    def decides(self, obs: Any) -> jax.Array:
        """Returns whether the action mask of observations leaves more than one action, [...] bool."""
        return self.distribution.has_choice(split_mask(obs)[1])

    def sample_uniform(self, key: jax.Array, obs: Any) -> jax.Array:
        """Draws every action that is allowed with equal probability, [N, n, ...], for observations [N, n, ...]."""
        mask, parts = split_mask(obs)[1], sample_shapes(self.assignment.observation_space)
        if mask is not None:
            mask = jax.lax.optimization_barrier(
                mask
            )  # XLA works for seconds on one that is 1 everywhere
            return self.distribution.sample(
                key, self.distribution.mask(jnp.zeros(mask.shape, jnp.float32), mask)
            )
        space = self.assignment.action_space
        leaf, part = jax.tree.leaves(obs)[0], jax.tree.leaves(parts)[0]
        for size in reversed(leaf.shape[: leaf.ndim - part.ndim]):
            space = space.batch(size)
        return space.sample(key)


@dataclasses.dataclass(frozen=True, eq=False)
class Team:
    """The static part of a team: policies that are updated together. A policy may be a team of its own."""

    name: str  # as in the configuration; of a policy without a team, that of the policy
    policies: dict[str, Policy]  # by name
    algorithm: Any  # the Algorithm of all of them
    # structure of what they share (`Algorithm.make_shared`); None: nothing
    shared: nnx.GraphDef | None = None

    @property
    def first(self) -> Policy:
        """The policy whose optimizer, learning rate and options count for what the team shares."""
        return next(iter(self.policies.values()))


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """The fixed part of a run: what its compiled program is made from."""

    config: TrainConfig
    env: Env
    env_params: Any
    replicas: VectorEnv
    policies: dict[str, Policy]
    context: Context
    teams: dict[str, Team]  # of the policies that learn
    engine: Any = None  # how rollouts run on this machine (train/fast)
    num_devices: int = 1  # that share the replicas (train/state/sharding.py)
    trust: tuple[
        str, ...
    ] = ()  # modules that the runs which policies begin with may name (config/trust.py)

    @functools.cached_property
    def keeps(self) -> frozenset[str]:
        """What the rollout stores beside transitions (`Algorithm.keeps`)."""
        return frozenset().union(*(team.algorithm.keeps for team in self.teams.values()))

    @property
    def assignments(self) -> dict[str, Assignment]:
        return {name: policy.assignment for name, policy in self.policies.items()}
