"""Base class, state and space conversion of environments from other libraries."""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require
from wdjax.env import Env
from wdjax.kernels.backend import on_gpu
from wdjax.kernels.launches import with_few_launches
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space, broadcasts_to
from wdjax.stepping import RESERVED_INFO

# Info entries that are not statistics: their sum over an episode has no meaning.
NOT_SUMS = ("discount", "p", *RESERVED_INFO)


@struct.dataclass
class State:
    """State of a wrapped environment. With groups, `terminated` is a dict by group."""

    inner: Any  # the library's state; constant once every agent has terminated
    terminated: Any  # () bool, or [num_agents] bool for each group
    time: jax.Array  # () int32, steps since the reset


@dataclasses.dataclass(frozen=True)
class ForeignEnv(Env):
    """Base class of environments wrapped from another library."""

    inner: Any = dataclasses.field(metadata={"argument": False})  # the library's environment

    library: ClassVar[str]

    def scene(self, states: Any, params: Any) -> Any:
        name = type(self.inner).__name__
        raise NotImplementedError(
            f"{name} is an environment of {self.library}, which wdjax cannot draw. Training and "
            "evaluation work without pictures. To draw it, write a subclass of type(env) with a "
            f"method scene(states, params); states.inner contains the states of {self.library}."
        )


def few_launches(method: Callable) -> Callable:
    """Return a method of a wrapped environment, rewritten by `with_few_launches` on GPUs."""

    @functools.wraps(method)
    def rewritten(self: ForeignEnv, *args: Any, **named: Any) -> Any:
        bound = functools.partial(method, self)
        return (with_few_launches(bound) if on_gpu() else bound)(*args, **named)

    return rewritten


def first_state(inner: Any, terminated: Any) -> State:
    """Return the initial state, with every leaf of `inner` an array.

    Arrays have a fixed dtype. A Python number would get another dtype in the first step.
    """
    inner = jax.tree.map(lambda leaf: _as_dtype(leaf, jnp.asarray(leaf).dtype), inner)
    return State(inner, terminated, jnp.int32(0))


def next_state(
    state: Any, inner: Any, reward: Any, ended: Any, info: Mapping[str, Any]
) -> tuple[Any, Any, Any, dict[str, jax.Array]]:
    """Return a step's (state, reward, terminated, info) by the rules of wdjax.

    Terminated agents stay terminated and receive a reward of 0. Once all agents have terminated,
    the library's state no longer changes.

    Args:
        state: the `State` before the step, or one of a subclass.
        inner: the library's state after the step.
        reward: the reward of the step.
        ended: bool, agents whose episode ended in this step.
        info: the library's info. Numeric scalars are kept, except those listed in `NOT_SUMS`.
    """
    before = state.terminated
    over = jnp.stack([flags.all() for flags in jax.tree.leaves(before)]).all()

    def keep(old, new) -> jax.Array:
        return jnp.where(over, old, _as_dtype(new, old.dtype))

    inner = jax.tree.map(keep, state.inner, inner)
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
    changes = {"inner": inner, "terminated": terminated, "time": state.time + 1}
    return dataclasses.replace(state, **changes), reward, terminated, info


def import_library(name: str) -> ModuleType:
    """Import a library, or raise ImportError with the pip command for the missing package."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).split(".")[0]
        needs = name if missing == name else f"{name} needs {missing}, which"
        raise ImportError(f"{needs} is not installed: pip install {missing}") from error


def require_environment(
    env: Any,
    library: str,
    names: Iterable[str],
    spaces: Iterable[str] = ("observation_space", "action_space"),
) -> None:
    """Raise TypeError unless `env` has the attributes `names` and `spaces`, and can be hashed.

    It must be hashable because it is a static argument of compiled functions.
    """
    for name in (*names, *spaces):
        require(
            not isinstance(env, type) and hasattr(env, name),
            "env",
            env,
            f"a {library} environment, an object with attribute {name}",
            TypeError,
        )
    try:
        hash(env)
    except TypeError:
        raise TypeError(
            f"env = {env!r}: must be hashable. Use a plain class or @dataclass(frozen=True)."
        ) from None


def translate_space(space: Any, what: str, example: Any = None) -> Space:
    """Convert a gymnax or JaxMARL space to a wdjax space.

    Args:
        space: the space; recognized by its attributes, because each library has its own classes.
        what: the name of the space in error messages.
        example: an observation (arrays or ShapeDtypeStructs), or None. The shape of a Box is taken
            from it, and the dtype if a cast to the declared dtype would lose information.

    Raises:
        TypeError: if wdjax has no such space, or if the example has another structure.
    """
    if isinstance(getattr(space, "spaces", None), Mapping):
        names = list(space.spaces)
        if example is not None and (not isinstance(example, Mapping) or set(example) != set(names)):
            raise TypeError(
                f"{what} is a dict of {', '.join(names)}: the environment must return a dict with "
                "exactly these keys. Return one, or change the space."
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
            f"{what} is a {type(space).__name__}: must be Box, Discrete, MultiDiscrete or Dict. "
            "Write a wrapper that returns one of these."
        )
    if example is not None and not hasattr(example, "dtype"):
        raise TypeError(
            f"{what} is an array, but the environment returns a {type(example).__name__}. "
            "Return an array, or change the space."
        )
    if hasattr(space, "num_categories"):
        return MultiDiscrete(tuple(np.asarray(space.num_categories).tolist()))
    return Discrete(int(space.n)) if hasattr(space, "n") else translate_box(space, example)


def translate_box(space: Any, example: Any = None) -> Box:
    """Convert a space with `low`, `high`, `shape` and `dtype`; see `translate_space`."""
    shape = tuple(np.atleast_1d(space.shape).tolist()) if example is None else tuple(example.shape)
    dtype = jax.dtypes.canonicalize_dtype(space.dtype)  # int64 becomes int32 without jax_enable_x64
    if example is not None and not np.can_cast(example.dtype, dtype, "same_kind"):
        dtype = example.dtype
    return Box(
        _fit_bound(space.low, shape, jnp.min),
        _fit_bound(space.high, shape, jnp.max),
        shape,
        jnp.dtype(jnp.float32) if dtype.kind == "b" else dtype,
    )


def _fit_bound(bound: Any, shape: tuple[int, ...], widest: Any) -> Any:
    """Return the bound if it broadcasts to `shape`, else its loosest number."""
    return bound if broadcasts_to(np.shape(bound), shape) else widest(jnp.asarray(bound))


def cast_obs(space: Space, obs: Any) -> Any:
    """Cast an observation, [..., *space.shape], to the dtypes of its space."""
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
    """Return the argument names of the constructors of an environment and its base classes."""
    names = [
        parameter.name
        for kind in type(env).__mro__[:-1]  # without object
        if "__init__" in vars(kind)
        for parameter in inspect.signature(vars(kind)["__init__"]).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    return [name for name in dict.fromkeys(names) if name != "self"]
