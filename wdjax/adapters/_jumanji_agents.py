"""Agents of Jumanji: their number, their spaces, and observations and actions of each agent."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.adapters._foreign import cast_obs, translate_box
from wdjax.checks import require, require_known
from wdjax.spaces import Dict, Discrete, MultiDiscrete, Space

MASK = "action_mask"

# Fields of observations without an agent axis, whatever the size of their first axis.
SHARED = ("adj_matrix", "grid", "node_types")


@dataclasses.dataclass(frozen=True)
class Agents:
    """The agents of an environment and the spaces of each agent."""

    num: int | None  # None: a single-agent environment
    observation_space: Dict
    action_space: Any
    shared: frozenset[str]  # fields that are the same for all agents
    components: tuple[int, ...]  # sizes of the components behind a Discrete action, or ()

    def batch(self, space: Any) -> Any:
        """Return the space of all agents."""
        return space if self.num is None else space.batch(self.num)

    def per_agent(self, value: Any, dtype: Any) -> jax.Array:
        """Return a value of every agent, [num] or (), from one of this shape or one for all."""
        return jnp.broadcast_to(jnp.asarray(value, dtype), () if self.num is None else (self.num,))

    def observe(self, env: Any, observation: Any) -> dict[str, Any]:
        """Return the observations of all agents, leaves [num, ...], from one of Jumanji."""
        fields, space = as_dict(observation), self.observation_space
        obs = split_agents(env, {name: fields[name] for name in space.spaces}, self.num)
        if MASK in obs:  # flags of all components of an action, in one axis
            flags = obs[MASK].reshape(self.batch(space[MASK]).shape)
            obs[MASK] = with_choices(flags, self.action_space.nvec)
        return cast_obs(space, obs)

    def decode(self, action: jax.Array) -> jax.Array:
        """Return the action of Jumanji."""
        if not self.components:
            return action
        return jnp.stack(jnp.unravel_index(action, self.components), axis=-1)


def agents_of(env: Any, fields: Sequence[str] | None) -> Agents:
    """Return the agents of a Jumanji environment.

    Args:
        env: the environment.
        fields: observed fields, besides the action mask; None: all.

    Raises:
        ValueError: for an unknown field.
        TypeError: for an unsupported action or mask.
    """
    env_name, rewards = type(env).__name__, env.reward_spec.shape
    num = rewards[0] if rewards else getattr(env, "num_agents", None)
    num = None if num is None else int(num)
    with jax.numpy_rank_promotion("allow"):
        key = jax.random.key_data(jax.random.key(0))
        observation = jax.eval_shape(env.reset, key)[1].observation
    fields_of = as_dict(observation)
    mask = fields_of.pop(MASK, None)
    for name in fields or ():
        require_known(f"field of the observation of {env_name}", name, fields_of)
    seen = {name: part for name, part in fields_of.items() if name in (fields or fields_of)}
    rows = jax.eval_shape(lambda values: split_agents(env, values, num), seen)
    if num is not None:
        rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    action_space, components = translate_action(env, num, mask)
    spaces = {name: translate_spec(env.observation_spec, name, rows[name]) for name in rows}
    if mask is not None:
        flags, size = sum(getattr(action_space, "nvec", ())), math.prod(mask.shape) // (num or 1)
        allowed = f"a flag for each of {flags} choices of an agent"
        require(flags == size, f"shape of {MASK} of {env_name}", mask.shape, allowed, TypeError)
        spaces[MASK] = MultiDiscrete((2,) * flags)
    shared = [name for name in seen if num is not None and not is_split(name, seen[name], num)]
    return Agents(num, Dict(spaces), action_space, frozenset(shared), components)


def as_dict(value: Any) -> dict[str, Any]:
    """Return the fields of an observation by name. An array gets the name "obs"."""
    fields = _fields(value)
    return fields if isinstance(fields, dict) else {"obs": fields}


def _fields(value: Any) -> Any:
    """Convert named tuples and dataclasses to dicts, at every depth."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        value = {name: getattr(value, name) for name in names}
    if not isinstance(value, Mapping):
        return value
    return {name: _fields(part) for name, part in value.items()}


def translate_spec(spec: Any, name: str, example: Any) -> Space:
    """Convert a field of a spec to a space with the shapes and structure of the example."""
    spec = getattr(spec, name, spec)
    if isinstance(example, Mapping):
        return Dict({key: translate_spec(spec, key, part) for key, part in example.items()})
    low, high = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
    return translate_box(SimpleNamespace(low=low, high=high, dtype=spec.dtype), example)


def translate_action(env: Any, num: int | None, mask: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the space of an agent's action, and `Agents.components`."""
    spec, env_name = env.action_spec, type(env).__name__
    what = f"action_spec of {env_name}"
    sizes = getattr(spec, "num_values", None)
    require(
        sizes is not None or jnp.issubdtype(spec.dtype, jnp.floating),
        what,
        spec,
        "a DiscreteArray, a MultiDiscreteArray, or an array of floats",
        TypeError,
    )
    require(
        num is None or spec.shape[:1] == (num,),
        f"shape of the {what}",
        spec.shape,
        f"({num}, ...), with an entry for each agent",
        TypeError,
    )
    if sizes is None:
        box = SimpleNamespace(low=spec.minimum, high=spec.maximum, dtype=spec.dtype)
        shape = spec.shape[num is not None :]
        return translate_box(box, jax.ShapeDtypeStruct(shape, spec.dtype)), ()
    if num is not None:
        rows = {tuple(row) for row in np.reshape(sizes, (num, -1)).tolist()}
        allowed = "equal for all agents"
        require(len(rows) == 1, f"num_values of the {what}", sizes, allowed, TypeError)
        (nvec,) = rows
    else:
        nvec = tuple(np.ravel(sizes).tolist())
    if len(spec.shape) == (num is not None):
        return Discrete(nvec[0]), ()
    if mask is not None and mask.shape[num is not None :] == nvec:
        return Discrete(math.prod(nvec)), nvec  # a flag for every combination
    return MultiDiscrete(nvec), ()


def is_split(name: str, part: Any, num: int) -> bool:
    """Return whether a field has an entry for each of the `num` agents on its first axis."""
    leaves = jax.tree.leaves(part)
    return name not in SHARED and all(np.shape(leaf)[:1] == (num,) for leaf in leaves)


def split_agents(env: Any, fields: Mapping[str, Any], num: int | None) -> dict[str, Any]:
    """Return fields with a leading agent axis, or unchanged for a single agent."""
    if num is None:
        return dict(fields)
    views = {
        name: part
        if is_split(name, part, num)
        else jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num, *np.shape(leaf))), part)
        for name, part in fields.items()
    }
    if "grid" in views and any(cls.__name__ == "Connector" for cls in type(env).__mro__):
        views["grid"] = own_views(views["grid"])
    return views


def own_views(grid: jax.Array) -> jax.Array:
    """Renumber the grid of Connector from the view of each agent.

    In the grid, agent i has the path 3 i + 1, the position 3 i + 2 and the target 3 i + 3. In its
    own view, an agent has 1, 2 and 3, and the next one 4, 5 and 6.

    Args:
        grid: [n, H, W], n times the same grid.

    Returns:
        [n, H, W], the views of the agents.
    """
    num = grid.shape[0]
    turned = (grid - 1 - 3 * jnp.arange(num)[:, None, None]) % (3 * num) + 1
    return jnp.where(grid > 0, turned, grid)


def with_choices(flags: jax.Array, nvec: tuple[int, ...]) -> jax.Array:
    """Allow every choice of a component without any, as at the end of Snake.

    Args:
        flags: [..., sum(nvec)] bool, allowed choices.
        nvec: number of choices of each component.
    """
    parts = jnp.split(flags, np.cumsum(nvec)[:-1], axis=-1)
    return jnp.concatenate([part | ~part.any(axis=-1, keepdims=True) for part in parts], axis=-1)


def numbers(extras: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return the scalars in the extras of a time step as float32."""
    scalars = {name: value for name, value in extras.items() if jnp.shape(value) == ()}
    return {name: jnp.asarray(value, jnp.float32) for name, value in scalars.items()}
