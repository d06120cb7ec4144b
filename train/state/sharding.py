"""Several devices: the replicas of a run split over a one-axis mesh, and what is learned the same on each.

Rollout and update run inside one `shard_map`, on each device with its share of the replicas, of their memories and of
their blocks. What the devices tell each other in there is in train/devices/collectives.py.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from wdjax.checks import require
from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.collectives import AXIS
from wdjax.train.devices.packing import Packed, unpack
from wdjax.train.devices.processes import of_processes
from wdjax.train.state.policy import Setup
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import Opponents, TrainState
from wdjax.vector import VectorState


def device_of_new_arrays() -> jax.Device:
    """Returns where jax puts an array that nobody places, as `jax.default_device` says; without making one."""
    chosen = jax.config.jax_default_device
    return (
        jax.local_devices(backend=chosen)[0]
        if chosen is None or isinstance(chosen, str)
        else chosen
    )


def choose_devices(config: TrainConfig) -> int:
    """Returns on how many devices a run goes: `devices`, or the most that there are and that divide its blocks.

    Of several processes each has equally many. One device, where it is asked for, is each process's own.

    Raises:
        ValueError: for more than there are, and where not every process can have its share.
    """
    there, processes = jax.device_count(), jax.process_count()
    if config.devices:
        require_devices(config.devices, there, processes)
        shared = config.devices == 1 or config.devices % processes == 0
        require(
            shared, "devices", config.devices, f"a multiple of {processes}, the number of processes"
        )
        return config.devices
    most = (
        processes if jax.default_backend() == "cpu" else there
    )  # the devices of a CPU share its cores
    numbers = [
        number for number in range(processes, most + 1, processes) if config.blocks % number == 0
    ]
    require(
        numbers, "num_blocks", config.blocks, f"a multiple of {processes}, the number of processes"
    )
    return max(numbers)


def require_devices(devices: int, there: int, processes: int = 1) -> None:
    """Raise ValueError, with the remedy, for more devices than the `there` ones that `processes` have together."""
    found = f"jax finds {there} device{'s' * (there != 1)} ({jax.devices()[0].device_kind})"
    virtual = (
        f", or set XLA_FLAGS=--xla_force_host_platform_device_count={-(-devices // processes)}"
    )
    remedy = f"Lower devices{virtual if jax.default_backend() == 'cpu' else ''}"
    require(devices <= there, "devices", devices, f"at most {there}: {found}. {remedy}")


def require_all_processes(num_devices: int) -> None:
    """Raises ValueError where a run of several processes would leave some without a share."""
    processes = jax.process_count()
    require(
        num_devices % processes == 0,
        "devices",
        num_devices,
        f"a multiple of {processes}, the number of processes",
    )


def make_mesh(num_devices: int, axis: str = AXIS, processes: int | None = None) -> Mesh:
    """Returns the mesh of `num_devices` devices, the first ones of every process.

    Args:
        axis: its name.
        processes: how many share it; None: all; 1: it is this process's own.
    """
    ranks = [jax.process_index()] if processes == 1 else range(jax.process_count())
    chosen = [device for i in ranks for device in jax.local_devices(i)[: num_devices // len(ranks)]]
    return jax.make_mesh((num_devices,), (axis,), axis_types=(AxisType.Auto,), devices=chosen)


def lay_out(split: Any, whole: Any) -> Any:
    """Returns a TrainState of `split` where leaves are led by replicas or blocks, and of `whole` where all devices have
    the same: a prefix of the state's own tree."""
    return TrainState(
        policies=whole, memory=split, opponents=Opponents(pools=whole, blocks=split), hypers=whole, env_params=whole,
        replicas=VectorState(split, split, split, split, starts=whole),
        obs=split, live=split, key=whole, num_updates=whole, shared=whole,
    )  # fmt: skip


def state_shardings(num_devices: int) -> Any:
    """Returns where the leaves of a TrainState lie (a prefix of its tree); None for one device, jax's own choice."""
    if num_devices == 1:
        return None
    mesh = make_mesh(num_devices)
    return lay_out(NamedSharding(mesh, PartitionSpec(AXIS)), NamedSharding(mesh, PartitionSpec()))


_SAME = PartitionSpec()  # on all devices
_REPLICAS, _STEPS = PartitionSpec(AXIS), PartitionSpec(None, AXIS)  # [N, ...], [T, N, ...]
ROLLOUT = Rollout(
    rows=_STEPS, first_carry=_REPLICAS, last_carry=_REPLICAS, last_obs=_REPLICAS, over=_STEPS,
    episode_return=_STEPS, episode_length=_STEPS, episode_info=_STEPS,
    global_state=_STEPS, final_global_state=_STEPS, last_global_state=_REPLICAS,
)  # fmt: skip
"""layout of a rollout on several devices"""


def one_copy(tree: Any) -> Any:
    """Returns arrays that are whole on every device as they lie on the first one of this process."""
    several = lambda leaf: isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1  # noqa: E731
    return jax.tree.map(lambda leaf: leaf.addressable_data(0) if several(leaf) else leaf, tree)


def spread(
    setup: Setup,
    function: Callable,
    state: TrainState,
    *told: jax.Array,
    results: Any = _SAME,
) -> tuple[TrainState, Any]:
    """Calls function(setup, state, *told) on every device of a run, with its share of the replicas and of the state.

    Args:
        function: returns (state, results).
        told: arrays that all devices are given whole.
        results: layout of the results; by default they are the same on every device.

    Raises:
        TypeError: for what is no TrainState, as the pair that `run` returned.
    """
    if not isinstance(state, TrainState):
        words = "from learner.init(key), or the first item of the pair (state, metrics) from learner.run"
        raise TypeError(f"state: must be a TrainState, {words}")
    if setup.num_devices == 1:
        return function(setup, state, *told)
    replicas = dataclasses.replace(
        setup.replicas, num_envs=setup.replicas.num_envs // setup.num_devices
    )
    share = dataclasses.replace(setup, replicas=replicas)
    specs = lay_out(PartitionSpec(AXIS), PartitionSpec())
    program = jax.shard_map(
        functools.partial(function, share),
        mesh=make_mesh(setup.num_devices),
        in_specs=(specs, *(PartitionSpec() for _ in told)),
        out_specs=(specs, results),
        check_vma=False,  # it would sum gradients by itself; see train/devices/collectives.py
    )
    return program(state, *told)


def differing_leaves(state: TrainState, metrics: Packed) -> list[str]:
    """Return the names of leaves that must be equal on all devices of a run and are not; on one device none.

    Args:
        state: a run's state. A population, whose members lie on different devices, is not compared.
        metrics: of a chunk, packed.
    """
    sharding = state.num_updates.sharding
    if len(sharding.device_set) == 1 or not sharding.is_fully_replicated:
        return []
    whole = {
        name: getattr(state, name) for name in ("policies", "shared", "hypers", "env_params", "key")
    }
    whole["opponents"] = state.opponents.pools
    shards = _checksums(sharding.mesh, whole, metrics).addressable_shards
    names, sums = [], of_processes(np.concatenate([np.asarray(shard.data) for shard in shards]))
    paths = jax.tree.leaves_with_path((whole, jax.eval_shape(unpack, metrics)))
    for (path, _), differs in zip(paths, (sums != sums[0]).any(axis=0), strict=True):
        if differs:
            names.append(
                jax.tree_util.keystr(path[1:], simple=True, separator=".").removesuffix(".value")
            )
    return names


@functools.partial(jax.jit, static_argnums=0)
def _checksums(mesh: Mesh, whole: Any, metrics: Packed) -> jax.Array:
    """Return a checksum of each leaf on each device, [devices, leaves] uint32."""

    def checksum(leaf: jax.Array) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        is_flag = leaf.dtype == jnp.bool_
        words = (
            (leaf if is_flag else jax.lax.bitcast_convert_type(leaf, jnp.uint8))
            .astype(jnp.uint32)
            .ravel()
        )
        return jnp.sum(words * (2 * jnp.arange(words.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32)

    def of_device(whole: Any, metrics: Packed) -> jax.Array:
        return jnp.stack([checksum(leaf) for leaf in jax.tree.leaves((whole, unpack(metrics)))])[
            None
        ]

    share = PartitionSpec(mesh.axis_names[0])
    program = jax.shard_map(
        of_device, mesh=mesh, in_specs=PartitionSpec(), out_specs=share, check_vma=False
    )
    return program(whole, metrics)
