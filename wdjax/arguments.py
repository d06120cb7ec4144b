"""Arguments of `wdjax.make`: static fields of an environment, and its params."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from wdjax.checks import one_line, require, require_known
from wdjax.env import Env


def static_names(env: Env | type[Env]) -> list[str]:
    """Return the static fields that `make` accepts: all without metadata {"argument": False}."""
    return [
        field.name
        for field in dataclasses.fields(env)
        if field.init and field.metadata.get("argument", True)
    ]


def with_static(source: Env | type[Env], static: Mapping[str, Any]) -> Env:
    """Return an environment of this class, or a copy of this one, with the given static fields.

    A list (from YAML) becomes a tuple if the field's default is a tuple.
    """
    tuples = {name for name in static if isinstance(getattr(source, name, None), tuple)}
    static = {name: _as_tuple(value) if name in tuples else value for name, value in static.items()}
    return source(**static) if isinstance(source, type) else dataclasses.replace(source, **static)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, (tuple, list)) else value


def split_arguments(
    source: Env | type[Env], arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the arguments of `make` into static fields and params.

    Raises:
        ValueError: for an unknown name; the message contains the closest known one.
    """
    names = static_names(source)
    static = {name: value for name, value in arguments.items() if name in names}
    env = with_static(source, static)
    param_names = [field.name for field in dataclasses.fields(env.default_params)]
    for name in arguments:
        require_known(f"parameter of {type(env).__name__}", name, names + param_names)
    return static, {name: value for name, value in arguments.items() if name not in static}


def cast_params(params: Any, defaults: Any) -> Any:
    """Return params with every number as a 32-bit NumPy scalar or array, after a type check.

    The default of a field determines the accepted values:

    * a number: a number of this kind. If it is an np.float64, the value keeps 64 bits, for an
      environment that computes in 64 bits under `jax_enable_x64`.
    * None: None, or an array of numbers.
    * a tuple of n numbers: an array [..., n], cast to float32.
    * a 32-bit array: an array or a list of numbers. A list must have its shape, unless the default
      is empty.
    * anything else (a pytree): any value, unchanged.

    Raises:
        TypeError: for a value that is not of the right kind. The message names the field.
        ValueError: for a wrong shape or a value out of range. The message names the field.
    """
    names = [field.name for field in dataclasses.fields(params)]
    return params.replace(
        **{name: _cast(name, getattr(params, name), getattr(defaults, name)) for name in names}
    )


def is_number_tuple(default: Any) -> bool:
    """Return whether the default of a params field is a tuple of numbers."""
    return isinstance(default, tuple) and all(
        isinstance(number, (int, float)) for number in default
    )


def _as_array(value: Any) -> Any:
    """Return a jax array unchanged, and other values in NumPy: None for rows of unequal lengths."""
    try:
        return value if isinstance(value, jax.Array) else np.asarray(value)
    except ValueError:
        return np.array(None)


def _cast(name: str, value: Any, default: Any) -> Any:
    is_table = isinstance(default, np.ndarray) and default.dtype in (np.int32, np.float32)
    if is_table and value is default:  # checked by the environment's check_params
        return value
    # a list from YAML
    if (
        isinstance(default, (np.ndarray, jax.Array))
        and isinstance(value, (list, tuple))
        and default.size
    ):
        allowed = f"numbers in the shape {default.shape}"
        require(_as_array(value).shape == default.shape, name, value, allowed)
        value = np.asarray(value, None if is_table else default.dtype)
    default = default.dtype.type(0).item() if is_table else default
    is_tuple = is_number_tuple(default)
    if not (is_tuple or isinstance(default, (bool, int, float, type(None)))) or (
        value is None and default is None
    ):
        return value
    is_scalar = not is_table and default is not None
    allowed = f"{len(default)} numbers" if is_tuple else "a number" if is_scalar else "numbers"
    whole = "a whole number" if is_scalar else "whole numbers"
    by_type = {
        bool: ("b", np.bool_, "true or false"),
        int: ("iu", np.int32, whole),
        np.float64: ("iuf", np.float64, allowed),
    }
    kinds, dtype, allowed = by_type.get(type(default), ("iuf", np.float32, allowed))
    array = _as_array(value)
    if getattr(array.dtype, "kind", "O") not in kinds:  # a typed key has no kind
        raise TypeError(f"{name} = {one_line(repr(value))}: must be {allowed}")
    if is_tuple:
        require(array.shape[-1:] == (len(default),), name, value, allowed)
    if dtype is not np.bool_:
        limits = np.iinfo(dtype) if dtype is np.int32 else np.finfo(dtype)
        fits = ((array >= limits.min) & (array <= limits.max)) | np.isinf(array)
        require(
            np.all(fits), name, value, f"{allowed} within the range of {dtype.__name__}, not NaN"
        )
    array = array.astype(dtype)
    return array if isinstance(array, jax.Array) or array.ndim else dtype(array)
