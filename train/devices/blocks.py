"""Blocks of replicas: randomness is drawn a block at a time, so that it does not depend on how blocks are spread."""

from collections.abc import Callable

import jax

from wdjax.train.devices.collectives import block_numbers


def block_keys(key: jax.Array, num_blocks: int) -> jax.Array:
    """Returns [num_blocks] keys of the blocks that this device holds, that of each from fold_in(key, block) alone."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, block_numbers(num_blocks))


def draw_blocks(draw: Callable, keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Calls draw(key, shape) for each block of replicas: `shape` with its leading axis divided by the blocks."""
    share = (shape[0] // keys.shape[0], *shape[1:])
    return jax.vmap(lambda key: draw(key, share))(keys).reshape(shape)
