"""A population: TrainStates of several members with a leading axis, trained by one program, spread over devices.

Members share nothing: each lies whole on one device, and no device waits for another inside the program.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from wdjax.checks import require_integer
from wdjax.experiments.sweep.members import Member, hypers_of
from wdjax.train.host.chunks import with_lines
from wdjax.train.host.programs import Program, compiler_options, finish_chunk, lower_updates, plain_where_kernels_fail
from wdjax.train.learner.init import init
from wdjax.train.learner.learner import run_up_to
from wdjax.train.learner.setup import make_setup
from wdjax.train.learner.validate import validate
from wdjax.train.learner.warm_start import load_policies
from wdjax.train.state.policy import Setup
from wdjax.train.state.sharding import make_mesh, require_devices
from wdjax.train.state.state import TrainState

AXIS = "wdjax_members"


def choose_num_devices(devices: int) -> int:
    """Returns on how many devices members are spread: `devices`, or all there are (a CPU counts as one).

    Raises:
        ValueError, TypeError: for more than there are, or no whole number.
    """
    there = jax.local_device_count()  # of several processes each has a sweep of its own
    require_integer("devices", devices, 0)
    require_devices(devices, there)
    return devices or (1 if jax.default_backend() == "cpu" else there)


def most_devices(num_members: int) -> int:
    """Returns the most devices that share so many members equally (a CPU counts as one)."""
    return max(number for number in range(1, choose_num_devices(0) + 1) if num_members % number == 0)


def member_sharding(num_devices: int) -> Sharding:
    """Returns where a population's leaves lie, [members, ...]."""
    if num_devices == 1:
        return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return NamedSharding(make_mesh(num_devices, AXIS, processes=1), PartitionSpec(AXIS))


def on_devices(function: Callable, num_devices: int, told: int = 0) -> Callable:
    """Returns a function of arrays [members, ...] that every device calls with its own members, without a word between
    them: a `cond` on all members (`wdjax.vector.when_any`) asks those of one device. Its last `told` arguments are for
    all."""
    if num_devices == 1:
        return function
    split, mesh = PartitionSpec(AXIS), make_mesh(num_devices, AXIS, processes=1)

    def call(*arguments: Any) -> Any:
        specs = (split,) * (len(arguments) - told) + (PartitionSpec(),) * told
        return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(*arguments)

    return call


def population_setup(members: Sequence[Member], trust: Collection[str] = ()) -> Setup:
    """Returns the fixed part of the runs of members of one group; `trust` as for `make_learner`."""
    return make_setup(with_lines(dataclasses.replace(members[0].config, devices=1)), trust)


def start_arguments(members: Sequence[Member]) -> tuple[jax.Array, Any, Any]:
    """Returns what tells members apart, leaves [members, ...]: (keys, env_params, hypers)."""
    keys = jnp.stack([jax.random.key(member.config.seed) for member in members])
    configs = {member.point: member.config for member in members}  # seeds of a point share all else
    traced = {point: jax.device_get((validate(own)[1], hypers_of(own))) for point, own in configs.items()}
    return keys, *jax.tree.map(lambda *leaves: jnp.stack(leaves), *(traced[member.point] for member in members))


def init_member(setup: Setup, loaded: Any, key: jax.Array, env_params: Any, hypers: Any) -> TrainState:
    """Returns the state of one member at the start of its run, that of `Learner.init` of its own configuration."""
    return init(dataclasses.replace(setup, env_params=env_params), key, loaded).replace(hypers=hypers)


def init_population(setup: Setup, members: Sequence[Member], num_devices: int = 1) -> TrainState:
    """Returns the states of members at the start of their runs, leaves [members, ...]."""
    start = jax.vmap(functools.partial(init_member, setup, load_policies(setup)))
    place = member_sharding(num_devices)
    program = jax.jit(on_devices(start, num_devices), out_shardings=place)
    return program(*jax.device_put(start_arguments(members), place))


def abstract_population(setup: Setup, members: Sequence[Member], size: int, num_devices: int) -> TrainState:
    """Returns shapes, dtypes and places of `size` members' states, without an array."""
    one = start_arguments(members[:1])
    start = jax.vmap(functools.partial(init_member, setup, None))
    state, place = jax.eval_shape(start, *one), member_sharding(num_devices)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype, sharding=place), state)


@plain_where_kernels_fail
def compile_population(setup: Setup, states: TrainState, most: int, num_devices: int = 1) -> tuple[Program, float]:
    """Compiles chunks of up to `most` updates of all members into one program that donates its states.

    Args:
        states: leaves [members, ...], or their shapes.

    Returns:
        (program, seconds): program(states, updates) -> (states, metrics [members, most], packed).
    """
    together = jax.vmap(functools.partial(run_up_to, setup, most), in_axes=(0, None))
    together = on_devices(together, num_devices, told=1)
    return finish_chunk(*lower_updates(together, states, compiler_options(setup, alone=False)))


def even_size(num_members: int, most: int, num_devices: int = 1) -> int:
    """Returns how many members go at once, so that the turns are as few as `most` at once allows, and of one size (one
    program): a multiple of the devices; what is left over in the last turn repeats a member."""
    most = max(most // num_devices, 1) * num_devices
    turns = -(-num_members // most)
    return -(-num_members // (turns * num_devices)) * num_devices
