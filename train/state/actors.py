"""How somebody acts: what a policy has learned, a network of one's own, a script of the game, or at random."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.env import Env
from wdjax.spaces import Box, Discrete, MultiDiscrete
from wdjax.train.config.facts import read_part, static_part
from wdjax.train.state.agents import Assignment, gather, group_sizes
from wdjax.train.state.policy import Policy

Script = Callable[[Env, Any, Any, jax.Array], jax.Array]
"""script(env, state, params, key) of one replica -> the actions of a group, [n_group, ...]"""
Network = Callable[[Any, Any, jax.Array | None], tuple[jax.Array, Any]]
"""network(obs, memory, key) -> (actions [N, n, ...], memory), on what a learned policy sees, leaves [N, n, ...], of n
agents in N replicas; key None: the most likely actions are asked for"""


@dataclasses.dataclass(frozen=True, eq=False)
class Actor:
    """The fixed part of a player in a role. Equal ones share a compiled program, whichever run they come from."""

    policy: Policy  # its assignment is the role's; of random play and scripts: the policy whose place they take
    kind: str  # "learned", "random", "script" or "network"
    script: Script | Network | None = None
    env: Env | None = None
    """whose observations it was trained on, where they are not those of the game that it plays"""

    @property
    def identity(self) -> tuple:
        """All that shapes its program, of its algorithm's own options what is static."""
        policy, layout = self.policy, self.policy.assignment.layout
        layout = getattr(
            layout, "__func__", layout
        )  # whichever environment of its class the game's layout is bound to
        network = (policy.encoder, layout, read_part(policy.config))
        algorithm = (type(policy.algorithm), static_part(policy.config.options))
        return self.kind, self.script, self.env, policy.assignment, network, algorithm

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Actor) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash((self.kind, self.script, self.policy.assignment))

    def choose(
        self,
        env: Env,
        learned: Any,
        carry: Any,
        obs: Any,
        keys: jax.Array,
        situation: tuple,
        greedy: bool,
    ) -> tuple[jax.Array, Any]:
        """Returns (actions of the role's agents [N, n, ...], inside their space, carry).

        Args:
            learned, carry: PolicyState and carry; of a network of one's own its memory; None where there is neither.
            obs: of the role's agents, leaves [N, n, ...].
            keys: [2], for a learned policy and for anything else.
            situation: (states of the environment [N, ...], params), for scripts.
        """
        space = self.policy.assignment.action_space
        if self.kind == "learned":
            action, carry = self.policy.algorithm.play(
                self.policy, learned, carry, obs, keys[:1], greedy
            )
            action = self.policy.distribution.to_space(action)
        elif self.kind == "random":
            action = self.policy.sample_uniform(keys[1], obs)
        elif self.kind == "network":
            action, carry = self.script(obs, carry, None if greedy else keys[1])
            rows = jax.tree.leaves(obs)[0].shape[0], self.policy.assignment.num_agents
            require_actions("a network", action, self.policy.assignment, (*rows, *space.shape), 0)
        else:
            action = run_script(env, self.script, self.policy.assignment, situation, keys[1])
        match space:
            case Box():
                action = space.clip(action)
            case Discrete():
                action = jnp.clip(action, 0, space.n - 1)
            case MultiDiscrete():
                action = jnp.clip(action, 0, np.array(space.nvec)[None, None] - 1)
        return action.astype(space.dtype), carry


def run_script(
    env: Env, script: Script, assignment: Assignment, situation: tuple, key: jax.Array
) -> jax.Array:
    """Returns a script's actions for the agents of a role, in all replicas, [N, n, ...]."""
    states, params = situation
    num_envs = jax.tree.leaves(states)[0].shape[0]
    act = jax.vmap(functools.partial(script, env), (0, None, 0))
    actions = act(states, params, jax.random.split(key, num_envs))
    if not env.groups and isinstance(actions, jax.Array):
        actions = actions[:, None]
    group = assignment.segments[0].group  # of all: a role lies in one
    expected = (num_envs, group_sizes(env)[group], *assignment.action_space.shape)
    require_actions(
        "a script", actions, assignment, expected, 1 if env.groups else 2
    )  # a single agent's has no axis
    return gather(assignment, {group: actions})


def require_actions(
    who: str, actions: Any, assignment: Assignment, expected: tuple[int, ...], axes: int
) -> None:
    """Raises TypeError or ValueError where actions from outside have another type or shape than the space's; the first
    `axes` of the shapes are left out of the sentence."""
    if not isinstance(actions, jax.Array):
        raise TypeError(
            f"{who} returned a {type(actions).__name__}: must be an array with the actions of one group"
        )
    group, dtype = assignment.segments[0].group, np.dtype(assignment.action_space.dtype)
    if actions.shape != expected:
        words = f"actions of {group} from {who} have shape"
        raise ValueError(f"{words} {actions.shape[axes:]}: must be {expected[axes:]}")
    if not np.can_cast(actions.dtype, dtype, "same_kind"):  # 0.9 would become action 0
        raise TypeError(
            f"actions of {group} from {who} have dtype {actions.dtype}: must be {dtype}"
        )
