"""The product of a linear layer, in a form whose gradient XLA computes fast on a CPU."""

from typing import Any

import jax

HEAD = 4
"""a layer with so many times fewer outputs than inputs is taken transposed"""

FEW_PRODUCTS = 2**24
"""up to so many multiplications the inputs are transposed: layers and their gradients are 0.9 to 3 times as fast"""


def product(inputs: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any) -> jax.Array:
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
    if jax.default_backend() != "cpu" or not (is_head or inputs.size * num_outputs <= FEW_PRODUCTS):
        return jax.lax.dot_general(inputs, kernel, dimension_numbers, **options)

    def contract(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
        return jax.lax.dot_general(left, right, (((left_axis,), (right_axis,)), ((), ())), **options)

    if is_head:
        return contract(inputs, jax.lax.optimization_barrier(kernel.T), inputs.ndim - 1, 1)
    columns = inputs.reshape(-1, num_inputs).T
    rows = jax.checkpoint(lambda columns, kernel: contract(columns, kernel, 0, 0))(columns, kernel)
    return rows.reshape(*inputs.shape[:-1], num_outputs)
