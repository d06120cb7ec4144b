"""Traced hyperparameters of policies: leaves of the state, with one value per population member.

They are the `traced` fields (config/facts.py) of a policy and of its algorithm's options, in one
dict by name: hypers["learning_rate"], hypers["clip"].
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.checks import require, require_known
from wdjax.train.config.facts import (
    Fraction,
    Schedule,
    is_scheduled,
    is_traced,
    leaves,
    points_of,
    require_value,
)
from wdjax.train.config.schema import PolicyConfig, TeamConfig, TrainConfig
from wdjax.train.state.aliases import OptionsClass

OLD_BLOCK = re.compile(r"\.(options|ddpg)\.")  # prefix of options in names until 0.2


class ScheduleArrays(struct.PyTreeNode):
    """A schedule as arrays: linear between its points, constant outside."""

    env_steps: jax.Array  # [points] float32, ascending
    values: jax.Array  # [points] float32

    def __call__(self, env_steps: jax.Array) -> jax.Array:
        """Return the value after `env_steps` of the run, ()."""
        # as jnp.interp, which searches for the points in a loop of small kernels
        steps, values = self.env_steps, self.values
        right = jnp.clip(jnp.sum(steps <= env_steps), 1, len(steps) - 1)
        start, width = steps[right - 1], steps[right] - steps[right - 1]
        done = (env_steps - start) / jnp.where(width > 0.0, width, 1.0)
        value = values[right - 1] + done * (values[right] - values[right - 1])
        value = jnp.where(env_steps < steps[0], values[0], value)
        return jnp.where(env_steps > steps[-1], values[-1], value)


@jax.tree_util.register_pytree_with_keys_class
class Hypers(dict[str, Any]):
    """Traced hyperparameters of a policy by name: () float32, or `ScheduleArrays`.

    `options` is the `Options` class of its algorithm. Allowed values are in the metadata of its
    fields and of the fields of PolicyConfig.
    """

    def __init__(
        self,
        values: Mapping[str, chex.ArrayTree] | Iterable[tuple[str, chex.ArrayTree]],
        options: OptionsClass,
    ) -> None:
        super().__init__(values)
        self.options = options

    def tree_flatten_with_keys(
        self,
    ) -> tuple[
        list[tuple[jax.tree_util.DictKey, chex.ArrayTree]], tuple[tuple[str, ...], OptionsClass]
    ]:
        names = tuple(sorted(self))
        return [(jax.tree_util.DictKey(name), self[name]) for name in names], (names, self.options)

    @classmethod
    def tree_unflatten(
        cls, static: tuple[tuple[str, ...], OptionsClass], values: Iterable[chex.ArrayTree]
    ) -> "Hypers":
        return cls(zip(static[0], values, strict=True), static[1])

    def at(self, env_steps: jax.Array) -> "Hypers":
        """Return the hyperparameters after `env_steps` of the run: schedules become numbers."""
        now = lambda value: value(env_steps) if isinstance(value, ScheduleArrays) else value  # noqa: E731
        return Hypers({name: now(value) for name, value in self.items()}, self.options)

    def without_exploration(self, keeps: jax.Array) -> "Hypers":
        """Return the hyperparameters of an opponent, which does not explore.

        Args:
            keeps: () bool, the policy itself acts: nothing changes.
        """
        quiet = {
            name: jnp.where(keeps, value, 0.0)
            for name, value in self.items()
            if self.field(name).metadata.get("explores")
        }
        return Hypers({**self, **quiet}, self.options)

    def field(self, name: str) -> dataclasses.Field:
        """Return the field of PolicyConfig or of the options that defines a hyperparameter."""
        return (PolicyConfig.__dataclass_fields__ | self.options.__dataclass_fields__)[name]


def run_hypers(config: TrainConfig) -> dict[str, Hypers]:
    """Return the traced hyperparameters of every policy, and of every team the traced options."""
    configs: dict[str, PolicyConfig | TeamConfig] = {**config.policies, **config.teams}
    return {name: hypers_of(own) for name, own in configs.items()}


def hypers_of(config: PolicyConfig | TeamConfig) -> Hypers:
    """Return the traced hyperparameters of a policy or team with options from `with_options`."""
    values = {
        name: schedule_arrays(value) if is_scheduled(field) else jnp.float32(value)
        for name, (*_, field), value in leaves(config)
        if is_traced(field)
    }
    if not getattr(config, "past_selves", 0):
        values.pop("past_selves_fraction", None)
    return Hypers(values, type(config.options))


def schedule_arrays(schedule: Schedule) -> ScheduleArrays:
    """Return a schedule, or a number, as arrays.

    Raises:
        TypeError: for fractions of a run; convert them with `in_env_steps`.
    """
    require(
        not isinstance(schedule, Fraction),
        "schedule",
        schedule,
        "in env steps, not in fractions of a run",
        TypeError,
    )
    return ScheduleArrays(
        *(jnp.array(column, jnp.float32) for column in zip(*points_of(schedule), strict=True))
    )


def logged_schedules(config: PolicyConfig) -> list[str]:
    """Return the names of hyperparameters in metrics: those that may be schedules."""
    return [
        name
        for name, (*_, field), _ in leaves(config)
        if is_scheduled(field) and field.metadata["logged"]
    ]


def changed_hypers(
    hypers: Mapping[str, Hypers], changes: Mapping[str, chex.ArrayTree]
) -> dict[str, Hypers]:
    """Return the hyperparameters of all policies with changes; see `with_hypers`."""
    changed = {policy: Hypers(own, own.options) for policy, own in hypers.items()}
    for name, value in changes.items():
        policy, _, field = OLD_BLOCK.sub(".", name, count=1).partition(".")
        known = [f"{policy}.{own}" for policy, values in hypers.items() for own in values]
        require_known("hyperparameter", f"{policy}.{field}", known)
        facts = hypers[policy].field(field)
        require_number(name, facts, value)
        changed[policy][field] = _like(name, facts, hypers[policy][field], value)
    return changed


def require_number(name: str, field: dataclasses.Field, value: object) -> None:
    """Raise if a new value of a hyperparameter is invalid; traced values are not checked.

    Raises:
        TypeError: if it is not numeric.
        ValueError: if it is out of range.
    """
    if isinstance(value, jax.core.Tracer):
        return
    numbers = np.asarray(value)
    require(
        numbers.dtype.kind in "iuf",
        name,
        value,
        "a number, or one per population member. Set schedules in the configuration",
        TypeError,
    )
    for number in numbers.ravel().tolist():
        require_value(name, field, number)


def _like(
    name: str,
    field: dataclasses.Field,
    old: jax.Array | ScheduleArrays,
    new: chex.ArrayTree,
) -> jax.Array | ScheduleArrays:
    value = jnp.asarray(new, jnp.float32)
    members = old.values.shape[:-1] if isinstance(old, ScheduleArrays) else old.shape
    allowed = (
        f"() or {members}, one number per member" if members else "(), as the state is a single run"
    )
    if is_scheduled(field) and not members:
        allowed += ". Set schedules in the configuration"
    require(value.shape in ((), members), f"shape of {name}", value.shape, allowed)
    if not isinstance(old, ScheduleArrays):
        return jnp.broadcast_to(value, old.shape)
    return old.replace(values=jnp.broadcast_to(value[..., None], old.values.shape))
