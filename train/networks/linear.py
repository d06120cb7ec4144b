"""Matrix product and orthogonal initializer of linear layers."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.kernels.backend import on_cpu
from wdjax.overrides import overridden

HEAD = 4
"""layers with at most 1 / HEAD as many outputs as inputs multiply by the transposed kernel"""

FEW_PRODUCTS = 2**24
"""multiplications up to which inputs are transposed, 0.9 to 3 times as fast with gradients"""

PART = 2048
"""fewest rows of a partial product of a gradient; with fewer, writing the parts takes longer"""


def product(
    inputs: jax.Array,
    kernel: jax.Array,
    dimension_numbers: jax.lax.DotDimensionNumbers,
    **options: Any,  # of `jax.lax.dot_general`; they depend on the version of flax
) -> jax.Array:
    """Multiply inputs [..., in] by kernel [in, out] -> [..., out]: the `dot_general` of nnx.Linear.

    The gradient with respect to the kernel is a sum over rows, inputs^T d. XLA computes such
    products with Eigen on a CPU, which is slow in two cases:

    * With few outputs, as in a head, it is up to six times slower than d^T inputs. The kernel is
      therefore transposed.
    * Eigen distributes small products over threads, which takes longer than the product. If the
      inputs are transposed, XLA uses YNNPACK, which does not.

    A barrier prevents XLA from undoing the transposition. In the second case it is the one that
    `jax.checkpoint` adds before the inputs of a gradient; no product is computed twice. Other
    platforms and large layers use `jax.lax.dot_general` directly.
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


def sequence_product(
    inputs: jax.Array,
    kernel: jax.Array,
    dimension_numbers: jax.lax.DotDimensionNumbers,
    **options: Any,
) -> jax.Array:
    """Multiply as `product`, or float32 sequences [T, M, in] on GPUs as `input_products`.

    XLA would pad the many rows of such a gradient. `input_products` has no forward-mode derivative.
    """
    is_plain = inputs.dtype == kernel.dtype == jnp.float32 and options.get("precision") is None
    if not on_cpu() and inputs.ndim == 3 and is_plain:
        return input_products(inputs, kernel)
    return product(inputs, kernel, dimension_numbers, **options)


@jax.custom_vjp
def input_products(xs: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return xs @ kernel for all steps, [T, M, in] -> [T, M, out]; gradients by `over_rows`."""
    return xs @ kernel


def _input_gradients(saved: tuple, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    xs, kernel = saved
    return gradient @ kernel.T, over_rows(xs, gradient)


input_products.defvjp(lambda xs, kernel: (xs @ kernel, (xs, kernel)), _input_gradients)


def over_rows(left: jax.Array, right: jax.Array, part: int = PART) -> jax.Array:
    """Return the sum over all rows of left^T right, [T, M, a] and [T, M, b] -> [a, b] float32.

    A product for each part of the rows, then their sum. To distribute a single product over the
    multiprocessors of a GPU, XLA would copy both arrays unless their length divides evenly. The
    barrier prevents XLA from merging the products.

    Args:
        left: [T, M, a].
        right: [T, M, b].
        part: fewest rows of a part.
    """
    length, num_rows = left.shape[:2]
    most = min(length, max(1, length * num_rows // part))
    parts = max(d for d in range(1, most + 1) if length % d == 0)
    left, right = (rows.reshape(parts, -1, rows.shape[-1]) for rows in (left, right))
    products = jnp.einsum("pra,prb->pab", left, right, preferred_element_type=jnp.float32)
    return jnp.sum(jax.lax.optimization_barrier(products), axis=0)


def is_stock(layer: Any) -> bool:
    """Return whether a layer is an unchanged nnx.Linear with a bias and float32 parameters."""
    if type(layer) is not nnx.Linear or overridden(layer, nnx.Linear, ("__call__",)):
        return False
    parts = layer.kernel, layer.bias
    return all(part is not None and part[...].dtype == jnp.float32 for part in parts)


def orthogonal(gain: float) -> nnx.Initializer:
    """Return flax's initializer of matrices with orthonormal rows or columns, times `gain`.

    Under vmap it draws the matrices one after the other: on a CPU with few threads, several batches
    of QR decompositions in one program can deadlock (jaxlib 0.10.2 on two cores). The numbers equal
    those without vmap.
    """
    draw = nnx.initializers.orthogonal(gain)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        return jax.custom_batching.sequential_vmap(lambda key: draw(key, shape, dtype))(key)

    return init
