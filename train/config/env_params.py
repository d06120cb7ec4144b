"""The parameters of a run's environment, checked, and written out whole."""

import dataclasses
from typing import Any

import jax
import numpy as np

from wdjax.checks import require
from wdjax.env import Env, is_number_tuple, static_names
from wdjax.envs import make
from wdjax.train.config.schema import TrainConfig

TABLE = 64  # numbers: more are not for people to read


def make_env(config: TrainConfig) -> tuple[Env, Any]:
    """Returns (env, params) of a run.

    Raises:
        ValueError, TypeError: as `wdjax.make`, naming the fields; for a parameter that replicas would not share.
    """
    try:
        env, params = make(config.env, **config.env_params)
    except (ValueError, TypeError) as error:
        raise type(error)(f"env {config.env!r}, env_params: {error}") from None
    for name, value in config.env_params.items():
        if dataclasses.is_dataclass(
            value
        ):  # config.yaml could not hold it, and a resumed run would not have it
            raise TypeError(
                f"env_params.{name}: must be a number, text or a list, not a {type(value).__name__}"
            )
    defaults = env.default_params
    for field in dataclasses.fields(params):
        value, several = getattr(params, field.name), is_number_tuple(field.default)
        is_number = several or isinstance(field.default, (bool, int, float))
        shared = not is_number or np.shape(value) == np.shape(field.default)
        words = f"{len(field.default)} numbers" if several else "one number"
        require(shared, f"env_params.{field.name}", value, f"{words}, shared by all replicas")
        own = getattr(defaults, field.name)
        one = not isinstance(own, np.ndarray) or np.ndim(value) == own.ndim
        require(one, f"env_params.{field.name}", value, "one array, shared by all replicas")
    return env, params


def complete_env_params(config: TrainConfig) -> TrainConfig:
    """Set every parameter of the environment in `env_params`, defaults included.

    Parameters without a value are omitted, and so are default tables of more than TABLE numbers. Numbers are converted
    to the type of the default: float, int or tuple.

    Args:
        config: the configuration.

    Returns:
        The configuration with all parameters.

    Raises:
        ValueError, TypeError: as `wdjax.make`.
    """
    env, params = make_env(config)
    values = {name: getattr(env, name) for name in static_names(env)}
    own = env.default_params
    for name in (field.name for field in dataclasses.fields(params)):
        value = getattr(params, name)
        if np.size(value) <= TABLE or not np.array_equal(value, getattr(own, name)):
            values[name] = value
    written = (
        values | config.env_params
    )  # another library's environment may take more than its fields
    defaults = {
        field.name: field.default
        for field in (*dataclasses.fields(env), *dataclasses.fields(params))
    }
    # a pytree, as of tables that a file holds, follows from the fields of `env`
    stated = {
        name: value
        for name, value in written.items()
        if not (value is None or dataclasses.is_dataclass(value))
    }
    complete = {name: _plain_as(defaults.get(name), value) for name, value in stated.items()}
    return dataclasses.replace(config, env_params=complete)


def _plain_as(default: Any, value: Any) -> Any:
    if is_number_tuple(default) and len(default) == len(
        value
    ):  # a static tuple may have any length
        return tuple(type(number)(item) for number, item in zip(default, value, strict=True))
    if isinstance(value, tuple):
        return tuple(_plain_as(None, item) for item in value)
    if isinstance(default, (int, float)):
        return type(default)(value)
    return (
        np.asarray(value).tolist()
        if isinstance(value, (np.generic, np.ndarray, jax.Array))
        else value
    )
