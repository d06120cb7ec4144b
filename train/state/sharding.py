"""Several devices: replicas are sharded over a mesh with one axis, learned state is replicated.

Rollout and update run inside one `shard_map`, on each device with its share of the replicas, their
memories and their blocks. Communication between devices is in train/devices/collectives.py.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from wdjax.checks import require
from wdjax.kernels.backend import on_cpu
from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.collectives import AXIS
from wdjax.train.devices.packing import Packed, unpack
from wdjax.train.devices.processes import of_processes
from wdjax.train.state.aliases import PyTree
from wdjax.train.state.policy import Setup
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import Opponents, TrainState
from wdjax.vector import VectorState


def device_of_new_arrays() -> jax.Device:
    """Return the device of new arrays (`jax.default_device`), without creating one."""
    # not in the stubs of jax
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    return (
        jax.local_devices(backend=chosen)[0]
        if chosen is None or isinstance(chosen, str)
        else chosen
    )


def choose_devices(config: TrainConfig) -> int:
    """Return the number of devices of a run.

    This is `devices` of the configuration, or the largest available number that divides the number
    of blocks. All processes have equally many. With `devices: 1` each process uses its own device.

    Raises:
        ValueError: if there are fewer devices, or the processes cannot have equally many.
    """
    there, processes = jax.device_count(), jax.process_count()
    if config.devices:
        require_devices(config.devices, there, processes)
        if config.devices != 1:
            require_all_processes(config.devices)
        return config.devices
    # the devices of a CPU share its cores
    most = processes if on_cpu() else there
    numbers = [
        number for number in range(processes, most + 1, processes) if config.blocks % number == 0
    ]
    require(
        numbers, "num_blocks", config.blocks, f"a multiple of {processes}, the number of processes"
    )
    return max(numbers)


def require_devices(devices: int, there: int, processes: int = 1) -> None:
    """Raise ValueError if there are fewer devices.

    Args:
        devices: required number.
        there: number of available devices.
        processes: number of processes that share them.
    """
    virtual = (
        f", or set XLA_FLAGS=--xla_force_host_platform_device_count={-(-devices // processes)}"
    )
    require(
        devices <= there,
        "devices",
        devices,
        f"at most {there}: jax finds {there} device{'s' * (there != 1)} "
        f"({jax.devices()[0].device_kind}). Lower devices{virtual if on_cpu() else ''}",
    )


def require_all_processes(num_devices: int) -> None:
    """Raise ValueError unless the processes can share `num_devices` equally."""
    processes = jax.process_count()
    require(
        num_devices % processes == 0,
        "devices",
        num_devices,
        f"a multiple of {processes}, the number of processes",
    )


def make_mesh(num_devices: int, axis: str = AXIS, processes: int | None = None) -> Mesh:
    """Return the mesh of `num_devices` devices, the first ones of every process.

    Args:
        num_devices: number of devices.
        axis: name of the axis.
        processes: 1: only devices of this process; None: all processes.
    """
    ranks = [jax.process_index()] if processes == 1 else range(jax.process_count())
    chosen = [device for i in ranks for device in jax.local_devices(i)[: num_devices // len(ranks)]]
    return jax.make_mesh((num_devices,), (axis,), axis_types=(AxisType.Auto,), devices=chosen)


def lay_out(split: PyTree, whole: PyTree) -> TrainState:
    """Return a prefix of the tree of a TrainState.

    Args:
        split: placed at leaves with a leading axis of replicas or blocks.
        whole: placed at leaves that are equal on all devices.
    """
    return TrainState(
        policies=whole,
        memory=split,
        opponents=Opponents(pools=whole, blocks=split),
        hypers=whole,
        env_params=whole,
        replicas=VectorState(split, split, split, split, starts=whole),
        obs=split,
        live=split,
        key=whole,
        num_updates=whole,
        shared=whole,
    )


def state_shardings(num_devices: int) -> TrainState | None:
    """Return the shardings of a TrainState, as a prefix of its tree; None for one device."""
    if num_devices == 1:
        return None
    mesh = make_mesh(num_devices)
    return lay_out(NamedSharding(mesh, PartitionSpec(AXIS)), NamedSharding(mesh, PartitionSpec()))


_REPLICAS: PyTree = PartitionSpec(AXIS)  # [N, ...]
_STEPS: PyTree = PartitionSpec(None, AXIS)  # [T, N, ...]
ROLLOUT = Rollout(
    rows=_STEPS,
    first_carry=_REPLICAS,
    last_carry=_REPLICAS,
    last_obs=_REPLICAS,
    over=_STEPS,
    episode_return=_STEPS,
    episode_length=_STEPS,
    episode_info=_STEPS,
    global_state=_STEPS,
    final_global_state=_STEPS,
    last_global_state=_REPLICAS,
)
"""shardings of a rollout on several devices"""


def one_copy(tree: chex.ArrayTree) -> chex.ArrayTree:
    """Return replicated arrays as single-device arrays on the first device of this process.

    Traced arrays are returned unchanged.
    """

    def copy(leaf: jax.Array) -> jax.Array:
        is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
        return leaf.addressable_data(0) if is_array and len(leaf.sharding.device_set) > 1 else leaf

    return jax.tree.map(copy, tree)


def spread(
    setup: Setup,
    function: Callable[..., tuple[TrainState, PyTree]],
    state: TrainState,
    *told: jax.Array,
    results: PyTree = PartitionSpec(),  # noqa: B008  (immutable)
) -> tuple[TrainState, PyTree]:
    """Call function(setup, state, *told) on every device, with its share of replicas and state.

    Args:
        setup: static part of the run.
        function: returns (state, results).
        state: state of the run.
        *told: replicated arrays.
        results: partition specs of the results; by default they are equal on all devices.

    Raises:
        TypeError: if `state` is not a TrainState, for example the pair that `run` returns.
    """
    if not isinstance(state, TrainState):
        raise TypeError(
            "state: must be a TrainState, from learner.init(key), or the first item of the pair "
            "(state, metrics) from learner.run"
        )
    if setup.num_devices == 1:
        return function(setup, state, *told)
    replicas = dataclasses.replace(
        setup.replicas, num_envs=setup.replicas.num_envs // setup.num_devices
    )
    share = dataclasses.replace(setup, replicas=replicas)
    specs = lay_out(PartitionSpec(AXIS), PartitionSpec())
    return jax.shard_map(
        functools.partial(function, share),
        mesh=make_mesh(setup.num_devices),
        in_specs=(specs, *(PartitionSpec() for _ in told)),
        out_specs=(specs, results),
        check_vma=False,  # would sum gradients implicitly; see train/devices/collectives.py
    )(state, *told)


def differing_leaves(state: TrainState, metrics: Packed) -> list[str]:
    """Return the names of leaves that differ between devices although they must be equal.

    Args:
        state: state of a run. The members of a population, on different devices, are not compared.
        metrics: packed metrics of a chunk.
    """
    sharding = state.num_updates.sharding
    if len(sharding.device_set) == 1 or not sharding.is_fully_replicated:
        return []
    fields = ("policies", "shared", "hypers", "env_params", "key")
    whole = {name: getattr(state, name) for name in fields} | {"opponents": state.opponents.pools}
    shards = _checksums(cast(NamedSharding, sharding).mesh, whole, metrics).addressable_shards
    sums = of_processes(np.concatenate([np.asarray(shard.data) for shard in shards]))
    paths = jax.tree.leaves_with_path((whole, jax.eval_shape(unpack, metrics)))
    return [
        jax.tree_util.keystr(path[1:], simple=True, separator=".").removesuffix(".value")
        for (path, _), differs in zip(paths, (sums != sums[0]).any(axis=0), strict=True)
        if differs
    ]


@functools.partial(jax.jit, static_argnums=0)
def _checksums(mesh: Mesh, whole: chex.ArrayTree, metrics: Packed) -> jax.Array:
    """Return a checksum of each leaf on each device, [devices, leaves] uint32."""

    def checksum(leaf: jax.Array) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if leaf.dtype != jnp.bool_:
            leaf = jax.lax.bitcast_convert_type(leaf, jnp.uint8)
        words = leaf.astype(jnp.uint32).ravel()
        return jnp.sum(words * (2 * jnp.arange(words.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32)

    def of_device(whole: chex.ArrayTree, metrics: Packed) -> jax.Array:
        leaves = jax.tree.leaves((whole, unpack(metrics)))
        return jnp.stack([checksum(leaf) for leaf in leaves])[None]

    return jax.shard_map(
        of_device,
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(mesh.axis_names[0]),
        check_vma=False,
    )(whole, metrics)
