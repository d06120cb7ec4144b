"""What the ways in share: games of gymnax and JaxMARL, their spaces and values, and their arguments by name."""

import dataclasses
import importlib
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.env import Env
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from wdjax.vector import RESERVED_INFO

# Names in a game's info that are no statistics: their sum over an episode means nothing.
NOT_SUMS = ("discount", "p", *RESERVED_INFO)


@struct.dataclass
class State:
    """A game of the library, and what ends ask for; of an environment with groups all but the time is by group."""

    inner: Any  # the library's own state; stays what it is once every agent has terminated
    obs: Any  # the last observation, likewise
    terminated: Any  # () bool, or [agents] of each group
    time: jax.Array  # () int32, steps since the reset


@dataclasses.dataclass(frozen=True)
class ForeignEnv(Env):
    """An environment of another library as wdjax knows one."""

    inner: Any = dataclasses.field(metadata={"argument": False})  # the library's environment

    library: ClassVar[str]

    def scene(self, states: Any, params: Any) -> Any:
        game = type(self.inner).__name__
        raise NotImplementedError(
            f"{game} is a game of {self.library}, which wdjax does not draw. To draw it, write a subclass of type(env) "
            "with a method scene(states, params), where states.inner are the game's own; eval and training need none"
        )


def first_state(inner: Any, obs: Any, terminated: Any) -> State:
    """Returns the state at a start, every leaf an array of a fixed dtype: a Python number would change it in a step."""
    inner = jax.tree.map(lambda leaf: _as_dtype(leaf, jnp.asarray(leaf).dtype), inner)
    return State(inner, obs, terminated, jnp.int32(0))


def next_state(
    state: State, inner: Any, obs: Any, reward: Any, ended: Any, info: Mapping[str, Any]
) -> tuple[Any, State, Any, Any, dict[str, jax.Array]]:
    """Returns (obs, state, reward, terminated, info) of a step, which gave these; `ended` is whose game has ended.

    Who had terminated stays so, with a reward of 0; once all have, nothing moves. `info` keeps the scalars whose sum
    over an episode may mean something.
    """
    before = state.terminated
    over = jnp.stack([flags.all() for flags in jax.tree.leaves(before)]).all()

    def keep(old, new) -> jax.Array:
        return jnp.where(over, old, _as_dtype(new, old.dtype))

    obs, inner = jax.tree.map(keep, (state.obs, state.inner), (obs, inner))
    terminated = jax.tree.map(jnp.logical_or, before, ended)
    reward = jax.tree.map(lambda was, values: jnp.where(was, 0.0, values), before, reward)
    scalars = {
        name: jnp.asarray(value)
        for name, value in info.items()
        if name not in NOT_SUMS
        and hasattr(value, "dtype")
        and np.shape(value) == ()
        and value.dtype.kind in "biuf"
    }
    info = {name: jnp.where(over, jnp.zeros_like(value), value) for name, value in scalars.items()}
    return obs, State(inner, obs, terminated, state.time + 1), reward, terminated, info


def import_library(name: str) -> ModuleType:
    """Returns a library; raises ImportError saying what to install where it, or something that it needs, is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).split(".")[0]
        needs = name if missing == name else f"{name} needs {missing}, which"
        raise ImportError(f"{needs} is not installed: pip install {missing}") from error


def require_environment(env: Any, library: str, names: Iterable[str]) -> None:
    """Raises TypeError for what lacks these attributes or spaces, or cannot be hashed, as a static part must be."""
    for name in (*names, "observation_space", "action_space"):
        if isinstance(env, type) or not hasattr(env, name):
            raise TypeError(
                f"env = {env!r}: must be a {library} environment, an object with {name}"
            )
    try:
        hash(env)
    except TypeError:
        raise TypeError(
            f"env = {env!r}: must be hashable (@dataclass(frozen=True), or no dataclass)"
        ) from None


def translate_space(space: Any, what: str, example: Any = None) -> Space:
    """Returns a space of gymnax or JaxMARL as one of wdjax.

    Args:
        space: known by its attributes, not by its class: both libraries have their own.
        what: stands in messages.
        example: a value of it (arrays or their shapes), where there is one. What a game returns counts more than what
            it says: the shape of a Box becomes that of the example, its dtype too where the cast would lose something.

    Raises:
        TypeError: for a space without a counterpart, or an example of another structure.
    """
    if isinstance(getattr(space, "spaces", None), Mapping):
        names = list(space.spaces)
        if example is not None and (not isinstance(example, Mapping) or set(example) != set(names)):
            raise TypeError(
                f"{what}: its values are not dicts of {', '.join(names)}, as its space says"
            )
        parts = dict.fromkeys(names) if example is None else example
        return Dict(
            {
                name: translate_space(space.spaces[name], f"{what}[{name!r}]", parts[name])
                for name in names
            }
        )
    if not any(hasattr(space, name) for name in ("num_categories", "n", "low")):
        raise TypeError(
            f"{what}: a {type(space).__name__} space has no counterpart in wdjax: must be Box, Discrete, MultiDiscrete "
            "or Dict (write a wrapper that returns one of these)"
        )
    if example is not None and not hasattr(example, "dtype"):
        raise TypeError(
            f"{what}: its values are a {type(example).__name__}, not the array that its space says"
        )
    if hasattr(space, "num_categories"):
        return MultiDiscrete(tuple(np.asarray(space.num_categories).tolist()))
    return Discrete(int(space.n)) if hasattr(space, "n") else _translate_box(space, example)


def _translate_box(space: Any, example: Any) -> Box:
    shape = tuple(np.atleast_1d(space.shape).tolist()) if example is None else tuple(example.shape)
    dtype = jax.dtypes.canonicalize_dtype(space.dtype)  # int64 of a library is int32 here
    if example is not None and not np.can_cast(example.dtype, dtype, "same_kind"):
        dtype = example.dtype
    bounds = (_fit_bound(space.low, shape, jnp.min), _fit_bound(space.high, shape, jnp.max))
    return Box(*bounds, shape, jnp.dtype(jnp.float32) if dtype.kind == "b" else dtype)


def _fit_bound(bound: Any, shape: tuple[int, ...], widest: Any) -> Any:
    """Returns a bound that broadcasts to `shape`: its widest number where it has another shape."""
    try:
        fits = np.broadcast_shapes(np.shape(bound), shape) == shape
    except ValueError:
        fits = False
    return bound if fits else widest(jnp.asarray(bound))


def cast_obs(space: Space, obs: Any) -> Any:
    """Returns an observation with the dtypes of its space, [..., *space]."""
    if isinstance(space, Dict):
        return {name: cast_obs(part, obs[name]) for name, part in space.spaces.items()}
    return jax.lax.convert_element_type(obs, space.dtype)


def _as_dtype(leaf: Any, dtype: Any) -> jax.Array:
    leaf = jnp.asarray(leaf)
    return (
        leaf
        if jnp.issubdtype(dtype, jax.dtypes.extended)
        else jax.lax.convert_element_type(leaf, dtype)
    )


def argument_names(env: Any) -> list[str]:
    """Returns the names that the constructor of an environment takes, those of its base classes included."""
    constructors = [
        cls.__init__ for cls in type(env).__mro__ if "__init__" in vars(cls) and cls is not object
    ]
    parameters = [
        parameter
        for one in constructors
        for parameter in inspect.signature(one).parameters.values()
    ]
    named = [
        one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    return [name for name in dict.fromkeys(named) if name != "self"]
