"""Actors: learned policies, custom networks, scripts of the environment, and random play."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.env import Env
from wdjax.spaces import Box, Discrete
from wdjax.train.config.facts import read_part, static_part
from wdjax.train.state.agents import Assignment, gather, group_sizes
from wdjax.train.state.aliases import Action, Carry, EnvParams, EnvState, Observation
from wdjax.train.state.policy import Policy
from wdjax.train.state.state import PolicyState

Script: TypeAlias = Callable[[Env, EnvState, EnvParams, jax.Array], jax.Array]
"""script(env, state, params, key) of one replica -> actions of a group, [n_group, ...]"""
Network: TypeAlias = Callable[[Observation, Carry, jax.Array | None], tuple[jax.Array, Carry]]
"""network(obs, memory, key) -> (actions [N, n, ...], memory), with the observations of a learned
policy, leaves [N, n, ...]; without a key it returns the most likely actions"""


@dataclasses.dataclass(frozen=True, eq=False)
class Actor:
    """The static part of an actor in a role. Equal actors of any runs share a compiled program."""

    # its assignment is the role's; for scripts and random play, the policy that they replace
    policy: Policy
    kind: str  # "learned", "random", "script" or "network"
    script: Script | Network | None = None
    env: Env | None = None
    """environment that it was trained in, if the evaluated one has other observations"""

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that determines its program, including the static options of its algorithm."""
        policy, layout = self.policy, self.policy.assignment.layout
        # the same function for all environments of a class
        layout = getattr(layout, "__func__", layout)
        network = (policy.encoder, type(policy.memory), layout, read_part(policy.config))
        algorithm = (type(policy.algorithm), static_part(policy.config.options))
        return self.kind, self.script, self.env, policy.assignment, network, algorithm

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Actor) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash((self.kind, self.script, self.policy.assignment))

    def choose(
        self,
        env: Env,
        learned: PolicyState | None,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        situation: tuple[EnvState, EnvParams],
        greedy: bool,
    ) -> tuple[jax.Array, Carry]:
        """Return (actions of the role's agents [N, n, ...], inside their space, carry).

        Args:
            env: environment of one replica.
            learned: state of a learned policy, otherwise None.
            carry: carry of a learned policy, memory of a custom network, otherwise None.
            obs: observations of the role's agents, leaves [N, n, ...].
            keys: [2], the first one for a learned policy, the second one for other actors.
            situation: (environment states [N, ...], params), for scripts.
            greedy: whether learned policies and custom networks choose the most likely actions.
        """
        assignment, space = self.policy.assignment, self.policy.assignment.action_space
        if self.kind == "learned":
            before, policy = carry, self.policy
            action, carry = policy.algorithm.play(policy, learned, carry, obs, keys[:1], greedy)
            require_carry(policy, "play", before, carry)
            action = policy.distribution.to_space(action)
        elif self.kind == "random":
            action = self.policy.sample_uniform(keys[1], obs)
        elif self.kind == "network":
            act = cast(Network, self.script)
            action, carry = act(obs, carry, None if greedy else keys[1])
            expected = (jax.tree.leaves(obs)[0].shape[0], assignment.num_agents, *space.shape)
            require_actions("a network", action, assignment, expected, 0)
        else:
            action = run_script(env, cast(Script, self.script), assignment, situation, keys[1])
        if isinstance(space, Box):
            return space.clip(action).astype(space.dtype), carry
        last = space.n if isinstance(space, Discrete) else np.array(space.nvec)[None, None]
        return jnp.clip(action, 0, last - 1).astype(space.dtype), carry


def require_carry(policy: Policy, function: str, before: Carry, after: Carry) -> None:
    """Raise TypeError if a function returns a carry of another structure than it received.

    Args:
        policy: static part of the policy.
        function: "act" or "play".
        before: its argument, leaves [N, n, ...].
        after: its result.
    """
    first, last = (
        jax.tree.map(lambda leaf: jax.typeof(leaf).str_short(), carry) for carry in (before, after)
    )
    if jax.tree.flatten(first) != jax.tree.flatten(last):
        message = (
            f"policies.{policy.name}: {function} returned a carry {last}: must have the structure "
            f"of init_carry, {first}"
        )
        raise TypeError(message.replace("'", ""))


def run_script(
    env: Env,
    script: Script,
    assignment: Assignment,
    situation: tuple[EnvState, EnvParams],
    key: jax.Array,
) -> jax.Array:
    """Return a script's actions for the agents of a role, in all replicas, [N, n, ...].

    Args:
        env: environment of one replica.
        script: the script.
        assignment: the role's agents, all in one group.
        situation: (environment states [N, ...], params).
        key: split into one key per replica.
    """
    states, params = situation
    num_envs = jax.tree.leaves(states)[0].shape[0]
    act = jax.vmap(functools.partial(script, env), (0, None, 0))
    actions = act(states, params, jax.random.split(key, num_envs))
    if not env.groups and isinstance(actions, jax.Array):
        actions = actions[:, None]
    group = assignment.segments[0].group
    expected = (num_envs, group_sizes(env)[group], *assignment.action_space.shape)
    require_actions(
        "a script", actions, assignment, expected, 1 if env.groups else 2
    )  # a single agent's has no axis
    return gather(assignment, {group: actions})


def require_actions(
    who: str, actions: Action, assignment: Assignment, expected: tuple[int, ...], axes: int
) -> None:
    """Raise if the actions of a script or custom network do not match the action space.

    Args:
        who: author of the actions, for messages.
        actions: the actions.
        assignment: agents of the role.
        expected: shape of the actions.
        axes: number of leading axes that messages leave out.

    Raises:
        TypeError: for another type than an array, or another kind of dtype.
        ValueError: for another shape.
    """
    if not isinstance(actions, jax.Array):
        raise TypeError(
            f"{who} returned a {type(actions).__name__}: "
            "must be an array with the actions of one group"
        )
    group, dtype = assignment.segments[0].group, np.dtype(assignment.action_space.dtype)
    if actions.shape != expected:
        raise ValueError(
            f"actions of {group} from {who} have shape {actions.shape[axes:]}: "
            f"must be {expected[axes:]}"
        )
    if not np.can_cast(actions.dtype, dtype, "same_kind"):  # 0.9 would become action 0
        raise TypeError(
            f"actions of {group} from {who} have dtype {actions.dtype}: must be {dtype}"
        )
