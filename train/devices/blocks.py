"""Blocks of replicas: randomness is drawn a block at a time, so that it does not depend on how blocks are spread."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from wdjax.train.devices.collectives import block_numbers


def block_keys(key: jax.Array, num_blocks: int) -> jax.Array:
    """Return one key for each block of replicas on this device, fold_in(key, block), [num_blocks].

    The same numbers are then drawn on any number of devices.

    Args:
        key: () key, equal on all devices.
        num_blocks: the number of blocks on this device, as `Algorithm.update` receives it.
    """
    return jax.vmap(jax.random.fold_in, (None, 0))(key, block_numbers(num_blocks))


def draw_blocks(draw: Callable, keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw an array of a given shape, each block of replicas with its own key.

    Args:
        draw: a function of (key, shape), for example `jax.random.normal`.
        keys: [num_blocks], from `block_keys`.
        shape: of the result; the leading axis counts the replicas on this device.
    """
    share = (shape[0] // keys.shape[0], *shape[1:])
    return jax.vmap(lambda key: draw(key, share))(keys).reshape(shape)


def step_keys(key: jax.Array, num_steps: int, num_draws: int, num_blocks: int) -> jax.Array:
    """Returns [num_steps, num_draws, num_blocks] keys, those of a block from fold_in(key, block) alone.

    They are drawn at once, before the scan: a split inside it costs kernels in every step.
    """
    keys_of_blocks = block_keys(key, num_blocks)
    keys = jax.vmap(lambda key: jax.random.split(key, (num_steps, num_draws)))(keys_of_blocks)
    # the axes of the data are moved: jax.debug_key_reuse takes a transposition of typed keys for their use
    data = jnp.moveaxis(jax.random.key_data(keys), 0, 2)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))
