"""Random numbers by block of replicas, independent of the number of devices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from wdjax.train.devices.collectives import block_numbers


def block_keys(key: jax.Array, num_blocks: int) -> jax.Array:
    """Return a random key for each block of replicas on this device: fold_in(key, block).

    Thus the same numbers are drawn on any number of devices.

    Args:
        key: () key, equal on all devices.
        num_blocks: number of blocks on this device, as `Algorithm.update` receives it.

    Returns:
        Keys, [num_blocks].
    """
    return jax.vmap(jax.random.fold_in, (None, 0))(key, block_numbers(num_blocks))


def draw_blocks(draw: Callable, keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw an array of a given shape, with a separate key for each block of replicas.

    Args:
        draw: a function of (key, shape), for example `jax.random.normal`.
        keys: [num_blocks], from `block_keys`.
        shape: shape of the result; the leading axis counts the replicas on this device.
    """
    share = (shape[0] // keys.shape[0], *shape[1:])
    return jax.vmap(lambda key: draw(key, share))(keys).reshape(shape)


def step_keys(key: jax.Array, num_steps: int, num_draws: int, num_blocks: int) -> jax.Array:
    """Return the keys of all steps of a rollout, from one key for each block.

    They are drawn before the scan, since a split inside it launches kernels in every step.

    Args:
        key: () key, equal on all devices.
        num_steps: number of steps.
        num_draws: number of keys in each step.
        num_blocks: number of blocks on this device.

    Returns:
        Keys, [num_steps, num_draws, num_blocks].
    """
    keys_of_blocks = block_keys(key, num_blocks)
    keys = jax.vmap(lambda key: jax.random.split(key, (num_steps, num_draws)))(keys_of_blocks)
    # Move the axes of the key data: jax.debug_key_reuse counts a transposition of keys as use.
    data = jnp.moveaxis(jax.random.key_data(keys), 0, 2)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))
