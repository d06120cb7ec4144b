"""Parameters of the environment of a run, validated and completed with defaults."""

import dataclasses
from typing import Any, cast

import jax
import numpy as np

from wdjax.arguments import is_number_tuple, static_names
from wdjax.checks import require, require_known
from wdjax.env import Env
from wdjax.envs import make
from wdjax.named import announced
from wdjax.train.config.facts import points_of, require_schedule
from wdjax.train.config.schema import TrainConfig

TABLE = 64  # maximum size of a default table to write to config.yaml


def make_env(config: TrainConfig) -> tuple[Env, Any]:
    """Make the environment of a run.

    Returns:
        (env, params).

    Raises:
        ValueError, TypeError: as `wdjax.make`, or if replicas would not share a parameter; the
            message contains the field.
    """
    try:
        env, params = make(config.env, **config.env_params)
    except (ValueError, TypeError) as error:
        raise type(error)(f"env {config.env!r}, env_params: {error}") from None
    for name, value in config.env_params.items():
        if dataclasses.is_dataclass(value):  # cannot be saved in config.yaml
            raise TypeError(
                f"env_params.{name}: must be a number, text or a list, not a {type(value).__name__}"
            )
    defaults = env.default_params
    for field in dataclasses.fields(params):
        value, default = getattr(params, field.name), cast(Any, field.default)
        several = is_number_tuple(default)
        is_number = several or isinstance(default, (bool, int, float))
        shared = not is_number or np.shape(value) == np.shape(default)
        words = f"{len(default)} numbers" if several else "one number"
        require(shared, f"env_params.{field.name}", value, f"{words}, shared by all replicas")
        own = getattr(defaults, field.name)
        one = not isinstance(own, np.ndarray) or np.ndim(value) == own.ndim
        require(one, f"env_params.{field.name}", value, "one array, shared by all replicas")
    return env, params


def require_env_schedules(config: TrainConfig, env: Env) -> None:
    """Raise ValueError for a schedule of an unknown parameter, or with an invalid value.

    Args:
        config: the configuration, with schedules in env steps.
        env: its environment.
    """
    defaults = env.default_params
    names = [field.name for field in dataclasses.fields(defaults)]
    floats = [name for name in names if isinstance(getattr(defaults, name), float)]
    for name, schedule in config.env_schedules.items():
        require_known("float parameter in env_schedules", name, floats)
        require_schedule(f"env_schedules.{name}", schedule, signed=True)
        for _, value in points_of(schedule):
            changed = {**config.env_params, name: float(value)}
            make_env(dataclasses.replace(config, env_params=changed))


def complete_env_params(config: TrainConfig, imports: bool = True) -> TrainConfig:
    """Set every parameter of the environment in `env_params`, defaults included.

    Parameters without a value are omitted, and so are default tables of more than TABLE numbers.
    Numbers are converted to the type of the default: float, int or tuple.

    Args:
        config: the configuration.
        imports: whether environments of other packages may be imported; false: their `env_params`
            stay the same.

    Returns:
        The configuration with all parameters.

    Raises:
        ValueError, TypeError: as `wdjax.make`.
    """
    if not imports and (
        ":" in config.env or config.env in {e.name for e in announced("wdjax.envs")}
    ):
        return config
    env, params = make_env(config)
    values = {name: getattr(env, name) for name in static_names(env)}
    own = env.default_params
    for name in (field.name for field in dataclasses.fields(params)):
        value = getattr(params, name)
        if np.size(value) <= TABLE or not np.array_equal(value, getattr(own, name)):
            values[name] = value
    values |= config.env_params  # environments of other libraries take arguments without a field
    fields = (*dataclasses.fields(env), *dataclasses.fields(params))
    defaults = {field.name: field.default for field in fields}
    complete = {
        name: _plain_as(defaults.get(name), value)
        for name, value in values.items()
        # a dataclass, such as tables from a file, is determined by the fields of `env`
        if not (value is None or dataclasses.is_dataclass(value))
    }
    return dataclasses.replace(config, env_params=complete)


def _plain_as(default: Any, value: Any) -> object:
    """Return a parameter with the type of its default, without arrays."""
    # a static tuple may have any length
    if is_number_tuple(default) and len(default) == len(value):
        return tuple(type(number)(item) for number, item in zip(default, value, strict=True))
    if isinstance(value, tuple):
        return tuple(_plain_as(None, item) for item in value)
    if isinstance(default, (int, float)):
        return type(default)(value)
    is_array = isinstance(value, (np.generic, np.ndarray, jax.Array))
    return np.asarray(value).tolist() if is_array else value
