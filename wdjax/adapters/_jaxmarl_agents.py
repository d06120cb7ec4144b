"""Agents of JaxMARL and SocialJax: their groups, and values of all agents in any form."""

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.adapters._foreign import translate_space
from wdjax.spaces import Box, Dict, MultiDiscrete, Space

MASK = "action_mask"

Agent: TypeAlias = str | int
"""name or number of an agent in the library"""

# Class -> parts of its observations with the agents on the last axis (JaxMARL's storm).
AGENTS_LAST = {"InTheGrid": ("inventory",)}


@dataclasses.dataclass(frozen=True)
class Group:
    """The agents of one group and the spaces of each agent."""

    agents: tuple[Agent, ...]  # names or numbers in JaxMARL
    observation_space: Space
    action_space: Any  # Discrete or MultiDiscrete if masked
    masked: bool  # whether observations contain an action mask


def group_agents(env: Any) -> dict[str, Group]:
    """Return the groups of a JaxMARL environment by name, or raise TypeError if unsupported."""
    env_name, agents = type(env).__name__, agents_of(env)
    obs, masks = shapes_by_agent(env, agents)
    parts: dict[tuple, list[Agent]] = {}
    for agent in agents:
        action = space_of(env.action_space, agent, f"{env_name}, action space of {agent}")
        what = f"{env_name}, observation space of {agent}"
        seen = space_of(env.observation_space, agent, what, obs[agent])
        masked = fits(masks.get(agent), action)
        if masked:
            seen = Dict({"obs": seen, MASK: MultiDiscrete((2,) * masks[agent].shape[0])})
        parts.setdefault((stem(str(agent)), seen, action, masked), []).append(agent)
    stems = [key[0] for key in parts]
    return {
        name if stems.count(name) == 1 else str(names[0]): Group(tuple(names), *rest)
        for (name, *rest), names in parts.items()
    }


def shapes_by_agent(env: Any, agents: list[Agent]) -> tuple[dict[Agent, Any], dict[Agent, Any]]:
    """Return the shapes and dtypes of (observations, masks) by agent; masks may be missing."""

    def first(key: jax.Array) -> tuple[Any, Any]:
        obs, state = env.reset(key)
        masks = available_actions(env, state)
        try:
            own = {a: stack_agents(agents_first(env, obs), [a], agents) for a in agents}
        except TypeError as error:
            raise TypeError(
                f"{type(env).__name__}.reset must return observations of the agents {agents}: "
                f"{error}"
            ) from None
        if masks is None:
            return own, {}
        return own, {
            a: stack_agents(masks, [a], agents)
            for a in agents
            if not isinstance(masks, Mapping) or key_of(masks, a) in masks
        }

    with jax.numpy_rank_promotion("allow"):
        shapes = jax.eval_shape(first, jax.random.key(0))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shapes)


def stem(agent: str) -> str:
    """Strip the number from an agent's name: "adversary" for "adversary_2", "agent" for "2"."""
    return re.sub(r"_?\d+$", "", agent) or "agent"


def fits(mask: Any, action_space: Space) -> bool:
    """Return whether a mask has one entry for each choice of an action."""
    sizes = getattr(action_space, "nvec", ())
    return bool(sizes) and getattr(mask, "shape", None) == (sum(sizes),)


def available_actions(env: Any, state: Any) -> Mapping[str, jax.Array] | None:
    """Return the masks of available actions by agent, or None if the environment has none."""
    for name in ("get_avail_actions", "get_legal_moves"):
        with contextlib.suppress(NotImplementedError):  # raised by the base class of JaxMARL
            if hasattr(env, name):
                return getattr(env, name)(state)
    return None


def agents_of(env: Any) -> list[Agent]:
    """Return the agents of an environment; numbers are Python integers."""
    return [agent if isinstance(agent, str) else int(agent) for agent in env.agents]


def stack_agents(
    values: Any, members: Sequence[Agent], agents: Sequence[Agent], dtype: Any = None
) -> Any:
    """Return the values of some agents, leaves [len(members), ...].

    Args:
        values: by agent (the key of agent 0 is 0 or "0"); or a tuple or list in the order of
            `agents`; or arrays with the agents on the leading axis.
        members: the agents to return.
        agents: all agents of the environment.
        dtype: dtype of the result, or None.

    Raises:
        TypeError: if `values` do not contain every agent.
    """
    if isinstance(values, Mapping) and all(key_of(values, agent) in values for agent in members):
        parts = [values[key_of(values, agent)] for agent in members]
    elif isinstance(values, (tuple, list)) and len(values) == len(agents):
        parts = [values[agents.index(agent)] for agent in members]
    else:
        return jax.tree.map(lambda leaf: _rows(leaf, members, agents, dtype), values)
    return jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves]), *parts
    )


def key_of(values: Mapping[Any, Any], agent: Agent) -> Agent:
    """Return the key of an agent: SocialJax has the agents 0, 1, ... and the keys "0", "1", ..."""
    return agent if agent in values else str(agent)


def _rows(leaf: Any, members: Sequence[Agent], agents: Sequence[Agent], dtype: Any) -> jax.Array:
    leaf = jnp.asarray(leaf, dtype)
    if leaf.shape[:1] != (len(agents),):
        raise TypeError(
            f"an array of shape {leaf.shape}: must have an entry for each agent on its leading "
            f"axis ({len(agents)} agents). Return arrays like this, or a dict by agent."
        )
    if list(members) == list(agents):
        return leaf
    return leaf[np.array([agents.index(agent) for agent in members])]


def agents_first(env: Any, obs: Any) -> Any:
    """Return observations with the agents on the leading axis of each array."""
    last = AGENTS_LAST.get(type(env).__name__, ())
    if not (last and isinstance(obs, Mapping)):
        return obs
    return {name: leaf.T if name in last else leaf for name, leaf in obs.items()}


def split_dones(dones: Any, agents: Sequence[Agent]) -> tuple[Any, Any]:
    """Return (flags by agent for `stack_agents`, () bool: the episode is over).

    Without flags by agent, the agents are done when the episode is over.
    """
    if not isinstance(dones, Mapping):
        flags = jnp.asarray(dones, bool)
        return flags, flags.all()
    over = dones["__all__"]
    by_agent = any(key_of(dones, agent) in dones for agent in agents)
    return dones if by_agent else dict.fromkeys(agents, over), over


def space_of(method: Any, agent: Agent, what: str, example: Any = None) -> Space:
    """Return the space of an agent from a method `observation_space` or `action_space`.

    SocialJax's `observation_space` has no argument and returns (space, shape). A plain dict of
    spaces (storm) becomes an unbounded Box for each returned array.

    Args:
        method: the method.
        agent: the agent.
        what: the name of the space in error messages.
        example: an observation, see `translate_space`; None for actions.
    """
    space = method(agent) if inspect.signature(method).parameters else method()
    space = space[0] if isinstance(space, tuple) else space
    if isinstance(space, Mapping) and isinstance(example, Mapping):
        return Dict(
            {
                name: Box(-np.inf, np.inf, tuple(part.shape), part.dtype)
                for name, part in example.items()
            }
        )
    return translate_space(space, what, example)
