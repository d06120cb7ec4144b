"""The traced hyperparameters of a policy: leaves of the state, of which a population has one for each member.

Which they are stands at the fields of the configuration (config/facts.py); their names and places are the same.
"""

import dataclasses
import functools
import operator
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require, require_known
from wdjax.train.config.facts import (
    Fraction,
    Schedule,
    default_of,
    is_required,
    is_scheduled,
    is_taken,
    is_traced,
    leaves,
    points_of,
    require_value,
)
from wdjax.train.config.schema import DDPGConfig, PolicyConfig


@struct.dataclass
class ScheduleArrays:
    """A schedule as arrays: linear between its points, flat outside."""

    env_steps: jax.Array  # [points] float32, ascending
    values: jax.Array  # [points] float32

    def __call__(self, env_steps: jax.Array) -> jax.Array:
        """Returns the value after so many env steps of the run, a scalar."""
        return jnp.interp(env_steps, self.env_steps, self.values)


class HyperBlock:
    """Traced hyperparameters by name: () float32 each, or ScheduleArrays; a block in them is another HyperBlock, or
    None where the algorithm has none of it."""

    config: ClassVar[type]  # at whose fields stands what they may be

    def at(self, env_steps: jax.Array) -> "HyperBlock":
        """Returns the hyperparameters with every schedule read off after so many env steps."""
        is_schedule = lambda leaf: isinstance(leaf, ScheduleArrays)  # noqa: E731
        return jax.tree.map(lambda leaf: leaf(env_steps) if is_schedule(leaf) else leaf, self, is_leaf=is_schedule)


@functools.cache
def hypers_class(config: type) -> type[HyperBlock]:
    """Returns the pytree dataclass that holds what is traced of a configuration's class, in the order of its fields."""
    names = [field.name for field in dataclasses.fields(config) if is_traced(field)]
    names += [field.name for field in dataclasses.fields(config) if _is_block(field)]
    members = {"__annotations__": dict.fromkeys(names, Any), "__doc__": f"The traced fields of {config.__name__}."}
    members["config"] = config
    name = f"{config.__name__.removesuffix('Config')}Hypers"
    return struct.dataclass(type(name, (HyperBlock,), {**members, "__module__": config.__module__}))


def _is_block(field: dataclasses.Field) -> bool:
    """Returns whether a field holds a configuration of its own in which something may be traced."""
    if field.name == "options":  # an algorithm says what they are
        return True
    own = None if is_required(field) else default_of(field)
    return dataclasses.is_dataclass(own) and any(map(is_traced, dataclasses.fields(own)))


Hypers = hypers_class(PolicyConfig)
DDPGHypers = hypers_class(DDPGConfig)


def hypers_of(config: Any, takes: Collection[str] = ()) -> Any:
    """Returns the traced hyperparameters of a configuration as float32 arrays.

    Args:
        config: of a policy, its options read (`with_options`), or a block of one.
        takes: what its algorithm takes; blocks that it does not are None.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_traced(field):
            values[field.name] = schedule_arrays(value) if is_scheduled(field) else jnp.float32(value)
        elif _is_block(field):
            some = dataclasses.is_dataclass(value) and any(map(is_traced, dataclasses.fields(value)))
            values[field.name] = hypers_of(value) if some and is_taken(field, takes) else None
    if isinstance(config, PolicyConfig) and not config.past_selves:
        values["past_selves_fraction"] = None
    return hypers_class(type(config))(**values)


def schedule_arrays(schedule: Schedule) -> ScheduleArrays:
    """Returns a schedule, or a number, as arrays. Raises TypeError for one in fractions of a run (`in_env_steps`)."""
    allowed = "in env steps, not in fractions of a run"
    require(not isinstance(schedule, Fraction), "schedule", schedule, allowed, TypeError)
    return ScheduleArrays(*(jnp.array(column, jnp.float32) for column in zip(*points_of(schedule), strict=True)))


def logged_schedules(config: Any, takes: Collection[str]) -> list[str]:
    """Returns the dotted names of the hyperparameters that a schedule may change and an algorithm takes: metrics report
    them."""
    taken = lambda fields: all(is_taken(field, takes) for field in fields)  # noqa: E731
    logged = lambda field: is_scheduled(field) and field.metadata["logged"]  # noqa: E731
    return [name for name, fields, _ in leaves(config) if taken(fields) and logged(fields[-1])]


def hyper_names(hypers: Any) -> list[str]:
    """Returns the names of the traced hyperparameters of a policy; those of a block are dotted, "ddpg.tau"."""
    names = []
    for field in dataclasses.fields(hypers):
        value = getattr(hypers, field.name)
        if isinstance(value, HyperBlock):
            names += [f"{field.name}.{inner}" for inner in hyper_names(value)]
        elif value is not None:
            names.append(field.name)
    return names


def changed_hypers(hypers: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns hyperparameters by policy with changes, see `with_hypers`."""
    hypers = dict(hypers)
    known = {f"{policy}.{name}" for policy, own in hypers.items() for name in hyper_names(own)}
    for name, value in changes.items():
        require_known("hyperparameter", name, known)
        policy, field = name.split(".", 1)
        *blocks, last = field.split(".")
        block = operator.attrgetter(".".join(blocks))(hypers[policy]) if blocks else hypers[policy]
        _require_allowed(name, block.config.__dataclass_fields__[last], value)
        new = _like(name, getattr(block, last), value)
        hypers[policy] = _replace_dotted(hypers[policy], field, new)
    return hypers


def _require_allowed(name: str, field: dataclasses.Field, value: Any) -> None:
    if isinstance(value, jax.core.Tracer):  # somebody's own jit: nobody knows the number yet
        return
    numbers = np.asarray(value)
    require(numbers.dtype.kind in "iuf", name, value, "a number, or one per population member", TypeError)
    for number in numbers.ravel().tolist():
        require_value(name, field, number)


def _replace_dotted(hypers: Any, name: str, value: Any) -> Any:
    field, _, inner = name.partition(".")
    return hypers.replace(**{field: _replace_dotted(getattr(hypers, field), inner, value) if inner else value})


def _like(name: str, old: Any, value: Any) -> Any:
    value = jnp.asarray(value, jnp.float32)
    members = old.values.shape[:-1] if isinstance(old, ScheduleArrays) else old.shape
    allowed = f"() or {members}, one number per member" if members else "(), as the state is a single run"
    require(value.shape in ((), members), f"shape of {name}", value.shape, allowed)
    if not isinstance(old, ScheduleArrays):
        return jnp.broadcast_to(value, old.shape)
    return old.replace(values=jnp.broadcast_to(value[..., None], old.values.shape))
