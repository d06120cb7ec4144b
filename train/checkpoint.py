"""Checkpoints (orbax): the whole TrainState, and beside it what the host needs to go on."""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from wdjax.train.state import TrainState

logging.getLogger("absl").setLevel(logging.ERROR)  # orbax tells every step it takes


def open_checkpoints(folder: Path, keep: int) -> ocp.CheckpointManager:
    """Returns a manager of a folder that keeps the `keep` newest checkpoints; close it to wait for the last save."""
    # Several processes wait for each other by names, which two managers that save at once must not share.
    names = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=folder.name)
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, multiprocessing_options=names)
    return ocp.CheckpointManager(folder.absolute(), options=options, item_names=("state", "host"))


def save(manager: ocp.CheckpointManager, step: int, state: TrainState, host: dict[str, Any]) -> None:
    """Starts to save a state under the number of its updates, in the background; nothing where it is there already.

    Args:
        host: what JSON holds: the place in metrics.jsonl, the best score.
    """
    if step in manager.all_steps():
        return
    # The trainer donates the state to its next chunk, and on the CPU orbax reads the very buffers: hand it a copy.
    copy = jax.tree.map(jnp.copy, state)
    manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(copy), host=ocp.args.JsonSave(host)))


def restore(manager: ocp.CheckpointManager, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
    """Returns (state, host) of a checkpoint.

    Args:
        like: a state of the same run, or its shapes (`jax.eval_shape`); what has no sharding goes to the first device.

    Raises:
        ValueError: where the checkpoint belongs to a run of another shape.
    """
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def with_place(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or first)

    target = jax.tree.map(with_place, like)
    try:
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(target), host=ocp.args.JsonRestore())
        restored = manager.restore(step, args=arguments)
    except (ValueError, KeyError, FileNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"checkpoint {manager.directory}/{step} does not fit this configuration: {reason}") from error
    return restored["state"], restored["host"]
