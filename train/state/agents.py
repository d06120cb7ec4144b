"""Which agent plays which policy: selectors, and the way from arrays by group to arrays by policy and back.

Arrays by group are `{group: [N, n_group, ...]}`, by policy `{policy: [N, n_policy, ...]}`, N replicas each.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require, require_known
from wdjax.env import SINGLE_AGENT, Env, layout_of
from wdjax.spaces import Dict, Discrete, Space
from wdjax.train.config.schema import PolicyConfig
from wdjax.train.networks.actor_critic import split_mask, without_mask
from wdjax.train.networks.encoders import AGENT_TYPE, MASK, with_layout

# group, group[index], group[start:stop], group[*]
_SELECTOR = re.compile(r"(?s:(.+?))(?:\[(?:(\d+)|(\d*):(\d*)|\*)\])?")


@dataclasses.dataclass(frozen=True)
class Segment:
    """The agents start .. stop - 1 of a group."""

    group: str
    start: int
    stop: int

    @property
    def agents(self) -> list[tuple[str, int]]:
        """(group, number in it) of each agent."""
        return [(self.group, i) for i in range(self.start, self.stop)]


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The agents of one policy, in the order of its selectors, and the spaces of each."""

    segments: tuple[Segment, ...]  # runs of agents of one group, in order
    observation_space: Space  # of one agent, with its type if the configuration shows it
    action_space: Space  # of one agent
    types: tuple[
        Segment, ...
    ] = ()  # the agents of each type, in order, where an observation tells an agent's
    # the game's word on who is whom in its observation (Env.split_observation), None where it has none
    layout: Callable | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def agents(self) -> list[tuple[str, int]]:
        """(group, number in it) of each agent."""
        return [agent for part in self.segments for agent in part.agents]

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def agent_types(self) -> np.ndarray:
        """(num_agents,) int32, constant: the place in `types` of each agent's segment."""
        place = {agent: k for k, part in enumerate(self.types) for agent in part.agents}
        return np.array([place[agent] for agent in self.agents], np.int32)

    @property
    def bare_space(self) -> Space:
        """The observation space without the agent's type: the environment's own."""
        if not self.types:
            return self.observation_space
        inner, mask = self.observation_space["obs"], self.observation_space.spaces.get(MASK)
        return inner if mask is None else Dict({**inner.spaces, MASK: mask})


def group_sizes(env: Env) -> dict[str, int]:
    """Returns group -> number of agents; a single-agent environment has the one group "agent"."""
    return dict(env.groups) or {SINGLE_AGENT: 1}


def assign_agents(
    env: Env, params: Any, policies: Mapping[str, PolicyConfig]
) -> dict[str, Assignment]:
    """Gives every agent to exactly one policy.

    Raises:
        ValueError: naming the policy and the selector that is unknown, empty, out of range, or takes an agent twice;
            agents without a policy; a policy whose agents have different spaces, or that shows the type where there is
            only one.
    """
    sizes = group_sizes(env)
    segments = {
        name: parse_selectors(name, config.agents or (name,), sizes)
        for name, config in policies.items()
    }
    _require_partition(segments, sizes)
    observation, action = env.observation_space(params), env.action_space(params)
    if not env.groups:
        observation, action = Dict({SINGLE_AGENT: observation}), Dict({SINGLE_AGENT: action})
    assignments = {}
    for name, parts in segments.items():
        spaces = [(observation[part.group].single, action[part.group].single) for part in parts]
        for part, pair in zip(parts, spaces, strict=True):
            if pair != spaces[0]:
                raise ValueError(
                    f"policies.{name}.agents: groups {parts[0].group!r} and {part.group!r} have different spaces "
                    f"({spaces[0]} and {pair}). Give each group its own policy."
                )
        space, shows, selectors = (
            spaces[0][0],
            policies[name].agent_type_feature,
            policies[name].agents or (name,),
        )
        types = tuple(types_of(selectors, parts)) if shows else ()
        if types:  # an action mask stays at the top
            single = f"false if `agents` is the single selector {parts[0].group!r}, which has only one type"
            require(len(types) > 1, f"policies.{name}.agent_type_feature", True, single)
            mask = {MASK: space[MASK]} if isinstance(space, Dict) and MASK in space.spaces else {}
            space = Dict({"obs": without_mask(space), AGENT_TYPE: Discrete(len(types)), **mask})
        assignments[name] = Assignment(tuple(parts), space, spaces[0][1], types, layout_of(env))
    return assignments


def building_config(config: PolicyConfig, assignment: Assignment) -> PolicyConfig:
    """Returns the configuration that a policy's network is built from: with the game's layout where that is asked for,
    a function, which the policy's own configuration never holds."""
    return dataclasses.replace(config, network=with_layout(config.network, assignment.layout))


def parse_selectors(
    policy: str, selectors: tuple[str, ...], sizes: Mapping[str, int]
) -> list[Segment]:
    """Returns the segments that the selectors of a policy name; raises ValueError for a wrong one."""
    segments = []
    for selector in selectors:
        match = _SELECTOR.fullmatch(selector)
        words = (
            "a group, a slice such as 'runner[0:50]', an index, or 'runner[*]' for a type per agent"
        )
        known = selector in sizes or (
            match and (match[1] in sizes or re.fullmatch(r"\w+", match[1]))
        )
        require(known, f"policies.{policy}.agents", selector, words)
        group, index, first, last = (selector, *[None] * 3) if selector in sizes else match.groups()
        require_known(f"group in policies.{policy}.agents", group, sizes)
        start = int(index or first or 0)
        stop = start + 1 if index else int(last or sizes[group])
        inside = f"a nonempty range inside {group}[0:{sizes[group]}]"
        require(0 <= start < stop <= sizes[group], f"policies.{policy}.agents", selector, inside)
        segments.append(Segment(group, start, stop))
    return segments


def types_of(selectors: tuple[str, ...], segments: list[Segment]) -> list[Segment]:
    """Return the agents of each type: those of one selector, and every agent of "group[*]" by itself."""
    types = []
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
                already = f"{group}[{i}] already belongs to policy {owner[group, i]!r}"
                raise ValueError(f"policies.{name}.agents: {already}")
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


def to_groups(env: Env, values: Any) -> dict[str, Any]:
    """Returns values of a batch of replicas by group: bare arrays [N, ...] become {"agent": [N, 1, ...]}."""
    return (
        values if env.groups else {SINGLE_AGENT: jax.tree.map(lambda leaf: leaf[:, None], values)}
    )


def from_groups(env: Env, values: dict[str, Any]) -> Any:
    """Returns values by group in the environment's own form: {"agent": [N, 1, ...]} becomes bare arrays [N, ...]."""
    return values if env.groups else jax.tree.map(lambda leaf: leaf[:, 0], values[SINGLE_AGENT])


def gather(assignment: Assignment, values: Mapping[str, Any]) -> Any:
    """Returns the rows of a policy's agents, [N, n_policy, ...], from values by group; on the host, where they lie."""
    parts = [
        jax.tree.map(lambda leaf, part=part: leaf[:, part.start : part.stop], values[part.group])
        for part in assignment.segments
    ]

    def join(*leaves: Any) -> Any:
        return (np if isinstance(leaves[0], np.ndarray) else jnp).concatenate(leaves, axis=1)

    return parts[0] if len(parts) == 1 else jax.tree.map(join, *parts)


def gather_observation(assignment: Assignment, obs: Mapping[str, Any]) -> Any:
    """Returns what a policy's agents see, leaves [N, n_policy, ...], from observations by group.

    Where the policy has `agent_type_feature`, that is {"obs": observation, "agent_type": [N, n_policy] int32, number of
    the agent's selector}, and beside them the action mask of an observation that has one.
    """
    seen = gather(assignment, obs)
    if not assignment.types:
        return seen
    seen, mask = split_mask(seen)
    num_envs = jax.tree.leaves(seen)[0].shape[0]
    typed = {
        "obs": seen,
        AGENT_TYPE: jnp.broadcast_to(assignment.agent_types, (num_envs, assignment.num_agents)),
    }
    return typed if mask is None else {**typed, MASK: mask}


def scatter(
    assignments: Mapping[str, Assignment], values: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Returns values by group from values by policy: the inverse of `gather` over all policies."""
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
