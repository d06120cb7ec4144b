"""Export of trained policies as StableHLO functions and NumPy arrays (docs/how_to/policies.md)."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.files import new_file
from wdjax.spaces import sample_shapes, with_axes
from wdjax.train.evaluation.trained import TrainedPolicy
from wdjax.train.state.aliases import Carry, Observation
from wdjax.train.storage.leaves import by_place

PLATFORMS = ("cpu", "cuda", "tpu")


def export_policy(policy: TrainedPolicy, folder: str | Path) -> tuple[Path, Path]:
    """Write NAME.stablehlo and NAME.npz of a policy and return their paths.

    NAME.stablehlo is a function (obs, memory, key, greedy) -> (action, memory) that contains the
    parameters. Call it with

        jax.export.deserialize(bytearray(file.read_bytes())).call(obs, memory, key, greedy)

    where obs and memory are the arguments of `TrainedPolicy.act` with one leading axis of any size,
    key is [size, 2] uint32, the random key of each row, and greedy () bool selects the most likely
    actions. NAME.npz contains parameters and running statistics by their paths, such as
    "params/policy_head/kernel".

    Args:
        policy: the policy, as returned by `load_policy`.
        folder: folder of the two files; created if missing.

    Raises:
        ImportError: if flatbuffers is not installed.
    """
    try:
        import flatbuffers  # noqa: F401
        import jax.export
    except ImportError as error:
        raise ImportError('wdjax export needs flatbuffers: pip install "wdjax[export]"') from error
    folder, name = Path(folder), policy.actor.policy.name
    folder.mkdir(parents=True, exist_ok=True)
    rows = jax.export.symbolic_shape("batch")
    obs = sample_shapes(policy.observation_space, rows)
    memory = with_axes(jax.eval_shape(policy.init_memory), rows)
    key, greedy = jax.ShapeDtypeStruct((*rows, 2), jnp.uint32), jax.ShapeDtypeStruct((), bool)
    act = jax.jit(jax.vmap(functools.partial(_act_on, policy), (0, 0, 0, None)))
    exported = jax.export.export(act, platforms=PLATFORMS)(obs, memory, key, greedy)
    function, arrays = folder / f"{name}.stablehlo", folder / f"{name}.npz"
    with new_file(function) as file:
        file.write(exported.serialize())
    with new_file(arrays) as file:
        np.savez(file, **jax.device_get(by_place(policy.learned)))
    return function, arrays


def _act_on(
    policy: TrainedPolicy, obs: Observation, memory: Carry, key: jax.Array, greedy: jax.Array
) -> tuple[jax.Array, Carry]:
    typed_key = jax.random.wrap_key_data(key, impl="threefry2x32")
    drawn, memory_after = policy.act(obs, memory, typed_key)
    best, _ = policy.act(obs, memory)
    return jnp.where(greedy, best, drawn), memory_after
