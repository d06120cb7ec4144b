"""What the ways in share: spaces and values of gymnax and JaxMARL, and arguments of their environments by name."""

import importlib
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require_known
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from wdjax.vector import RESERVED_INFO

# Names in a game's info that are no statistics: their sum over an episode means nothing.
NOT_SUMS = ("discount", "p", *RESERVED_INFO)


def import_library(name: str) -> ModuleType:
    """Returns a library; raises ImportError saying what to install where it, or something that it needs, is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).split(".")[0]
        needs = name if missing == name else f"{name} needs {missing}, which"
        raise ImportError(f"{needs} is not installed: pip install {missing}") from error


def require_environment(env: Any, library: str, names: Iterable[str]) -> None:
    """Raises TypeError for what has not all of these attributes, or cannot be hashed, as a static part must be."""
    for name in names:
        if isinstance(env, type) or not hasattr(env, name):
            raise TypeError(f"env = {env!r}: must be a {library} environment, an object with {name}")
    try:
        hash(env)
    except TypeError:
        raise TypeError(f"env = {env!r}: must be hashable (@dataclass(frozen=True), or no dataclass)") from None


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
            raise TypeError(f"{what}: its values are not dicts of {', '.join(names)}, as its space says")
        parts = dict.fromkeys(names) if example is None else example
        return Dict({name: translate_space(space.spaces[name], f"{what}[{name!r}]", parts[name]) for name in names})
    if not any(hasattr(space, name) for name in ("num_categories", "n", "low")):
        raise TypeError(
            f"{what}: a {type(space).__name__} space has no counterpart in wdjax: must be Box, Discrete, MultiDiscrete "
            "or Dict (write a wrapper that returns one of these)"
        )
    if example is not None and not hasattr(example, "dtype"):
        raise TypeError(f"{what}: its values are a {type(example).__name__}, not the array that its space says")
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


def as_arrays(state: Any) -> Any:
    """Returns a game's state with every leaf an array of a fixed dtype: a Python number would change it in a step."""
    return jax.tree.map(lambda leaf: _as_dtype(leaf, jnp.asarray(leaf).dtype), state)


def keep_where(flag: jax.Array, old: Any, new: Any) -> Any:
    """Returns `old` where `flag`, a scalar, is true, else `new` with old's dtypes."""
    return jax.tree.map(lambda a, b: jnp.where(flag, a, _as_dtype(b, a.dtype)), old, new)


def _as_dtype(leaf: Any, dtype: Any) -> jax.Array:
    leaf = jnp.asarray(leaf)
    return leaf if jnp.issubdtype(dtype, jax.dtypes.extended) else jax.lax.convert_element_type(leaf, dtype)


def keep_statistics(info: Mapping[str, Any], over: jax.Array) -> dict[str, jax.Array]:
    """Returns the scalars in a game's info whose sum over an episode may mean something, 0 once it is `over`."""
    scalars = {
        name: jnp.asarray(value)
        for name, value in info.items()
        if name not in NOT_SUMS and hasattr(value, "dtype") and np.shape(value) == () and value.dtype.kind in "biuf"
    }
    return {name: jnp.where(over, jnp.zeros_like(value), value) for name, value in scalars.items()}


def argument_names(env: Any) -> list[str]:
    """Returns the names that the constructor of an environment takes, those of its base classes included."""
    constructors = [cls.__init__ for cls in type(env).__mro__ if "__init__" in vars(cls) and cls is not object]
    parameters = [parameter for one in constructors for parameter in inspect.signature(one).parameters.values()]
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    names += [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return [name for name in dict.fromkeys(names) if name != "self"]


def require_arguments(what: str, arguments: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises ValueError, with the nearest right name, for an argument that is not known."""
    for name in arguments:
        require_known(f"argument of {what}", name, known)
