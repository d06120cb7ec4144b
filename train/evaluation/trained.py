"""A policy that a run has trained, by itself: ready to act wherever there are observations."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require, require_known
from wdjax.spaces import Space, sample_shapes
from wdjax.train.learner.learner import Learner
from wdjax.train.state.actors import Actor
from wdjax.train.state.sharding import one_copy
from wdjax.train.state.state import PolicyState, TrainState


@struct.dataclass
class TrainedPolicy:
    """What a policy has learned, ready to act (`load_policy`): a pytree, which jitted functions take as an argument."""

    learned: PolicyState  # its parameters, and what its inputs are normalised by
    actor: Actor = struct.field(pytree_node=False)

    @property
    def observation_space(self) -> Space:
        """Of one agent: what `act` takes, an action mask included."""
        return self.actor.policy.assignment.observation_space

    @property
    def action_space(self) -> Space:
        """Of one agent."""
        return self.actor.policy.assignment.action_space

    def init_memory(self, *shape: int) -> Any:
        """Returns what agents [*shape] remember at the start of an episode, leaves [*shape, ...]; None where the policy
        is not recurrent."""
        assignment = self.actor.policy.assignment
        first = assignment.segments[0]
        one = dataclasses.replace(assignment, segments=(dataclasses.replace(first, stop=first.start + 1),))
        policy = dataclasses.replace(self.actor.policy, assignment=one)
        carry = policy.algorithm.init_carry(policy, math.prod(shape))
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[2:]), carry)

    def act(self, obs: Any, memory: Any = None, key: jax.Array | None = None) -> tuple[jax.Array, Any]:
        """Chooses actions, as in an evaluation: pure, to be jitted and vmapped.

        Args:
            obs: as `observation_space`, with any leading axes of agents: leaves [..., *shape].
            memory: from the step before, leaves [..., n]; None: an episode begins, or the policy has none.
            key: draws the actions; None: the most likely ones.

        Returns:
            (actions [..., *shape] inside of `action_space`, memory).

        Raises:
            ValueError: for observations or a memory of another structure or shape.
            TypeError: for observations of another kind, as text or complex numbers.
        """
        parts = sample_shapes(self.observation_space)
        leading = self._leading_axes(obs, parts)
        start, shapes = self.init_memory(*leading), lambda tree: jax.tree.map(jnp.shape, tree)
        memory = start if memory is None else memory
        same = jax.tree.structure(memory) == jax.tree.structure(start) and shapes(memory) == shapes(start)
        require(same, "memory shapes", shapes(memory), f"{shapes(start)}, as returned by `act`")
        size = math.prod(leading)
        rows = jax.tree.map(lambda leaf, part: jnp.reshape(leaf, (size, 1, *part.shape)), obs, parts)
        carry = jax.tree.map(lambda leaf: jnp.reshape(leaf, (size, 1, *leaf.shape[len(leading) :])), memory)
        keys = jax.random.split(jax.random.key(0) if key is None else key)
        action, carry = self.actor.choose(None, self.learned, carry, rows, keys, (), key is None)
        unfold = lambda leaf: jnp.reshape(leaf, (*leading, *leaf.shape[2:]))  # noqa: E731
        return unfold(action), jax.tree.map(unfold, carry)

    def _leading_axes(self, obs: Any, parts: Any) -> tuple[int, ...]:
        """Return the axes of agents that observations have before those of one agent, `parts`; raise as `act`."""
        shapes = jax.tree.map(jnp.shape, obs), jax.tree.map(lambda part: part.shape, parts)
        first, part = jnp.shape(next(iter(jax.tree.leaves(obs)), 0)), jax.tree.leaves(parts)[0]
        leading = first[: len(first) - part.ndim]
        wanted = jax.tree.map(lambda part: (*leading, *part.shape), parts)
        words = f"{shapes[1]}, the shapes for one agent, after any leading axes (none of size 0)"
        require(shapes[0] == wanted and 0 not in leading, "obs shapes", shapes[0], words)
        for leaf, part in zip(jax.tree.leaves(obs), jax.tree.leaves(parts), strict=True):
            dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
            if not (jnp.issubdtype(dtype, jnp.bool_) or np.can_cast(dtype, np.float64, "same_kind")):
                raise TypeError(f"obs dtype {dtype}: must be {part.dtype} or another real dtype")
        return leading


def trained_policy(learner: Learner, state: TrainState, policy: str | None = None) -> TrainedPolicy:
    """Returns a policy of a run, ready to act.

    Args:
        learner, state: of the run.
        policy: its name, which may be left out where there is one alone.

    Raises:
        ValueError: for an unknown name, with the nearest right one, and for a population.
    """
    policies = learner.setup.policies
    require(policy is not None or len(policies) == 1, "policy", policy, f"one of {', '.join(policies)}")
    policy = next(iter(policies)) if policy is None else policy
    require_known("policy", policy, policies)
    words = "(), a single run. Select a population member with jax.tree.map(lambda leaf: leaf[i], states)"
    require(state.num_updates.shape == (), "state shape", state.num_updates.shape, words)
    return TrainedPolicy(learned_part(state.policies[policy]), Actor(policies[policy], "learned"))


def learned_part(state: PolicyState) -> PolicyState:
    """Returns what acting needs of a policy, on one device."""
    state = one_copy(state)
    return PolicyState(state.params, None, state.normalizer)  # what only learning needs stays behind
