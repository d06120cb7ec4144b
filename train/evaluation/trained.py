"""Trained policies that act on observations, independent of their run, and their export."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require, require_known
from wdjax.env import Env
from wdjax.files import new_file
from wdjax.spaces import Space, sample_shapes, with_axes
from wdjax.train.learner.learner import Learner
from wdjax.train.state.actors import Actor
from wdjax.train.state.aliases import Carry, Observation, PyTree
from wdjax.train.state.sharding import one_copy
from wdjax.train.state.state import PolicyState, TrainState
from wdjax.train.storage.leaves import by_place


@struct.dataclass
class TrainedPolicy:
    """A trained policy from `load_policy`, a pytree that can be passed to jitted functions."""

    learned: PolicyState  # network parameters and statistics of the observation normalizer
    actor: Actor = struct.field(pytree_node=False)

    def __repr__(self) -> str:
        spaces = f"observation_space={self.observation_space}, action_space={self.action_space}"
        return f"TrainedPolicy({self.actor.policy.name!r}, {spaces})"

    @property
    def observation_space(self) -> Space:
        """Observation space of one agent, including an action mask."""
        return self.actor.policy.assignment.observation_space

    @property
    def action_space(self) -> Space:
        """Action space of one agent."""
        return self.actor.policy.assignment.action_space

    def init_memory(self, *shape: int) -> Carry:
        """Return the memory at the start of an episode, None for feed-forward policies.

        Args:
            *shape: leading axes, for example the number of agents.

        Returns:
            Leaves [*shape, ...].
        """
        assignment = self.actor.policy.assignment
        first = dataclasses.replace(assignment.segments[0], stop=assignment.segments[0].start + 1)
        one = dataclasses.replace(assignment, segments=(first,))
        policy = dataclasses.replace(self.actor.policy, assignment=one)
        carry = policy.algorithm.init_carry(policy, math.prod(shape))
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[2:]), carry)

    def act(
        self, obs: Observation, memory: Carry = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, Carry]:
        """Choose actions. A pure function: jit and vmap it as needed.

        Args:
            obs: observations in `observation_space`, with any leading axes: leaves [..., *shape].
            memory: from the previous step, leaves [..., n]; None at the start of an episode or for
                feed-forward policies.
            key: random key to sample actions; None for the most likely actions.

        Returns:
            (actions [..., *shape] in `action_space`, memory).

        Raises:
            ValueError: if the structure or shapes of an argument do not match.
            TypeError: if `obs` is not real-valued.
        """
        parts = sample_shapes(self.observation_space)
        leading = self._leading_axes(obs, parts)
        start = self.init_memory(*leading)
        memory = start if memory is None else memory
        shapes, expected = (jax.tree.map(jnp.shape, tree) for tree in (memory, start))
        same = jax.tree.flatten(shapes) == jax.tree.flatten(expected)
        require(same, "memory shapes", shapes, f"{expected}, as returned by `act`")
        size = math.prod(leading)
        rows = jax.tree.map(
            lambda leaf, part: jnp.reshape(leaf, (size, 1, *part.shape)), obs, parts
        )
        carry = jax.tree.map(
            lambda leaf: jnp.reshape(leaf, (size, 1, *leaf.shape[len(leading) :])), memory
        )
        keys = jax.random.split(jax.random.key(0) if key is None else key)
        env, situation = cast(Env, None), (None, None)  # only scripts use them
        action, carry = self.actor.choose(
            env, self.learned, carry, rows, keys, situation, key is None
        )

        def unfold(leaf: jax.Array) -> jax.Array:
            return jnp.reshape(leaf, (*leading, *leaf.shape[2:]))

        return unfold(action), jax.tree.map(unfold, carry)

    def _leading_axes(self, obs: Observation, parts: PyTree) -> tuple[int, ...]:
        """Return the leading axes of observations, before those in `parts`. Raise as `act`."""
        shapes = jax.tree.map(jnp.shape, obs), jax.tree.map(lambda part: part.shape, parts)
        first, part = jnp.shape(next(iter(jax.tree.leaves(obs)), 0)), jax.tree.leaves(parts)[0]
        leading = first[: len(first) - part.ndim]
        wanted = jax.tree.map(lambda part: (*leading, *part.shape), parts)
        require(
            shapes[0] == wanted and 0 not in leading,
            "obs shapes",
            shapes[0],
            f"{shapes[1]}, the shapes for one agent, after any leading axes (none of size 0)",
        )
        for leaf, part in zip(jax.tree.leaves(obs), jax.tree.leaves(parts), strict=True):
            dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
            is_bool = jnp.issubdtype(dtype, jnp.bool_)
            if not (is_bool or np.can_cast(dtype, np.float64, "same_kind")):
                raise TypeError(
                    f"obs dtype {dtype}: "
                    f"must be {part.dtype}, or another bool, integer or float dtype"
                )
        return leading


def trained_policy(learner: Learner, state: TrainState, policy: str | None = None) -> TrainedPolicy:
    """Return a policy of a run as a `TrainedPolicy`.

    Args:
        learner: learner of the run.
        state: state of the run.
        policy: name of the policy; optional if the run has only one.

    Raises:
        ValueError: if the name is unknown (the message has the closest name), or the state is a
            population.
    """
    policies = learner.setup.policies
    known = policy is not None or len(policies) == 1
    require(known, "policy", policy, f"one of {', '.join(policies)}")
    policy = next(iter(policies)) if policy is None else policy
    require_known("policy", policy, policies)
    require_single(state, "state shape")
    return TrainedPolicy(learned_part(state.policies[policy]), Actor(policies[policy], "learned"))


def require_single(state: TrainState, field: str) -> None:
    """Raise ValueError for the states of a population; `field` is their name in the message."""
    select = "Select a population member with jax.tree.map(lambda leaf: leaf[i], states)."
    shape = state.num_updates.shape
    require(shape == (), field, shape, f"(), a single run. {select}")


def learned_part(state: PolicyState) -> PolicyState:
    """Return the part of a policy's state that acting needs, on one device."""
    state = one_copy(state)
    return PolicyState(state.params, None, state.normalizer)


PLATFORMS = ("cpu", "cuda", "tpu")


def export_policy(policy: TrainedPolicy, folder: str | Path) -> tuple[Path, Path]:
    """Write NAME.stablehlo and NAME.npz of a policy and return their paths.

    NAME.stablehlo is a function (obs, memory, key, greedy) -> (action, memory) that contains the
    parameters. Call it with

        jax.export.deserialize(bytearray(file.read_bytes())).call(obs, memory, key, greedy)

    where obs and memory are the arguments of `TrainedPolicy.act` with one leading axis of any size,
    key is [size, 2] uint32, the random key of each row, and greedy () bool selects the most likely
    actions. NAME.npz contains parameters and running statistics by their paths, such as
    "params/policy_head/kernel".

    Args:
        policy: the policy, as returned by `load_policy`.
        folder: folder of the two files; created if missing.

    Raises:
        ImportError: if flatbuffers is not installed.
    """
    try:
        import flatbuffers  # noqa: F401
        import jax.export
    except ImportError as error:
        raise ImportError('wdjax export needs flatbuffers: pip install "wdjax[export]"') from error
    folder, name = Path(folder), policy.actor.policy.name
    folder.mkdir(parents=True, exist_ok=True)
    rows = jax.export.symbolic_shape("batch")
    obs = sample_shapes(policy.observation_space, rows)
    memory = with_axes(jax.eval_shape(policy.init_memory), rows)
    key, greedy = jax.ShapeDtypeStruct((*rows, 2), jnp.uint32), jax.ShapeDtypeStruct((), bool)
    act = jax.jit(jax.vmap(functools.partial(_act_on, policy), (0, 0, 0, None)))
    exported = jax.export.export(act, platforms=PLATFORMS)(obs, memory, key, greedy)
    function, arrays = folder / f"{name}.stablehlo", folder / f"{name}.npz"
    with new_file(function) as file:
        file.write(exported.serialize())
    with new_file(arrays) as file:
        np.savez(file, **jax.device_get(by_place(policy.learned)))
    return function, arrays


def _act_on(
    policy: TrainedPolicy, obs: Observation, memory: Carry, key: jax.Array, greedy: jax.Array
) -> tuple[jax.Array, Carry]:
    typed_key = jax.random.wrap_key_data(key, impl="threefry2x32")
    drawn, memory_after = policy.act(obs, memory, typed_key)
    best, _ = policy.act(obs, memory)
    return jnp.where(greedy, best, drawn), memory_after
