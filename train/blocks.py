"""Blocks of replicas: randomness is drawn a block at a time, so that it does not depend on how blocks are spread."""

import jax
import jax.numpy as jnp


def block_keys(key: jax.Array, num_blocks: int) -> jax.Array:
    """Returns [num_blocks] keys, that of each block from fold_in(key, block) alone."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_blocks))
