"""What linear layers are made of: their product, and the orthogonal initializer."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.kernels.backend import on_cpu

HEAD = 4
"""a layer with so many times fewer outputs than inputs is taken transposed"""

FEW_PRODUCTS = 2**24
"""up to so many multiplications the inputs are transposed: layers and their gradients are 0.9 to 3 times as fast"""


def product(
    inputs: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any
) -> jax.Array:
    """Returns inputs [..., in] times kernel [in, out], [..., out]: the `dot_general` of an nnx.Linear.

    The gradient in the kernel is a sum over rows, inputs^T d. XLA hands a product of that form to Eigen on a CPU, which

    * is up to six times slower where `out` is small, as of a head, than d^T inputs: so the kernel is taken transposed;
    * spreads small ones over threads, which costs more than it saves: if the inputs are transposed first, the product
      is of the form that goes to YNNPACK, which does not.

    XLA would undo either, did no barrier stand between. The second's is the one that `jax.checkpoint` puts before what
    a gradient uses; nothing is computed twice. Other platforms, and large layers, get `jax.lax.dot_general` as it is.
    """
    num_inputs, num_outputs = kernel.shape
    is_head = HEAD * num_outputs <= num_inputs
    if not on_cpu() or not (is_head or inputs.size * num_outputs <= FEW_PRODUCTS):
        return jax.lax.dot_general(inputs, kernel, dimension_numbers, **options)

    def contract(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
        return jax.lax.dot_general(
            left, right, (((left_axis,), (right_axis,)), ((), ())), **options
        )

    if is_head:
        return contract(inputs, jax.lax.optimization_barrier(kernel.T), inputs.ndim - 1, 1)
    columns = inputs.reshape(-1, num_inputs).T
    rows = jax.checkpoint(lambda columns, kernel: contract(columns, kernel, 0, 0))(columns, kernel)
    return rows.reshape(*inputs.shape[:-1], num_outputs)


def orthogonal(gain: float) -> nnx.Initializer:
    """Returns flax's initializer of matrices with orthonormal rows or columns, times `gain`.

    Under vmap it takes one matrix after another: on a CPU with few threads, several batches of QR decompositions in one
    program may wait for each other forever (jaxlib 0.10.2 on two cores). The numbers are those of single ones.
    """
    draw = nnx.initializers.orthogonal(gain)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        return jax.custom_batching.sequential_vmap(lambda key: draw(key, shape, dtype))(key)

    return init
