"""The orthogonal initializer, also for a population of networks on the CPU."""

import jax
import jax.numpy as jnp
from flax import nnx


def orthogonal(gain: float) -> nnx.Initializer:
    """Returns flax's initializer of matrices with orthonormal rows or columns, times `gain`.

    Under vmap it takes one matrix after another: on a CPU with few threads, several batches of QR decompositions in one
    program may wait for each other forever (jaxlib 0.10.2 on two cores). The numbers are those of single ones.
    """
    draw = nnx.initializers.orthogonal(gain)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        return jax.custom_batching.sequential_vmap(lambda key: draw(key, shape, dtype))(key)

    return init
