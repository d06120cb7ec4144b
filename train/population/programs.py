"""The compiled programs of a population, spread over devices.

Members share nothing. Each member is on one device, and devices do not communicate.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from wdjax.checks import require, require_integer
from wdjax.kernels.backend import on_cpu
from wdjax.train.config.facts import static_part
from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.memory import bytes_free, bytes_needed
from wdjax.train.host.chunks import most_updates
from wdjax.train.host.programs import (
    Program,
    compiler_options,
    finish_chunk,
    lower_updates,
    plain_where_kernels_fail,
)
from wdjax.train.learner.init import init
from wdjax.train.learner.learner import run_up_to
from wdjax.train.learner.saved import load_policies
from wdjax.train.learner.validate import validate
from wdjax.train.state.aliases import EnvParams
from wdjax.train.state.hypers import Hypers, hypers_of
from wdjax.train.state.policy import Setup
from wdjax.train.state.sharding import make_mesh, require_devices
from wdjax.train.state.state import PolicyState, TrainState
from wdjax.train.storage.folder import plain_config

AXIS = "wdjax_members"
MEMBERS = PartitionSpec(AXIS)  # sharding over devices of arrays [members, ...]
T = TypeVar("T")


def choose_num_devices(devices: int) -> int:
    """Return the number of devices for a population: `devices`, or all (a CPU counts as one).

    Raises:
        ValueError, TypeError: for more devices than jax finds, or no whole number.
    """
    available = jax.local_device_count()  # each process has populations of its own
    require_integer("devices", devices, 0)
    require_devices(devices, available)
    return devices or (1 if on_cpu() else available)


def most_devices(num_members: int) -> int:
    """Return the largest number of devices that divides the members (a CPU counts as one)."""
    return max(n for n in range(1, choose_num_devices(0) + 1) if num_members % n == 0)


def even_size(num_members: int, most: int, num_devices: int = 1) -> int:
    """Return the size of batches of members: a multiple of the devices, the same for all batches.

    There are as few batches as `most` members at once allow. The last batch repeats a member.
    """
    most = max(most // num_devices, 1) * num_devices
    batches = -(-num_members // most)
    return -(-num_members // (batches * num_devices)) * num_devices


def on_devices(function: Callable, num_devices: int, in_specs: object = MEMBERS) -> Callable:
    """Return a function of arrays [members, ...] that each device calls with its own members.

    A `cond` on all members (`wdjax.branches.when_any`) sees the members of one device.

    Args:
        function: the function.
        num_devices: the number of devices.
        in_specs: as for `jax.shard_map`.
    """
    if num_devices == 1:
        return function
    mesh = make_mesh(num_devices, AXIS, processes=1)
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=MEMBERS, check_vma=False
    )  # fmt: skip


def traced_values(config: TrainConfig) -> tuple[EnvParams, dict[str, Hypers]]:
    """Return (env_params, hypers by policy) of a configuration."""
    hypers = {name: hypers_of(policy) for name, policy in config.policies.items()}
    return validate(config)[1], hypers


def static_values(config: TrainConfig) -> tuple:
    """Return everything that a program is compiled from, for comparison; no array is created.

    These are the static fields, the environment, the spaces, and the shapes of traced values.
    """
    env, _, assignments = validate(config)
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda: traced_values(config)))
    shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
    policies = {name: static_part(policy) for name, policy in config.policies.items()}
    blank = dataclasses.replace(config, seed=0, env_params={}, policies=policies)
    return blank, env, assignments, list(config.policies), structure, shapes


def map_points(function: Callable[[TrainConfig], T], configs: Sequence[TrainConfig]) -> list[T]:
    """Return `function(config)` of each configuration; consecutive ones may differ in the seed."""
    results: list[T] = []
    point = lambda config: plain_config(dataclasses.replace(config, seed=0))  # noqa: E731
    for _, same in itertools.groupby(configs, point):
        members = list(same)
        results += [function(members[0])] * len(members)
    return results


def group_by_program(configs: Sequence[TrainConfig]) -> list[tuple[tuple, list[int]]]:
    """Return (static values, places of the configurations that have them), in order."""
    groups: list[tuple[tuple, list[int]]] = []
    for place, static in enumerate(map_points(static_values, configs)):
        match = next((places for known, places in groups if known == static), None)
        if match is None:
            groups.append((static, match := []))
        match.append(place)
    return groups


@plain_where_kernels_fail
def compile_members(
    setup: Setup, states: TrainState, most: int, num_devices: int = 1
) -> tuple[Program, float]:
    """Compile chunks of up to `most` updates of all members. The program donates the states.

    Args:
        setup: static part of all members.
        states: leaves [members, ...], or their shapes.
        most: largest number of updates in a call.
        num_devices: number of devices that share the members.

    Returns:
        (program, seconds): program(states, updates) -> (states, metrics [members, most], packed).
    """
    update = jax.vmap(functools.partial(run_up_to, setup, most), in_axes=(0, None))
    together = on_devices(update, num_devices, in_specs=(MEMBERS, PartitionSpec()))
    return finish_chunk(*lower_updates(together, states, compiler_options(setup, alone=False)))


def start_member(
    setup: Setup,
    loaded: Mapping[str, PolicyState] | None,
    key: jax.Array,
    env_params: EnvParams,
    hypers: dict[str, Hypers],
) -> TrainState:
    """Return the first state of a member, equal to `Learner.init` of its own configuration."""
    own = dataclasses.replace(setup, env_params=env_params)
    return init(own, key, loaded).replace(hypers=hypers)


def start_arguments(
    configs: Sequence[TrainConfig],
) -> tuple[jax.Array, EnvParams, dict[str, Hypers]]:
    """Return the values that differ between members, [members, ...]: (keys, env_params, hypers)."""
    keys = jnp.stack([jax.random.key(config.seed) for config in configs])
    traced = map_points(lambda config: jax.device_get(traced_values(config)), configs)
    return keys, *jax.tree.map(lambda *leaves: jnp.stack(leaves), *traced)


@dataclasses.dataclass(frozen=True, eq=False)
class Programs:
    """The programs of all populations whose members differ only in traced values."""

    static: tuple
    """`static_values` of the members."""
    setup: Setup
    """Static part of the members' runs."""
    num_devices: int = 1
    """Number of devices that share the members."""
    compiled: dict[int, Program] = dataclasses.field(default_factory=dict)
    """Number of members -> program that trains them."""

    @property
    def sharding(self) -> Sharding:
        """Sharding of the states' leaves, [members, ...]."""
        if self.num_devices == 1:
            return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return NamedSharding(make_mesh(self.num_devices, AXIS, processes=1), MEMBERS)

    def start(self, configs: Sequence[TrainConfig]) -> TrainState:
        """Return the first states of members, leaves [members, ...]."""
        return self._start(*jax.device_put(start_arguments(configs), self.sharding))

    @functools.cached_property
    def _start(self) -> Callable[..., TrainState]:
        """The program of `start`, which each size of a batch compiles once."""
        start = jax.vmap(functools.partial(start_member, self.setup, load_policies(self.setup)))
        return jax.jit(on_devices(start, self.num_devices), out_shardings=self.sharding)

    def abstract(self, config: TrainConfig, size: int) -> TrainState:
        """Return shapes, dtypes and shardings of the states of `size` members."""
        start = jax.vmap(functools.partial(start_member, self.setup, None))
        one, place = jax.eval_shape(start, *start_arguments([config])), self.sharding
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype, sharding=place),
            one,
        )

    def get(self, config: TrainConfig, size: int) -> Program:
        """Return the program of `size` members, compiled on the first call."""
        if size not in self.compiled:
            states, most = self.abstract(config, size), most_updates(self.setup.config)
            self.compiled[size], _ = compile_members(self.setup, states, most, self.num_devices)
        return self.compiled[size]

    def fit(self, config: TrainConfig, num_members: int, most: int = 0) -> int:
        """Return the size of batches: `most` members, or as many as memory allows; compile it.

        Raises:
            ValueError: if a single member does not fit on a device.
        """
        size = even_size(num_members, most or num_members, self.num_devices)
        while size not in self.compiled:
            program = cast(jax.stages.Compiled, self.get(config, size))
            needed, free = bytes_needed(program), bytes_free(self.num_devices)
            if not most and needed > free:
                del self.compiled[size]
                allowed = f"at most {free / 1e9:.2f} GB, the free memory of a device"
                allowed = f"{allowed}. Not even one member fits"
                one = size <= self.num_devices
                require(not one, "memory of the program", f"{needed / 1e9:.2f} GB", allowed)
                fewer = min(int(size * free / needed), size - self.num_devices)
                size = even_size(num_members, fewer, self.num_devices)
        return size
