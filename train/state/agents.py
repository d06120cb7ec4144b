"""Assignment of agents to policies, and conversion of arrays by group to arrays by policy and back.

Arrays by group are `{group: [N, n_group, ...]}`, by policy `{policy: [N, n_policy, ...]}`, for N
replicas.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require, require_known
from wdjax.env import SINGLE_AGENT, Env, layout_of
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from wdjax.train.config.schema import PolicyConfig
from wdjax.train.networks.actor_critic import split_mask, without_mask
from wdjax.train.networks.checks import with_layout
from wdjax.train.networks.encoders import AGENT_TYPE, MASK
from wdjax.train.state.aliases import EnvParams, Observation
from wdjax.vector import VectorState

# group, group[index], group[start:stop], group[*]
_SELECTOR = re.compile(r"(?s:(.+?))(?:\[(?:(\d+)|(\d*):(\d*)|\*)\])?")

ActionSpace: TypeAlias = Discrete | MultiDiscrete | Box


@dataclasses.dataclass(frozen=True)
class Segment:
    """The agents start .. stop - 1 of a group."""

    group: str
    start: int
    stop: int

    @property
    def agents(self) -> list[tuple[str, int]]:
        """(group, index in the group) of each agent."""
        return [(self.group, i) for i in range(self.start, self.stop)]


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The agents of one policy, in the order of its selectors, and the spaces of one agent."""

    segments: tuple[Segment, ...]  # consecutive agents of one group, one segment per selector
    observation_space: Space  # of one agent, with its type if `agent_type_feature` is set
    action_space: ActionSpace  # of one agent
    # agents of each type in order; empty without `agent_type_feature`
    types: tuple[Segment, ...] = ()
    layout: Callable | None = dataclasses.field(default=None, compare=False, repr=False)
    """`Env.split_observation`; None if the environment does not define it"""

    @property
    def agents(self) -> list[tuple[str, int]]:
        """(group, index in the group) of each agent."""
        return [agent for part in self.segments for agent in part.agents]

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def agent_types(self) -> np.ndarray:
        """[num_agents] int32, constant: index of each agent's type in `types`."""
        place = {agent: k for k, part in enumerate(self.types) for agent in part.agents}
        return np.array([place[agent] for agent in self.agents], np.int32)

    @property
    def network_space(self) -> Space:
        """The observation space without the action mask: the inputs of networks."""
        return without_mask(self.observation_space)

    @property
    def bare_space(self) -> Space:
        """The observation space of the environment, without the agent's type."""
        if not self.types:
            return self.observation_space
        parts = cast(Dict, self.observation_space).spaces
        inner, mask = parts["obs"], parts.get(MASK)
        return inner if mask is None else Dict({**inner.spaces, MASK: mask})


def group_sizes(env: Env) -> dict[str, int]:
    """Return group -> number of agents; a single-agent environment has the group "agent"."""
    return dict(env.groups) or {SINGLE_AGENT: 1}


def assign_agents(
    env: Env, params: EnvParams, policies: Mapping[str, PolicyConfig]
) -> dict[str, Assignment]:
    """Assign every agent to exactly one policy.

    Args:
        env: environment of one replica.
        params: its parameters.
        policies: configuration of each policy, by name.

    Raises:
        ValueError: for an invalid selector, an agent with two policies or none, a policy whose
            agents have different spaces, or `agent_type_feature` with a single type.
    """
    sizes = group_sizes(env)
    segments = {
        name: parse_selectors(name, config.agents or (name,), sizes)
        for name, config in policies.items()
    }
    _require_partition(segments, sizes)
    observation, action = (
        cast(Dict, space) if env.groups else Dict({SINGLE_AGENT: space})
        for space in (env.observation_space(params), env.action_space(params))
    )
    assignments = {}
    for name, parts in segments.items():
        spaces = [(observation[part.group].single, action[part.group].single) for part in parts]
        for part, pair in zip(parts, spaces, strict=True):
            if pair != spaces[0]:
                raise ValueError(
                    f"policies.{name}.agents: groups {parts[0].group!r} and {part.group!r} have "
                    f"different spaces ({spaces[0]} and {pair}). Give each group its own policy."
                )
        space, selectors = spaces[0][0], policies[name].agents or (name,)
        types = tuple(types_of(selectors, parts)) if policies[name].agent_type_feature else ()
        if types:
            require(
                len(types) > 1,
                f"policies.{name}.agent_type_feature",
                True,
                f"false if `agents` is the single selector {parts[0].group!r}, which has only one "
                "type",
            )
            # an action mask stays at the top level
            mask = {MASK: space[MASK]} if isinstance(space, Dict) and MASK in space.spaces else {}
            space = Dict({"obs": without_mask(space), AGENT_TYPE: Discrete(len(types)), **mask})
        assignments[name] = Assignment(tuple(parts), space, spaces[0][1], types, layout_of(env))
    return assignments


def building_config(config: PolicyConfig, assignment: Assignment) -> PolicyConfig:
    """Return the configuration that the network of a policy is built from.

    Unlike the policy's own configuration, it contains `Env.split_observation` if the encoder
    requires it.
    """
    return dataclasses.replace(config, network=with_layout(config.network, assignment.layout))


def parse_selectors(
    policy: str, selectors: tuple[str, ...], sizes: Mapping[str, int]
) -> list[Segment]:
    """Return the segments that the selectors of a policy name.

    Args:
        policy: name of the policy, for messages.
        selectors: "group", "group[3]", "group[0:5]" or "group[*]".
        sizes: group -> number of agents.

    Raises:
        ValueError: for an invalid selector.
    """
    segments = []
    for selector in selectors:
        match = None if selector in sizes else _SELECTOR.fullmatch(selector)
        group, index, first, last = match.groups() if match else (selector, None, None, None)
        require(
            group in sizes or (match and re.fullmatch(r"\w+", group)),
            f"policies.{policy}.agents",
            selector,
            "a group, a slice such as 'runner[0:50]', an index, or 'runner[*]' for a type per "
            "agent",
        )
        require_known(f"group in policies.{policy}.agents", group, sizes)
        start = int(index or first or 0)
        stop = start + 1 if index else int(last or sizes[group])
        inside = f"a nonempty range inside {group}[0:{sizes[group]}]"
        require(0 <= start < stop <= sizes[group], f"policies.{policy}.agents", selector, inside)
        segments.append(Segment(group, start, stop))
    return segments


def types_of(selectors: tuple[str, ...], segments: list[Segment]) -> list[Segment]:
    """Return the agents of each type: one type per selector, and one per agent of "group[*]"."""
    types: list[Segment] = []
    for selector, part in zip(selectors, segments, strict=True):
        types += (
            [Segment(group, i, i + 1) for group, i in part.agents]
            if selector == f"{part.group}[*]"
            else [part]
        )
    return types


def _require_partition(segments: Mapping[str, list[Segment]], sizes: Mapping[str, int]) -> None:
    owner: dict[tuple[str, int], str] = {}
    for name, parts in segments.items():
        for group, i in (agent for part in parts for agent in part.agents):
            if (group, i) in owner:
                raise ValueError(
                    f"policies.{name}.agents: {group}[{i}] already belongs to policy "
                    f"{owner[group, i]!r}"
                )
            owner[group, i] = name
    free = [
        f"{group}[{i}]"
        for group, size in sizes.items()
        for i in range(size)
        if (group, i) not in owner
    ]
    if free:
        raise ValueError(
            f"policies: no policy controls {', '.join(free[:3])}{' ...' if len(free) > 3 else ''}"
        )


def to_groups(env: Env, values: chex.ArrayTree) -> dict[str, chex.ArrayTree]:
    """Return values by group: without groups, leaves [N, ...] become {"agent": [N, 1, ...]}."""
    return (
        values if env.groups else {SINGLE_AGENT: jax.tree.map(lambda leaf: leaf[:, None], values)}
    )


def present_agents(
    env: Env, states: chex.ArrayTree, params: EnvParams
) -> dict[str, jax.Array] | None:
    """Return `Env.present` of N replicas by group, [N, n_group] bool; None if no agents join.

    Args:
        env: the environment.
        states: environment states, leaves [N, ...].
        params: environment params, shared by all replicas.
    """
    if type(env).present is Env.present:
        return None
    flags = jax.vmap(env.present, (0, None))(states, params)
    return None if flags is None else to_groups(env, flags)


def first_active(env: Env, replicas: VectorState, params: EnvParams) -> dict[str, jax.Array]:
    """Return which agents are active at the start of an episode, by group [N, n_group] bool.

    Args:
        env: the environment.
        replicas: N replicas that have just been reset.
        params: environment params, shared by all replicas.
    """
    present = present_agents(env, replicas.env_state, params)
    if present is not None:
        return present
    rewards = to_groups(env, replicas.episode_return)
    return jax.tree.map(lambda sums: jnp.ones(sums.shape, bool), rewards)


def next_active(
    present: Mapping[str, jax.Array],
    live: Mapping[str, jax.Array],
    stays: Mapping[str, jax.Array],
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Return (active agents after a step, agents that joined in it), by group [N, n_group] bool.

    Args:
        present: from `present_agents`, after the step and any reset.
        live: active agents before the step.
        stays: agents that are neither terminated nor truncated, or that were reset.
    """
    after = {name: flags & stays[name] for name, flags in present.items()}
    return after, {name: flags & ~live[name] for name, flags in after.items()}


def from_groups(env: Env, values: dict[str, chex.ArrayTree]) -> chex.ArrayTree:
    """Return values as the environment has them: without groups, leaves [N, ...]."""
    return values if env.groups else jax.tree.map(lambda leaf: leaf[:, 0], values[SINGLE_AGENT])


def gather(assignment: Assignment, values: Mapping[str, chex.ArrayTree]) -> chex.ArrayTree:
    """Return values of a policy's agents, leaves [N, n_policy, ...], from values by group.

    NumPy arrays stay NumPy arrays.
    """
    parts = [
        jax.tree.map(lambda leaf, part=part: leaf[:, part.start : part.stop], values[part.group])
        for part in assignment.segments
    ]

    def join(*leaves: jax.Array) -> jax.Array:
        return (np if isinstance(leaves[0], np.ndarray) else jnp).concatenate(leaves, axis=1)

    return parts[0] if len(parts) == 1 else jax.tree.map(join, *parts)


def gather_observation(assignment: Assignment, obs: Mapping[str, Observation]) -> Observation:
    """Return observations of a policy's agents, leaves [N, n_policy, ...], from those by group.

    With `agent_type_feature` they are {"obs": observation, "agent_type": [N, n_policy] int32}, with
    the action mask at the top level if there is one.
    """
    seen = gather(assignment, obs)
    if not assignment.types:
        return seen
    seen, mask = split_mask(seen)
    shape = (jax.tree.leaves(seen)[0].shape[0], assignment.num_agents)
    typed = {"obs": seen, AGENT_TYPE: jnp.broadcast_to(assignment.agent_types, shape)}
    return typed if mask is None else {**typed, MASK: mask}


def scatter(
    assignments: Mapping[str, Assignment], values: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Return values by group from values by policy: the inverse of `gather` for all policies."""
    pieces: dict[str, list[tuple[int, jax.Array]]] = {}
    for name, assignment in assignments.items():
        offset = 0
        for part in assignment.segments:
            size = part.stop - part.start
            pieces.setdefault(part.group, []).append(
                (part.start, values[name][:, offset : offset + size])
            )
            offset += size
    by_group = {}
    for group, parts in pieces.items():
        ordered = [piece for _, piece in sorted(parts, key=lambda pair: pair[0])]
        by_group[group] = ordered[0] if len(ordered) == 1 else jnp.concatenate(ordered, axis=1)
    return by_group
